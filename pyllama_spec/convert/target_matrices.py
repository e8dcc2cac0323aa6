"""Token embedding and output of a DFlash draft: its own, or the target's.

Without a matrix of its own the engine takes the target's while it runs. A file with an embedding
must have an output as well: stock llama.cpp takes the embedding for one. So where a draft brings an
embedding alone, the output of the target's GGUF is copied into the file.
"""

from __future__ import annotations

import numpy as np

from pyllama_spec.convert.draft import Source
from pyllama_spec.errors import ConversionError, ModelLoadError
from pyllama_spec.gguf.reader import read_gguf
from pyllama_spec.gguf.tensors import STORED, PlannedTensor, Raw, SourceTensor
from pyllama_spec.gguf.values import read_floats

_EMBEDDING, _OUTPUT = "token_embd.weight", "output.weight"
_MASK_FILE = "mask_embedding.pt"  # of Xiaomi's MiMo
# ggml's numbers of the types that are copied as they are.
_TYPES = {0: "F32", 1: "F16", 30: "BF16"}


def with_own_matrices(
    planned: list[PlannedTensor], source: Source, notes: list[str]
) -> list[PlannedTensor]:
    """The planned tensors, with token_embd and output first, as far as the file needs them."""
    if (source.checkpoint.folder / _MASK_FILE).exists():
        raise ConversionError(f"{_MASK_FILE}: a mask token with a vector apart is not supported")
    by_name = {tensor.name: tensor for tensor in planned}
    embedding, output = by_name.pop(_EMBEDDING, None), by_name.pop(_OUTPUT, None)
    if embedding is not None and output is None:
        output = _output_of_target(source, notes)
    own = [tensor for tensor in (embedding, output) if tensor is not None]
    return [*own, *by_name.values()]


def _output_of_target(source: Source, notes: list[str]) -> PlannedTensor:
    """The target's output, or its embedding where that is the output, `[n_vocab, n_embd]`."""
    path, target = source.target_path, source.target
    why = "the draft has an embedding of its own and no output"
    try:
        tensors = read_gguf(path, lambda _: False).tensors
    except ModelLoadError as error:
        raise ConversionError(f"the target cannot be read: {error}") from None
    stored = tensors.get(_OUTPUT) or tensors.get(_EMBEDDING)
    if stored is None or stored.shape != (target.n_vocab, target.n_embd):
        shape = None if stored is None else list(stored.shape)
        raise ConversionError(
            f"{why}: that needs {_OUTPUT} [{target.n_vocab}, {target.n_embd}] of the target, and "
            f"{path.name} has {shape}; if the model is split, give the merged file"
        )
    notes.append(f"{why}: {stored.name} of the target is copied into the file")
    dtype = _TYPES.get(stored.type_id)
    if dtype is None:
        notes.append(f"{stored.name} of the target is quantised, and copied as F16")

    def read() -> Raw:
        try:
            if dtype is not None:
                return np.memmap(path, STORED[dtype], "r", stored.offset, stored.shape)
            with np.errstate(over="ignore"):
                return read_floats(path, stored).astype(np.float16)
        except (OSError, ValueError, ModelLoadError) as error:
            raise ConversionError(f"{stored.name} of {path.name}: {error}") from None

    copied = SourceTensor(f"{stored.name} of the target", dtype or "F16", stored.shape, read)
    return PlannedTensor(_OUTPUT, stored.shape, copied)
