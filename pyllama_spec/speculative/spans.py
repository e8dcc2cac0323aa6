"""What a round notes of its spans, reads of its rows, and tells the controller."""

from __future__ import annotations

from collections.abc import Sequence

from pyllama_spec.engine import Context
from pyllama_spec.speculative.controller.base import ControllerLimits, Spent
from pyllama_spec.speculative.isolated_drafter import IsolatedDrafter
from pyllama_spec.speculative.scheduler import Limits, Scheduler, Span
from pyllama_spec.speculative.sequence import SequenceRun


def room_of(limits: Limits, drafter: IsolatedDrafter) -> ControllerLimits:
    """What the controller of a round decides in."""
    is_padded = limits.has_streams or limits.needs_equal_rows
    return ControllerLimits(
        limits.n_draft, drafter.is_stepwise, drafter.has_lookup, is_padded, limits.width
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


def n_common(held: Sequence[int], wanted: Sequence[int]) -> int:
    """The length of the common prefix."""
    for i, (a, b) in enumerate(zip(held, wanted, strict=False)):
        if a != b:
            return i
    return min(len(held), len(wanted))


def drawn(
    run: SequenceRun, target: Context, row: int, ids: Sequence[int]
) -> tuple[list[int], BaseException | None]:
    """What the sampler takes, and what a callback of the user's or the chain itself raised."""
    tokens: list[int] = []
    assert run.sampler is not None
    # The sampler reads rows; what it calls of the user's may do no more.
    target.lend("a callback of the request")
    try:
        run.accept(run.sampler, target, row, ids, tokens, run.observe)
    except BaseException as error:  # noqa: BLE001 - of this sequence alone; its Step has it
        run.error = error
        return tokens, error
    finally:
        target.lend(None)
    return tokens, None


def finish_reason(run: SequenceRun, target: Context, tokens: Sequence[int]) -> str | None:
    """Why a request ends with these tokens; None where it goes on."""
    if target.model.vocab.is_eog(tokens[-1]):
        return "stop"
    is_full = run.state.n_decoded >= target.n_ctx_seq
    return "length" if run.n_left <= 0 or is_full else None
