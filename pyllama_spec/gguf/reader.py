"""Reads the keys and the tensor table of a GGUF.

The format is that of docs/gguf.md of ggml: a header, then key, type and value one after the other,
then name, shape, type and place of each tensor, little-endian. gguf.GGUFReader reads them too, but
makes a NumPy array of each token and merge: 8 s and 550 MB for a vocabulary of 150 000, against
half a second here; and it needs to know the type of every tensor. Strings stay bytes: a token need
not be valid UTF-8.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from pyllama_spec.errors import ModelLoadError
from pyllama_spec.gguf.header import HEADER_BYTES, Header, check_header

STRING, ARRAY = 8, 9
_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_ALIGNMENT, _DEFAULT_ALIGNMENT = "general.alignment", 32
_MAX_DIMS = 4


@dataclass(frozen=True, slots=True)
class GgufKey:
    """One key with its value.

    Attributes:
        type_id: the number of the value's type in the format.
        item_type: the type of an array's items; None for other values.
        value: an int, float, bool, bytes, or a list of them.
    """

    type_id: int
    item_type: int | None
    value: Any


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One entry of the tensor table.

    Attributes:
        name: the name in the file.
        shape: the shape in NumPy's order, `[out, in]` for a matrix.
        type_id: the number of the type in ggml.
        offset: the position of its bytes in the file.
    """

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    """The keys and the tensor table of a file.

    Attributes:
        path: the path of the file.
        n_bytes: the size of the file.
        keys: the keys that were asked for.
        tensors: the entries of the table, in its order.
    """

    path: Path
    n_bytes: int
    keys: dict[str, GgufKey]
    tensors: dict[str, GgufTensor]


def read_keys(path: Path, wanted: Callable[[str], bool]) -> dict[str, GgufKey]:
    """Reads the keys of a file with the wanted names."""
    header = check_header(path)
    with _opened(path, header) as cursor:
        return _read_keys(cursor, header.n_keys, wanted)


def read_key(path: Path, wanted: str) -> GgufKey | None:
    """Reads one key and stops there: a vocabulary takes a third of a second."""
    header = check_header(path)
    with _opened(path, header) as cursor:
        for _ in range(header.n_keys):
            keys = _read_keys(cursor, 1, lambda name: name == wanted)
            if keys:
                return keys[wanted]
    return None


def read_gguf(path: Path, wanted: Callable[[str], bool] = lambda _: True) -> GgufFile:
    """Reads the keys with the wanted names, and the tensor table."""
    header = check_header(path)
    with _opened(path, header) as cursor:
        keys = _read_keys(cursor, header.n_keys, lambda name: name == _ALIGNMENT or wanted(name))
        tensors = _read_table(cursor, header.n_tensors, _alignment(keys))
    return GgufFile(
        path, header.n_bytes, {name: key for name, key in keys.items() if wanted(name)}, tensors
    )


def read_table(path: Path) -> GgufFile:
    """Reads the tensor table without keys; do not change the result.

    Tables of a few files are cached while the files do not change: opening a draft reads
    its types, its bytes and its output matrix, and reading past a vocabulary takes half a second.
    """
    try:
        info = path.stat()
    except (OSError, ValueError):  # reading it reports its faults
        return read_gguf(path, lambda _: False)
    # The inode too: a relative path may lead elsewhere by now.
    return _kept_table(path, (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns))


@lru_cache(maxsize=4)
def _kept_table(path: Path, _: tuple[int, ...]) -> GgufFile:
    """Caches tables by path and by the file's stamp."""
    return read_gguf(path, lambda _: False)


@contextmanager
def _opened(path: Path, header: Header) -> Iterator[_Cursor]:
    """Opens a cursor after the header; its errors name the file."""
    try:
        # Read and not mapped: a file that is cut off meanwhile must not end the process.
        with path.open("rb") as file:
            file.seek(HEADER_BYTES)
            yield _Cursor(file, header.n_bytes - HEADER_BYTES)
    except OSError as error:
        raise ModelLoadError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, struct.error, MemoryError, OverflowError) as error:
        reason = "it is cut off" if isinstance(error, struct.error) else error
        raise ModelLoadError(f"{path} cannot be read as a GGUF: {reason}") from None


