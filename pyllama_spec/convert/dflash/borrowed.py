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

from pyllama_spec.convert.checkpoint_tensors import first_rows
from pyllama_spec.convert.dflash.config import DflashConfig
from pyllama_spec.convert.dflash.layout import Plan
from pyllama_spec.convert.torch_files import read_torch_values
from pyllama_spec.errors import ConversionError, ModelLoadError
from pyllama_spec.gguf.reader import GgufTensor, read_gguf
from pyllama_spec.gguf.target import Target
from pyllama_spec.gguf.tensors import STORED, Floats, PlannedTensor, Raw, SourceTensor, to_float32
from pyllama_spec.gguf.values import read_floats

MASK_FILE = "mask_embedding.pt"
# ggml's numbers of the types that are copied as they are.
_TYPES = {0: "F32", 1: "F16", 30: "BF16"}


def own_matrices(
    config: DflashConfig,
    plan: Plan,
    folder: Path,
    target: Target,
    target_path: Path,
    *,
    is_scaled: bool,
) -> tuple[list[PlannedTensor], list[str]]:
    """Plans token_embd and output, as far as the file needs them; returns remarks for the user."""
    mask = read_mask(folder / MASK_FILE, config) if (folder / MASK_FILE).exists() else None
    embedding, output, notes = plan.embedding, plan.output, list[str]()
    if mask is not None:
        if is_scaled:
            raise ConversionError(
                f"{MASK_FILE}: whether the embedding's scale counts for it is not known"
            )
        if embedding is None:
            why = f"{MASK_FILE} has a vector for the mask token"
            embedding = target_matrix(target_path, target, ("token_embd.weight",), why, notes)
        embedding = with_row(embedding, config.mask_token, mask)
    if embedding is None:
        return ([] if output is None else [output]), notes
    n_vocab = target.n_vocab
    if output is None and plan.embedding is not None and config.is_tied:
        output = first_rows("output.weight", plan.embedding, n_vocab)
    elif output is None:
        names = ("output.weight", "token_embd.weight")
        why = "the draft has an embedding of its own and no output"
        source = target_matrix(target_path, target, names, why, notes)
        output = PlannedTensor("output.weight", source.shape, source)
    return [first_rows("token_embd.weight", embedding, n_vocab), output], notes


def read_mask(path: Path, config: DflashConfig) -> SourceTensor:
    """Reads the mask token's vector, `[n_embd]`: a lone tensor, or a dict with its token."""
    values = read_torch_values(path)
    token = values.pop("mask_token_id", config.mask_token)
    if isinstance(token, SourceTensor) or token != config.mask_token:
        raise ConversionError(
            f"{path.name} is for the token {token}, and mask_token_id is {config.mask_token}"
        )
    tensor = next(iter(values.values()), None)
    if len(values) != 1 or not isinstance(tensor, SourceTensor) or not tensor.is_float:
        raise ConversionError(f"{path.name} holds {sorted(values)}, and not one vector")
    if math.prod(tensor.shape) != config.n_embd or tensor.shape[-1:] != (config.n_embd,):
        raise ConversionError(
            f"{path.name} has the shape {list(tensor.shape)}, not [{config.n_embd}], hidden_size"
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


def target_matrix(
    path: Path, target: Target, names: tuple[str, ...], why: str, notes: list[str]
) -> SourceTensor:
    """Reads a matrix of the target's vocabulary, `[n_vocab, n_embd]`, from its GGUF."""
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
    return _gguf_source(path, tensor, notes)


def _gguf_source(path: Path, tensor: GgufTensor, notes: list[str]) -> SourceTensor:
    dtype = _TYPES.get(tensor.type_id)
    if dtype is None:
        notes.append(f"{tensor.name} of the target is quantised, and copied as F16")

    def read() -> Raw:
        try:
            if dtype is not None:
                return np.memmap(path, STORED[dtype], "r", tensor.offset, tensor.shape)
            return _as_stored(read_floats(path, tensor), "F16")
        except (OSError, ValueError, ModelLoadError) as error:
            raise ConversionError(f"{tensor.name} of {path.name}: {error}") from None

    return SourceTensor(f"{tensor.name} of the target", dtype or "F16", tensor.shape, read)
