"""Reads config.json of a draft, of any tool, into DraftConfig."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pyllama_spec.convert.eagle3.layer_ids import WrittenIds
from pyllama_spec.convert.fields import Fields
from pyllama_spec.convert.rope import Rope, read_rope
from pyllama_spec.convert.sizes import Sizes, read_sizes, refuse_layer_options
from pyllama_spec.errors import ConversionError

_LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
# Options that only NVIDIA ModelOpt writes.
_MODELOPT = ("use_last_layernorm", "use_input_layernorm_in_first_layer", "next_layer_regular")


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftConfig(Sizes):
    """A draft head as its config.json describes it; docs/eagle3.md explains the options.

    Attributes:
        layout: the tool that wrote the files, as far as they tell; for people.
        n_draft_vocab: None if the file does not say.
        target_hidden_size: None if the file does not say.
        n_target_layers: how many layers of the target the head reads; None if the file does not
            say.
        norm_before_residual, norm_before_fc, fc_norm, norm_output, output_gate: options.
        has_attn_bias: None if the file does not say.
        has_qk_norm: whether its kind of decoder layer always has q and k norms.
        is_tied: whether the output is the token embedding.
        rope: the keys and factors of RoPE.
        layer_ids: which rows of the target the head reads.
        notes: remarks for the user.

    """

    layout: str
    n_draft_vocab: int | None
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
    """Reads the config of a head.

    Raises:
        ConversionError: a key is missing or wrong, contradicts another, or needs something that the
            engine's EAGLE-3 graph lacks.

    """
    top = Fields(config)
    is_speculators = top.has("speculators_model_type")
    body = top.inner("transformer_layer_config") if is_speculators else top
    if is_speculators and not body.values:
        raise top.fail("transformer_layer_config", "an object with the head's sizes")
    eagle = top.inner("eagle_config")
    _refuse_options(body)
    sizes = read_sizes(body)
    norm_before_fc, fc_norm = _flag(top, eagle, "norm_before_fc"), _flag(top, eagle, "fc_norm")
    if norm_before_fc and fc_norm:
        raise ConversionError(
            "config.json: norm_before_fc and fc_norm are both true: features would be normed twice"
        )
    rope = read_rope(body, sizes.head_size)
    norm_output = _flag(top, eagle, "norm_output")
    return DraftConfig(
        **asdict(sizes),
        layout=_layout(top, eagle),
        n_draft_vocab=top.optional_size("draft_vocab_size"),
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
    names = top.names("architectures")
    if eagle.values or "LlamaForCausalLMEagle3" in names:
        return "SpecForge"
    return "SafeAILab" if "LlamaForCausalLM" in names else "flat"


def _flag(top: Fields, eagle: Fields, key: str) -> bool:
    """Reads an option that NVIDIA's files have in eagle_config, and others at the top."""
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
    """Refuses options of decoder layers that the engine's EAGLE-3 graph lacks."""
    act = body.values.get("hidden_act")
    if act not in (None, "silu"):
        raise body.fail("hidden_act", "'silu', the only activation that is supported")
    layers = body.values.get("layer_types")
    kinds = {str(kind) for kind in layers} if isinstance(layers, list) else set()
    if body.flag("use_sliding_window") or kinds - {"full_attention"}:
        what = sorted(kinds - {"full_attention"}) or ["use_sliding_window"]
        raise ConversionError(
            f"config.json: {body.where}layer_types: attention over anything but the whole text is "
            f"not supported ({', '.join(what)})"
        )
    if not body.flag("is_causal", default=True):
        raise ConversionError(
            f"config.json: {body.where}is_causal is false, so it is not a decoder"
        )
    refuse_layer_options(body)
