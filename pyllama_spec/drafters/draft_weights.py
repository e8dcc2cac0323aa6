"""The cost and quality of a draft, estimated from its weights before it drafts."""

from __future__ import annotations

from pyllama_spec.engine.model import Model
from pyllama_spec.errors import ModelLoadError
from pyllama_spec.gguf.sizes import (
    MainType,
    block_bytes,
    bytes_per_token,
    main_type,
    tensor_bytes,
)

# Below so many bits drafts were measured to be right less often: heads of 4 bits for a fifteenth of
# the tokens that they are at 8.
FEW_BITS = 6


def step_share(draft: Model, target: Model) -> float:
    """The cost of a drafted token relative to a target row, by the weights that each reads.

    Where weights are read from memory as fast as they come, that is the ratio of their times; a
    type that is expensive to unpack makes it larger.
    """
    return weight_bytes(draft)[0] / max(weight_bytes(target)[0], 1)


def head_share(head: Model, target: Model, n_choices: int | None = None) -> float:
    """The cost of a head's step relative to a target row, by the weights that each reads.

    0 if it is unknown, such as when a table cannot be read.
    """
    info = head.info
    try:
        sizes, of_target = tensor_bytes(head.path), tensor_bytes(target.path)
    except ModelLoadError:
        return 0.0
    first = info.n_layer if info.n_heads else 0
    n = block_bytes(sizes, head.metadata, first=first) / max(info.n_heads, 1)
    if not any(name.endswith(".shared_head_head.weight") for name in sizes):
        tied = of_target.get("token_embd.weight", 0)
        whole = sizes.get("output.weight", of_target.get("output.weight", tied))
        n += whole * (1.0 if n_choices is None else n_choices / info.n_vocab)
    return n / max(weight_bytes(target)[0], 1)


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


def type_of_weights(model: Model) -> MainType | None:
    """The type of most weights; None if the file does not tell."""
    try:
        return main_type(model.path)
    except ModelLoadError:
        return None


def note_of_few_bits(what: str, kind: str, bits: float, less: str) -> str:
    """A remark on a draft with low-bit weights, for results; "" for others."""
    if bits >= FEW_BITS:
        return ""
    return f"the weights of {what} are {kind}: below {FEW_BITS} bits {less}"
