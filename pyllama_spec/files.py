"""Writes files atomically, and reads texts of bounded size."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from pyllama_spec.errors import ArgumentError

# A text that a model reads has some megabytes; /dev/zero has no end.
MAX_TEXT_BYTES = 256 << 20
_NO_FILE = "is a device, a pipe or a folder, not a file"


def read_text(path: Path, what: str, *, encoding: str = "utf-8") -> str:
    """Reads a text file of the user's."""
    try:
        if stat.S_ISCHR(path.stat().st_mode):
            raise _unreadable(what, path, "it is a device, not a file")
        with path.open("rb") as file:
            data = file.read(MAX_TEXT_BYTES + 1)
        if len(data) > MAX_TEXT_BYTES:
            raise _unreadable(what, path, f"it has more than {MAX_TEXT_BYTES >> 20} MiB")
        return data.decode(encoding).replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise _unreadable(what, path, f"it is not UTF-8 text: {error}") from None
    except (OSError, ValueError) as error:
        if isinstance(error, ArgumentError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise _unreadable(what, path, f"{reason}") from None


def _unreadable(what: str, path: Path, why: str) -> ArgumentError:
    return ArgumentError(problem=f"cannot read {what} {path}: {why}")


def open_plain(path: Path) -> BinaryIO:
    """Opens a regular file; refuses pipes and devices, which may never end."""
    # Where nobody writes to a pipe, opening it waits too; Windows has none of these.
    number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, f"it {_NO_FILE}")
    return os.fdopen(number, "rb")


def read_plain(path: Path) -> str:
    """Reads the text of a regular file, such as JSON beside a model."""
    with open_plain(path) as file:
        data = file.read(MAX_TEXT_BYTES + 1)
    if len(data) > MAX_TEXT_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {MAX_TEXT_BYTES >> 20} MiB")
    return data.decode("utf-8")


def lock(file: BinaryIO) -> None:
    """Locks a file until it is closed or the process dies; OSError if another process has it."""
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def remove_unlocked(folder: Path, pattern: str) -> None:
    """Removes files that a killed process left: those that no process has locked."""
    for path in folder.glob(pattern):
        with contextlib.suppress(OSError):
            with path.open("r+b") as file:
                lock(file)
            path.unlink()


def why_no_output(path: Path) -> str | None:
    """The reason why whole_file() cannot write there; checked before hours of work."""
    if path.is_dir():
        return f"{path} is a folder; give the name of a file in it"
    if not path.parent.is_dir():
        return f"the folder {path.parent} does not exist; make it first"
    if path.exists() and not path.is_file():
        return f"{path} {_NO_FILE}; give the name of a file"
    return None


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yields a temporary file name, which replaces `path` unless the block raises.

    Until then, and after an error, what was at `path` is there as it was: a process that is ended,
    or a full disk, leaves no part of a file under its name. Where `path` is a link, what it names
    is replaced, and the link stays.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, f"it {_NO_FILE}")
    part = path.with_name(f"{path.name}.part")
    try:
        yield part
        # Without it a power failure can leave the new name with an empty file.
        # Windows writes to the disk what may be written.
        with part.open("r+b") as file:
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
