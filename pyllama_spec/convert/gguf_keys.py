"""Reads the keys of a GGUF, and no tensor.

The format is that of docs/gguf.md of ggml: a header, then key, type and value one after the other,
little-endian. gguf.GGUFReader reads them too, but makes a NumPy array of each token and merge: 8 s
and 550 MB for a vocabulary of 150 000, against half a second here; and it needs to know the type
of every tensor. Strings stay bytes: a token need not be valid UTF-8.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyllama_spec.engine.errors import ConversionError

STRING, ARRAY = 8, 9
_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_HEADER = struct.Struct("<4sIQQ")
_VERSIONS = (2, 3)


@dataclass(frozen=True, slots=True)
class GgufKey:
    """One key with its value.

    Attributes:
        type_id: the format's number of the value's type.
        item_type: of an array's items; None for other values.
        value: an int, float, bool, bytes, or a list of them.

    """

    type_id: int
    item_type: int | None
    value: Any


class _Cursor:
    """Goes through the bytes, never past their end."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def unpack(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from(layout, self._data, self._at)
        self._at += struct.calcsize(layout)
        return values

    def number(self, layout: str) -> int:
        return int(self.unpack(layout)[0])

    def text(self) -> bytes:
        n = self.number("<Q")
        if self._at + n > len(self._data):
            raise ValueError("it is cut off")
        self._at += n
        return self._data[self._at - n : self._at]

    def left(self) -> int:
        return len(self._data) - self._at


def read_keys(path: Path, wanted: Callable[[str], bool]) -> dict[str, GgufKey]:
    """The keys of a file whose names are wanted.

    Raises:
        ConversionError: the file is missing, cut off, damaged or no GGUF.

    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return {name: key for name, key in _keys(data) if wanted(name)}
    except FileNotFoundError:
        raise ConversionError(f"{path} does not exist; check the path of the target") from None
    except OSError as error:
        raise ConversionError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, struct.error, MemoryError, OverflowError) as error:
        reason = "it is cut off" if isinstance(error, struct.error) else error
        raise ConversionError(f"{path} cannot be read as a GGUF: {reason}") from None


def _keys(data: mmap.mmap) -> Iterator[tuple[str, GgufKey]]:
    if data[:4] != b"GGUF":
        raise ValueError(f"it starts with {data[:4]!r}, not b'GGUF'")
    cursor = _Cursor(data)
    _, version, _, n_keys = cursor.unpack(_HEADER.format)
    if version not in _VERSIONS:
        raise ValueError(f"it has version {version}; this converter reads 2 and 3")
    for _ in range(n_keys):
        name = cursor.text().decode("utf-8")
        yield name, _value(cursor, cursor.number("<I"))


def _value(cursor: _Cursor, type_id: int) -> GgufKey:
    if type_id == STRING:
        return GgufKey(type_id, None, cursor.text())
    if type_id == ARRAY:
        item_type, n = cursor.number("<I"), cursor.number("<Q")
        return GgufKey(type_id, item_type, _items(cursor, item_type, n))
    if type_id not in _SCALARS:
        raise ValueError(f"it has a value of type {type_id}, which the format does not know")
    return GgufKey(type_id, None, cursor.unpack(f"<{_SCALARS[type_id]}")[0])


def _items(cursor: _Cursor, item_type: int, n: int) -> list[Any]:
    if item_type == STRING:
        if 8 * n > cursor.left():
            raise ValueError("it is cut off")
        return [cursor.text() for _ in range(n)]
    if item_type not in _SCALARS:
        raise ValueError(f"it has an array of type {item_type}, which this converter does not read")
    layout = _SCALARS[item_type]
    if struct.calcsize(f"<{layout}") * n > cursor.left():
        raise ValueError("it is cut off")
    return list(cursor.unpack(f"<{n}{layout}"))
