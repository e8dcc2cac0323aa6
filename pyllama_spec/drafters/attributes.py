"""Reads the attributes of a drafter, whose class may be anyone's: a fault is an ArgumentError."""

from __future__ import annotations

from typing import Any

from pyllama_spec.drafters.base import Drafter, overrides
from pyllama_spec.engine import Context
from pyllama_spec.engine.checks import boolean, instance, integer, listed
from pyllama_spec.errors import ArgumentError, shown

# The attributes and properties that are read of a drafter before it is asked for a draft.
_FLAGS = (
    "is_stepwise", "has_lookup", "is_lookup", "wants_head", "draws_tokens", "can_copy", "is_closed",
)  # fmt: skip
_READ = ("name", "note", "max_draft", "target_layers", "step_share", *_FLAGS, "attached_to")
# More than any model has.
_MAX_LAYERS = 4096


def attribute(drafter: Drafter, name: str) -> Any:
    """The value of a drafter's attribute. It may be another one, or raise, at each read."""
    value, place = value_and_place(drafter, name)
    if name in _FLAGS:
        return boolean(value, place)
    if name in ("name", "note"):
        instance(value, str, place)
    elif name == "attached_to":
        instance(value, (Context, type(None)), place)
    elif name == "target_layers":
        return _layers(value, place)
    return value


def value_and_place(owner: object, name: str, role: str = "drafter") -> tuple[Any, str]:
    """The value of an attribute, and the words that name it in messages."""
    value = _read(owner, name, role)
    place = f"the {role} {type(owner).__name__} cannot be used: {name}"
    if callable(value):
        raise ArgumentError(f"{place} is a method; make it a value, or add @property")
    return value, place


def check_proposes(drafter: Drafter) -> None:
    """Raises unless the drafter has propose() or propose_one()."""
    kind = type(drafter).__name__
    values = {name: attribute(drafter, name) for name in _READ}
    proposes = any(overrides(drafter, name, Drafter) for name in ("propose_one", "propose"))
    if values["max_draft"] and not proposes:
        raise ArgumentError(
            f"the drafter {kind} has neither propose_one() nor propose(): write "
            f"{kind}.propose_one(self, request), which returns a Draft (docs/drafters.md)"
        )


def check_attachable(drafter: Drafter, target: Context) -> None:
    """Raises unless a round on the context can ask the drafter."""
    if not isinstance(drafter, Drafter):
        raise ArgumentError(
            f"the drafter {drafter!r:.60} is not a Drafter; let its class inherit from "
            "pyllama_spec.Drafter"
        )
    layers = attribute(drafter, "target_layers")
    missing = set(layers) - set(target.target_layers)
    if missing:
        raise ArgumentError(
            f"the drafter {attribute(drafter, 'name')!r} reads the inputs of layers "
            f"{sorted(missing)}; open the target's context with target_layers={layers}"
        )


def _read(owner: object, name: str, role: str = "drafter") -> Any:
    """The value of an attribute, of any type."""
    try:
        return getattr(owner, name)
    except Exception as error:
        raise ArgumentError(
            f"the {role} {type(owner).__name__} cannot be used: its {name} raises "
            f"{type(error).__name__}: {error!s:.300}"
        ) from error


def _layers(value: Any, place: str) -> tuple[int, ...]:
    """The numbers of layers in target_layers."""
    try:
        layers = listed(value, place, _MAX_LAYERS)
    except TypeError:
        raise ArgumentError(f"{place}={shown(value)} is not a tuple of ints") from None
    return tuple(integer(layer, f"{place}[{i}]") for i, layer in enumerate(layers))
