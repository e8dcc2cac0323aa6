"""Plans a round as pure policy: no decode, no user code, no statistics.

The scheduler reads counts and answers with counts. plan() says which sequences take part, how much
of a prompt each reads and how many tokens each may draft; decodes() says, once the drafts are
there, which of them share a decode of the target, and with what padding. Whether a draft's length
is worth its rows is the controller's to say: decide() and set_lengths() ask it before and after the
drafts, learn() reports the outcome.

Padding: where each sequence has a stream of its own in the memory, the engine computes sequences
together only while their ids follow each other and each has as many tokens as the others; for the
rest it goes over the weights once more. Tokens after a draft that nobody reads, and tokens of idle
sequences in between, are rolled back after the decode; they cost a row each and save a pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from operator import attrgetter, itemgetter

from pyllama_spec.drafters.base import Drafter, DraftRequest, TokenView
from pyllama_spec.drafters.draws import TokenDraws
from pyllama_spec.engine import Context
from pyllama_spec.engine.context import FEW_ROWS
from pyllama_spec.speculative.controller.base import (
    Controller,
    FixedLength,
    Limits,
    Span,
    Spent,
)
from pyllama_spec.speculative.rollback import Rollback
from pyllama_spec.speculative.sequence import SequenceRun

# How long generating requests may pause for another request's prompt.
MAX_PAUSE_S = 0.5
# Parts are multiples of it, which is what products are computed in.
_STEP = 32
# Before anything is known: 64 tokens take less than the bound on a slow machine too.
_FIRST = 64
# How much the newest part counts: other programs come and go.
_NEWEST = 0.5


class PromptPace:
    """Learns the seconds per prompt token.

    A part of a prompt is a decode of its own, and whoever generates beside it pauses for as long.
    Large parts are read faster, small ones are hardly noticed: a part is as large as keeps the
    pause within a bound on this machine, by the clock. That changes no number where a row of a
    batch is, to the bit, what it is alone, and nothing else than such contexts has a pace;
    elsewhere parts have one size.
    """

    def __init__(self, max_part: int) -> None:
        self._max_part = max_part
        self.token_s: float | None = None  # per token of a prompt; None before the first part

    @property
    def n_part(self) -> int:
        """The number of prompt tokens per part while others wait; never too few."""
        if self.token_s is None:
            return min(_FIRST, self._max_part)
        n_most = MAX_PAUSE_S / max(self.token_s, 1e-9)
        n = self._max_part if n_most >= self._max_part else int(n_most) // _STEP * _STEP
        return max(min(n, self._max_part), min(_STEP, self._max_part))

    def learn(self, n_tokens: int, seconds: float) -> None:
        """Learns the seconds of a part, the drafter's commit() included.

        A few tokens are no measure: a decode takes some time whatever it computes.
        """
        if n_tokens < min(_STEP, self._max_part):
            return
        token_s = seconds / n_tokens
        if self.token_s is not None:
            token_s = _NEWEST * token_s + (1 - _NEWEST) * self.token_s
        self.token_s = token_s


# How many rows one more pass over the weights costs. Two cores without AVX-512, SmolLM2-135M: a row
# more costs 1.8 ms of 11.5 for the first one in BF16, 1.4 of 4.5 in Q4_0.
_PASS_ROWS = 4
# How many rounds a prompt is passed over for shorter ones before its age counts.
_MAX_PASSED = 1


_ROWS = "the number of rows that a decode verifies (n_batch or n_outputs_max)"


def limits_of(
    target: Context,
    rollback: Rollback,
    drafter: Drafter,
    n_draft: int | None,
    max_rows: int | None,
    max_stepwise: int,
) -> Limits:
    """The limits of a context, its memory, its drafter and the caller; see Round."""
    params = target.params
    is_parallel = params.n_seq_max > 1
    n_outputs = min(target.n_batch, params.n_outputs_max or target.n_batch)
    max_rows = max_rows or (target.exact_rows if target.exact_rows > 1 else FEW_ROWS)
    max_rows = min(max_rows, n_outputs)
    bounds: tuple[tuple[int | None, str], ...] = (
        (drafter.max_draft, "max_draft of the drafter"), (n_draft, "n_draft"),
        (rollback.max_draft, rollback.max_draft_reason), (max_rows - 1, _ROWS),
    )  # fmt: skip
    known = [(n, why) for n, why in bounds if n is not None]
    max_draft, reason = min(known, key=itemgetter(0))  # the first of equal ones
    mixes_prompts = is_parallel and params.kv_unified and rollback.is_cut
    return Limits(
        max_draft,
        reason,
        drafter.is_stepwise,
        drafter.has_lookup,
        drafter.step_share,
        n_ctx=target.n_ctx_seq,
        max_rows=max_rows,
        max_chunk=min(target.n_batch, target.n_ubatch),
        max_stepwise=max_stepwise,
        mixes_prompts=mixes_prompts,
        is_paced=target.exact_rows > 1 and is_parallel and not mixes_prompts,
        has_streams=is_parallel and not params.kv_unified and rollback.can_pad,
        needs_equal_rows=rollback.needs_equal_rows,
        keeps_whole=rollback.keeps_whole,
        goes_alone=rollback.goes_alone,
        can_fill=rollback.can_fill,
    )


class Scheduler:
    """The policy. Its answers depend on the runs, in the order in which they are given."""

    def __init__(self, limits: Limits, controller: Controller | None = None) -> None:
        self.limits = limits
        self.pace = PromptPace(limits.max_chunk) if limits.is_paced else None
        self.controller = FixedLength() if controller is None else controller
        self.controller_name = self.controller.name
        self.controller.attach(limits)

    def plan(self, runs: Sequence[SequenceRun]) -> list[Span]:
        """The spans of a round before drafting."""
        if len(runs) == 1 and not runs[0].n_missing:  # nearly always, and then it should be quick
            return [self._text_span(runs[0], 1)]
        texts = [run for run in runs if not run.n_missing]
        spans = [self._text_span(run, len(texts)) for run in texts]
        if len(texts) < len(runs):
            spans += list(self._prompt_spans([run for run in runs if run.n_missing], spans))
        return spans

    def decide(self, spans: Iterable[Span]) -> None:
        """Calls the controller for all texts except those that have a draft."""
        undecided = [span for span in spans if not span.n_prompt and not span.draft.ids]
        if not undecided:
            return
        for span, decision in zip(undecided, self.controller.decide(undecided), strict=True):
            span.decide(decision)

    def request(
        self, span: Span, tokens: TokenView | list[int], draws: TokenDraws | None = None
    ) -> DraftRequest:
        """The drafter's request for a span with n_requested above 0."""
        decision = span.decision
        assert decision is not None
        if draws is not None:
            draws.begin()
        n_lookup = min(decision.n_lookup, span.max_draft)
        stop, lookup_only = self.controller.stop_of(span), decision.lookup_only
        return DraftRequest(span.seq, tokens, span.n_requested, stop, lookup_only, n_lookup, draws)

    def set_lengths(self, spans: Iterable[Span]) -> None:
        """Calls the controller for the number of tokens to verify of each draft."""
        decided = [span for span in spans if span.decision is not None]
        if not decided:
            return
        for span, n in zip(decided, self.controller.verify_lengths(decided), strict=True):
            # A drawn token that is left out because of which token it is would change the
            # text's distribution.
            span.verify(n if span.draft.distributions is None else len(span.draft.ids))

    def learn(
        self, spans: Sequence[Span], propose_s: float, verify_s: float, round_s: float
    ) -> None:
        """Reports the outcome of a round to the controller."""
        if not spans:  # its only prompt failed
            return
        decided = [span for span in spans if span.decision is not None]
        is_pure = len(decided) == len(spans) or not any(span.n_prompt for span in spans)
        spent = Spent(propose_s, verify_s, round_s - propose_s - verify_s, is_pure)
        if is_pure:
            self.controller.weigh(spans, spent)
        if decided:
            self.controller.learn(decided, spent)

    def _text_span(self, run: SequenceRun, n_seqs: int) -> Span:
        """The span of a sequence that verifies beside n_seqs - 1 others with equal draft limits."""
        state, limits = run.state, self.limits
        n_past, n = state.n_decoded, limits.max_draft
        if n:
            n_free = min(run.n_left, limits.n_ctx - n_past, limits.max_rows // n_seqs) - 1
            n_wanted = n if run.max_draft is None else min(n, run.max_draft)
            n = max(min(n_wanted, n_free), 0)
        return Span(state.seq_id, n_past, n)

    def _prompt_spans(self, runs: Sequence[SequenceRun], texts: Sequence[Span]) -> Iterator[Span]:
        """The spans of prompts: those that fit in one part first, else in order.

        No prompt is passed over without end. Of p prompts each gets its next part within
        _MAX_PASSED + p rounds, since the prompt that was passed over most goes first then, and each
        round reads at least one part. Where each part has a decode of its own without a pace, the
        last one of a round may go beyond the room.
        """
        limits, pace = self.limits, self.pace
        room, is_cut_anywhere = limits.max_chunk, limits.mixes_prompts
        if limits.mixes_prompts:
            room = max(room - sum(1 + span.max_draft for span in texts), 1)
        elif pace is not None and texts:
            room, is_cut_anywhere = min(room, pace.n_part), True
        for run in sorted(runs, key=self._prompt_order):
            is_media = run.medium_at(run.state.n_decoded) is not None
            is_stepwise = run.n_missing <= limits.max_stepwise and not is_media
            if is_stepwise and len(runs) + len(texts) > 1:
                yield Span(run.seq_id, run.state.n_decoded, n_prompt=1)
                continue
            if room <= 0:
                run.n_passed += 1
                continue
            # In the same pieces as alone, but where that makes no difference.
            n = min(run.n_missing, room if is_cut_anywhere else limits.max_chunk)
            n = run.up_to_border(n)
            yield Span(run.seq_id, run.state.n_decoded, n_prompt=n, is_media=is_media)
            run.n_passed = 0
            room -= n

    def _prompt_order(self, run: SequenceRun) -> tuple[int, bool]:
        """The sort key of a prompt in a round."""
        n_over = run.n_passed if run.n_passed >= _MAX_PASSED else 0
        return -n_over, run.n_missing > self.limits.max_chunk

    def decodes(self, spans: Sequence[Span]) -> Sequence[Sequence[Span]]:
        """The spans of each decode of a round, in order."""
        if len(spans) == 1:
            return (spans,)
        limits = self.limits
        media = [[span] for span in spans if span.is_media]
        if media:  # rows of a picture share no batch with tokens
            others = [span for span in spans if not span.is_media]
            return [*media, *(self.decodes(others) if others else ())]
        if limits.mixes_prompts:
            # In one physical batch: in a shared cache a sliding window could lose what it needs to
            # go back, if a second one found the first one's drafts there.
            return self._packed(spans, limits.max_chunk, limits.max_rows)
        rows = sorted((s for s in spans if s.n_rows <= 1 or not s.n_prompt), key=attrgetter("seq"))
        out = [[span] for span in spans if span.n_prompt > 1]
        if limits.goes_alone and any(span.n_verified for span in rows):
            return [*([span] for span in rows), *out]
        parts = self._packed(rows, limits.max_rows, limits.max_rows)
        if limits.needs_equal_rows and any(span.n_verified for span in rows):
            parts = [piece for part in parts for piece in self._neighbours(part)]
        for part in parts:
            self._even(part)
        return [*parts, *out]

    def _packed(self, spans: Sequence[Span], n_rows: int, n_outputs: int) -> list[list[Span]]:
        """Packs spans into decodes of limited tokens and limited tokens with logits."""
        parts: list[list[Span]] = []
        rows = outputs = 0
        for span in spans:
            n, n_out = span.n_rows, 1 if span.n_prompt else span.n_rows
            if not parts or rows + n > n_rows or outputs + n_out > n_outputs:
                parts.append([])
                rows = outputs = 0
            parts[-1].append(span)
            rows, outputs = rows + n, outputs + n_out
        return parts

    def _neighbours(self, spans: Sequence[Span]) -> Iterator[list[Span]]:
        """Groups runs with consecutive sequence ids; a run without room for padding is alone.

        With all of their padding they fit one decode.
        """
        longest, stretch = max(span.n_rows for span in spans), list[Span]()
        n_together = max(self.limits.max_rows // longest, 1)
        for span in spans:
            goes_on = (
                0 < len(stretch) < n_together
                and span.seq == stretch[-1].seq + 1
                and self._has_room(stretch[-1], longest)
                and self._has_room(span, longest)
            )
            if stretch and not goes_on:
                yield stretch
                stretch = []
            stretch.append(span)
        yield stretch

    def _has_room(self, span: Span, n_rows: int) -> bool:
        return span.n_past + n_rows <= self.limits.n_ctx

    def _even(self, spans: list[Span]) -> None:
        """Pads the rows of a decode to equal lengths where that saves time."""
        limits = self.limits
        ids, rows = [span.seq for span in spans], [span.n_rows for span in spans]
        longest, n_span = max(rows), ids[-1] - ids[0] + 1
        if len(spans) == 1 or not all(self._has_room(span, longest) for span in spans):
            return
        if limits.needs_equal_rows:
            _pad(spans, longest)
        elif limits.has_streams:
            plain = _PASS_ROWS * n_passes(ids, rows, limits.keeps_whole) + sum(rows)
            padded = _PASS_ROWS * n_passes(ids, [longest] * len(ids)) + longest * len(ids)
            filled = _PASS_ROWS + longest * n_span
            can_fill = limits.can_fill and longest * n_span <= limits.max_rows
            if can_fill and n_span > len(ids) and filled < min(plain, padded):
                _pad(spans, longest)
                for span, after in pairwise(spans):
                    span.n_idle = after.seq - span.seq - 1
            elif padded < plain and longest * len(ids) <= limits.max_rows:
                _pad(spans, longest)


def n_passes(ids: Sequence[int], rows: Sequence[int], keeps_whole: bool = False) -> int:
    """How often the engine reads the weights for a batch of sequences with own streams.

    Each time it takes the first sequence that has tokens left and those whose ids follow it, and of
    each as many tokens as the one with the fewest has (llama_batch_allocr::split_equal).
    """
    left = dict(zip(ids, rows, strict=True))
    n = 0
    while left:
        first = min(left)
        group = [first]
        while group[-1] + 1 in left:
            group.append(group[-1] + 1)
        taken = min(left[i] for i in group)
        if keeps_whole:
            n_first = next((k for k, i in enumerate(group) if left[i] != taken), len(group))
            group, taken = group[: max(n_first, 1)], left[first]
        for i in group:
            left[i] -= taken
            if not left[i]:
                del left[i]
        n += 1
    return n


def _pad(spans: Sequence[Span], n_rows: int) -> None:
    for span in spans:
        span.n_pad = n_rows - span.n_rows
