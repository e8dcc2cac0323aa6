"""Small files of every architecture whose head count is none: some graphs divide by it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from gguf import MODEL_ARCH_NAMES, GGUFWriter

from pyllama_spec.engine import Model
from pyllama_spec.errors import ModelLoadError

from .harness import CaseList

CASES = CaseList()

# The number, or one per layer.
_COUNTS: dict[str, int | list[int] | None] = {
    "absent": None, "0": 0, "0_at_first": [0, 2],
}  # fmt: skip


def _write(path: Path, arch: str, heads: int | list[int] | None) -> Path:
    """As much of a model as the engine looks at before it misses the first tensor."""
    w = GGUFWriter(path, arch)
    for name in ("context_length", "embedding_length", "feed_forward_length", "vocab_size"):
        w.add_uint32(f"{arch}.{name}", 32)
    for name in ("block_count", "expert_count", "expert_used_count", "attention.sliding_window"):
        w.add_uint32(f"{arch}.{name}", 2)
    for name in ("layer_norm_rms_epsilon", "layer_norm_epsilon", "group_norm_epsilon"):
        w.add_float32(f"{arch}.attention.{name}", 1e-5)
    if isinstance(heads, list):
        w.add_array(f"{arch}.attention.head_count", heads)
    elif heads is not None:
        w.add_uint32(f"{arch}.attention.head_count", heads)
    w.add_string("tokenizer.ggml.model", "gpt2")
    w.add_array("tokenizer.ggml.tokens", ["a", "b"])
    w.add_array("tokenizer.ggml.merges", ["a b"])
    w.add_tensor("token_embd.weight", np.zeros((2, 32), np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


def _load(arch: str, heads: int | list[int] | None) -> Callable[[Path], None]:
    return lambda folder: Model(_write(folder / "m.gguf", arch, heads)).close()


for _arch in MODEL_ARCH_NAMES.values():
    CASES.table(
        f"heads_of_{_arch}",
        {name: (_load(_arch, heads), ModelLoadError, "") for name, heads in _COUNTS.items()},
    )
