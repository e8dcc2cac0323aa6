"""GGUF files as plain data: every type, and every lie, that the format can hold."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

_ALIGNMENT = 32
_FORMATS = {
    "u8": (0, "<B"), "i8": (1, "<b"), "u16": (2, "<H"), "i16": (3, "<h"), "u32": (4, "<I"),
    "i32": (5, "<i"), "f32": (6, "<f"), "bool": (7, "<?"), "u64": (10, "<Q"), "i64": (11, "<q"),
    "f64": (12, "<d"),
}  # fmt: skip
_STR, _ARRAY = 8, 9


class Value(NamedTuple):
    """A value with its type: "u32", "f32", "str", "bool" ..., or "[u32]" for an array of them."""

    kind: str
    value: Any


@dataclass
class GgufFile:
    """Keys and F32 tensors of a file.

    Attributes:
        keys: the values by name.
        tensors: the sizes by name, in the engine's order: the innermost first.

    """

    keys: dict[str, Value] = field(default_factory=dict)
    tensors: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def write(self, path: Path, data: Mapping[str, bytes] | None = None) -> Path:
        """Writes the file; the numbers of a tensor are `data`, or small with changing signs."""
        head = [struct.pack("<4sIQQ", b"GGUF", 3, len(self.tensors), len(self.keys))]
        for name, value in self.keys.items():
            head += [_string(name), _encoded(value)]
        offset, datas = 0, []
        for name, shape in self.tensors.items():
            n = 1
            for size in shape:
                n *= size
            sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
            head += [_string(name), sizes, struct.pack("<IQ", 0, offset)]
            datas.append(_numbers(n) if data is None else _padded(data[name]))
            offset += len(datas[-1])
        front = b"".join(head)
        path.write_bytes(front + b"\0" * (-len(front) % _ALIGNMENT) + b"".join(datas))
        return path


def _numbers(n: int) -> bytes:
    pattern = struct.pack("<4f", 0.05, -0.04, 0.03, -0.06)
    return _padded((pattern * (n // 4 + 1))[: n * 4])


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % _ALIGNMENT)


def _string(text: str) -> bytes:
    data = text.encode("utf-8", errors="surrogateescape")
    return struct.pack("<Q", len(data)) + data


def _encoded(value: Value) -> bytes:
    kind, content = value
    if kind.startswith("["):
        item = kind[1:-1]
        number = _STR if item == "str" else _FORMATS[item][0]
        items = b"".join(_bare(item, one) for one in content)
        return struct.pack("<IIQ", _ARRAY, number, len(content)) + items
    number = _STR if kind == "str" else _FORMATS[kind][0]
    return struct.pack("<I", number) + _bare(kind, content)


def _bare(kind: str, value: Any) -> bytes:
    return _string(value) if kind == "str" else struct.pack(_FORMATS[kind][1], value)
