"""Bytes of weights by the GGUF's table of tensors: of each type, and read per token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from pyllama_spec.gguf.reader import read_gguf

# Of ggml's types of tensors, by their numbers in a file.
_NAMES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 10: "Q2_K",
    11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS",
    19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 29: "IQ1_M", 30: "BF16",
    34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0", 42: "Q2_0",
}  # fmt: skip


def tensor_bytes(path: Path) -> dict[str, int]:
    """Bytes of each tensor of a GGUF file, padding included.

    Raises:
        ModelLoadError: the file's table cannot be read.

    """
    file = read_gguf(path, lambda _: False)
    ordered = sorted(file.tensors.values(), key=lambda tensor: tensor.offset)
    ends = [tensor.offset for tensor in ordered[1:]] + [file.n_bytes]
    return {tensor.name: end - tensor.offset for tensor, end in zip(ordered, ends, strict=True)}


def shares_by_type(path: Path) -> dict[str, float]:
    """The share of each type in a file's bytes of weights, the largest first.

    The name of a type of files says little: K-quants need rows of a multiple of 256 weights, and
    matrices of other rows are written in a type that has smaller blocks.

    Raises:
        ModelLoadError: the file's table cannot be read.

    """
    file, sizes, found = read_gguf(path, lambda _: False), tensor_bytes(path), Counter[str]()
    for name, tensor in file.tensors.items():
        found[_NAMES.get(tensor.type_id, f"type {tensor.type_id}")] += sizes[name]
    total = max(sum(found.values()), 1)
    return {name: n_bytes / total for name, n_bytes in found.most_common()}


def bytes_per_token(sizes: Mapping[str, int], metadata: Mapping[str, str]) -> int:
    """Bytes of weights that one decode of one token reads.

    Embeddings are looked up, a row each, unless the output uses the same tensor; of experts only
    those that are used are read.

    Args:
        sizes: of tensor_bytes().
        metadata: the model's, as text.

    """
    arch = metadata.get("general.architecture", "")
    n_experts = int(metadata.get(f"{arch}.expert_count", "0"))
    n_used = int(metadata.get(f"{arch}.expert_used_count", "0"))
    share = n_used / n_experts if n_experts and n_used else 1.0
    looked_up = {"per_layer_token_embd.weight"}
    if "output.weight" in sizes:
        looked_up.add("token_embd.weight")
    return round(
        sum(
            size * (share if "_exps." in name else 1.0)
            for name, size in sizes.items()
            if name not in looked_up
        )
    )
