"""One run at a time in a work folder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyllama_spec.train.errors import TrainError, writing

try:
    import fcntl
except ImportError:  # Windows: two runs in one folder are the user's own risk there
    fcntl = None  # type: ignore[assignment, unused-ignore]


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds a folder until the block ends; the system lets go of it when the process dies.

    Raises:
        TrainError: another process works in it, or it cannot be made.

    """
    path = folder / ".lock"
    with writing(path):
        folder.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    with file:
        if fcntl is not None:
            _lock(fcntl, file, folder)
        yield


def _lock(module: Any, file: Any, folder: Path) -> None:
    try:
        module.flock(file, module.LOCK_EX | module.LOCK_NB)
    except OSError:
        raise TrainError(
            f"another process is training in {folder}; wait for it, or give another --work folder"
        ) from None
