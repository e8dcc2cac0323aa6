"""config.json of a DFlash, DFlash2 or DSpark draft -> DflashConfig, whichever tool wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pyllama_spec.convert.dflash.attention import Attention, read_attention
from pyllama_spec.convert.dflash.options import INNER, Options
from pyllama_spec.convert.fields import Fields
from pyllama_spec.convert.layer_ids import Convention, Ids
from pyllama_spec.convert.rope import Rope, read_rope
from pyllama_spec.convert.sizes import Sizes, read_sizes, refuse_layer_options
from pyllama_spec.errors import ConversionError

# The tokens of a block have one position each, whatever pictures the target gives three.
_MROPE = frozenset({"mrope_section", "mrope_interleaved"})
# The engine computes GELU by its tanh formula.
_ACTIVATIONS = ("silu", "gelu_pytorch_tanh")
_MAX_BLOCK = 256
_PROJECTORS = (None, "dflash", "dflash2", "dspark")


@dataclass(frozen=True, slots=True, kw_only=True)
class DflashConfig(Sizes):
    """A draft as its config.json describes it, without the heads after its layers.

    Attributes:
        layout: the tool that wrote the files, as far as they tell; for people.
        is_speculators: whether the files have the speculators layout.
        options: where further options are.
        n_draft_vocab: None if the file does not say.
        target_hidden_size, n_target_layer: sizes of the target; None if the file does not say.
        block_size: slots of a block, the anchor's among them.
        mask_token: the token in the other slots.
        layer_ids: which rows of the target the draft reads, as written in the file.
        counted: what these ids count.
        activation: the activation of the MLP.
        attention: windows and causality.
        has_sinks: whether each head has an attention sink.
        has_bias: whether queries, keys and values have a bias.
        is_interleaved: whether RoPE rotates neighbours instead of the halves of a head.
        value_scale, logit_scale, logit_cap: None if the draft has none.
        embedding_scale: None if the file does not say.
        is_tied: whether the output is the token embedding.
        rope: the keys and factors of RoPE.
    """

    layout: str
    is_speculators: bool
    options: Options
    n_draft_vocab: int | None
    target_hidden_size: int | None
    n_target_layer: int | None
    block_size: int
    mask_token: int
    layer_ids: Ids
    counted: Convention
    activation: str
    attention: Attention
    has_sinks: bool
    has_bias: bool
    is_interleaved: bool
    value_scale: float | None
    embedding_scale: float | None
    logit_scale: float | None
    logit_cap: float | None
    is_tied: bool
    rope: Rope


def read_config(config: Mapping[str, Any]) -> DflashConfig:
    """Reads the config. Raises where a value that decides the block is missing."""
    top = Fields(config)
    is_speculators = top.has("speculators_model_type")
    body = top.inner("transformer_layer_config") if is_speculators else top
    if is_speculators and not body.values:
        raise top.fail("transformer_layer_config", "an object with the sizes of the layers")
    options = Options(top, body, is_speculators)
    _refuse_options(options, body)
    sizes = read_sizes(body)
    ids, counted = _layer_ids(options, top)
    return DflashConfig(
        **asdict(sizes),
        layout=_layout(top, is_speculators),
        is_speculators=is_speculators,
        options=options,
        n_draft_vocab=top.optional_size("draft_vocab_size"),
        target_hidden_size=top.optional_size("target_hidden_size"),
        n_target_layer=options.at("num_target_layers").optional_size("num_target_layers"),
        block_size=_block_size(options),
        mask_token=_mask_token(options),
        layer_ids=ids,
        counted=counted,
        activation=_activation(body),
        attention=read_attention(options, sizes.n_layer, is_speculators),
        has_sinks=_has_sinks(options, body),
        has_bias=body.flag("attention_bias"),
        is_interleaved=_is_interleaved(body),
        value_scale=_scale(options, "attention_value_scale"),
        embedding_scale=_number(options, "input_embedding_scale"),
        logit_scale=_scale(options, "output_multiplier"),
        logit_cap=_logit_cap(options),
        is_tied=(body if body.has("tie_word_embeddings") else top).flag("tie_word_embeddings"),
        rope=_rope(body, sizes.head_size, is_speculators),
    )


def _layout(top: Fields, is_speculators: bool) -> str:
    if is_speculators:
        return "speculators"
    names = top.names("architectures")
    if any(top.has(key) for key in INNER):
        return "SpecForge" if "DSparkDraftModel" in names else "z-lab"
    if "MuseGlimmerAssistantModel" in names:
        return "Muse-Glimmer"
    return "DeepSpec" if any("DSpark" in name for name in names) else "flat"


def _layer_ids(options: Options, top: Fields) -> tuple[Ids, Convention]:
    """The layer ids and what they count, which the key's name tells in all published files."""
    outputs = options.at("target_layer_ids").ids("target_layer_ids")
    inputs = top.ids("aux_hidden_state_layer_ids")
    if outputs and inputs and inputs != tuple(k + 1 for k in outputs):
        raise ConversionError(
            f"config.json: aux_hidden_state_layer_ids {list(inputs)}, which count inputs, and "
            f"target_layer_ids {list(outputs)}, which count outputs, do not name the same layers"
        )
    if inputs:
        return inputs, "input"
    if not outputs:
        raise ConversionError(
            "config.json names no layers of the target: there is neither target_layer_ids nor "
            "aux_hidden_state_layer_ids"
        )
    return outputs, "output"


