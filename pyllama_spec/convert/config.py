"""Reads values of a config.json; errors name the key that is missing or wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyllama_spec.errors import ConversionError
from pyllama_spec.gguf.target import Target

# What a float32 of a GGUF can hold.
_MAX_NUMBER = 3.4028234e38
# Tokens by which the vocabulary of a config.json and that of a GGUF of the same model may differ:
# gpt-oss pads by 1069, Qwen2.5 by 399. Vocabularies of different models differ by far more.
_MAX_PADDING = 2048


@dataclass(frozen=True, slots=True)
class Fields:
    """An object of a config.json, with other objects that may hold the same options.

    A key whose value is null counts as missing. Every read of a key raises ConversionError if two
    of the objects have different values.
    """

    values: Mapping[str, Any]  # the object
    where: str = ""  # the prefix of its keys in messages, such as "transformer_layer_config."
    # further objects; a message names the first one that has the key
    others: tuple[Fields, ...] = ()

    def beside(self, *others: Fields) -> Fields:
        """The same object with others after it."""
        return replace(self, others=(*self.others, *others))

    def _holder(self, key: str) -> Fields:
        holders = [one for one in (self, *self.others) if one.values.get(key) is not None]
        for other in holders[1:]:
            if other.values[key] != holders[0].values[key]:
                raise ConversionError(
                    f"config.json: {holders[0].where}{key} is {holders[0].values[key]!r} and "
                    f"{other.where}{key} is {other.values[key]!r}"
                )
        return holders[0] if holders else self

    def get(self, key: str) -> Any:
        """The value; None if the key is missing."""
        return self._holder(key).values.get(key)

    def has(self, key: str) -> bool:
        """Whether the key has a value."""
        return self.get(key) is not None

    def fail(self, key: str, wanted: str) -> ConversionError:
        """The error for a missing or wrong value."""
        holder = self._holder(key)
        if not holder.has(key):
            return ConversionError(f"config.json has no {holder.where}{key} ({wanted})")
        return ConversionError(
            f"config.json: {holder.where}{key} is {holder.values[key]!r}, not {wanted}"
        )

    def refuse(self, key: str, why: str) -> ConversionError:
        """The error for a value that is not supported."""
        holder = self._holder(key)
        return ConversionError(
            f"config.json: {holder.where}{key} is {holder.values.get(key)!r}: {why}"
        )

    def size(self, key: str, default: int | None = None) -> int:
        """Reads a count of 1 or more."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if type(value) is not int or not 1 <= value < 1 << 31:
            raise self.fail(key, "a positive integer")
        return value

    def optional_size(self, key: str) -> int | None:
        """Reads a count of 1 or more; None if the key is missing."""
        return self.size(key) if self.has(key) else None

    def number(self, key: str, default: float | None = None) -> float:
        """Reads a finite number above 0."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if type(value) not in (int, float) or not 0 < value <= _MAX_NUMBER:
            raise self.fail(key, "a positive number that float32 holds")
        return float(value)

    def optional_flag(self, key: str) -> bool | None:
        """Reads a boolean; None if the key is missing."""
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.fail(key, "true or false")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        """Reads a boolean."""
        value = self.optional_flag(key)
        return default if value is None else value

    def names(self, key: str) -> list[str]:
        """Reads a list of names that decides nothing; skips values that are not names."""
        value = self.get(key)
        return [x for x in value if isinstance(x, str)] if isinstance(value, list) else []

    def ids(self, key: str) -> tuple[int, ...] | None:
        """Reads a list of integers; None if the key is missing."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or any(type(k) is not int for k in value):
            raise self.fail(key, "a list of integers")
        return tuple(value)

    def inner(self, key: str) -> Fields:
        """The object of a key; empty if the key is missing."""
        value = self.get(key)
        if value is not None and not isinstance(value, dict):
            raise self.fail(key, "an object")
        return Fields(value or {}, f"{self.where}{key}.")


# A key, the values that the engine's graph supports, and why others are refused.
Supported = Iterable[tuple[str, tuple[object, ...], str]]

