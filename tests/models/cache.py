"""Built models kept on disk, so that a test run builds each of them once."""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from .build import build
from .dflash import build_dflash
from .dflash_perm import build_perm_dflash
from .eagle3 import build_eagle3
from .eagle3_perm import build_perm_eagle3
from .encoder import build_reranker
from .mtp_perm import build_perm_mtp
from .projector import build_projector
from .script import build_script
from .toys import build_constant, build_markov, build_perm

CACHE_VARIABLE = "PYLLAMA_SPEC_TEST_CACHE"
# A change of the builders rebuilds all models: those of earlier builders only use disk space.
_KEPT_UNUSED_S = 12 * 3600

_BUILDERS: dict[str, Callable[..., Path]] = {
    "perm": build_perm,
    "hybrid_perm": partial(build_perm_mtp, n_heads=0),
    "constant": build_constant,
    "markov": build_markov,
    "script": build_script,
    "eagle3": build_eagle3,
    "perm_eagle3": build_perm_eagle3,
    "dflash": build_dflash,
    "reranker": build_reranker,
    "perm_dflash": build_perm_dflash,
    "perm_mtp": build_perm_mtp,
    "projector": build_projector,
}


@cache
def _source_digest() -> bytes:
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.digest()


def cache_directory() -> Path:
    """The directory from `PYLLAMA_SPEC_TEST_CACHE`, or one per user among temporary files."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        directory = Path(chosen)
    else:
        directory = Path(tempfile.gettempdir()) / f"pyllama-spec-models-{getpass.getuser()}"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory


def built_models() -> Path:
    """The directory of the models that this checkout's builders have made.

    Each version of the builders has its own, which can be deleted as a whole.
    """
    directory = cache_directory() / "built" / _source_digest().hex()[:16]
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def delete_unused_models(unused_s: float = _KEPT_UNUSED_S) -> list[Path]:
    """Deletes unused models of other versions of the builders, and returns their directories.

    Args:
        unused_s: seconds since the last test run that used a directory. So a concurrent run of
            another checkout keeps its models.

    """
    own = built_models()
    os.utime(own)
    oldest, unused = time.time() - unused_s, []
    for directory in own.parent.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another run may delete it at the same time
            if directory != own and directory.stat().st_mtime < oldest:
                unused.append(directory)
                shutil.rmtree(directory, ignore_errors=True)
    return unused


def _describe(value: object) -> str:
    # repr() of an array is shortened and rounded
    return value.tobytes().hex() if isinstance(value, np.ndarray) else repr(value)


def model_path(kind: str, **options: Any) -> Path:
    """Path of a model, built now if the cache lacks it.

    `kind` is an architecture or a name in the table above, and `options` the keyword arguments
    of `build` or of that name's builder. The file's name depends on them and on the builders'
    source. Files are shared between tests: never write to one, or through a link.
    """
    digest = hashlib.sha256(_source_digest())
    digest.update(kind.encode())
    for name in sorted(options):
        digest.update(f"\0{name}={_describe(options[name])}".encode())
    path = built_models() / f"{kind}-{digest.hexdigest()[:20]}.gguf"
    if path.exists():
        return path
    builder = _BUILDERS.get(kind)
    return build(kind, path, **options) if builder is None else builder(path, **options)
