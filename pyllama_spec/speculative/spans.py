"""What a round tells of its spans, and reads of its rows."""

from __future__ import annotations

from collections.abc import Sequence

from pyllama_spec.drafters.base import Features
from pyllama_spec.speculative.scheduler import Span


def add_seconds(span: Span, round_s: float, draft_s: float, verify_s: float) -> None:
    """The seconds of a round, as one sequence sees them: it waits for all of them."""
    timing = span.run.timing
    if span.n_prompt:
        timing.prompt_s += round_s
        return
    timing.decode_s += round_s
    timing.draft_s += draft_s
    timing.verify_s += verify_s
    timing.n_decoded = span.run.n_generated - 1


def slices(rows: Features, span: Span, n: int) -> Features:
    """The first n rows of a span, of each layer."""
    return [layer[span.first_row : span.first_row + n] for layer in rows]


def n_common(held: Sequence[int], wanted: Sequence[int]) -> int:
    """The length of the common prefix."""
    for i, (a, b) in enumerate(zip(held, wanted, strict=False)):
        if a != b:
            return i
    return min(len(held), len(wanted))