# Of the draft's decoder layers and its storage, whatever its kind. Left over from a target with
# experts, num_experts and the like say nothing: tensors do.
_SUPPORTED: Supported = (
    ("quantization_config", (), "the checkpoint is quantised; give the unquantised one"),
    ("compression_config", (), "the checkpoint is quantised; give the unquantised one"),
    ("mlp_bias", (False,), "biases in the MLP are not supported"),
    ("logit_scale", (1,), "scaling is not supported"),
    ("attention_multiplier", (1,), "scaling is not supported"),
    ("residual_multiplier", (1,), "scaling is not supported"),
    ("kv_lora_rank", (), "multi-head latent attention (MLA) is not supported"),
)


def check_supported(options: Fields, of_kind: Supported) -> None:
    """Raises ConversionError for an option that the engine's graph of this kind lacks."""
    for key, allowed, why in (*_SUPPORTED, *of_kind):
        value = options.get(key)
        if value is not None and value not in allowed:
            raise options.refuse(key, why)


def body_of(top: Fields) -> Fields:
    """The object with the sizes of the decoder layers: speculators has them apart."""
    if not top.has("speculators_model_type"):
        return top
    body = top.inner("transformer_layer_config")
    if not body.values:
        raise top.fail("transformer_layer_config", "an object with the sizes of the layers")
    return body


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of a draft of any kind."""

    n_embd: int  # the sizes of each decoder layer
    n_head: int
    n_head_kv: int
    head_size: int
    n_ff: int
    n_layer: int  # the file's value, which is wrong in some EAGLE-3 files of one layer
    n_vocab: int  # the target's vocabulary when the draft was trained
    n_draft_vocab: int | None  # rows of the draft's output; None if the file does not say
    target_n_embd: int | None  # the target's width; None if the file does not say
    n_ctx_train: int  # the file's values
    norm_eps: float
    is_tied: bool  # whether the output is the token embedding

    def keys(self) -> dict[str, Any]:
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

    def count_target_layers(self, fc: tuple[int, ...], target: Target) -> int:
        """The number of the target's rows that fc reads, from its width."""
        if self.target_n_embd not in (None, target.n_embd):
            raise ConversionError(
                f"the draft was made for a target of width {self.target_n_embd} "
                f"(target_hidden_size), this one is {target.n_embd} wide"
            )
        if abs(self.n_vocab - target.n_vocab) > _MAX_PADDING:
            raise ConversionError(
                f"the draft was made for a vocabulary of {self.n_vocab} tokens (vocab_size), this "
                f"target has {target.n_vocab}"
            )
        n_layers, rest = divmod(fc[1], target.n_embd)
        if rest or n_layers == 0:
            raise ConversionError(
                f"fc.weight reads {fc[1]} columns, which is not a multiple of {target.n_embd}, the "
                "width of the target; is this the target that the draft was made for?"
            )
        return n_layers


def read_sizes(top: Fields, body: Fields) -> Sizes:
    """Reads the sizes; raises if one is missing.

    Defaults are those that transformers' LlamaConfig documents: num_key_value_heads is
    num_attention_heads, head_dim is hidden_size / num_attention_heads. The tensors' shapes prove
    both.
    """
    n_embd, n_head = body.size("hidden_size"), body.size("num_attention_heads")
    if not body.has("head_dim") and n_embd % n_head:
        raise body.fail("head_dim", f"hidden_size {n_embd} is not a multiple of {n_head} heads")
    head_size = body.size("head_dim", max(n_embd // n_head, 1))
    if head_size % 2:
        raise ConversionError(f"the size of a head is {head_size}; RoPE needs an even one")
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
        n_draft_vocab=top.optional_size("draft_vocab_size"),
        target_n_embd=top.optional_size("target_hidden_size"),
        n_ctx_train=body.size("max_position_embeddings"),
        norm_eps=body.number("rms_norm_eps"),
        is_tied=(body if body.has("tie_word_embeddings") else top).flag("tie_word_embeddings"),
    )
