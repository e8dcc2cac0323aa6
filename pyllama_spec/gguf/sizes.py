"""How many bytes of weights plain decoding reads per token, by the GGUF's table of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pyllama_spec.gguf.reader import read_gguf


def tensor_bytes(path: Path) -> dict[str, int]:
    """Bytes of each tensor of a GGUF file, padding included.

    Raises:
        ModelLoadError: the file's table cannot be read.

    """
    file = read_gguf(path, lambda _: False)
    ordered = sorted(file.tensors.values(), key=lambda tensor: tensor.offset)
    ends = [tensor.offset for tensor in ordered[1:]] + [file.n_bytes]
    return {tensor.name: end - tensor.offset for tensor, end in zip(ordered, ends, strict=True)}


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