def _block_size(options: Options) -> int:
    place = options.at("block_size")
    size = place.size("block_size")
    if size > _MAX_BLOCK:
        raise place.fail("block_size", f"a count of slots up to {_MAX_BLOCK}")
    return size


def _mask_token(options: Options) -> int:
    place = options.at("mask_token_id")
    token = place.values.get("mask_token_id")
    if type(token) is not int or token < 0:
        raise place.fail("mask_token_id", "the id of a token")
    return token


def _activation(body: Fields) -> str:
    key = "hidden_activation" if body.has("hidden_activation") else "hidden_act"
    name = body.values.get(key) or "silu"
    if name not in _ACTIVATIONS:
        raise body.fail(key, f"one of {', '.join(_ACTIVATIONS)}")
    return str(name)


def _has_sinks(options: Options, body: Fields) -> bool:
    key = "attention_sink_bias"
    if options.has(key):
        return options.at(key).flag(key)
    return body.flag("add_swa_attention_sink_bias")


def _is_interleaved(body: Fields) -> bool:
    declared = {
        value
        for key in ("rope_is_neox_style", "is_neox_style")
        if (value := body.optional_flag(key)) is not None
    }
    if len(declared) > 1:
        raise body.fail("is_neox_style", "what rope_is_neox_style is")
    return declared == {False}


def _number(options: Options, key: str) -> float | None:
    return options.at(key).number(key) if options.has(key) else None


def _scale(options: Options, key: str) -> float | None:
    """Reads a scale factor; None for 1, and if there is none."""
    value = _number(options, key)
    return None if value == 1 else value


def _logit_cap(options: Options) -> float | None:
    key = "final_logit_softcapping"
    place = options.at(key)
    # z-lab's code takes 0 for none.
    return place.number(key) if place.values.get(key) else None


def _rope(body: Fields, head_size: int, is_speculators: bool) -> Rope:
    # Readers of speculators' files disagree whether the share, left from the target, applies.
    rope = read_rope(body, head_size, ignored=_MROPE, partial=not is_speculators)
    if rope.keys.get("rope.scaling.type") == "longrope":
        raise ConversionError(
            "RoPE scaling of kind 'longrope' is not supported: the engine's DFlash graph has no "
            "factors for it"
        )
    inner = {where: body.inner(where) for where in ("rope_scaling", "rope_parameters")}
    if not any(place.has("rope_theta") for place in (body, *inner.values())):
        # transformers takes 10000, vLLM a million.
        raise body.fail("rope_theta", "readers of this kind of draft take different defaults")
    for where, values in inner.items():
        by_mscale = values.has("mscale") and not values.has("attention_factor")
        if by_mscale and "rope.scaling.attn_factor" in rope.keys:
            # z-lab/Kimi-K2.5-DFlash: transformers computes with mscale, vLLM and stock without.
            raise ConversionError(
                f"config.json: {body.where}{where}.mscale changes how cos and sin are scaled, and "
                "readers of this kind of draft disagree whether it counts; write attention_factor "
                "into it"
            )
    return rope


def _refuse_options(options: Options, body: Fields) -> None:
    """Refuses options that the engine's DFlash graph lacks."""
    refuse_layer_options(body)
    if body.flag("attn_output_gate"):
        raise body.fail("attn_output_gate", "false: the engine's DFlash graph has no gate")
    if body.has("v_head_dim") and body.values["v_head_dim"] != body.values.get("head_dim"):
        raise body.fail("v_head_dim", "head_dim: values of another size are not supported")
    if options.value("projector_type") not in _PROJECTORS:
        raise options.refuse("projector_type", "this kind of draft is not supported")
    if options.value("use_qk_norm") not in (None, True):
        raise options.refuse("use_qk_norm", "the engine's DFlash graph norms queries and keys")
    if options.value("use_aux_hidden_state") not in (None, True):
        raise options.refuse("use_aux_hidden_state", "the draft does not read the target's rows")
    size = options.value("selector_vocab_size")
    if size not in (None, body.values.get("vocab_size")):
        raise options.refuse("selector_vocab_size", "a selector of other tokens is not supported")
