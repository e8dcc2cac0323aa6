"""Token embedding and output of a DFlash draft: its own, or the target's.

Without a matrix of its own the engine takes the target's while it runs. A file with an embedding
must have an output as well: stock llama.cpp takes the embedding for one. So where a draft brings an
embedding alone, or a vector of its own for the mask token, matrices of the target's GGUF are copied
into the file.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np

from pyllama_spec.convert.draft import Source
from pyllama_spec.convert.tensor_files import read_torch_values
from pyllama_spec.errors import ConversionError, ModelLoadError
from pyllama_spec.gguf.reader import read_gguf
from pyllama_spec.gguf.tensors import STORED, Floats, PlannedTensor, Raw, SourceTensor, to_float32
from pyllama_spec.gguf.values import read_floats

_EMBEDDING, _OUTPUT = "token_embd.weight", "output.weight"
MASK_FILE = "mask_embedding.pt"
# ggml's numbers of the types that are copied as they are.
_TYPES = {0: "F32", 1: "F16", 30: "BF16"}


def with_own_matrices(
    planned: list[PlannedTensor],
    n_embd: int,
    mask_token: int,
    source: Source,
    is_scaled: bool,
    notes: list[str],
) -> list[PlannedTensor]:
    """The planned tensors, with token_embd and output first, as far as the file needs them."""
    by_name = {tensor.name: tensor for tensor in planned}
    embedding, output = by_name.pop(_EMBEDDING, None), by_name.pop(_OUTPUT, None)
    path = source.checkpoint.folder / MASK_FILE
    if path.exists():
        mask = read_mask(path, mask_token, n_embd)
        if is_scaled:
            raise ConversionError(
                f"{MASK_FILE}: whether the embedding's scale counts for it is not known"
            )
        if embedding is None:
            why = f"{MASK_FILE} has a vector for the mask token"
            embedding = _of_target(_EMBEDDING, source, (_EMBEDDING,), why, notes)
        assert embedding.source is not None
        embedding = replace(embedding, source=with_row(embedding.source, mask_token, mask))
    if embedding is not None and output is None:
        why = "the draft has an embedding of its own and no output"
        output = _of_target(_OUTPUT, source, (_OUTPUT, _EMBEDDING), why, notes)
    own = [tensor for tensor in (embedding, output) if tensor is not None]
    return [*own, *by_name.values()]


def read_mask(path: Path, mask_token: int, n_embd: int) -> SourceTensor:
    """Reads the mask token's vector, `[n_embd]`: a lone tensor, or a dict with its token."""
    values = read_torch_values(path)
    token = values.pop("mask_token_id", mask_token)
    if isinstance(token, SourceTensor) or token != mask_token:
        raise ConversionError(
            f"{path.name} is for the token {token}, and mask_token_id is {mask_token}"
        )
    tensor = next(iter(values.values()), None)
    if len(values) != 1 or not isinstance(tensor, SourceTensor) or not tensor.is_float:
        raise ConversionError(f"{path.name} holds {sorted(values)}, and not one vector")
    if math.prod(tensor.shape) != n_embd or tensor.shape[-1:] != (n_embd,):
        raise ConversionError(
            f"{path.name} has the shape {list(tensor.shape)}, not [{n_embd}], hidden_size"
        )
    return tensor


def with_row(matrix: SourceTensor, index: int, row: SourceTensor) -> SourceTensor:
    """Replaces a row of the matrix, rounded to the matrix's type."""

    def read() -> Raw:
        raw = np.array(matrix.read())
        raw[index] = _as_stored(to_float32(row.read().reshape(-1), row.dtype), matrix.dtype)
        return raw

    return replace(matrix, read=read)


def _as_stored(values: Floats, dtype: str) -> Raw:
    if dtype == "BF16":
        bits = np.ascontiguousarray(values).view(np.uint32)
        # To nearest, ties to even; a number that is not finite stays one, and is refused later.
        upper: Raw = ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        return upper
    with np.errstate(over="ignore"):
        stored: Raw = values.astype(STORED[dtype])
    return stored


def _of_target(
    name: str, source: Source, names: tuple[str, ...], why: str, notes: list[str]
) -> PlannedTensor:
    """A matrix of the target's vocabulary, `[n_vocab, n_embd]`, by the first name that it has."""
    path, target = source.target_path, source.target
    if path.is_dir():
        raise ConversionError(f"{why}: that needs matrices of the target; give its GGUF")
    try:
        tensors = read_gguf(path, lambda _: False).tensors
    except ModelLoadError as error:
        raise ConversionError(f"the target cannot be read: {error}") from None
    tensor = next((tensors[name] for name in names if name in tensors), None)
    if tensor is None or tensor.shape != (target.n_vocab, target.n_embd):
        shape = None if tensor is None else list(tensor.shape)
        raise ConversionError(
            f"{why}: that needs {names[0]} [{target.n_vocab}, {target.n_embd}] of the target, and "
            f"{path.name} has {shape}; if the model is split, give the merged file"
        )
    notes.append(f"{why}: {tensor.name} of the target is copied into the file")
    dtype, stored = _TYPES.get(tensor.type_id), tensor
    if dtype is None:
        notes.append(f"{tensor.name} of the target is quantised, and copied as F16")

    def read() -> Raw:
        try:
            if dtype is not None:
                return np.memmap(path, STORED[dtype], "r", stored.offset, stored.shape)
            return _as_stored(read_floats(path, stored), "F16")
        except (OSError, ValueError, ModelLoadError) as error:
            raise ConversionError(f"{stored.name} of {path.name}: {error}") from None

    copied = SourceTensor(f"{tensor.name} of the target", dtype or "F16", tensor.shape, read)
    return PlannedTensor(name, tensor.shape, copied)
