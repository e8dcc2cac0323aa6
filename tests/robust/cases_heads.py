"""Small files whose numbers are none, where the engine divides by them: heads, experts, groups."""

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


def _write(
    path: Path,
    arch: str,
    heads: int | list[int] | None,
    more: dict[str, int | list[int] | None] | None = None,
) -> Path:
    """Writes the part of a model that the engine reads before it misses the first tensor."""
    more = more or {}
    w = GGUFWriter(path, arch)
    for name in ("context_length", "embedding_length", "feed_forward_length", "vocab_size"):
        w.add_uint32(f"{arch}.{name}", 32)
    for name in ("block_count", "expert_count", "expert_used_count", "attention.sliding_window"):
        if name not in more:
            w.add_uint32(f"{arch}.{name}", 2)
    for name in ("layer_norm_rms_epsilon", "layer_norm_epsilon", "group_norm_epsilon"):
        w.add_float32(f"{arch}.attention.{name}", 1e-5)
    for key, value in {"attention.head_count": heads, **more}.items():
        if isinstance(value, list):
            w.add_array(f"{arch}.{key}", value)
        elif value is not None:
            w.add_uint32(f"{arch}.{key}", value)
    w.add_string("tokenizer.ggml.model", "gpt2")
    w.add_array("tokenizer.ggml.tokens", ["a", "b"])
    w.add_array("tokenizer.ggml.merges", ["a b"])
    w.add_tensor("token_embd.weight", np.zeros((2, 32), np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


def _damaged(arch: str, key: str, value: int | list[int] | None) -> Callable[[Path], None]:
    """Loads a file of that kind with one key more, or one less."""

    def run(folder: Path) -> None:
        Model(_write(folder / "m.gguf", arch, 2, {key: value})).close()

    return run


CASES.table(
    "divisors",
    {
        f"{arch}_{i}": (_damaged(arch, key, value), ModelLoadError, f"{key} is")
        for i, (arch, key, value) in enumerate(
            (
                ("qwen35moe", "expert_used_count", None),
                ("qwen4exp", "expert_used_count", 0),
                ("rwkv6qwen2", "wkv.head_size", 0),
                ("deepseek4", "attention.output_group_count", 0),
                ("modern-bert", "attention.head_count_kv", 0),
                ("qwen", "attention.head_count_kv", [0, 2]),
            )
        )
    },
)


def _load(arch: str, heads: int | list[int] | None) -> Callable[[Path], None]:
    return lambda folder: Model(_write(folder / "m.gguf", arch, heads)).close()


for _arch in MODEL_ARCH_NAMES.values():
    CASES.table(
        f"heads_of_{_arch}",
        {name: (_load(_arch, heads), ModelLoadError, "") for name, heads in _COUNTS.items()},
    )
