"""Tensors to write: shapes are known at once, data is read on demand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyllama_spec.errors import ConversionError

Raw = NDArray[Any]
Floats = NDArray[np.float32]
Ids = NDArray[np.int64]
Rows = NDArray[np.intp]

# By their names in safetensors. NumPy has no bfloat16: its bits come as uint16, the upper half of
# a float32. A bool comes as the byte that it is stored in.
STORED: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("u1"),
}
FLOATS = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class SourceTensor:
    """A tensor of a source such as a checkpoint.

    Attributes:
        name: the name of the tensor in the checkpoint.
        dtype: a key of STORED.
        shape: the shape in PyTorch's order, `[out, in]` for a matrix.
        read: returns the stored data, of that shape and of type STORED[dtype].
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    read: Callable[[], Raw]

    @property
    def is_float(self) -> bool:
        """Whether the tensor holds weights, not ids or a mask."""
        return self.dtype in FLOATS

    def integers(self) -> Ids:
        """The data as int64 of the tensor's shape; a mask gives 0 and 1."""
        if self.is_float:
            raise ConversionError(
                f"{self.name} is stored as {self.dtype}; it holds ids, no weights"
            )
        raw = self.read()
        return (raw != 0 if self.dtype == "BOOL" else raw).astype(np.int64)


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """One tensor of a GGUF to be written.

    Attributes:
        name, shape: the name and shape in the GGUF, in NumPy's order.
        source: the tensor with its numbers; None for `values`.
        rows: the source's rows in the GGUF's order, int `[shape[0]]`; None for all as they are.
        values: the numbers, for tensors that no checkpoint holds.
        stored: the type, by gguf's name, if `values` are its bytes, uint8 `[*shape[:-1], bytes per
            row]`; "" if they are numbers.
    """

    name: str
    shape: tuple[int, ...]
    source: SourceTensor | None = None
    rows: Rows | None = None
    values: Raw | None = None
    stored: str = ""

    @classmethod
    def of_weights(cls, name: str, values: Floats) -> PlannedTensor:
        """Plans float32 weights in memory, to be written in the file's type."""
        source = SourceTensor(name, "F32", values.shape, lambda: values)
        return cls(name, values.shape, source)


def to_float32(raw: Raw, dtype: str) -> Floats:
    """Converts stored data to float32 of the same shape; exact for all types but F64."""
    if dtype == "BF16":
        # asarray: of a single number, older NumPy makes a scalar.
        bits = np.asarray(np.left_shift(raw.astype(np.uint32), np.uint32(16)))
        return bits.view(np.float32)
    return raw.astype(np.float32)
