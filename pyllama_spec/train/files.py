"""Atomic files of a work folder, as JSON and arrays, and the folder's lock."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from pyllama_spec.files import lock, open_plain, read_plain, whole_file
from pyllama_spec.train.errors import TrainError, writing

_BLOCK_BYTES = 1 << 20


def write_atomic(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Calls `write` on a new file, then renames it to the path."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as part, part.open("wb") as file:
            write(file)


def write_json(path: Path, value: object) -> None:
    """Writes a value as JSON, atomically."""
    data = (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()
    write_atomic(path, lambda file: file.write(data))


def read_json(path: Path) -> Any:
    """Reads a file of write_json(); None if there is none."""
    try:
        return json.loads(read_plain(path))
    except FileNotFoundError:
        return None
    except (ValueError, OSError, RecursionError) as error:
        raise TrainError(
            f"{path} cannot be read ({error}); remove the folder to start over"
        ) from None


def write_array(path: Path, array: npt.NDArray[Any]) -> None:
    """Writes an array as .npy, atomically."""
    write_atomic(path, lambda file: np.save(file, array, allow_pickle=False))


def read_array(path: Path, *, mapped: bool = False) -> npt.NDArray[Any]:
    """Reads an array of write_array(), or maps it."""
    try:
        open_plain(path).close()
        array: npt.NDArray[Any] = np.load(
            path, mmap_mode="r" if mapped else None, allow_pickle=False
        )
    except (ValueError, OSError, EOFError) as error:
        raise TrainError(
            f"{path} cannot be read ({error}); remove the folder to make it again"
        ) from None
    return array


def hash_file(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    try:
        with open_plain(path) as file:
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
    except OSError as error:
        raise TrainError(f"{path} cannot be read: {error}") from None
    return digest.hexdigest()


def keep_old(path: Path) -> Path | None:
    """Copies a file to its name with ".bak", under which it survives a replacement."""
    if not path.exists():
        return None
    kept = path.with_name(f"{path.name}.bak")
    with writing(kept, keeps=False), whole_file(kept) as part:
        shutil.copy2(path, part)
    return kept


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Locks a file within the block; the system unlocks it when the process dies."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("ab")
    with file:
        try:
            lock(file)
        except OSError:
            raise TrainError(f"another process is training in {path.parent}; wait for it") from None
        yield
