"""How long a draft each round asks for and verifies: policy alone, no engine."""

from pyllama_spec.lazy_imports import public
from pyllama_spec.speculative.controller.base import (
    Controller,
    FixedLength,
    KnownCosts,
    Off,
    Room,
    Spent,
    Turn,
)
from pyllama_spec.speculative.controller.choice import ControllerChoice, make_controller
from pyllama_spec.speculative.controller.profit import ProfitController

__all__ = [
    "Controller",
    "ControllerChoice",
    "FixedLength",
    "KnownCosts",
    "Off",
    "ProfitController",
    "Room",
    "Spent",
    "Turn",
    "make_controller",
]

__dir__ = public(__name__)
