"""A LoRA adapter for a tiny model: random, and strong enough to change what it says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGUFWriter

from pyllama_spec.gguf.reader import GgufFile, read_gguf

RANK = 2


def write_adapter(
    target: Path, path: Path, *, seed: int = 0, alpha: float = 8.0, arch: str = "llama"
) -> Path:
    """Writes one for the queries of each layer of `target`, of `arch`; returns the path.

    An MTP head has none: the engine refuses what a model opened without its head does not have.
    """
    found = read_gguf(target)
    n_layer = _number(found, "block_count") - _number(found, "nextn_predict_layers")
    rng = np.random.default_rng(seed)
    writer = GGUFWriter(str(path), arch)
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", alpha)
    for tensor in found.tensors.values():
        if tensor.name.endswith("attn_q.weight") and int(tensor.name.split(".")[1]) < n_layer:
            n_out, n_in = tensor.shape
            for part, shape in (("lora_a", (RANK, n_in)), ("lora_b", (n_out, RANK))):
                rows = rng.standard_normal(shape).astype(np.float32)
                writer.add_tensor(f"{tensor.name}.{part}", rows)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _number(file: GgufFile, name: str) -> int:
    """An architecture's key; 0 where there is none."""
    of_name = [key.value for full, key in file.keys.items() if full.endswith(f".{name}")]
    return int(of_name[0]) if of_name else 0
