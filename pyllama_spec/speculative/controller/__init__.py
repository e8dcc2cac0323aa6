"""Controllers decide how many tokens each round drafts and verifies; they call no engine."""

from pyllama_spec.speculative.controller.base import (
    Controller,
    ControllerLimits,
    DraftDecision,
    FixedLength,
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
    "Off",
    "ProfitController",
    "Span",
    "Spent",
    "make_controller",
]
