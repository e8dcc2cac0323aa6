"""Reads lists of target layers, for any kind of draft.

We count *inputs*: id k is the residual stream that enters layer k, 0 .. n, and n is what leaves
the last of n layers. Checkpoints count inputs or *outputs* (id k is what leaves block k, which is
input k + 1). An id off by one is invisible: the text stays right, and nearly no draft is accepted.

A DFlash checkpoint says what it counts by the list's name. An EAGLE-3 checkpoint does not:

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
from typing import Literal

from pyllama_spec.errors import ConversionError

Convention = Literal["input", "output"]
Ids = tuple[int, ...]

_CHOOSE = (
    "say which with --layer-ids input (id k enters layer k) or --layer-ids output (id k leaves "
    "block k); the draft's authors know"
)


@dataclass(frozen=True, slots=True)
class ResolvedIds:
    """Layer ids that count inputs."""

    target_layers: Ids  # the layers in the order of fc's columns
    counted: str  # how the list was read: "default", "input" or "output"


def to_inputs(
    written: Ids, counted: Convention, n_layer: int, n_wanted: int, least_output: int = 0
) -> ResolvedIds:
    """Converts the ids of a list to ids of inputs."""
    if len(written) != n_wanted:
        raise ConversionError(
            f"config.json names {len(written)} layers of the target ({list(written)}), and "
            f"fc.weight reads {n_wanted}"
        )
    least, greatest = (0, n_layer) if counted == "input" else (least_output, n_layer - 1)
    for k in written:
        if not least <= k <= greatest:
            raise ConversionError(
                f"layer id {k} of {list(written)}, counted as {counted}s, is outside "
                f"{least} .. {greatest}: the target has {n_layer} layers"
            )
    if len(set(written)) != len(written):
        raise ConversionError(f"the layer ids {list(written)} name a layer twice")
    shift = 0 if counted == "input" else 1
    return ResolvedIds(tuple(k + shift for k in written), counted)


def default_inputs(n_layer: int) -> Ids:
    """The three inputs that the EAGLE-3 reference takes from a target of n_layer layers."""
    return (2, n_layer // 2, n_layer - 3)


def resolve(
    flat: Ids | None, nested: Ids | None, n_layer: int, n_wanted: int, override: Convention | None
) -> ResolvedIds:
    """The target's layer inputs that an EAGLE-3 head reads, by the rule of the module's docstring.

    Args:
        flat: the list at the top level of config.json; None or empty if it is missing.
        nested: the list in eagle_config.
        n_layer: the target's layers.
        n_wanted: the rows that fc reads.
        override: what the list counts, if the caller knows.
    """
    written = flat or nested
    if not written:
        return _default(n_layer, n_wanted)
    if override is not None:
        own = written if override == "input" else nested or written
        return to_inputs(own, override, n_layer, n_wanted)
    default = default_inputs(n_layer)
    if not flat:
        if written == default:
            raise ConversionError(
                f"eagle_config's layer ids {list(written)} are the default in inputs, in a place "
                f"where others write outputs; {_CHOOSE}"
            )
        counted: Convention = "input" if n_layer in written else "output"
        return to_inputs(written, counted, n_layer, n_wanted)
    # With a second list that says the same there is nothing to doubt.
    if not nested and flat == tuple(k - 1 for k in default):
        raise ConversionError(
            f"the layer ids {list(flat)} are the default in outputs, in a place where others write "
            f"inputs; {_CHOOSE}"
        )
    shift = 0 if n_layer in (nested or ()) else 1
    if nested and flat != tuple(k + shift for k in nested):
        raise ConversionError(
            f"the layer ids at the top level {list(flat)} and those in eagle_config {list(nested)} "
            f"do not name the same layers; {_CHOOSE}"
        )
    return to_inputs(flat, "input", n_layer, n_wanted)


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
