"""Controllers decide how many tokens each round drafts and verifies; they call no engine."""

from pyllama_spec.speculative.controller.base import (
    Controller,
    DraftDecision,
    FixedLength,
    Limits,
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
    "DraftDecision",
    "FixedLength",
    "Limits",
    "Off",
    "ProfitController",
    "Span",
    "Spent",
    "make_controller",
]
