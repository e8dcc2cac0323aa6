"""Reads config.json of a draft, of any tool, into DraftConfig.

Finds the target rows that an EAGLE-3 head reads, from the ids in its checkpoint.

pyllama_spec/convert/layer_ids.py says what is counted; no key of a checkpoint says it.

    where the ids stand                               read as
    ------------------------------------------------  -------------------------------------------
    nowhere, or an empty list                         inputs 2, n/2, n-3: the EAGLE-3 reference
    top level, with speculators_model_type            inputs, as vLLM reads them
    top level of a flat config                        inputs, as vLLM reads them
    eagle_config (SpecForge, NVIDIA ModelOpt)         outputs, as SpecForge and ModelOpt hook them

Two things in the ids themselves are stronger than where they stand:
- In eagle_config, an id n: block n does not exist, so the list counts inputs (NVIDIA's
  gpt-oss-120b-Eagle3-v3 has [24, 30, 36] of 36 layers).
- A list that is exactly the default of the other way of counting: inputs [2, n/2, n-3] in
  eagle_config, or outputs [1, n/2-1, n-4] at the top level. Both occur, and readers disagree
  (sgl-project/sglang pull request 25454), so that is refused.
Where both places have a list they must say the same. `layer_ids="input"` or `"output"` overrides
the table: then the list of the place that counts so is taken, or the only one that there is.

Sources: SafeAILab/EAGLE modeling_llama_kv.py, sgl-project/SpecForge model_providers.py,
NVIDIA/Model-Optimizer hf_eagle.py, vLLM llama_eagle3.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pyllama_spec.convert.fields import Fields
from pyllama_spec.convert.layer_ids import Convention, Ids, ResolvedIds, to_inputs
from pyllama_spec.convert.rope import Rope, read_rope
from pyllama_spec.convert.sizes import Sizes, read_sizes, refuse_layer_options
from pyllama_spec.errors import ConversionError

_CHOOSE = (
    "say which with --layer-ids input (id k enters layer k) or --layer-ids output (id k leaves "
    "block k); the draft's authors know"
)


@dataclass(frozen=True, slots=True)
class WrittenIds:
    """The lists of layer ids as config.json has them.

    Attributes:
        flat: eagle_aux_hidden_state_layer_ids at the top level; None if it is missing.
        nested: the same key in eagle_config.
    """

    flat: Ids | None
    nested: Ids | None


def default_inputs(n_layer: int) -> Ids:
    """The three inputs that the EAGLE-3 reference takes from a target of n_layer layers."""
    return (2, n_layer // 2, n_layer - 3)


def resolve(
    written: WrittenIds, n_layer: int, n_wanted: int, override: Convention | None
) -> ResolvedIds:
    """The target's layer inputs, by the rule of the module's docstring."""
    flat, nested = written.flat or None, written.nested or None
    if flat is None and nested is None:
        return _default(n_layer, n_wanted)
    if override is not None:
        own = (flat or nested) if override == "input" else (nested or flat)
        assert own is not None
        counted: Convention = override
    elif flat is None:
        assert nested is not None
        own, counted = nested, _of_nested(nested, n_layer)
    else:
        own, counted = flat, _of_flat(flat, n_layer, nested)
        if nested is not None:
            _compare(flat, nested, n_layer)
    return to_inputs(own, counted, n_layer, n_wanted)


def _default(n_layer: int, n_wanted: int) -> ResolvedIds:
    ids = default_inputs(n_layer)
    if n_wanted != len(ids):
        raise ConversionError(
            f"fc reads {n_wanted} layers of the target, and config.json does not say which: "
            "eagle_aux_hidden_state_layer_ids is missing"
        )
    if len(set(ids)) != len(ids) or min(ids) < 0 or max(ids) > n_layer:
        raise ConversionError(
            f"config.json has no eagle_aux_hidden_state_layer_ids, and the default 2, n/2, n-3 is "
            f"{list(ids)} for a target of {n_layer} layers"
        )
    return ResolvedIds(ids, "default")


def _of_nested(ids: Ids, n_layer: int) -> Convention:
    if n_layer in ids:
        return "input"
    if ids == default_inputs(n_layer):
        raise ConversionError(
            f"eagle_config's layer ids {list(ids)} are the default in inputs, in a place where "
            f"others write outputs; {_CHOOSE}"
        )
    return "output"


def _of_flat(ids: Ids, n_layer: int, nested: Ids | None) -> Convention:
    # With a second list that says the same there is nothing to doubt.
    if nested is None and ids == tuple(k - 1 for k in default_inputs(n_layer)):
        raise ConversionError(
            f"the layer ids {list(ids)} are the default in outputs, in a place where others write "
            f"inputs; {_CHOOSE}"
        )
    return "input"


def _compare(flat: Ids, nested: Ids, n_layer: int) -> None:
    shift = 0 if n_layer in nested else 1
    if flat != tuple(k + shift for k in nested):
        raise ConversionError(
            f"the layer ids at the top level {list(flat)} and those in eagle_config {list(nested)} "
            f"do not name the same layers; {_CHOOSE}"
        )


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
    """Reads the config of a head."""
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
