"""Reads the data of a GGUF's tensors. Needs the package gguf for quantised types."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyllama_spec.errors import ModelLoadError
from pyllama_spec.gguf.reader import GgufTensor
from pyllama_spec.gguf.tensors import Floats, Ids


def read_floats(path: Path, tensor: GgufTensor) -> Floats:
    """Reads a tensor as float32 of its shape."""
    import gguf

    stored, name = read_stored(path, tensor)
    try:
        values: Floats = gguf.dequantize(stored, gguf.GGMLQuantizationType[name])
    except (NotImplementedError, ValueError):
        raise _unknown(path, tensor, name) from None
    return np.array(values, dtype=np.float32).reshape(tensor.shape)


def read_stored(path: Path, tensor: GgufTensor) -> tuple[NDArray[np.uint8], str]:
    """Reads a tensor's bytes and the name of its type, for PlannedTensor."""
    import gguf

    try:
        kind = gguf.GGMLQuantizationType(tensor.type_id)
    except ValueError:
        raise _unknown(path, tensor, f"number {tensor.type_id}") from None
    try:
        shape = gguf.quant_shape_to_byte_shape(tensor.shape, kind)
    except ValueError:
        raise _unknown(path, tensor, kind.name) from None
    return _read(path, tensor, np.dtype(np.uint8), shape), kind.name


def read_ids(path: Path, tensor: GgufTensor) -> Ids:
    """Reads an int64 tensor."""
    import gguf

    if tensor.type_id != gguf.GGMLQuantizationType.I64:
        raise ModelLoadError(
            f"{path}: {tensor.name} is of type {tensor.type_id}; it should hold int64 ids"
        )
    ids: Ids = _read(path, tensor, np.dtype("<i8"), tensor.shape)
    return ids


def _read(path: Path, tensor: GgufTensor, dtype: np.dtype[Any], shape: Any) -> Any:
    n = math.prod(shape)
    try:
        values: NDArray[Any] = np.fromfile(path, dtype, n, offset=tensor.offset)
    except OSError as error:
        raise ModelLoadError(f"{path} cannot be read: {error.strerror or error}") from None
    if len(values) != n:
        raise ModelLoadError(f"{path} is cut off in {tensor.name}; download it again")
    return values.reshape(shape)


def _unknown(path: Path, tensor: GgufTensor, what: str) -> ModelLoadError:
    return ModelLoadError(
        f"{tensor.name} of {path.name} is of type {what}, which the gguf package cannot read; give "
        "the file in another type (pyllama-spec quantize)"
    )
