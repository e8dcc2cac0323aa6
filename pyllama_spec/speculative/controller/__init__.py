"""How long a draft each round asks for and verifies: policy alone, no engine."""

from pyllama_spec.lazy_imports import public_names
from pyllama_spec.speculative.controller.base import (
    Controller,
    ControllerLimits,
    FixedLength,
    KnownCosts,
    Off,
    Spent,
    Turn,
)
from pyllama_spec.speculative.controller.choice import ControllerChoice, make_controller
from pyllama_spec.speculative.controller.profit import ProfitController

__all__ = [
    "Controller",
    "ControllerChoice",
    "ControllerLimits",
    "FixedLength",
    "KnownCosts",
    "Off",
    "ProfitController",
    "Spent",
    "Turn",
    "make_controller",
]

__dir__ = public_names(__name__)
