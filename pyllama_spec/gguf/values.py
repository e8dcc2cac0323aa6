"""Reads the data of a GGUF's tensors. Needs the package gguf for quantised types."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyllama_spec.errors import ModelLoadError
from pyllama_spec.gguf.reader import GgufTensor
from pyllama_spec.gguf.sizes import TENSOR_TYPES
from pyllama_spec.gguf.tensors import Floats

_INTEGERS = {"I8": "i1", "I32": "<i4", "I64": "<i8"}


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


def read_integers(path: Path, tensor: GgufTensor, kind: str) -> NDArray[Any]:
    """Reads a tensor of type I8, I32 or I64."""
    if tensor.type_id != TENSOR_TYPES[kind]:
        raise ModelLoadError(f"{path}: {tensor.name} is of type {tensor.type_id}, not {kind}")
    numbers: NDArray[Any] = _read(path, tensor, np.dtype(_INTEGERS[kind]), tensor.shape)
    return numbers


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
