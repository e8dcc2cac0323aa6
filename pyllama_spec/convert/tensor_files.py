"""Reads .safetensors files, and those of torch.save() (.bin, .pt).

A .safetensors file is a JSON header, then the bytes of each tensor, as the safetensors project's
README says. Its Python package cannot hand bfloat16 to NumPy ("data type 'bfloat16' not
understood" in 0.8), and most drafts are bfloat16.

A file of torch.save() is a pickle, and a pickle is a program: PyTorch's own loader reads it, which
with ``weights_only`` refuses one that does more than build tensors.
"""

from __future__ import annotations

import json
import math
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np

from pyllama_spec.errors import ConversionError
from pyllama_spec.files import open_plain
from pyllama_spec.gguf.tensors import STORED, Raw, SourceTensor

_LENGTH = struct.Struct("<Q")
# The limit of the reference reader for a header.
_MAX_HEADER_BYTES = 100_000_000
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


def read_safetensors(path: Path) -> dict[str, SourceTensor]:
    """The tensors of a file by name. Their bytes are mapped, and read on demand."""
    try:
        with open_plain(path) as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(_LENGTH.size)
            n_header = _LENGTH.unpack(start)[0] if len(start) == _LENGTH.size else 0
            if start.startswith(b"version "):
                raise ValueError("it is a Git LFS pointer; fetch the file with `git lfs pull`")
            if not 2 <= n_header <= min(size - _LENGTH.size, _MAX_HEADER_BYTES):
                raise ValueError(f"it is cut off, or no safetensors file ({size} bytes)")
            header = file.read(n_header)
        entries = json.loads(header.decode("utf-8"), object_pairs_hook=_unique)
        return _tensors(path, entries, _LENGTH.size + n_header, size)
    except OSError as error:
        raise ConversionError(f"{path} cannot be read: {error.strerror or error}") from None
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ConversionError(f"{path.name} cannot be read: {error}; download it again") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = dict(pairs)
    if len(names) != len(pairs):
        raise ValueError("a tensor name occurs twice")
    return names


def _tensors(path: Path, entries: Any, begin_data: int, size: int) -> dict[str, SourceTensor]:
    """The tensors of a header; raises what a malformed one makes of it."""
    entries.pop("__metadata__", None)
    n_data, tensors = size - begin_data, dict[str, SourceTensor]()
    spans: list[tuple[int, int, str]] = []
    for name, entry in entries.items():
        dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        if any(type(n) is not int or n < 0 for n in (*shape, begin, end)):
            raise ValueError(f"its header does not describe {name!r}")
        if dtype not in STORED:
            raise ConversionError(
                f"the tensor {name} is stored as {dtype}, which this converter does not read (it "
                f"reads {', '.join(STORED)}); convert the checkpoint that was not quantised"
            )
        n_bytes = math.prod(shape) * STORED[dtype].itemsize
        if not begin <= end <= n_data or end - begin != n_bytes:
            raise ValueError(
                f"{name} is {dtype} {list(shape)}, {n_bytes} bytes, and has those from {begin} to "
                f"{end} of {n_data}"
            )
        spans.append((begin, end, name))
        tensors[name] = _tensor(path, name, dtype, shape, begin_data + begin)
    at = 0
    for begin, end, name in [*sorted(spans), (n_data, n_data, "nothing")]:
        if begin != at:
            raise ValueError(f"{name} begins at byte {begin}, not {at}: it is damaged")
        at = end
    return tensors


def _tensor(path: Path, name: str, dtype: str, shape: tuple[int, ...], offset: int) -> SourceTensor:
    def read() -> Raw:
        if math.prod(shape) == 0:
            return np.zeros(shape, STORED[dtype])
        try:
            return np.memmap(path, STORED[dtype], "r", offset, shape or (1,)).reshape(shape)
        except (OSError, ValueError) as error:
            raise ConversionError(f"{path.name} cannot be read: {name}: {error}") from None

    return SourceTensor(name, dtype, shape, read)


def read_torch(path: Path) -> dict[str, SourceTensor]:
    """The tensors of a state dict by name; their bytes are mapped, and read on demand."""
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
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise ConversionError(f"{path.name} holds a {type(content).__name__}, no named tensors")
    return {name: _of_torch(path, name, value, torch.uint8) for name, value in content.items()}


def _of_torch(path: Path, name: str, value: Any, byte: Any) -> SourceTensor:
    dtype = _DTYPES.get(str(getattr(value, "dtype", None)).removeprefix("torch."))
    if dtype is None:
        raise ConversionError(
            f"{path.name}: {name!r} is no tensor of a known type; known are {', '.join(_DTYPES)}"
        )

    def read() -> Raw:
        # NumPy has no bfloat16, so the bytes are reinterpreted here.
        flat = value.contiguous().flatten().view(byte).numpy()
        stored: Raw = flat.view(STORED[dtype]).reshape(value.shape)
        return stored

    return SourceTensor(name, dtype, tuple(value.shape), read)
