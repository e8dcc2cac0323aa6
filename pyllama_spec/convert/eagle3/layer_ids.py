"""Finds the target rows that an EAGLE-3 head reads, from the ids in its checkpoint.

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

from dataclasses import dataclass

from pyllama_spec.convert.layer_ids import Convention, Ids, ResolvedIds, to_inputs
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
    """The target's layer inputs, by the rule of the module's docstring.

    Args:
        written: the lists of config.json.
        n_layer: layers of the target.
        n_wanted: how many layers the draft's fc reads.
        override: the caller's choice of how the ids count.

    Raises:
        ConversionError: the ids are out of range, repeated, contradictory, or ambiguous.

    """
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
