"""config.json of a draft -> DraftConfig, whichever tool wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyllama_spec.convert.fields import Fields
from pyllama_spec.convert.layer_ids import WrittenIds
from pyllama_spec.convert.rope import Rope, read_rope
from pyllama_spec.errors import ConversionError

_LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
# Options that only NVIDIA ModelOpt writes.
_MODELOPT = ("use_last_layernorm", "use_input_layernorm_in_first_layer", "next_layer_regular")


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """A draft head as its config.json describes it; docs/eagle3.md explains the options.

    Attributes:
        layout: who wrote the files, as far as they tell; for people.
        n_embd, n_head, n_head_kv, head_size, n_ff: sizes of its layers.
        n_layer: as the file says, which is wrong in some files of one layer.
        n_vocab: vocabulary of the target that it was trained for.
        n_draft_vocab: None where the file does not say.
        n_ctx_train, norm_eps: as in the file.
        target_hidden_size: None where the file does not say.
        n_target_layers: how many layers of the target it reads, None where the file does not say.
        norm_before_residual, norm_before_fc, fc_norm, norm_output, output_gate: options.
        has_attn_bias: None where the file does not say.
        has_qk_norm: its decoder layers are of a kind that always has q and k norms.
        is_tied: its output is its token embedding.
        rope: RoPE's keys and factors.
        layer_ids: which rows of the target it reads.
        notes: what the user should know.

    """

    layout: str
    n_embd: int
    n_head: int
    n_head_kv: int
    head_size: int
    n_ff: int
    n_layer: int
    n_vocab: int
    n_draft_vocab: int | None
    n_ctx_train: int
    norm_eps: float
    target_hidden_size: int | None
    n_target_layers: int | None
    norm_before_residual: bool
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool
    output_gate: bool
    has_attn_bias: bool | None
    has_qk_norm: bool
    is_tied: bool
    rope: Rope
    layer_ids: WrittenIds
    notes: tuple[str, ...] = ()


def read_config(config: Mapping[str, Any]) -> DraftConfig:
    """Reads what the head is. Sizes are never guessed.

    Defaults are those that transformers' LlamaConfig documents: num_key_value_heads is
    num_attention_heads, head_dim is hidden_size / num_attention_heads, rope_theta is 10000. The
    tensors' shapes prove the first two.

    Raises:
        ConversionError: a key is missing, wrong, contradicts another, or asks for something that
            the engine's EAGLE-3 graph lacks.

    """
    top = Fields(config)
    is_speculators = top.has("speculators_model_type")
    body = top.inner("transformer_layer_config") if is_speculators else top
    if is_speculators and not body.values:
        raise top.fail("transformer_layer_config", "an object with the head's sizes")
    eagle = top.inner("eagle_config")
    _refuse_options(body)
    n_embd, n_head = body.size("hidden_size"), body.size("num_attention_heads")
    head_size = _head_size(body, n_embd, n_head)
    n_head_kv = body.size("num_key_value_heads", n_head)
    if n_head % n_head_kv:
        raise body.fail("num_key_value_heads", f"a divisor of num_attention_heads, {n_head}")
    norm_before_fc, fc_norm = _flag(top, eagle, "norm_before_fc"), _flag(top, eagle, "fc_norm")
    if norm_before_fc and fc_norm:
        raise ConversionError(
            "config.json: norm_before_fc and fc_norm are both true: features would be normed twice"
        )
    rope = read_rope(body, head_size)
    norm_output = _flag(top, eagle, "norm_output")
    return DraftConfig(
        layout=_layout(top, eagle),
        n_embd=n_embd,
        n_head=n_head,
        n_head_kv=n_head_kv,
        head_size=head_size,
        n_ff=body.size("intermediate_size"),
        n_layer=body.size("num_hidden_layers"),
        n_vocab=body.size("vocab_size"),
        n_draft_vocab=top.optional_size("draft_vocab_size"),
        n_ctx_train=body.size("max_position_embeddings"),
        norm_eps=body.number("rms_norm_eps"),
        target_hidden_size=top.optional_size("target_hidden_size"),
        n_target_layers=top.optional_size("num_aux_hidden_states"),
        norm_before_residual=_norm_before_residual(top, eagle, is_speculators),
        norm_before_fc=norm_before_fc,
        fc_norm=fc_norm,
        norm_output=norm_output,
        output_gate=body.flag("attn_output_gate"),
        has_attn_bias=body.optional_flag("attention_bias"),
        has_qk_norm=is_speculators and body.values.get("model_type") == "qwen3",
        is_tied=(body if body.has("tie_word_embeddings") else top).flag("tie_word_embeddings"),
        rope=rope,
        layer_ids=WrittenIds(top.ids(_LAYER_IDS), eagle.ids(_LAYER_IDS)),
        notes=(*rope.notes, *_norm_output_note(norm_output, is_speculators)),
    )


def _layout(top: Fields, eagle: Fields) -> str:
    if top.has("speculators_model_type"):
        return "speculators"
    if any(eagle.has(key) for key in _MODELOPT):
        return "NVIDIA ModelOpt"
    names = top.values.get("architectures") or []
    if eagle.values or "LlamaForCausalLMEagle3" in names:
        return "SpecForge"
    return "SafeAILab" if "LlamaForCausalLM" in names else "flat"


def _head_size(body: Fields, n_embd: int, n_head: int) -> int:
    if not body.has("head_dim") and n_embd % n_head:
        raise body.fail("head_dim", f"hidden_size {n_embd} is no multiple of {n_head} heads")
    head_size = body.size("head_dim", max(n_embd // n_head, 1))
    if head_size % 2:
        raise ConversionError(f"the size of a head is {head_size}; RoPE needs an even one")
    return head_size


def _flag(top: Fields, eagle: Fields, key: str) -> bool:
    """An option that NVIDIA's files have in eagle_config, others at the top, and some in both."""
    outer, inner = top.optional_flag(key), eagle.optional_flag(key)
    if outer is not None and inner is not None and outer is not inner:
        raise ConversionError(
            f"config.json: {key} is {str(outer).lower()} at the top and {str(inner).lower()} in "
            "eagle_config"
        )
    return bool(outer or inner)


