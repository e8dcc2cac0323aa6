"""Who computes what in a round: policy alone, no engine.

The scheduler sees counts and answers with counts. plan() says which sequences take part, how much
of a prompt each reads and how many drafted tokens each may ask for; decodes() says, once the drafts
are there, which of them share a decode of the target, and with what padding. How long a draft is
worth its rows is the controller's to say: it is asked before and behind the drafts, and told what
became of them.

Padding: where each sequence has a stream of its own in the memory, the engine computes sequences
together only while their ids follow each other and each has as many tokens as the others; for the
rest it goes over the weights once more. Tokens behind a draft that nobody reads, and tokens of idle
sequences in between, are taken back after the decode; they cost a row each and save a pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyllama_spec.drafters.base import NO_DRAFT, Draft, DraftRequest
from pyllama_spec.errors import ArgumentError
from pyllama_spec.speculative.controller.base import Controller, FixedLength, Spent, Turn
from pyllama_spec.speculative.sequence import SequenceRun

# How many rows one more pass over the weights costs. Two cores without AVX-512, SmolLM2-135M: a row
# more costs 1.8 ms of 11.5 for the first one in BF16, 1.4 of 4.5 in Q4_0 (docs/measurements.md).
_PASS_ROWS = 4


@dataclass(frozen=True, slots=True)
class Limits:
    """What a round must keep to.

    Attributes:
        n_ctx: positions of a sequence.
        n_batch: the most tokens of a decode.
        n_outputs: the most tokens of a decode with logits.
        n_draft: the most tokens that a sequence drafts.
        max_rows: the most rows of a decode that verifies: up to this many, rows are computed as
            single ones are (docs/measurements.md), so that text does not depend on company.
        max_chunk: the most tokens of a prompt that a decode reads; prompts are always cut at the
            same places, whatever runs beside them.
        max_stepwise: prompts with no more tokens left than this are read a token a round beside
            the others, which costs no pass of its own; 0 to read them at once.
        mixes_prompts: whether parts of prompts go into the decode that verifies. Their rows are
            computed otherwise then than alone; it pays where all sequences share one cache, which
            the engine goes through once for all of them.
        has_streams: whether each sequence has a stream of its own in the memory.
        needs_equal_rows, keeps_whole, goes_alone, can_fill: see Rollback.

    """

    n_ctx: int
    n_batch: int
    n_outputs: int
    n_draft: int = 0
    max_rows: int = 32
    max_chunk: int = 512
    max_stepwise: int = 0
    mixes_prompts: bool = False
    has_streams: bool = False
    needs_equal_rows: bool = False
    keeps_whole: bool = False
    goes_alone: bool = False
    can_fill: bool = False

    @property
    def width(self) -> int:
        """The most rows of a decode that verifies."""
        return max(min(self.max_rows, self.n_outputs, self.n_batch), 1)


@dataclass(slots=True, eq=False)
class Span:
    """The part of one sequence in a decode.

    Attributes:
        run: whose it is.
        n_prompt: tokens of a prompt that are read; 0 to verify the pending token and its draft.
        n_draft: how many drafted tokens may be asked for.
        draft: what was proposed.
        n_pad: tokens behind the draft that nobody reads.
        first_row: its first row in the decode's batch.
        turn: what the controller says of it; None for a prompt, and where nothing is ever drafted.

    """

    run: SequenceRun
    n_prompt: int = 0
    n_draft: int = 0
    draft: Draft = NO_DRAFT
    n_pad: int = 0
    first_row: int = 0
    turn: Turn | None = None

    @property
    def n_rows(self) -> int:
        """Its tokens, without padding."""
        return self.n_prompt or 1 + len(self.draft.ids)


@dataclass(slots=True, eq=False)
class Decode:
    """What one decode of the target computes.

    Attributes:
        spans: in the order of the batch.
        fill: idle sequences that get `n_fill` tokens each.
        n_fill: see fill.

    """

    spans: Sequence[Span]
    fill: Sequence[int] = ()
    n_fill: int = 0


def _force(span: Span) -> bool:
    """Drafts what has to follow, if anything: nobody is asked, and no controller weighs it."""
    if span.run.forced is None or not span.n_draft:
        return False
    ids = tuple(span.run.forced(span.n_draft))
    if ids:
        span.draft, span.n_draft = Draft(ids), 0
    return bool(ids)


class Scheduler:
    """The policy. Its answers depend on the runs, in the order in which they are given.

    Args:
        limits: what rounds must keep to.
        controller: how long drafts are; None for as long as they may be.

    """

    def __init__(self, limits: Limits, controller: Controller | None = None) -> None:
        self.limits = limits
        self.controller = FixedLength() if controller is None else controller

    def plan(self, runs: Sequence[SequenceRun]) -> list[Span]:
        """The spans of a round, before anything is drafted."""
        spans = self._spans(runs)
        if self.limits.n_draft:
            turns = []
            for span in spans:
                if not span.n_prompt and not _force(span):
                    turn = Turn(span.run.seq_id, span.run.state.n_decoded, span.n_draft)
                    span.turn = turn
                    turns.append(turn)
            if turns:
                self.controller.ask(turns)
                _check(self.controller, turns, "n_asked", "n_lookup")
            for span in spans:
                if span.turn is not None:
                    span.n_draft = max(min(span.turn.n_asked, span.n_draft), 0)
        return spans

    def request(self, span: Span) -> DraftRequest:
        """What is asked of the drafter for a span with n_draft above 0."""
        turn, run = span.turn, span.run
        assert turn is not None
        stop = self.controller.stop_of(turn)
        n_lookup = min(turn.n_lookup, turn.n_max)
        return DraftRequest(
            run.seq_id, run.view, span.n_draft, None, stop, turn.lookup_only, n_lookup
        )

    def cut(self, spans: Sequence[Span]) -> None:
        """Leaves of each draft what is to be verified."""
        turns = []
        for span in spans:
            turn = span.turn
            if turn is not None:
                turn.draft = span.draft
                turns.append(turn)
        if not turns:
            return
        self.controller.cut(turns)
        _check(self.controller, turns, "n_verified")
        for span in spans:
            turn = span.turn
            if turn is not None and turn.n_verified < len(span.draft.ids):
                span.draft = span.draft.first(max(turn.n_verified, 0))

    def learn(self, spans: Sequence[Span], spent: Spent) -> None:
        """What became of a round, for the controller and the statistics."""
        turns = [span.turn for span in spans if span.turn is not None]
        if not turns:
            return
        self.controller.learn(turns, spent)
        for span in spans:
            if span.turn is not None and span.turn.tokens:
                span.run.stats.count_turn(span.turn, spent.draft_s / len(turns))

    def _spans(self, runs: Sequence[SequenceRun]) -> list[Span]:
        if len(runs) == 1 and not runs[0].n_missing:  # nearly always, and then it should be quick
            return [Span(runs[0], 0, self._n_draft(runs[0], self.limits.n_draft))]
        texts = [run for run in runs if not run.n_missing]
        spans = [Span(run, n_draft=n) for run, n in zip(texts, self._n_drafts(texts), strict=True)]
        if len(texts) < len(runs):
            spans += list(self._read([run for run in runs if run.n_missing], spans))
        return spans

    def _read(self, runs: Sequence[SequenceRun], texts: Sequence[Span]) -> Iterator[Span]:
        """Parts of prompts: those that are read in one part before longer ones, else in order.

        Where each part has a decode of its own, the last one of a round may go beyond the room.
        """
        limits = self.limits
        room = limits.max_chunk
        if limits.mixes_prompts:
            room = max(room - sum(1 + span.n_draft for span in texts), 1)
        for run in sorted(runs, key=lambda run: run.n_missing > limits.max_chunk):
            if run.n_missing <= limits.max_stepwise and len(runs) + len(texts) > 1:
                yield Span(run, n_prompt=1)
                continue
            # In the same pieces as alone, but where rows are computed beside others anyway.
            n = min(run.n_missing, room if limits.mixes_prompts else limits.max_chunk)
            if room <= 0:
                return
            yield Span(run, n_prompt=n)
            room -= n

    def _n_drafts(self, runs: Sequence[SequenceRun]) -> Iterator[int]:
        """How many tokens each sequence may draft: as many for all, so that they fit one decode."""
        limits = self.limits
        n = limits.n_draft
        if len(runs) * (1 + n) > limits.width:
            n = max(limits.width // len(runs) - 1, 0)
        for run in runs:
            yield self._n_draft(run, n)

    def _n_draft(self, run: SequenceRun, n: int) -> int:
        """At most n, and no more than text and context have room for."""
        if not n:
            return 0
        n_left = run.max_tokens - run.n_generated - 1
        n_room = self.limits.n_ctx - run.state.n_decoded - 1
        return max(min(n, n_left, n_room), 0)

    def decodes(self, spans: Sequence[Span]) -> list[Decode]:
        """The decodes of a round, in their order."""
        if len(spans) == 1:
            return [Decode(spans)]
        limits = self.limits
        if limits.mixes_prompts:
            # In one physical batch: in a shared cache a sliding window could lose what it needs to
            # go back, if a second one found the first one's drafts there.
            return [Decode(part) for part in self._packed(spans, limits.max_chunk, limits.width)]
        rows = sorted((s for s in spans if s.n_rows <= 1 or not s.n_prompt), key=_seq_id)
        out = [Decode([span]) for span in spans if span.n_prompt > 1]
        if limits.goes_alone and any(span.draft.ids for span in rows):
            return [*(Decode([span]) for span in rows), *out]
        parts = self._packed(rows, limits.width, limits.width)
        if limits.needs_equal_rows and any(span.draft.ids for span in rows):
            parts = [piece for part in parts for piece in self._neighbours(part)]
        return [*(self._evened(part) for part in parts), *out]

    def _packed(self, spans: Sequence[Span], n_rows: int, n_outputs: int) -> list[list[Span]]:
        """Spans in decodes of at most so many tokens, and tokens with logits."""
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
        """Stretches of sequences whose ids follow each other; alone who has no room for padding.

        With all of their padding they fit one decode.
        """
        most, stretch = max(span.n_rows for span in spans), list[Span]()
        n_together = max(self.limits.width // most, 1)
        for span in spans:
            goes_on = (
                0 < len(stretch) < n_together
                and span.run.seq_id == stretch[-1].run.seq_id + 1
                and self._has_room(stretch[-1], most)
                and self._has_room(span, most)
            )
            if stretch and not goes_on:
                yield stretch
                stretch = []
            stretch.append(span)
        yield stretch

    def _has_room(self, span: Span, n_rows: int) -> bool:
        return span.run.state.n_decoded + n_rows <= self.limits.n_ctx

    def _evened(self, spans: list[Span]) -> Decode:
        """One decode of rows, padded where that saves more than it costs."""
        limits = self.limits
        ids, rows = [span.run.seq_id for span in spans], [span.n_rows for span in spans]
        most, n_span = max(rows), ids[-1] - ids[0] + 1
        can_pad = all(self._has_room(span, most) for span in spans)
        if len(spans) == 1 or not can_pad:
            return Decode(spans)
        if limits.needs_equal_rows:
            _pad(spans, most)
            return Decode(spans)
        if not limits.has_streams:
            return Decode(spans)
        plain = _PASS_ROWS * n_passes(ids, rows, limits.keeps_whole) + sum(rows)
        padded = _PASS_ROWS * n_passes(ids, [most] * len(ids)) + most * len(ids)
        filled = _PASS_ROWS + most * n_span
        can_fill = limits.can_fill and most * n_span <= limits.width
        if can_fill and n_span > len(ids) and filled < min(plain, padded):
            _pad(spans, most)
            return Decode(spans, [i for i in range(ids[0], ids[-1]) if i not in ids], most)
        if padded < plain and most * len(ids) <= limits.width:
            _pad(spans, most)
        return Decode(spans)


def n_passes(ids: Sequence[int], rows: Sequence[int], keeps_whole: bool = False) -> int:
    """How often the engine goes over the weights for a batch of sequences with own streams.

    Each time it takes the first sequence that has tokens left and those whose ids follow it, and of
    each as many tokens as the one with the fewest has (llama_batch_allocr::split_equal).

    Args:
        ids: the sequences, rising.
        rows: how many tokens of each.
        keeps_whole: see Rollback; of those together then the first ones that end together, or the
            first one alone.

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


def _seq_id(span: Span) -> int:
    return span.run.seq_id


def _check(controller: Controller, turns: Sequence[Turn], *fields: str) -> None:
    """A controller may be the user's own, and set what is no number of tokens."""
    for turn in turns:
        for field in fields:
            value = getattr(turn, field)
            if not isinstance(value, int):
                raise ArgumentError(
                    f"controller {controller.name!r:.40} set {field}={value!r:.40}; "
                    "a number of tokens is a whole number"
                )
