"""How many bytes of weights a model reads per token of plain decoding."""

from __future__ import annotations

from pyllama_spec.engine import Model
from pyllama_spec.errors import ModelLoadError
from pyllama_spec.gguf.sizes import bytes_per_token, tensor_bytes


def weight_bytes(model: Model) -> tuple[int, str]:
    """Bytes of weights per plain token, and where the number comes from, in words."""
    metadata = model.metadata
    if int(metadata.get("split.count", "0")) > 1:
        return model.info.size_bytes, "the size of all weights: the file is split"
    try:
        n = bytes_per_token(tensor_bytes(model.path), metadata)
    except ModelLoadError:
        return model.info.size_bytes, "the size of all weights: the file's table is unreadable"
    return n, "tensors that a decode of one token reads: no looked-up embeddings, no idle experts"
