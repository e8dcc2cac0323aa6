"""Makes a controller of a caller's `controller=`, whose class may be anyone's."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyllama_spec.errors import ArgumentError
from pyllama_spec.speculative.controller.base import Controller, FixedLength, Off
from pyllama_spec.speculative.controller.profit import ProfitController

# "profit", "fixed", "off", or an object; None for profit, but fixed where p_min is given.
ControllerChoice = str | Controller | None

NAMES: Mapping[str, Callable[[], Controller]] = {
    "profit": ProfitController,
    "fixed": FixedLength,
    "off": Off,
}


def make_controller(choice: ControllerChoice, p_min: float | None = None) -> Controller:
    """The controller of `controller=`."""
    if choice is None:
        return ProfitController() if p_min is None else FixedLength()
    if isinstance(choice, Controller):
        return choice
    if not isinstance(choice, str) or choice not in NAMES:
        raise ArgumentError("controller", choice, f"{', '.join(map(repr, NAMES))} or a Controller")
    return NAMES[choice]()
