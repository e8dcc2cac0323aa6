"""Writes a GGUF: keys, then tensors one after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from pyllama_spec.errors import ConversionError
from pyllama_spec.files import whole_file
from pyllama_spec.gguf.reader import GgufKey
from pyllama_spec.gguf.tensors import Floats, PlannedTensor, Raw, to_float32

if TYPE_CHECKING:
    from gguf import GGUFWriter

Kind = Literal["f32", "f16", "bf16", "q8_0"]
KINDS: tuple[Kind, ...] = ("f32", "f16", "bf16", "q8_0")
Bytes = NDArray[np.uint8]
# Rows are turned into another type in pieces of about this size: a vocabulary's matrix as float32
# is twice the file.
_PIECE_BYTES = 64 << 20
_AS_SOURCE = {"F16": "F16", "BF16": "BF16"}
_OF_VALUES = {"<i8": "I64", "<i4": "I32", "|i1": "I8"}
_PLAIN = {"F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64"}
# general.file_type, as llama.cpp numbers them.
_FILE_TYPES = {"F32": 0, "F16": 1, "Q8_0": 7, "BF16": 32}


@dataclass(frozen=True, slots=True)
class Output:
    """The content of the file.

    Attributes:
        arch: general.architecture.
        name: general.name.
        keys: the keys of the architecture and of this package, with str, bool, int, float or a list
            of ints or bools.
        tokenizer: keys that are copied unchanged.
        tensors: the tensors in their order.
        kind: the type of the matrices; None for the type of each source.
    """

    arch: str
    name: str
    keys: Mapping[str, Any]
    tokenizer: Mapping[str, GgufKey]
    tensors: Sequence[PlannedTensor]
    kind: Kind | None


@dataclass(frozen=True, slots=True)
class Written:
    """The result of a write.

    Attributes:
        n_bytes: the size of the file.
        type_name: the type of most weights, such as "BF16".
        notes: remarks for the user.
    """

    n_bytes: int
    type_name: str
    notes: tuple[str, ...]


def import_gguf() -> Any:
    """Imports the package gguf."""
    try:
        import gguf
    except ImportError:
        raise ConversionError(
            "converting needs the package gguf; install it with pip install pyllama_spec[convert]"
        ) from None
    return gguf


def tensor_type(tensor: PlannedTensor, kind: Kind | None) -> str:
    """The type to write a tensor in: matrices in `kind`, other floats in F32, integers unchanged.

    A row for q8_0 must be a multiple of 32 long; other matrices stay F16.
    """
    if tensor.stored:
        return tensor.stored
    if tensor.source is None:
        assert tensor.values is not None
        return _OF_VALUES.get(tensor.values.dtype.str, "F32")
    if len(tensor.shape) != 2:
        return "F32"
    if kind is None:
        return _AS_SOURCE.get(tensor.source.dtype, "F32")
    return "F16" if kind == "q8_0" and tensor.shape[-1] % 32 else kind.upper()


def write_gguf(
    path: Path, output: Output, progress: Callable[[float], None] | None = None
) -> Written:
    """Writes the file atomically: its name never holds a partial file."""
    gguf = import_gguf()
    types = {tensor.name: tensor_type(tensor, output.kind) for tensor in output.tensors}
    try:
        with whole_file(path) as part:
            writer = gguf.GGUFWriter(part, output.arch)
            try:
                type_name = _add_keys(writer, gguf, output, types)
                _write(writer, gguf, output.tensors, types, progress)
            finally:
                writer.close()
            n_bytes = part.stat().st_size
    except OSError as error:
        # NumPy has no number for a write that stopped half-way.
        reason = error.strerror or f"the disk may be full: {error}"
        raise ConversionError(f"{path} cannot be written: {reason}") from None
    odd = [name for name, kind in types.items() if output.kind == "q8_0" and kind == "F16"]
    why = "F16, since the length of their rows is not a multiple of 32"
    notes = (f"{', '.join(odd)}: {why}",) if odd else ()
    return Written(n_bytes, type_name, notes)


def _add_keys(writer: GGUFWriter, gguf: Any, output: Output, types: Mapping[str, str]) -> str:
    sizes: dict[str, int] = {}
    for tensor in output.tensors:
        if len(tensor.shape) == 2 and not tensor.stored:
            kind = types[tensor.name]
            sizes[kind] = sizes.get(kind, 0) + math.prod(tensor.shape)
    main = max(sizes, key=sizes.__getitem__)
    writer.add_type("model")
    writer.add_name(output.name)
    writer.add_file_type(_FILE_TYPES[main])
    if not _PLAIN.issuperset(types.values()):
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for name, value in output.keys.items():
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        else:
            array, items = gguf.GGUFValueType.ARRAY, gguf.GGUFValueType
            item = items.BOOL if isinstance(value[0], bool) else items.INT32
            writer.add_key_value(name, list(value), array, item)
    for name, key in output.tokenizer.items():
        if key.value == []:
            continue  # the format has no empty arrays
        item = None if key.item_type is None else gguf.GGUFValueType(key.item_type)
        writer.add_key_value(name, key.value, gguf.GGUFValueType(key.type_id), item)
    return main


def _write(
    writer: GGUFWriter,
    gguf: Any,
    tensors: Sequence[PlannedTensor],
    types: Mapping[str, str],
    progress: Callable[[float], None] | None,
) -> None:
    sizes: list[int] = []
    for tensor in tensors:
        kind = gguf.GGMLQuantizationType[types[tensor.name]]
        shape = gguf.quant_shape_to_byte_shape(tensor.shape, kind)
        sizes.append(math.prod(shape))
        writer.add_tensor_info(tensor.name, shape, np.dtype(np.uint8), sizes[-1], kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    done = 0
    for tensor, size in zip(tensors, sizes, strict=True):
        writer.write_tensor_data(encode(tensor, types[tensor.name]))
        done += size
        if progress is not None:
            progress(done / sum(sizes))
    writer.flush()


def encode(tensor: PlannedTensor, type_name: str) -> Bytes:
    """Encodes a tensor in a type, uint8 `[*shape[:-1], bytes per row]`."""
    if tensor.source is None:
        assert tensor.values is not None
        values: Raw = np.ascontiguousarray(tensor.values.astype(tensor.values.dtype, copy=False))
        return values.view(np.uint8)
    raw, dtype = tensor.source.read(), tensor.source.dtype
    n_rows = tensor.shape[0]
    row_bytes = math.prod(tensor.shape[1:]) * 4
    step = max(1, min(n_rows, _PIECE_BYTES // max(row_bytes, 1)))
    pieces: list[Bytes] = []
    for start in range(0, n_rows, step):
        stop = min(start + step, n_rows)
        rows = raw[start:stop] if tensor.rows is None else raw[tensor.rows[start:stop]]
        piece = to_float32(rows, dtype)
        if not np.isfinite(piece).all():
            raise ConversionError(
                f"the tensor {tensor.source.name} holds numbers that are not finite; the "
                "checkpoint is damaged, or was not trained to the end"
            )
        pieces.append(_encode_rows(piece, type_name, tensor.source.name))
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _encode_rows(rows: Floats, type_name: str, name: str) -> Bytes:
    if type_name == "F32":
        return np.ascontiguousarray(rows).view(np.uint8)
    if type_name == "F16":
        with np.errstate(over="ignore"):
            halves = rows.astype(np.float16)
        if not np.isfinite(halves).all():
            raise ConversionError(f"the tensor {name} has numbers that F16 cannot hold; use bf16")
        return np.ascontiguousarray(halves).view(np.uint8)
    gguf = import_gguf()
    encoded: Bytes = gguf.quants.quantize(
        np.ascontiguousarray(rows), gguf.GGMLQuantizationType[type_name]
    )
    return encoded
