"""Bytes of weights from the tensor table: by type, and per decoded token."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from pyllama_spec.gguf.reader import GgufFile, read_table

# ggml's types of tensors, by their numbers in a file.
TENSOR_TYPES = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q8_1": 9,
    "Q2_K": 10, "Q3_K": 11, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "Q8_K": 15, "IQ2_XXS": 16,
    "IQ2_XS": 17, "IQ3_XXS": 18, "IQ1_S": 19, "IQ4_NL": 20, "IQ3_S": 21, "IQ2_S": 22,
    "IQ4_XS": 23, "I8": 24, "I16": 25, "I32": 26, "I64": 27, "F64": 28, "IQ1_M": 29, "BF16": 30,
    "TQ1_0": 34, "TQ2_0": 35, "MXFP4": 39, "NVFP4": 40, "Q1_0": 41, "Q2_0": 42,
}  # fmt: skip


def tensor_bytes(path: Path) -> dict[str, int]:
    """Bytes of each tensor of a GGUF file, padding included."""
    return _sizes(read_table(path))


def _sizes(file: GgufFile) -> dict[str, int]:
    ordered = sorted(file.tensors.values(), key=lambda tensor: tensor.offset)
    ends = [tensor.offset for tensor in ordered[1:]] + [file.n_bytes]
    return {tensor.name: end - tensor.offset for tensor, end in zip(ordered, ends, strict=True)}


def shares_by_type(path: Path) -> dict[str, float]:
    """The share of each type in a file's bytes of weights, largest first.

    The name of a type of files says little: K-quants need rows of a multiple of 256 weights, and
    matrices of other rows are written in a type that has smaller blocks.
    """
    bytes_by_type = _bytes_by_type(read_table(path))
    total = max(sum(bytes_by_type.values()), 1)
    return {_type_name(kind): n_bytes / total for kind, n_bytes in bytes_by_type.most_common()}


def _bytes_by_type(file: GgufFile) -> Counter[int]:
    out = Counter[int]()
    for name, n_bytes in _sizes(file).items():
        out[file.tensors[name].type_id] += n_bytes
    return out


def _type_name(type_id: int) -> str:
    names = {number: name for name, number in TENSOR_TYPES.items()}
    return names.get(type_id, f"type {type_id}")


def main_type(path: Path) -> str:
    """The type of most of the weights; "" for a file without weights."""
    most = _bytes_by_type(read_table(path)).most_common(1)
    return _type_name(most[0][0]) if most else ""


def bytes_per_token(sizes: Mapping[str, int], metadata: Mapping[str, str]) -> int:
    """Bytes of weights that a decode of one token reads.

    Embeddings are looked up, a row each, unless the output uses the same tensor; of experts only
    those that are used are read, and of MTP heads nothing.
    """
    arch = metadata.get("general.architecture", "")
    names = ("nextn_predict_layers", "block_count", "expert_count", "expert_used_count")
    n_heads, n_blocks, n_experts, n_used = (int(metadata.get(f"{arch}.{k}", "0")) for k in names)
    share = n_used / n_experts if n_experts and n_used else 1.0
    looked_up = {"per_layer_token_embd.weight"}
    if "output.weight" in sizes:
        looked_up.add("token_embd.weight")
    n = 0.0
    for name, size in sizes.items():
        block = _block_of(name)
        is_of_head = n_heads > 0 and block is not None and block >= n_blocks - n_heads
        if not (is_of_head or name in looked_up):
            n += size * (share if "_exps." in name else 1.0)
    return round(n)


def _block_of(name: str) -> int | None:
    """The block that a tensor belongs to."""
    match = re.match(r"blk\.(\d+)\.", name)
    return None if match is None else int(match[1])
