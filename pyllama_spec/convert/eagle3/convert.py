"""Converts an EAGLE-3 checkpoint of any tool, and its target, to one GGUF (docs/eagle3.md).

The kind of a checkpoint is told from its tensors and options: architectures mislead (EAGLE-3
heads of SafeAILab are called LlamaForCausalLM).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyllama_spec.convert.conversion import Conversion, Draft
from pyllama_spec.convert.eagle3.config import DraftConfig, read_config, resolve
from pyllama_spec.convert.eagle3.layout import Plan, common_name, plan_tensors
from pyllama_spec.convert.fields import (
    Fields,
    Shapes,
    first_name,
    refuse_by_tensor,
    refuse_packed,
    refuse_quantised,
)
from pyllama_spec.convert.sizes import count_target_layers
from pyllama_spec.convert.target import read_target
from pyllama_spec.errors import ConversionError
from pyllama_spec.gguf.target import Target

# speculators_model_type -> what it is.
_SPECULATORS = {
    "eagle": "an EAGLE-1 or EAGLE-2 head",
    "dflash": "a DFlash draft",
    "dspark": "a DSpark draft",
    "mtp": "a multi-token-prediction head",
    "peagle": "a P-EAGLE head, which drafts in parallel",
    "mlp": "an MLP speculator",
    "independent": "an independent draft model",
}
# A name that only one kind of tensor has -> what it is.
_TENSORS = (
    (r"(^|\.)mask_hidden$", "a P-EAGLE head, which drafts in parallel"),
    (r"(^|\.)parallel_draft_heads\.", "an EAGLE-3 head with parallel Medusa heads"),
    (r"(^|\.)medusa|^\d+\.\d+\.linear\.", "Medusa heads"),
    (r"(^|\.)kv_a_proj", "a head with multi-head latent attention (MLA), as for DeepSeek and Kimi"),
    (r"(^|\.)experts\.|(^|\.)mlp\.gate\.", "a head with a mixture of experts"),
    (r"(^|\.)markov_|(^|\.)confidence_head", "a DSpark draft"),
    (r"(^|\.)mtp\.", "a multi-token-prediction head"),
    (r"(^|\.)(enorm|hnorm|eh_proj)\.", "a multi-token-prediction head"),
)
# NVIDIA's LlamaForCausalLMEagle3Deep, whose further layers name their norms otherwise.
_DEEP = r"(^|\.)midlayer\.\d+\."


def refuse_other_kinds(config: Mapping[str, Any], shapes: Shapes) -> None:
    """Raises if the checkpoint is not an EAGLE-3 head, or the engine lacks its graph."""
    top = Fields(config)
    _refuse_by_config(top)
    refuse_by_tensor(_TENSORS, shapes)
    refuse_packed(shapes)
    if name := first_name(_DEEP, shapes):
        raise ConversionError(
            f"{name}: the names of LlamaForCausalLMEagle3Deep (Megatron export of several layers) "
            "are not supported"
        )
    _refuse_by_shape(shapes)


def _refuse_by_config(top: Fields) -> None:
    kind = top.values.get("speculators_model_type")
    if kind not in (None, "eagle3"):
        what = _SPECULATORS.get(str(kind), f"a speculator of kind {kind!r}")
        raise ConversionError(f"this is {what}, which is not supported (only EAGLE-3 is)")
    for key, what in (
        ("dflash_config", "a DFlash draft"),
        ("medusa_num_heads", "Medusa heads"),
    ):
        if top.has(key):
            raise ConversionError(f"this is {what}, which is not supported: config.json has {key}")
    if top.flag("parallel_drafting"):
        raise ConversionError(
            "this is a P-EAGLE head, which drafts in parallel and is not supported: config.json "
            "has parallel_drafting"
        )
    refuse_quantised(top)
    _refuse_by_eagle_config(top.inner("eagle_config"))


def _refuse_by_eagle_config(options: Fields) -> None:
    """Refuses what NVIDIA ModelOpt can omit from a head or add to it."""
    if not options.flag("use_aux_hidden_state", default=True):
        raise ConversionError(
            "eagle_config.use_aux_hidden_state is false: the head reads the last hidden row alone, "
            "without fc; that is EAGLE-1 or EAGLE-2, which is not supported"
        )
    for key, wanted in (
        ("use_input_layernorm_in_first_layer", True),
        ("use_last_layernorm", True),
        ("use_mtp_layernorm", False),
        ("next_layer_regular", True),
    ):
        if options.flag(key, default=wanted) is not wanted:
            raise ConversionError(
                f"eagle_config.{key} is {str(not wanted).lower()}: a head of that build is not "
                "supported"
            )
    if options.size("parallel_draft_step", 1) > 1:
        raise ConversionError(
            "eagle_config.parallel_draft_step is above 1: an EAGLE-3 head with parallel Medusa "
            "heads, which is not supported"
        )


def _refuse_by_shape(shapes: Shapes) -> None:
    """Refuses heads without fc, hidden_norm and projections of two rows side by side."""
    names = {name.removeprefix("model."): shape for name, shape in shapes.items()}
    fc = names.get("fc.weight")
    if fc is None or len(fc) != 2:
        raise ConversionError(
            "this is not an EAGLE-3 draft: the matrix fc.weight is missing, which mixes the "
            "target's rows"
        )
    first = next((p for p in ("midlayer.", "layers.0.") if f"{p}hidden_norm.weight" in names), None)
    if first is None:
        if fc[1] == 2 * fc[0]:
            raise ConversionError(
                "this is an EAGLE-1 or EAGLE-2 head, which is not supported: fc reads a token and "
                "one row, and there is no hidden_norm"
            )
        raise ConversionError(
            "this is not an EAGLE-3 draft: there is no hidden_norm.weight in its first layer"
        )
    q = names.get(f"{first}self_attn.q_proj.weight")
    if q is not None and q[1:] == fc[:1]:
        raise ConversionError(
            f"this is not an EAGLE-3 draft: q_proj of its first layer {list(q)} reads {fc[0]} "
            f"columns, and not {2 * fc[0]}, a token and a row side by side"
        )


_OPTIONS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


def make_eagle3(conversion: Conversion) -> Draft:
    """Plans the conversion of a head of SafeAILab, SpecForge, speculators / RedHat or NVIDIA."""
    checkpoint = conversion.checkpoint
    refuse_other_kinds(checkpoint.config, conversion.shapes)
    config = read_config(checkpoint.config)
    target = read_target(conversion.target)
    fc = next(
        shape for name, shape in conversion.shapes.items() if common_name(name) == "fc.weight"
    )
    n_wanted = count_target_layers(config, config.target_hidden_size, fc, target)
    if config.n_target_layers not in (None, n_wanted):
        raise ConversionError(
            f"config.json says num_aux_hidden_states {config.n_target_layers}, and fc.weight reads "
            f"{n_wanted} rows of {target.n_embd}"
        )
    ids = resolve(config.layer_ids, target.n_layer, n_wanted, conversion.layer_ids)
    plan = plan_tensors(
        config, checkpoint.tensors, n_target_layers=n_wanted,
        target_n_embd=target.n_embd, n_vocab=target.n_vocab,
    )  # fmt: skip
    return Draft(
        arch="eagle3",
        name="EAGLE-3",
        layout=config.layout,
        keys=_keys(config, plan, target),
        ids=ids,
        target=target,
        tensors=plan.tensors,
        n_layer=plan.n_layer,
        n_draft_vocab=plan.n_draft_vocab,
        notes=(*config.notes, *plan.notes),
    )


def _keys(config: DraftConfig, plan: Plan, target: Target) -> Mapping[str, Any]:
    keys: dict[str, Any] = {
        **config.keys(),
        "block_count": plan.n_layer,
        "vocab_size": target.n_vocab,
        "target_hidden_size": target.n_embd,
        **config.rope.keys,
    }
    # Only those that are on: stock llama.cpp knows the first two.
    keys |= {name: True for name in _OPTIONS if getattr(config, name)}
    if config.output_gate:
        keys["attention.output_gate"] = True
    return keys
