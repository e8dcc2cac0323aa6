"""Random LoRA adapters for tiny models, strong enough to change their texts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from gguf import GGUFWriter

from pyllama_spec.gguf.reader import GgufFile, read_gguf

from .keys import writing

RANK = 2


def write_adapter(target: Path, path: Path, *, seed: int = 0, arch: str = "llama") -> Path:
    """Writes an adapter of `arch` for the queries of each layer of `target`; returns the path.

    MTP heads get none: the engine rejects tensors that a model opened without its head lacks.
    """
    rng = np.random.default_rng(seed)
    with writing(path, arch) as writer:
        _add_keys(writer)
        for name, shape in _shapes(target, RANK):
            writer.add_tensor(name, rng.standard_normal(shape).astype(np.float32))
    return path


def _add_keys(writer: GGUFWriter) -> None:
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 8.0)


def _shapes(target: Path, rank: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """The tensors of an adapter, each with its shape."""
    found = read_gguf(target)
    n_layer = _number(found, "block_count") - _number(found, "nextn_predict_layers")
    for tensor in found.tensors.values():
        if tensor.name.endswith("attn_q.weight") and int(tensor.name.split(".")[1]) < n_layer:
            n_out, n_in = tensor.shape
            yield f"{tensor.name}.lora_a", (rank, n_in)
            yield f"{tensor.name}.lora_b", (n_out, rank)


def _number(file: GgufFile, name: str) -> int:
    """The value of an architecture's key; 0 if it is missing."""
    of_name = [key.value for full, key in file.keys.items() if full.endswith(f".{name}")]
    return int(of_name[0]) if of_name else 0
