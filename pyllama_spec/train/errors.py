"""The errors of training, and checks of its optional packages."""

from __future__ import annotations

import errno
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyllama_spec.errors import PyllamaSpecError

_EXTRA = "pip install 'pyllama_spec[train]'"
# Otherwise pip chooses the package for CUDA, on a machine without a GPU too.
_SMALL_TORCH = (
    "on a machine without a GPU PyTorch's CPU build first, some 200 MB where pip's choice has "
    "gigabytes, by the line that PyTorch's own page shows for it"
)


class TrainError(PyllamaSpecError):
    """The training of a draft failed.

    Finished work is kept, and a second run resumes there; a run from use leaves the draft
    unchanged, and nothing else.
    """


class DivergedError(TrainError):
    """The loss is not finite. The last good checkpoint stays."""


class CheckpointError(TrainError):
    """The files in the work folder belong to another target or to other settings."""


def need(*packages: str) -> None:
    """Raises if a package cannot be imported."""
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        raise TrainError(
            f"training needs {', '.join(missing)}; install: "
            + (f"{_SMALL_TORCH}; then " if "torch" in missing else "")
            + _EXTRA
        )


@contextmanager
def writing(path: Path, *, keeps: bool = True) -> Iterator[None]:
    """Turns an OSError of a write into a TrainError with the remedy."""
    try:
        yield
    except OSError as error:
        # NumPy has no number for a write that stopped half-way.
        if error.errno in (errno.ENOSPC, errno.EDQUOT, None):
            kept = "What was made so far is kept" if keeps else "The draft is as it was"
            raise TrainError(
                f"the disk is full: {path} cannot be written. {kept}; free some space, or give "
                "another --work folder, and run the same command again"
            ) from None
        raise TrainError(f"cannot write {path}: {error}") from None