def _norm_before_residual(top: Fields, eagle: Fields, is_speculators: bool) -> bool:
    key = "norm_before_residual"
    if is_speculators and not (top.has(key) or eagle.has(key)):
        # Without it speculators itself takes false and vLLM true.
        raise top.fail(key, "readers of this layout disagree on what its absence means")
    return _flag(top, eagle, key)


def _norm_output_note(norm_output: bool, is_speculators: bool) -> tuple[str, ...]:
    if not norm_output or is_speculators:
        return ()
    # sgl-project/SpecForge pull request 879: before it, true meant the plain EAGLE-3 head there.
    note = (
        "norm_output is true: the normed row is handed on, as vLLM and SGLang do; SpecForge up to "
        "September 2026 trained with the row as it is under the same name"
    )
    return (note,)


def _refuse_options(body: Fields) -> None:
    """Options of decoder layers that the engine's EAGLE-3 graph lacks."""
    act = body.values.get("hidden_act")
    if act not in (None, "silu"):
        raise body.fail("hidden_act", "'silu', the only activation that is supported")
    if body.flag("mlp_bias"):
        raise ConversionError(
            f"config.json: {body.where}mlp_bias is true: biases in the MLP are not supported"
        )
    layers = body.values.get("layer_types")
    kinds = {str(kind) for kind in layers} if isinstance(layers, list) else set()
    if body.flag("use_sliding_window") or kinds - {"full_attention"}:
        what = sorted(kinds - {"full_attention"}) or ["use_sliding_window"]
        raise ConversionError(
            f"config.json: {body.where}layer_types: attention over anything but the whole text is "
            f"not supported ({', '.join(what)})"
        )
    for key in ("logit_scale", "attention_multiplier", "residual_multiplier"):
        if body.has(key) and body.number(key) != 1:
            raise ConversionError(
                f"config.json: {body.where}{key} is {body.values[key]!r}: scaling is not supported"
            )
    if not body.flag("is_causal", default=True):
        raise ConversionError(f"config.json: {body.where}is_causal is false: that is no decoder")
    # Left over from a target with experts, num_experts and the like say nothing: tensors do.
    if body.has("kv_lora_rank"):
        raise ConversionError(
            f"config.json has {body.where}kv_lora_rank: a head with multi-head latent attention "
            "(MLA) is not supported"
        )
