"""Controllers decide how many tokens each round drafts and verifies; they call no engine."""

from pyllama_spec.speculative.controller.base import (
    Controller,
    ControllerLimits,
    DraftDecision,
    DraftGain,
    FixedLength,
    Off,
    Span,
    Spent,
)
from pyllama_spec.speculative.controller.choice import ControllerChoice, make_controller
from pyllama_spec.speculative.controller.profit import ProfitController

__all__ = [
    "Controller",
    "ControllerChoice",
    "ControllerLimits",
    "DraftDecision",
    "DraftGain",
    "FixedLength",
    "Off",
    "ProfitController",
    "Span",
    "Spent",
    "make_controller",
]
