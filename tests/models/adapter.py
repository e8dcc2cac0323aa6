"""A LoRA adapter for a tiny model: random, and strong enough to change what it says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGUFWriter

from pyllama_spec.gguf.reader import read_gguf

RANK = 2


def write_adapter(
    target: Path, path: Path, *, seed: int = 0, alpha: float = 8.0, arch: str = "llama"
) -> Path:
    """Writes one for the queries of each layer of `target`, of `arch`; returns the path."""
    found = read_gguf(target)
    rng = np.random.default_rng(seed)
    writer = GGUFWriter(str(path), arch)
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", alpha)
    for tensor in found.tensors.values():
        if tensor.name.endswith("attn_q.weight"):
            n_out, n_in = tensor.shape
            for part, shape in (("lora_a", (RANK, n_in)), ("lora_b", (n_out, RANK))):
                rows = rng.standard_normal(shape).astype(np.float32)
                writer.add_tensor(f"{tensor.name}.{part}", rows)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
