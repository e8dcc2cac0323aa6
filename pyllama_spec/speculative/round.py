"""The round: drafts, verifies in one batch, accepts and rolls back, for all sequences.

Round.step() is one round. In its order:

    scheduler.plan            who reads how much of a prompt, who may draft how many tokens
    _decide                   run.forced: text that has to follow needs no drafter; then
                              scheduler.decide, the controller: how many tokens each asks for
    _draft                    run.prediction, a text that the answer is expected to repeat; then
                              drafter.propose for all others at once; then
                              scheduler.set_lengths: how much of each draft is verified
    scheduler.decodes         which sequences share a decode of the target
    _decode                   one batch: prompts' parts, and [pending] + draft of each sequence
    _commit                   after each decode, for each sequence:
      _accept                 sample_and_match(), the target's own choice at each row, or
                              accept_drawn(), for what a draft has drawn; then
                              rollback.undo removes the rejected tokens
      _commit_prompt          or, after a prompt, its first token
      drafter.commit          what was committed, with the target's rows
    scheduler.learn           the controller: what the round took and gave

Plain decoding is this round with a drafter that proposes nothing. Nothing of a request is kept
here: all of it is in its SequenceRun, and its part of a round in a Span. What fails in one sequence
ends that sequence alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from time import perf_counter

from pyllama_spec.drafters.base import Committed, Drafter, Features
from pyllama_spec.engine import Batch, Context
from pyllama_spec.engine.context import LayerRows
from pyllama_spec.errors import (
    ArgumentError,
    CancelledError,
    ContextFullError,
    PyllamaSpecError,
)
from pyllama_spec.speculative.acceptance import accept_drawn, sample_and_match
from pyllama_spec.speculative.controller.base import Controller, Span
from pyllama_spec.speculative.isolated_drafter import IsolatedDrafter
from pyllama_spec.speculative.prefixes import HeldSequences
from pyllama_spec.speculative.rollback import rollback_of
from pyllama_spec.speculative.scheduler import Scheduler, limits_of
from pyllama_spec.speculative.sequence import SequenceRun, Step
from pyllama_spec.speculative.stats import who_drafted

Ended = list[tuple[SequenceRun, Step]]
_NOT_WANTED = "the request disabled drafting: n_draft=0, or speculation.draft=false over HTTP"
_NO_DRAWS = "the drafter {!r} does not draw its tokens from a distribution"
_NEVER = "nothing is drafted: {} allows no token of a draft"


class Round:
    """Computes rounds on one context with one drafter. Only this class decodes the target.

    Args:
        target: the target's context, opened with the drafter's target_layers.
        drafter: the drafter to ask.
        n_draft: the maximum number of tokens to draft per round and sequence; None for the
            drafter's max_draft.
        controller: decides how many of them are drafted and verified; None for all, in every round.
        max_rows: the maximum number of rows of a verify batch; None for as many as are exact in
            this context.
        max_stepwise: read prompts with at most this many tokens left one token a round, beside the
            other sequences (Limits.max_stepwise).
        store_bytes: the size of the store for beginnings of prompts that no sequence holds any
            more; None to reuse only the run's own sequence.

    Attributes:
        sequences: the contents of the context's sequences: copies, cuts and stores them.
        max_draft: the maximum number of tokens that a sequence drafts in a round.
        max_draft_reason: the reason for that limit, in words.

    Raises:
        ArgumentError: the context does not keep the layer inputs that the drafter wants, the
            drafter was made for another target, or it is no Drafter.
    """

    def __init__(
        self,
        target: Context,
        drafter: Drafter,
        n_draft: int | None = None,
        controller: Controller | None = None,
        *,
        max_rows: int | None = None,
        max_stepwise: int = 0,
        store_bytes: int | None = None,
    ) -> None:
        self.target = target
        self.drafter = IsolatedDrafter(drafter, target)
        self.rollback = rollback_of(target)
        self.sequences = HeldSequences(target, self.rollback, self.drafter, store_bytes)
        limits = limits_of(target, self.rollback, drafter, n_draft, max_rows, max_stepwise)
        self.scheduler = Scheduler(limits, controller)
        self.max_draft, self.max_draft_reason = limits.max_draft, limits.max_draft_reason
        self._memory, self._batch = target.memory, Batch(target.n_batch)
        self._media_batch: Batch | None = None  # made for the first image
        self._rows = LayerRows(target, self.drafter.target_layers, 0, 0)
        self._padding_id = target.model.vocab.bos or 0
        # The runs of the round that is being computed, by sequence.
        self._runs: dict[int, SequenceRun] = {}
        # The run whose prompt the last batch ended with and that has not drawn its token yet.
        self._ready: list[SequenceRun] = []

    # ---- a request begins

    def begin(self, run: SequenceRun) -> None:
        """Prepares a sequence for a request, and reuses the common prefix it holds.

        Raises:
            ContextFullError: the prompt does not fit the context.
            ArgumentError: the prompt is empty, or an id is outside the vocabulary.
        """
        self.target.check_prompt(run.prompt, has_media=bool(run.media))
        n_whole = max((len(media.ids) for _, media in run.media if media.is_whole), default=0)
        if n_whole > self.scheduler.limits.max_chunk:
            raise ArgumentError(
                "n_ubatch", self.scheduler.limits.max_chunk,
                f"at least {n_whole}, and so n_batch: this model reads an image of so many rows "
                "in one piece",
            )  # fmt: skip
        start = perf_counter()
        run.stats.drafter, run.stats.note = self.drafter.name, self.drafter.note
        run.stats.controller = self.scheduler.controller_name
        self.choose_acceptance(run)
        if not self.max_draft and self.drafter.name != "none":
            run.stats.reason_off = _NEVER.format(self.max_draft_reason)
        self.scheduler.controller.begin(run.seq_id)
        self.drafter.begin_request(run.seq_id, remember=run.remember, user=run.user)
        self.sequences.begin(run)
        run.timing.prompt_s += perf_counter() - start

    def choose_acceptance(self, run: SequenceRun) -> None:
        """Chooses rejection sampling for a run if the drafter draws, and records the choice."""
        draws = run.draws
        if draws is not None and draws.verifies_all and not self.drafter.draws_tokens:
            run.draws = draws = None
            run.stats.why_exact = _NO_DRAWS.format(self.drafter.name)
        run.stats.acceptance = "exact" if draws is None else draws.acceptance

    # ---- a round

    def step(self, runs: Sequence[SequenceRun]) -> Ended:
        """One round of some sequences, all different, that have begun and are not over.

        Returns:
            For each sequence that committed tokens or ended: its run and the Step. A sequence that
            is still reading its prompt is not there.

        Raises:
            BaseException: an error that no sequence caused, such as Ctrl-C. Every sequence is as it
                was before the round, or after it.
        """
        out: Ended = []
        self._runs = {run.state.seq_id: run for run in runs}
        try:
            for run in runs:
                if run.is_cancelled:
                    self._fail(run, CancelledError("the generation was cancelled"), out)
            if out:
                runs = [run for run in runs if not run.is_cancelled]
            spans = self.scheduler.plan(self._without_waiting(runs))
            if self.max_draft:
                self._decide(spans)
            start = perf_counter()
            propose_s, draft_s, verify_s = self._compute(spans, start, out)
            round_s = perf_counter() - start
            for span in spans:
                self._count_seconds(span, round_s, draft_s, verify_s)
            if self.max_draft:
                self._learn(spans, propose_s, draft_s, verify_s, round_s)
            for run, _ in out:
                if run.is_over:
                    self.drafter.end_request(run.seq_id)
        finally:
            self._runs = {}
        return out

    def _without_waiting(self, runs: Sequence[SequenceRun]) -> Sequence[SequenceRun]:
        """The runs without those that wait for another run to read their prefix."""
        if not self.sequences.has_waiting:
            return runs
        for run in self.sequences.due(runs):
            self.sequences.begin(run, runs)
        return [run for run in runs if run.waits_for is None]

    def _compute(
        self, spans: Sequence[Span], start: float, out: Ended
    ) -> tuple[float, float, float]:
        """Drafts, verifies and commits. If it raises, no sequence has changed.

        Returns:
            The seconds of propose(), of the drafter, and of the target.
        """
        try:
            if self.max_draft:
                self._draft(spans)
            propose_s = draft_s = perf_counter() - start
            verify_s, pace = 0.0, self.scheduler.pace
            for part in self._parts(spans):
                for decode in self.scheduler.decodes(part):
                    decode_s, commit_s = self._decode(decode, out)
                    verify_s += decode_s
                    draft_s += commit_s
                    if pace and decode_s and (n := decode[0].n_prompt) > 1:
                        pace.learn(n, decode_s + commit_s)
        except BaseException:
            for span in spans:
                self.sequences.recover(self._runs[span.seq].state)
            raise
        return propose_s, draft_s, verify_s

    def _parts(self, spans: Sequence[Span]) -> Sequence[Sequence[Span]]:
        """The spans that may share a decode: those with the same adapters."""
        if len(spans) == 1:
            return (spans,)
        parts: dict[object, list[Span]] = {}
        for span in spans:
            parts.setdefault(self._runs[span.seq].adapters, []).append(span)
        return list(parts.values())

    def use_adapters(self, run: SequenceRun) -> None:
        """Sets the adapters of later decodes to a run's; its None keeps the current ones."""
        if run.adapters is not None and run.adapters != self.target.adapters:
            self.target.set_adapters(run.adapters)

    def _decide(self, spans: Sequence[Span]) -> None:
        """Drafts forced text, and decides how many tokens the other sequences request."""
        for span in spans:
            forced = self._runs[span.seq].forced
            if forced is not None and span.max_draft:
                ids = tuple(forced(span.max_draft))
                if ids:
                    span.force(ids)
        self.scheduler.decide(spans)

    def _fail(self, run: SequenceRun, error: BaseException, out: Ended) -> None:
        """Ends one sequence; the others are not affected."""
        self.sequences.recover(run.state)
        run.has_failed = True
        out.append((run, Step((), 0, 0, None, error)))

    def _draft(self, spans: Sequence[Span]) -> None:
        asked = [span for span in spans if span.n_requested]
        if not asked:
            return
        requests, unanswered = [], []
        for span in asked:
            run = self._runs[span.seq]
            request = self.scheduler.request(span, run.view, run.draws)
            if run.prediction is not None:
                span.draft = run.prediction(request)
                if span.draft.ids:
                    span.asked_of, span.is_predicted = "copies", True
                    continue
            span.asked_of = self.drafter.asked_of(span.seq, asks_model=span.asks_model)
            requests.append(request)
            unanswered.append(span)
        if requests:
            for span, draft in zip(unanswered, self.drafter.propose(requests), strict=True):
                span.draft = draft
        self.scheduler.set_lengths(spans)

    def _decode(self, spans: Sequence[Span], out: Ended) -> tuple[float, float]:
        """Runs one decode of the target, and commits what came of it.

        Returns:
            The seconds of the target and of the drafter after it; none of a failed decode.
        """
        self._forget_rows()
        runs = self._runs
        begun = perf_counter()
        try:
            self.use_adapters(runs[spans[0].seq])
            self._decode_batch(spans)
        except ContextFullError as error:
            # In a memory that sequences share one may leave no room for the others: each by itself.
            if len(spans) == 1:
                self._fail(runs[spans[0].seq], error, out)
                return 0.0, 0.0
            return self._decode_alone(spans, out)
        except PyllamaSpecError as error:
            blamed = [s.seq for s in spans if runs[s.seq].is_cancelled] or [s.seq for s in spans]
            for span in spans:
                if span.seq in blamed or not isinstance(error, CancelledError):
                    self._fail(runs[span.seq], error, out)
                else:  # another one's cancel() ended the decode: this one continues
                    self.sequences.recover(runs[span.seq].state)
            return 0.0, 0.0
        decode_s = perf_counter() - begun
        return decode_s, self._commit(spans, out)

    def _decode_alone(self, spans: Sequence[Span], out: Ended) -> tuple[float, float]:
        """Decodes each span alone; see _decode()."""
        decode_s = commit_s = 0.0
        for span in spans:
            span.n_pad = span.n_idle = 0
            seconds = self._decode((span,), out)
            decode_s += seconds[0]
            commit_s += seconds[1]
        return decode_s, commit_s

    def _forget_rows(self) -> None:
        """Invalidates the last batch's rows before another batch."""
        while self._ready:
            self._ready.pop().ready_row = None

    def _decode_batch(self, spans: Sequence[Span]) -> None:
        """Decodes the tokens of spans, with padding; rolls padded idle sequences back."""
        if spans[0].is_media:
            self._decode_media(spans[0])
            return
        target, batch = self.target, self._batch
        batch.clear()
        idle: list[tuple[int, int]] = []
        for span in spans:
            self._add(span)
            if span.n_idle:
                idle += self._pad_idle(span)
        try:
            target.decode(batch)
        finally:
            for seq, end in idle:
                # What stays there is noticed when a request begins on it.
                with contextlib.suppress(PyllamaSpecError):
                    target.memory.rollback(seq, end)

    def _decode_media(self, span: Span) -> None:
        """Decodes rows of an image, which have a batch of their own."""
        target, run, n = self.target, self._runs[span.seq], span.n_prompt
        state = run.state
        placed = run.medium_at(state.n_decoded)
        assert placed is not None
        if self._media_batch is None:
            self._media_batch = Batch(target.n_batch, n_row=target.n_row)
        start = placed.start
        media = placed.media.part(state.n_decoded - start, n)
        target.memory.note_media(state.seq_id, state.tokens[: start + len(placed.media.ids)])
        position = target.memory.position_of(state.seq_id, start)
        span.first_row = 0
        self._media_batch.set_media(
            media.rows, media.positions + position, state.seq_id, is_whole=media.is_whole,
            output_last=n == run.n_missing and not run.n_generated,
        )  # fmt: skip
        target.decode(self._media_batch)

    def _pad_idle(self, span: Span) -> Iterator[tuple[int, int]]:
        """Pads the idle sequences after a span; yields each and the length to roll it back to."""
        n = span.n_rows + span.n_pad
        for seq in range(span.seq + 1, span.seq + 1 + span.n_idle):
            end = self.target.memory.positions(seq)[1] + 1
            if end + n <= self.target.n_ctx_seq:
                at = self.target.memory.position_of(seq, end)
                self._batch.extend([self._padding_id] * n, at, seq)
                yield seq, end

    def _add(self, span: Span) -> None:
        batch, run = self._batch, self._runs[span.seq]
        state, n = run.state, span.n_prompt
        span.first_row, first = batch.n_tokens, state.n_decoded
        memory = self._memory
        at = memory.position_of(state.seq_id, first) if memory.media else first
        if n:
            is_end = n == run.n_missing and not run.n_generated
            tokens = state.tokens[first : first + n]
            batch.extend(tokens, at, state.seq_id, output_last=is_end)
        else:
            tokens = [state.tokens[-1], *span.ids]
            batch.extend(tokens, at, state.seq_id, output_all=True)
        if span.n_pad:
            batch.extend([self._padding_id] * span.n_pad, at + len(tokens), state.seq_id)

    def _features(self, span: Span, n: int) -> Features:
        """The rows of a span's first n tokens for each of the drafter's layers; () for none."""
        return self._rows.part(span.first_row, n) if self.drafter.target_layers else ()

    def _commit(self, spans: Sequence[Span], out: Ended) -> float:
        """Accepts, rolls back and commits the tokens of a decode; returns the drafter's seconds."""
        done: list[Committed] = []
        for span in spans:
            step = (self._commit_prompt if span.n_prompt else self._accept)(span, done)
            if step is not None:
                out.append((self._runs[span.seq], step))
        drafter, controller = self.drafter, self.scheduler.controller
        if not done and not drafter.failures:
            return 0.0
        start = perf_counter()
        if done:
            drafter.commit(done)
            for seq in [s.seq for s in spans if s.n_prompt and not self._runs[s.seq].n_missing]:
                controller.catch_up(seq, drafter.n_unread(seq))
        if drafter.failures:
            for span in spans:
                failure = drafter.failures.get(span.seq)
                if failure is not None:
                    self._runs[span.seq].stats.note_failure(*failure)
        return perf_counter() - start

    def _commit_prompt(self, span: Span, done: list[Committed]) -> Step | None:
        """Commits a part of a prompt. The last row of a prompt gives the first token."""
        run, n = self._runs[span.seq], span.n_prompt
        state = run.state
        first = state.n_decoded
        state.n_decoded += n
        tokens, step = state.tokens[first : first + n], None
        if span.n_pad:
            self.rollback.undo(state)
        is_border = state.n_decoded in run.borders
        if not run.n_generated and run.is_at_a_border:
            self.rollback.mark(state, is_end=not run.n_missing, is_border=is_border)
        if not run.n_missing:
            if run.n_generated:  # text that was lost: the pending token was, too
                tokens.append(state.tokens[-1])
            elif run.sampler is None:
                run.ready_row = span.first_row + n - 1
                self._ready.append(run)
            else:
                step = self._draw_first(run, span.first_row + n - 1)
                tokens += step.tokens
        rows = self._features(span, n)
        n_prompt = len(state.tokens) - run.n_generated
        n_chosen = max(first + len(tokens) - max(first, n_prompt), 0)
        media = run.rows_at(first, n) if span.is_media else None
        done.append(Committed(state.seq_id, tokens, first, rows, first, is_border, n_chosen, media))
        return step

    def draw_first(self, run: SequenceRun) -> Step:
        """Samples the first token of a run whose prompt was decoded last, without a sampler."""
        row = run.ready_row
        assert row is not None
        self._ready.remove(run)
        run.ready_row = None
        start = perf_counter()
        step = self._draw_first(run, row)
        if step.tokens:
            state = run.state
            n = len(step.tokens)
            self.drafter.commit([Committed(state.seq_id, step.tokens, state.n_decoded, n_chosen=n)])
        run.timing.prompt_s += perf_counter() - start
        return step

    def _draw_first(self, run: SequenceRun, row: int) -> Step:
        tokens, error = self._sample(run, row)
        run.state.tokens += tokens
        run.n_generated += len(tokens)
        run.finish_reason = self._finish_reason(run, tokens) if error is None else None
        return Step(tuple(tokens), 0, 0, run.finish_reason, error)

    def _accept(self, span: Span, done: list[Committed]) -> Step | None:
        """Accepts tokens after a decode of the pending token and its draft."""
        run, ids = self._runs[span.seq], span.ids
        state = run.state
        tokens, error = self._sample(run, span.first_row, span)
        n_past, n, who = state.n_decoded, len(tokens), who_drafted(span)
        if tokens:
            span.tokens = tokens
            state.tokens += tokens
            state.n_decoded = n_past + n
            run.n_generated += n
            run.stats.count_round(span, n - 1)
            if n < 1 + len(ids) + span.n_pad:
                self.rollback.undo(state)
            if self.drafter.listens:
                rows = self._features(span, n)
                done.append(Committed(state.seq_id, tokens, n_past + 1, rows, n_past, n_chosen=n))
        if error is not None:
            self.rollback.recover(state, is_computed=True)
            return Step(tuple(tokens), len(ids), max(n - 1, 0), None, error, who)
        run.finish_reason = self._finish_reason(run, tokens)
        return Step(tuple(tokens), len(ids), n - 1, run.finish_reason, None, who)

    def _sample(
        self, run: SequenceRun, row: int, span: Span | None = None
    ) -> tuple[list[int], BaseException | None]:
        """The accepted tokens, and the exception of a callback or of the chain, if any."""
        tokens: list[int] = []
        sampler, draws = run.sampler, run.draws
        assert sampler is not None
        ids, drawn_from = ((), None) if span is None else (span.ids, span.draft.distributions)
        try:
            if draws is None or drawn_from is None:
                sample_and_match(sampler, self.target, row, ids, tokens, run.observe)
            else:
                accept_drawn(sampler, self.target, row, ids, tokens, run.observe, draws, drawn_from)
        except BaseException as error:  # noqa: BLE001 - of this sequence alone; its Step has it
            run.has_failed = True
            return tokens, error
        return tokens, None

    def _finish_reason(self, run: SequenceRun, tokens: Sequence[int]) -> str | None:
        """The reason why a request ends after these tokens; None if it continues."""
        if self.target.model.vocab.is_eog(tokens[-1]):
            return "stop"
        is_full = run.state.n_decoded >= self.target.n_ctx_seq
        return "length" if run.n_left <= 0 or is_full else None

    # ---- how a round is counted

    def _count_seconds(self, span: Span, round_s: float, draft_s: float, verify_s: float) -> None:
        """Adds a round's seconds to each sequence, which waits for all of them."""
        run = self._runs[span.seq]
        timing = run.timing
        if span.n_prompt:
            timing.prompt_s += round_s
            return
        timing.decode_s += round_s
        timing.draft_s += draft_s
        timing.verify_s += verify_s
        timing.n_decoded = run.n_generated - 1

    def _learn(
        self,
        spans: Sequence[Span],
        propose_s: float,
        draft_s: float,
        verify_s: float,
        round_s: float,
    ) -> None:
        """Tells the controller a round's times and tokens; records why drafts are disabled."""
        self.scheduler.learn(spans, propose_s, verify_s, round_s)
        controller, failures = self.scheduler.controller, self.drafter.failures
        for span in spans:
            run = self._runs[span.seq]
            if span.n_prompt and controller.wants_costs:
                run.stats.add_saved(-draft_s, 0.0)  # a head reads prompts too
            elif span.saved_s is not None:
                run.stats.add_saved(span.saved_s, span.saved_error_s)
            if span.seq not in failures:  # they are recorded already
                reason = _NOT_WANTED if run.max_draft == 0 else controller.reason_off(span.seq)
                is_asked = span.asked_of == "drafter" and not span.is_retry
                run.stats.reason_off = None if is_asked else reason
