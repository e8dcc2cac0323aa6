"""What a round notes of its spans: seconds, rows, and what the controller learns of them."""

from __future__ import annotations

from collections.abc import Sequence

from pyllama_spec.drafters.base import Features
from pyllama_spec.speculative.controller.base import Room, Spent
from pyllama_spec.speculative.isolated_drafter import IsolatedDrafter
from pyllama_spec.speculative.scheduler import Limits, Scheduler, Span


def room_of(limits: Limits, drafter: IsolatedDrafter) -> Room:
    """What the controller of a round decides in."""
    is_padded = limits.has_streams or limits.needs_equal_rows
    return Room(
        limits.n_draft, drafter.is_stepwise, drafter.has_copies, is_padded, limits.width
    )  # fmt: skip


def learn(
    scheduler: Scheduler,
    drafter: IsolatedDrafter,
    spans: Sequence[Span],
    propose_s: float,
    verify_s: float,
    round_s: float,
) -> None:
    """Tells the controller what a round took and gave, and the results why nothing is drafted."""
    if not scheduler.limits.n_draft:
        return
    is_pure = not any(span.n_prompt for span in spans)
    rest_s = round_s - propose_s - verify_s
    scheduler.learn(spans, Spent(propose_s, verify_s, rest_s, is_pure))
    for span in spans:
        # A failure of the drafter has said so already.
        if drafter.failure(span.run.seq_id) is None:
            span.run.stats.reason_off = scheduler.controller.reason_off(span.run.seq_id)


def count_seconds(span: Span, round_s: float, draft_s: float, verify_s: float) -> None:
    """The seconds of a round, as one sequence sees them: it waits for all of them."""
    timing = span.run.timing
    if span.n_prompt:
        timing.prompt_s += round_s
        return
    timing.decode_s += round_s
    timing.draft_s += draft_s
    timing.verify_s += verify_s
    timing.n_decoded = span.run.n_generated - 1


def slices_of(rows: Features, span: Span, n: int) -> Features:
    """The first n rows of a span, of each layer."""
    return [layer[span.first_row : span.first_row + n] for layer in rows]