class _Cursor:
    """Reads bytes in order, never past the end."""

    def __init__(self, file: BinaryIO, n_left: int) -> None:
        self._file, self._n_left = file, n_left

    def take(self, n: int) -> bytes:
        if n > self._n_left:
            raise ValueError("it is cut off")
        self._n_left -= n
        data = self._file.read(n)
        if len(data) != n:
            raise ValueError("it is cut off")
        return data

    def skip(self, n: int) -> None:
        if n > self._n_left:
            raise ValueError("it is cut off")
        self._n_left -= n
        self._file.seek(n, 1)

    def unpack(self, layout: str) -> tuple[Any, ...]:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))

    def number(self, layout: str) -> int:
        return int(self.unpack(layout)[0])

    def text(self) -> bytes:
        return self.take(self.number("<Q"))

    def place(self) -> int:
        return self._file.tell()

    @property
    def n_left(self) -> int:
        return self._n_left


def _read_keys(cursor: _Cursor, n_keys: int, wanted: Callable[[str], bool]) -> dict[str, GgufKey]:
    keys: dict[str, GgufKey] = {}
    for _ in range(n_keys):
        name = cursor.text().decode("utf-8")
        type_id = cursor.number("<I")
        if wanted(name):
            keys[name] = _value(cursor, type_id)
        else:
            _skip(cursor, type_id)
    return keys


def _value(cursor: _Cursor, type_id: int) -> GgufKey:
    if type_id == STRING:
        return GgufKey(type_id, None, cursor.text())
    if type_id == ARRAY:
        item_type, n = cursor.number("<I"), cursor.number("<Q")
        _check_array(cursor, item_type, n)
        if item_type == STRING:
            return GgufKey(type_id, item_type, [cursor.text() for _ in range(n)])
        return GgufKey(type_id, item_type, list(cursor.unpack(f"<{n}{_SCALARS[item_type]}")))
    return GgufKey(type_id, None, cursor.unpack(f"<{_scalar(type_id)}")[0])


def _skip(cursor: _Cursor, type_id: int) -> None:
    if type_id == STRING:
        cursor.skip(cursor.number("<Q"))
    elif type_id == ARRAY:
        item_type, n = cursor.number("<I"), cursor.number("<Q")
        _check_array(cursor, item_type, n)
        if item_type == STRING:
            for _ in range(n):
                cursor.skip(cursor.number("<Q"))
        else:
            cursor.skip(n * struct.calcsize(_SCALARS[item_type]))
    else:
        cursor.skip(struct.calcsize(f"<{_scalar(type_id)}"))


def _scalar(type_id: int) -> str:
    if type_id not in _SCALARS:
        raise ValueError(f"it has a value of type {type_id}, which the format does not know")
    return _SCALARS[type_id]


def _check_array(cursor: _Cursor, item_type: int, n: int) -> None:
    """Refuses nested arrays, as the engine does, and arrays longer than the file."""
    if item_type != STRING and item_type not in _SCALARS:
        raise ValueError(f"it has an array of items of type {item_type}, which is not read")
    size = 8 if item_type == STRING else struct.calcsize(f"<{_SCALARS[item_type]}")
    if n * size > cursor.n_left:
        raise ValueError("it is cut off")


def _alignment(keys: dict[str, GgufKey]) -> int:
    key = keys.get(_ALIGNMENT)
    if key is None:
        return _DEFAULT_ALIGNMENT
    if type(key.value) is not int or key.value < 1 or key.value & (key.value - 1):
        raise ValueError(f"its {_ALIGNMENT} is {key.value!r:.60}, not a power of two")
    return key.value


def _read_table(cursor: _Cursor, n_tensors: int, alignment: int) -> dict[str, GgufTensor]:
    entries: list[tuple[str, tuple[int, ...], int, int]] = []
    for _ in range(n_tensors):
        name = cursor.text().decode("utf-8")
        n_dims = cursor.number("<I")
        if n_dims > _MAX_DIMS:
            raise ValueError(f"its tensor {name:.60} has {n_dims} dimensions; at most 4 are known")
        *dims, type_id, offset = cursor.unpack(f"<{n_dims}QIQ")
        entries.append((name, tuple(reversed(dims)), type_id, offset))
    start = -(-cursor.place() // alignment) * alignment
    end = cursor.place() + cursor.n_left
    tensors: dict[str, GgufTensor] = {}
    for name, shape, type_id, offset in entries:
        if start + offset > end:
            raise ValueError(f"it is cut off: its tensor {name:.60} begins after its end")
        if name in tensors:
            raise ValueError(f"it has the tensor {name:.60} twice")
        tensors[name] = GgufTensor(name, shape, type_id, start + offset)
    return tensors
