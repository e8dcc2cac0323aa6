"""Converts an EAGLE-3 checkpoint of any tool, and its target, to one GGUF (docs/eagle3.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyllama_spec.convert.conversion import Conversion, Draft
from pyllama_spec.convert.eagle3.config import DraftConfig, read_config
from pyllama_spec.convert.eagle3.layer_ids import resolve
from pyllama_spec.convert.eagle3.layout import Plan, common_name, plan_tensors
from pyllama_spec.convert.eagle3.refusals import refuse_other_kinds
from pyllama_spec.convert.sizes import count_target_layers
from pyllama_spec.convert.target import read_target
from pyllama_spec.errors import ConversionError
from pyllama_spec.gguf.target import Target

_OPTIONS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


def make_eagle3(conversion: Conversion) -> Draft:
    """Plans the conversion of a head of SafeAILab, SpecForge, speculators / RedHat or NVIDIA.

    Raises:
        ConversionError: the draft is of another kind, or its parts contradict each other or the
            target.

    """
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
