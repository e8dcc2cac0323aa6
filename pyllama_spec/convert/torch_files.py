"""Reads files of torch.save() (.bin, .pt) with PyTorch's own restricted loader.

A pickle is a program; with ``weights_only`` torch refuses one that does more than build tensors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyllama_spec.errors import ConversionError
from pyllama_spec.files import open_plain
from pyllama_spec.gguf.tensors import STORED, Raw, SourceTensor

# By torch's names, keys of STORED.
_DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}


def read_torch(path: Path) -> dict[str, SourceTensor]:
    """The tensors of a state dict by name; their bytes are mapped, and read on demand."""
    values = read_torch_values(path)
    tensors = {name: value for name, value in values.items() if isinstance(value, SourceTensor)}
    if other := sorted(values.keys() - tensors.keys()):
        raise ConversionError(f"{path.name}: {other[0]!r} is {values[other[0]]!r}, not a tensor")
    return tensors


def read_torch_values(path: Path) -> dict[str, SourceTensor | int]:
    """The tensors and integers of a dict by name; a lone tensor has the name ""."""
    try:
        import torch
    except ImportError:
        raise ConversionError(
            f"{path.name} is a pickle, which only PyTorch reads: install torch, or give the "
            "checkpoint as .safetensors"
        ) from None
    try:
        open_plain(path).close()
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # noqa: BLE001 - a damaged file makes torch raise nearly anything
        why = str(error).partition("\n")[0] or type(error).__name__
        raise ConversionError(
            f"{path.name} cannot be read: {why}; download it again, or give the checkpoint as "
            ".safetensors"
        ) from None
    values = {"": content} if isinstance(content, torch.Tensor) else content
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise ConversionError(f"{path.name} holds a {type(content).__name__}, no named tensors")
    return {name: _value(path, name, value, torch.uint8) for name, value in values.items()}


def _value(path: Path, name: str, value: Any, byte: Any) -> SourceTensor | int:
    if type(value) is int:
        return value
    dtype = _DTYPES.get(str(getattr(value, "dtype", None)).removeprefix("torch."))
    if dtype is None:
        raise ConversionError(
            f"{path.name}: {name!r} is no integer and no tensor of a known type; known are "
            f"{', '.join(_DTYPES)}"
        )

    def read() -> Raw:
        # NumPy has no bfloat16, so the bytes are reinterpreted here.
        flat = value.contiguous().flatten().view(byte).numpy()
        stored: Raw = flat.view(STORED[dtype]).reshape(value.shape)
        return stored

    return SourceTensor(name, dtype, tuple(value.shape), read)
