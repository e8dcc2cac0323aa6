"""Converts a DFlash, DFlash2 or DSpark checkpoint of any tool, and its target, to one GGUF."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from pyllama_spec.convert.conversion import Conversion, Draft
from pyllama_spec.convert.dflash.borrowed import own_matrices
from pyllama_spec.convert.dflash.config import DflashConfig, read_config
from pyllama_spec.convert.dflash.layout import Plan, common_name, plan_tensors
from pyllama_spec.convert.dflash.options import INNER
from pyllama_spec.convert.fields import (
    Fields,
    Shapes,
    refuse_by_tensor,
    refuse_packed,
    refuse_quantised,
)
from pyllama_spec.convert.layer_ids import ResolvedIds, to_inputs
from pyllama_spec.convert.sizes import count_target_layers
from pyllama_spec.convert.target import read_target
from pyllama_spec.errors import ConversionError
from pyllama_spec.gguf.reader import GgufKey
from pyllama_spec.gguf.target import Target

KINDS = ("dflash", "dflash2", "dspark")
# A name that only one kind of tensor has -> what it is.
_TENSORS = (
    (r"(^|\.)main_(proj|norm)\.|(^|\.)hc_(attn|ffn|head)", "a DSpark draft of DeepSeek-V4 stages"),
    (r"(^|\.)(kv_a_proj|q_a_proj|wq_a|wkv)", "a draft with multi-head latent attention (MLA)"),
    (r"(^|\.)experts\.|(^|\.)mlp\.gate\.", "a DFlash draft with a mixture of experts"),
    (r"(^|\.)pre_feedforward_layernorm\.", "a draft of Gemma-4 layers, whose logits are capped"),
    (r"(^|\.)aux_hidden_norms\.|\.g_proj\.", "a DFlash draft of Laguna layers"),
    (r"(^|\.)(prefix_gru|embed_proj)\.", "a Domino draft"),
    (r"(^|\.)markov_head\.gate_proj\.", "a DSpark draft with a gated Markov head"),
    (r"(^|\.)markov_head\.joint_proj\.", "a DSpark draft with a recurrent Markov head"),
)
_OWN = re.compile(
    r"^(model\.)?(hidden_norm\.|encoder\.output_norm_enc\.|markov_head\.|candidate_selector\.)"
    r"|^mtp\.\d+\.main_proj\."
)


def is_dflash(config: Mapping[str, Any], shapes: Shapes) -> bool:
    """Whether a checkpoint is a DFlash draft, by its options or by keys that EAGLE-3 never has.

    EAGLE-3 heads norm the target's rows in their first layer, and not before all of them.
    """
    if config.get("speculators_model_type") in KINDS:
        return True
    return any(config.get(key) for key in INNER) or any(_OWN.search(name) for name in shapes)


def refuse_other_kinds(config: Mapping[str, Any], shapes: Shapes) -> None:
    """Raises if the engine lacks the draft's graph, or the file format is not supported."""
    top = Fields(config)
    kind = top.values.get("speculators_model_type")
    if kind not in (None, *KINDS):
        raise ConversionError(f"this is a speculator of kind {kind!r}, which is not supported")
    refuse_by_tensor(_TENSORS, shapes)
    refuse_quantised(top)
    refuse_packed(shapes)


_UINT32 = 4
# LLAMA_SPEC_DFLASH_MAX_CHAIN of csrc: each slot's choice is a part of the graph.
_MAX_CHAIN = 32


def make_dflash(conversion: Conversion) -> Draft:
    """Plans the conversion of a draft of z-lab, SpecForge, DeepSpec or speculators / RedHat."""
    checkpoint = conversion.checkpoint
    refuse_other_kinds(checkpoint.config, conversion.shapes)
    config = read_config(checkpoint.config)
    target = read_target(conversion.target)
    n_wanted = _check_target(config, conversion, target)
    ids = to_inputs(
        config.layer_ids, conversion.layer_ids or config.counted, target.n_layer, n_wanted, -1
    )
    plan = plan_tensors(
        config, checkpoint.tensors, n_target_layers=n_wanted, n_vocab=target.n_vocab
    )
    _check_logits(config, plan)
    scale, scale_notes = _embedding_scale(config, target)
    own, notes = own_matrices(
        config, plan, checkpoint.folder, target, conversion.target, is_scaled=scale is not None
    )
    return Draft(
        arch="dflash",
        name=plan.heads.name,
        layout=config.layout,
        keys=_keys(config, plan, scale, target),
        ids=ids,
        target=target,
        tensors=(*own, *plan.tensors),
        n_layer=config.n_layer,
        n_draft_vocab=plan.vocabulary.n_reduced,
        block_size=config.block_size,
        tokenizer={"tokenizer.ggml.mask_token_id": GgufKey(_UINT32, None, config.mask_token)},
        notes=(
            *config.rope.notes, *config.attention.notes, *plan.notes, *notes, *scale_notes,
            *_last_row_note(ids, target),
        ),
    )  # fmt: skip


