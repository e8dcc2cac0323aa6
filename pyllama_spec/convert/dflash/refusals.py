"""Refuses DFlash drafts that the engine has no graph for, with the reason."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pyllama_spec.convert.dflash.options import INNER
from pyllama_spec.convert.fields import Fields
from pyllama_spec.convert.refusals import (
    Shapes,
    refuse_by_tensor,
    refuse_packed,
    refuse_quantised,
)
from pyllama_spec.errors import ConversionError

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
    """Raises if the engine lacks the draft's graph, or the file format is not supported.

    Raises:
        ConversionError: names the draft's kind and the reason.

    """
    top = Fields(config)
    kind = top.values.get("speculators_model_type")
    if kind not in (None, *KINDS):
        raise ConversionError(f"this is a speculator of kind {kind!r}, which is not supported")
    refuse_by_tensor(_TENSORS, shapes)
    refuse_quantised(top)
    refuse_packed(shapes)
