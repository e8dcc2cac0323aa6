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
                              RejectionSampling.accept(), for what a draft has drawn; then
                              rollback.undo removes the rejected tokens
      _commit_prompt          or, after a prompt, its first token
      drafter.commit          what was settled, with the target's rows
    scheduler.learn           the controller: what the round took and gave

Plain decoding is this round with a drafter that proposes nothing. Nothing of a request is kept
here: all of it is in its SequenceRun, and its part of a round in a Span. What fails in one sequence
ends that sequence alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from pyllama_spec.drafters.base import Committed, Drafter, MediaView
from pyllama_spec.engine import Context
from pyllama_spec.engine.media_ids import as_text
from pyllama_spec.errors import (
    ArgumentError,
    CancelledError,
    ContextFullError,
    PyllamaSpecError,
)
from pyllama_spec.speculative.acceptance import DrawnFrom, sample_and_match
from pyllama_spec.speculative.controller.base import Controller, Span
from pyllama_spec.speculative.isolated_drafter import IsolatedDrafter
from pyllama_spec.speculative.prefixes import HeldSequences
from pyllama_spec.speculative.rollback import rollback_of
from pyllama_spec.speculative.scheduler import Scheduler
from pyllama_spec.speculative.sequence import (
    Adapters,
    SequenceRun,
    Step,
)
from pyllama_spec.speculative.stats import who_drafted
from pyllama_spec.speculative.target_batch import TargetBatch

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
        _check_attachable(drafter, target)
        drafter.attach(target)  # before its numbers are read: it may learn some of the target
        self.target = target
        self.drafter = IsolatedDrafter(drafter, target.model.info.n_vocab)
        self.rollback = rollback_of(target)
        self.sequences = HeldSequences(target, self.rollback, self.drafter, store_bytes)
        self.scheduler = Scheduler.of(
            target, self.rollback, drafter, controller, n_draft, max_rows, max_stepwise
        )
        self.max_draft = self.scheduler.limits.max_draft
        self.max_draft_reason = self.scheduler.limits.max_draft_reason
        self._batch = TargetBatch(target)
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
        prompt, state = run.prompt, run.state
        if not prompt:
            raise ArgumentError("prompt", problem="has no tokens", remedy="give at least one")
        tokens = [token for token in prompt if token >= 0] if run.media else prompt
        self.target.model.vocab.check_ids(tokens, "prompt")
        if len(prompt) > self.target.n_ctx_seq:
            raise ContextFullError.of_prompt(len(prompt), self.target.n_ctx_seq)
        n_whole = max((len(media.ids) for _, media in run.media if media.is_whole), default=0)
        if n_whole > self.scheduler.limits.max_chunk:
            raise ArgumentError(
                "n_ubatch", self.scheduler.limits.max_chunk,
                f"at least {n_whole}, and so n_batch: this model reads an image of so many rows "
                "in one piece",
            )  # fmt: skip
        if run.media:
            run.view = MediaView(state.tokens, self.target.model.info.n_vocab)
        start = perf_counter()
        run.stats.drafter, run.stats.note = self.drafter.name, self.drafter.note
        run.stats.controller = self.scheduler.controller_name
        self.settle_acceptance(run)
        if not self.max_draft and self.drafter.name != "none":
            run.stats.reason_off = _NEVER.format(self.max_draft_reason)
        self.scheduler.controller.begin(state.seq_id)
        self.drafter.begin_request(state.seq_id, remember=run.remember, user=run.user)
        self.sequences.begin(run)
        run.timing.prompt_s += perf_counter() - start

    def settle_acceptance(self, run: SequenceRun) -> None:
        """Chooses rejection sampling for a run if the drafter draws, and records the choice."""
        if run.rejection is not None and not self.drafter.draws_tokens:
            run.rejection = None
            run.stats.why_exact = _NO_DRAWS.format(self.drafter.name)
        if run.noise is not None:
            run.stats.acceptance = "noise"
        else:
            run.stats.acceptance = "exact" if run.rejection is None else "distribution"

    # ---- a round

    def step(self, runs: Sequence[SequenceRun]) -> Ended:
        """One round of some sequences that have begun and are not over.

        Returns:
            For each sequence that committed tokens or ended: its run and the Step. A sequence that
            is still reading its prompt is not there.

        Raises:
            ArgumentError: a sequence has not begun, is over, or waits for draw_first().
            BaseException: an error that no sequence caused, such as Ctrl-C. Every sequence is as it
                was before the round, or after it.
        """
        for run in runs:
            if run.is_over or not (run.n_generated or run.n_missing):
                raise ArgumentError(
                    "runs", problem=f"have nothing to compute on sequence {run.seq_id}",
                    remedy="call begin() first, or draw_first() after a prompt without a sampler, "
                    "and omit ended sequences",
                )  # fmt: skip
        by_seq = {run.state.seq_id: run for run in runs}
        if len(by_seq) < len(runs):
            raise ArgumentError("runs", problem="are two on one sequence")
        out: Ended = []
        self._runs = by_seq
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
        """Drafts, verifies and settles. If it raises, no sequence has changed.

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
        parts: dict[Adapters, list[Span]] = {}
        for span in spans:
            parts.setdefault(self._runs[span.seq].adapters, []).append(span)
        return list(parts.values())

    def use_adapters(self, adapters: Adapters) -> None:
        """Sets the adapters of later decodes; None keeps the current ones."""
        if adapters is not None and adapters != self.target.adapters:
            self.target.set_adapters(adapters)

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
        run.error = error
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
                span.draft = run.prediction.propose(request)
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
        """Runs one decode of the target, and settles it.

        Returns:
            The seconds of the target and of the drafter after it; none of a failed decode.
        """
        self._forget_rows()
        runs = self._runs
        begun = perf_counter()
        try:
            self.use_adapters(runs[spans[0].seq].adapters)
            self.rollback.prepare([runs[s.seq].state for s in spans if s.n_verified or s.n_pad])
            self._batch.compute(spans, runs)
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
        return decode_s, self._settle(spans, out)

    def _decode_alone(self, spans: Sequence[Span], out: Ended) -> tuple[float, float]:
        """Decodes each span alone; see _decode()."""
        decode_s = commit_s = 0.0
        for span in spans:
            span.n_pad = span.n_gap = 0
            seconds = self._decode((span,), out)
            decode_s += seconds[0]
            commit_s += seconds[1]
        return decode_s, commit_s

    def _forget_rows(self) -> None:
        """Invalidates the last batch's rows before another batch."""
        while self._ready:
            self._ready.pop().ready_row = None

    def _settle(self, spans: Sequence[Span], out: Ended) -> float:
        """After a decode: accepts and commits, then recomputes what no rollback restored."""
        try:
            draft_s = self._commit(spans, out)
            if self.rollback.settle():
                self._forget_rows()
        except CancelledError:  # in the second decode: what was committed is read again
            for span in spans:
                self.sequences.recover(self._runs[span.seq].state)
            return 0.0
        return draft_s

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
        rows = self._batch.rows(self.drafter.target_layers, span, n)
        n_given = len(state.tokens) - run.n_generated
        n_chosen = max(first + len(tokens) - max(first, n_given), 0)
        if span.is_media:
            tokens = as_text(tokens, self.target.model.info.n_vocab)
        done.append(Committed(state.seq_id, tokens, first, rows, first, is_border, n_chosen))
        return step

    def draw_first(self, run: SequenceRun) -> Step:
        """Samples the first token of a run whose prompt was decoded without a sampler.

        Raises:
            ArgumentError: the target's last batch did not end with this prompt.
        """
        row = run.ready_row
        if row is None or run.sampler is None:
            raise ArgumentError(
                "sequence",
                problem="is not prepared",
                remedy="call prefill() with it right before generate()",
            )
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
        tokens, error = self._sample(run, row, ())
        run.state.tokens += tokens
        run.n_generated += len(tokens)
        run.finish_reason = self._finish_reason(run, tokens) if error is None else None
        return Step(tuple(tokens), 0, 0, run.finish_reason, error)

    def _accept(self, span: Span, done: list[Committed]) -> Step | None:
        """Accepts tokens after a decode of the pending token and its draft."""
        run, ids = self._runs[span.seq], span.ids
        state = run.state
        tokens, error = self._sample(run, span.first_row, ids, span.draft.distributions)
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
                rows = self._batch.rows(self.drafter.target_layers, span, n)
                done.append(Committed(state.seq_id, tokens, n_past + 1, rows, n_past, n_chosen=n))
        if error is not None:
            self.rollback.recover(state, is_computed=True)
            return Step(tuple(tokens), len(ids), max(n - 1, 0), None, error, who)
        run.finish_reason = self._finish_reason(run, tokens)
        return Step(tuple(tokens), len(ids), n - 1, run.finish_reason, None, who)

    def _sample(
        self, run: SequenceRun, row: int, ids: Sequence[int], drawn_from: DrawnFrom = None
    ) -> tuple[list[int], BaseException | None]:
        """The accepted tokens, and the exception of a callback or of the chain, if any."""
        tokens: list[int] = []
        sampler, target = run.sampler, self.target
        assert sampler is not None
        try:
            if run.rejection is None or drawn_from is None:
                sample_and_match(sampler, target, row, ids, tokens, run.observe)
            else:
                run.rejection.accept(target, row, ids, drawn_from, tokens, run.observe)
        except BaseException as error:  # noqa: BLE001 - of this sequence alone; its Step has it
            run.error = error
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


def _check_attachable(drafter: Drafter, target: Context) -> None:
    """Raises unless the context keeps the layer inputs that the drafter reads."""
    missing = set(drafter.target_layers) - set(target.target_layers)
    if missing:
        raise ArgumentError(
            "draft", problem=f"reads the inputs of layers {sorted(missing)} ({drafter.name!r})",
            remedy=f"open the target's context with `target_layers={drafter.target_layers}`",
        )  # fmt: skip
