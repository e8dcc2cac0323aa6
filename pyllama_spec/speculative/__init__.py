"""The round, acceptance, rollback, and their statistics."""

from pyllama_spec.speculative.acceptance import (
    StepSampler,
    TokenSampler,
    accept_drawn,
    accept_or_redraw,
    sample_and_match,
    why_exact,
)
from pyllama_spec.speculative.controller import (
    Controller,
    ControllerChoice,
    DraftDecision,
    FixedLength,
    Off,
    ProfitController,
    Span,
    make_controller,
)
from pyllama_spec.speculative.loop import SpeculativeLoop
from pyllama_spec.speculative.round import Round
from pyllama_spec.speculative.scheduler import Limits, Scheduler
from pyllama_spec.speculative.sequence import (
    Adapters,
    SavedSequence,
    SequenceRun,
    SequenceState,
    Step,
)
from pyllama_spec.speculative.stats import SpeculationStats, Timing

__all__ = [
    "Adapters",
    "Controller",
    "ControllerChoice",
    "DraftDecision",
    "FixedLength",
    "Limits",
    "Off",
    "ProfitController",
    "Round",
    "SavedSequence",
    "Scheduler",
    "SequenceRun",
    "SequenceState",
    "Span",
    "SpeculationStats",
    "SpeculativeLoop",
    "Step",
    "StepSampler",
    "Timing",
    "TokenSampler",
    "accept_drawn",
    "accept_or_redraw",
    "make_controller",
    "sample_and_match",
    "why_exact",
]
