"""Refuses drafts that are not EAGLE-3 heads, by name and with the reason.

The kind of a checkpoint is told from its tensors and options: architectures mislead (EAGLE-3 heads
    of
SafeAILab are called LlamaForCausalLM).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyllama_spec.convert.fields import Fields
from pyllama_spec.convert.refusals import (
    Shapes,
    first_name,
    refuse_by_tensor,
    refuse_packed,
    refuse_quantised,
)
from pyllama_spec.errors import ConversionError

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
    """Raises if the checkpoint is not an EAGLE-3 head, or the engine lacks its graph.

    Args:
        config: config.json.
        shapes: the shapes of the tensors, by their names in the files.

    Raises:
        ConversionError: names the draft's kind and the reason.

    """
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
