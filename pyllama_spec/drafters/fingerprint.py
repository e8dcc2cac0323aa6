"""What tells one draft from another, for states that are saved and put back."""

from __future__ import annotations

import contextlib

from pyllama_spec.engine.model import Model

# Places of a draft's file that tell it from another one of the same sizes.
_N_SAMPLES, _SAMPLE_BYTES = 16, 4096


def fingerprint(model: Model, *settings: object) -> str:
    """A digest of a draft's sizes, of a few places of its file, and of settings.

    Args:
        model: the draft.
        settings: what else a saved state depends on.

    """
    import hashlib  # loads a library of its own

    about = repr((sorted(model.metadata.items()), model.info, *settings))
    digest = hashlib.sha256(about.encode())
    with contextlib.suppress(OSError), model.path.open("rb") as file:
        size = model.path.stat().st_size
        for i in range(_N_SAMPLES):
            file.seek(size * i // _N_SAMPLES)
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()
