"""Reads the sizes of a draft's decoder layers, and refuses layer options without a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyllama_spec.convert.fields import Fields
from pyllama_spec.errors import ConversionError
from pyllama_spec.gguf.target import Target

# Tokens by which the vocabulary of a config.json and that of a GGUF of the same model may differ:
# gpt-oss pads by 1069, Qwen2.5 by 399. Vocabularies of different models differ by far more.
_MAX_PADDING = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of decoder layers of any kind of draft.

    Attributes:
        n_embd, n_head, n_head_kv, head_size, n_ff: the sizes of each layer.
        n_layer: the file's value, which is wrong in some EAGLE-3 files of one layer.
        n_vocab: the target's vocabulary when the draft was trained.
        n_ctx_train, norm_eps: the file's values.
    """

    n_embd: int
    n_head: int
    n_head_kv: int
    head_size: int
    n_ff: int
    n_layer: int
    n_vocab: int
    n_ctx_train: int
    norm_eps: float

    def keys(self) -> dict[str, int | float]:
        """The GGUF's keys, without the architecture's prefix and block_count."""
        return {
            "context_length": self.n_ctx_train,
            "embedding_length": self.n_embd,
            "feed_forward_length": self.n_ff,
            "attention.head_count": self.n_head,
            "attention.head_count_kv": self.n_head_kv,
            "attention.key_length": self.head_size,
            "attention.value_length": self.head_size,
            "attention.layer_norm_rms_epsilon": self.norm_eps,
        }


def read_sizes(body: Fields) -> Sizes:
    """Reads the sizes; raises if one is missing.

    Defaults are those that transformers' LlamaConfig documents: num_key_value_heads is
    num_attention_heads, head_dim is hidden_size / num_attention_heads. The tensors' shapes prove
    both.
    """
    n_embd, n_head = body.size("hidden_size"), body.size("num_attention_heads")
    head_size = _head_size(body, n_embd, n_head)
    n_head_kv = body.size("num_key_value_heads", n_head)
    if n_head % n_head_kv:
        raise body.fail("num_key_value_heads", f"a divisor of num_attention_heads, {n_head}")
    return Sizes(
        n_embd=n_embd,
        n_head=n_head,
        n_head_kv=n_head_kv,
        head_size=head_size,
        n_ff=body.size("intermediate_size"),
        n_layer=body.size("num_hidden_layers"),
        n_vocab=body.size("vocab_size"),
        n_ctx_train=body.size("max_position_embeddings"),
        norm_eps=body.number("rms_norm_eps"),
    )


def _head_size(body: Fields, n_embd: int, n_head: int) -> int:
    if not body.has("head_dim") and n_embd % n_head:
        raise body.fail("head_dim", f"hidden_size {n_embd} is not a multiple of {n_head} heads")
    head_size = body.size("head_dim", max(n_embd // n_head, 1))
    if head_size % 2:
        raise ConversionError(f"the size of a head is {head_size}; RoPE needs an even one")
    return head_size


def refuse_layer_options(body: Fields) -> None:
    """Raises ConversionError for options of decoder layers that no graph supports."""
    if body.flag("mlp_bias"):
        raise ConversionError(
            f"config.json: {body.where}mlp_bias is true: biases in the MLP are not supported"
        )
    for key in ("logit_scale", "attention_multiplier", "residual_multiplier"):
        if body.has(key) and body.number(key) != 1:
            raise ConversionError(
                f"config.json: {body.where}{key} is {body.values[key]!r}: scaling is not supported"
            )
    # Left over from a target with experts, num_experts and the like say nothing: tensors do.
    if body.has("kv_lora_rank"):
        raise ConversionError(
            f"config.json has {body.where}kv_lora_rank: a draft with multi-head latent attention "
            "(MLA) is not supported"
        )


def count_target_layers(
    sizes: Sizes, target_hidden_size: int | None, fc: tuple[int, ...], target: Target
) -> int:
    """The number of target rows that fc reads, from its width."""
    if target_hidden_size not in (None, target.n_embd):
        raise ConversionError(
            f"the draft was made for a target of width {target_hidden_size} (target_hidden_size), "
            f"this one is {target.n_embd} wide"
        )
    if abs(sizes.n_vocab - target.n_vocab) > _MAX_PADDING:
        raise ConversionError(
            f"the draft was made for a vocabulary of {sizes.n_vocab} tokens (vocab_size), this "
            f"target has {target.n_vocab}"
        )
    n_layers, rest = divmod(fc[1], target.n_embd)
    if rest or n_layers == 0:
        raise ConversionError(
            f"fc.weight reads {fc[1]} columns, which is not a multiple of {target.n_embd}, the "
            "width of the target; is this the target that the draft was made for?"
        )
    return n_layers


def named(arch: str, keys: Mapping[str, object]) -> dict[str, object]:
    """The keys with the architecture's prefix."""
    return {f"{arch}.{name}": value for name, value in keys.items()}
