"""Controllers decide how many tokens each round drafts and verifies; they call no engine."""

from pyllama_spec.lazy_imports import public_names
from pyllama_spec.speculative.controller.base import (
    Controller,
    ControllerLimits,
    DraftDecision,
    FixedLength,
    KnownCosts,
    Off,
    Span,
    Spent,
)
from pyllama_spec.speculative.controller.profit import (
    ControllerChoice,
    ProfitController,
    make_controller,
)

__all__ = [
    "Controller",
    "ControllerChoice",
    "ControllerLimits",
    "DraftDecision",
    "FixedLength",
    "KnownCosts",
    "Off",
    "ProfitController",
    "Span",
    "Spent",
    "make_controller",
]

__dir__ = public_names(__name__)
