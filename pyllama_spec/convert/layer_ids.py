"""Reads lists of target layers, for any kind of draft.

We count *inputs*: id k is the residual stream that enters layer k, 0 .. n, and n is what leaves
the last of n layers. Checkpoints count inputs or *outputs* (id k is what leaves block k, which is
input k + 1). An id off by one is invisible: the text stays right, and nearly no draft is accepted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pyllama_spec.errors import ConversionError

Convention = Literal["input", "output"]
Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ResolvedIds:
    """Layer ids that count inputs.

    Attributes:
        target_layers: the layers in the order of fc's columns.
        counted: how the list was read: "default", "input" or "output".
    """

    target_layers: Ids
    counted: str


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
                f"{least} .. {greatest}: "
                f"the target has {n_layer} layers"
            )
    if len(set(written)) != len(written):
        raise ConversionError(f"the layer ids {list(written)} name a layer twice")
    shift = 0 if counted == "input" else 1
    return ResolvedIds(tuple(k + shift for k in written), counted)