def _check_target(config: DflashConfig, conversion: Conversion, target: Target) -> int:
    """The number of the target's rows that fc reads."""
    if config.n_embd != target.n_embd:
        raise ConversionError(
            f"the draft is {config.n_embd} wide and the target {target.n_embd}; a DFlash draft is "
            "as wide as its target"
        )
    if config.n_target_layer not in (None, target.n_layer):
        raise ConversionError(
            f"the draft was made for a target of {config.n_target_layer} layers "
            f"(num_target_layers), this one has {target.n_layer}"
        )
    if config.mask_token >= target.n_vocab:
        raise ConversionError(
            f"config.json: mask_token_id is {config.mask_token}, and the target has "
            f"{target.n_vocab} tokens"
        )
    fc = next((s for name, s in conversion.shapes.items() if common_name(name) == "fc.weight"), ())
    if len(fc) != 2:
        raise ConversionError("the matrix fc.weight is missing, which mixes the target's rows")
    return count_target_layers(config, config.target_hidden_size, fc, target)


def _check_logits(config: DflashConfig, plan: Plan) -> None:
    """Refuses block sizes and logits for which the heads would compute wrong results."""
    least = 1 if plan.heads.sample_from_anchor else 2
    if config.block_size < least:
        raise config.options.refuse("block_size", f"a block that drafts has {least} slots or more")
    if plan.heads.markov_rank is not None and config.block_size > _MAX_CHAIN:
        raise config.options.refuse(
            "block_size", f"with a Markov head the engine takes {_MAX_CHAIN} slots at most"
        )
    if plan.heads.markov_rank is None:
        return
    if config.logit_scale is not None:
        # vLLM scales what the head adds as well; other readers do not document it.
        key = "output_multiplier"
        raise config.options.refuse(key, "readers disagree how a Markov head adds to such logits")


def _embedding_scale(config: DflashConfig, target: Target) -> tuple[float | None, tuple[str, ...]]:
    """The factor for the rows of token_embd.

    Gemma's embedding is scaled by the root of its width, and drafts that borrow it are trained with
    that (vllm-project/vllm pull request 41703); speculators trains with a plain copy of the table.
    """
    if config.embedding_scale is not None:
        return (None if config.embedding_scale == 1 else config.embedding_scale), ()
    if not target.arch.startswith("gemma"):
        return None, ()
    if config.is_speculators:
        return None, ("Gemma's embedding is not scaled for the draft, as speculators trains it",)
    return math.sqrt(target.n_embd), ()


def _last_row_note(ids: ResolvedIds, target: Target) -> tuple[str, ...]:
    if target.n_layer not in ids.target_layers:
        return ()
    note = (
        "the row that leaves the target's last block is taken before the final norm, as vLLM and "
        "SGLang do; transformers hands it out after"
    )
    return (note,)


def _keys(
    config: DflashConfig, plan: Plan, embedding_scale: float | None, target: Target
) -> Mapping[str, Any]:
    keys: dict[str, Any] = {
        **config.keys(),
        "block_count": config.n_layer,
        **config.rope.keys,
        "block_size": config.block_size,
        **config.attention.keys,
        **plan.heads.keys,
    }
    if target.has_mrope:
        if config.rope.tensors:
            raise ConversionError(
                "RoPE scaling of kind 'llama3' is not supported for a target with M-RoPE"
            )
        keys["rope.dimension_sections"] = (keys["rope.dimension_count"] // 2, 0, 0, 0)
    if config.activation != "silu":
        keys["hidden_activation"] = config.activation
    optional = {
        "embedding_scale": embedding_scale,
        "logit_scale": config.logit_scale,
        "final_logit_softcapping": config.logit_cap,
        "attention.value_scale": config.value_scale,
    }
    return keys | {name: value for name, value in optional.items() if value is not None}
