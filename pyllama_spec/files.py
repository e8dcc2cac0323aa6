"""Files that are whole or not there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Gives the name of a file to fill, which takes the place of `path` if nothing is raised.

    Until then, and after an error, what was at `path` is there as it was: a process that is ended,
    or a full disk, leaves no part of a file under its name.

    Raises:
        OSError: the file cannot be written to the disk, or not be moved.

    """
    part = path.with_name(f"{path.name}.part")
    try:
        yield part
        # Without it a power failure can leave the new name with an empty file.
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
