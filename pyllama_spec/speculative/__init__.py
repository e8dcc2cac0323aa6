"""The speculative loop, acceptance, and what they count."""

from pyllama_spec.speculative.acceptance import RowObserver, TokenSampler, sample_and_match
from pyllama_spec.speculative.loop import SequenceState, SpeculativeLoop, Step
from pyllama_spec.speculative.stats import SpeculationStats, Timing

__all__ = [
    "RowObserver",
    "SequenceState",
    "SpeculationStats",
    "SpeculativeLoop",
    "Step",
    "Timing",
    "TokenSampler",
    "sample_and_match",
]
