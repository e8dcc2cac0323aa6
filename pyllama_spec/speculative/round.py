"""The round: draft, verify in one batch, accept, roll back, for all sequences that take part.

    scheduler.plan        who reads how much of a prompt, who may draft how many tokens
    drafter.propose       all sequences at once
    target.decode         one batch: prompts' parts, and [pending] + draft of each sequence
    accept                per sequence: the target's own choice at each row
    rollback.undo         what was refused
    drafter.commit        what was settled, with the target's rows

Plain decoding is this round with a drafter that proposes nothing. Nothing of a request is kept
here: all of it is in its SequenceRun. What fails in one sequence ends that sequence alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

from pyllama_spec.drafters.base import Committed, Drafter
from pyllama_spec.engine import Context
from pyllama_spec.engine.exactness import FEW_ROWS
from pyllama_spec.errors import (
    ArgumentError,
    CancelledError,
    ContextFullError,
    PyllamaSpecError,
)
from pyllama_spec.speculative.controller.base import Controller
from pyllama_spec.speculative.isolated_drafter import IsolatedDrafter, max_draft_of
from pyllama_spec.speculative.rollback import rollback_of
from pyllama_spec.speculative.scheduler import Decode, Limits, Scheduler, Span
from pyllama_spec.speculative.sequence import SequenceRun, SequenceState, Step
from pyllama_spec.speculative.spans import (
    count_seconds,
    drawn,
    finish_reason,
    learn,
    n_common,
    room_of,
)
from pyllama_spec.speculative.target_batch import TargetBatch

Ended = list[tuple[SequenceRun, Step]]


class Round:
    """Computes rounds on one context with one drafter. The only caller of the target's decode.

    Args:
        target: the target's context, opened with the drafter's target_layers.
        drafter: who proposes.
        n_draft: the most tokens to draft per round and sequence; None for the drafter's max_draft.
        controller: how many of them are drafted and verified; None for all, in every round.
        replay: whether drafts are verified by a target whose recurrent state has no snapshots: its
            state is copied before each draft, and what was accepted decoded once more.
        limits: fields of Limits that differ from what the context says.

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
        replay: bool = True,
        **limits: Any,
    ) -> None:
        if not isinstance(drafter, Drafter):
            raise ArgumentError(
                f"the drafter {drafter!r:.60} is no Drafter: let its class inherit from "
                "pyllama_spec.Drafter"
            )
        missing = set(drafter.target_layers) - set(target.target_layers)
        if missing:
            raise ArgumentError(
                f"the drafter {drafter.name!r} reads the inputs of layers {sorted(missing)}; open "
                f"the target's context with target_layers={tuple(drafter.target_layers)}"
            )
        n = max_draft_of(drafter, n_draft)
        drafter.attach(target)
        self.target = target
        self.drafter = IsolatedDrafter(drafter, target.model.info.n_vocab, target.lend)
        self.rollback = rollback_of(target, replay=replay)
        self.scheduler = Scheduler(self._limits(n, limits), controller)
        self.scheduler.controller.attach(room_of(self.scheduler.limits, self.drafter))
        self._batch = TargetBatch(target)
        # Whose prompt the last batch ended with, and who has not drawn a token from it yet.
        self._ready: list[SequenceRun] = []

    def _limits(self, n: int, limits: dict[str, Any]) -> Limits:
        target, params = self.target, self.target.params
        if n > 0 and self.rollback.reason_off is not None:
            self.drafter.disable(self.rollback.reason_off)
        if self.rollback.max_draft is not None:
            n = min(n, self.rollback.max_draft)
        n_outputs = min(target.n_batch, params.n_outputs_max or target.n_batch)
        is_parallel = params.n_seq_max > 1
        found = Limits(
            n_ctx=target.n_ctx_seq,
            n_batch=target.n_batch,
            n_outputs=n_outputs,
            n_draft=min(n, n_outputs - 1),
            max_rows=target.exact_rows if target.exact_rows > 1 else FEW_ROWS,
            # One physical batch at a time, so that Ctrl-C is answered within one.
            max_chunk=min(target.n_batch, target.n_ubatch),
            mixes_prompts=is_parallel and params.kv_unified and self.rollback.is_cut,
            has_streams=is_parallel and not params.kv_unified and self.rollback.can_pad,
            needs_equal_rows=self.rollback.needs_equal_rows,
            keeps_whole=self.rollback.keeps_whole,
            goes_alone=self.rollback.goes_alone,
            can_fill=self.rollback.can_fill,
        )
        found = replace(found, **limits)
        return replace(found, n_draft=min(found.n_draft, found.width - 1))

    @property
    def n_draft(self) -> int:
        """The most tokens that a sequence drafts in a round."""
        return self.scheduler.limits.n_draft

    # ---- a request begins

    def begin(self, run: SequenceRun) -> None:
        """Brings a sequence to the beginning of a request, reusing what it already holds of it.

        Raises:
            ContextFullError: the prompt does not fit the context.
            ArgumentError: it is empty, or an id is outside the vocabulary.

        """
        prompt, state = run.prompt, run.state
        if not prompt:
            raise ArgumentError("the prompt has no tokens: there is nothing to continue")
        self.target.model.vocab.check_ids(prompt, "the prompt")
        if len(prompt) > self.target.n_ctx_seq:
            raise ContextFullError(
                f"the prompt has {len(prompt)} tokens and the context {self.target.n_ctx_seq}; "
                "shorten the prompt or choose a larger n_ctx"
            )
        start = perf_counter()
        run.stats.drafter = self.drafter.name
        run.stats.controller = self.scheduler.controller.name
        self.scheduler.controller.begin(state.seq_id)
        n_keep = n_common(state.tokens[: state.n_decoded], prompt[:-1])
        n_keep = self._keep(state, n_keep)
        state.tokens[n_keep:] = prompt[n_keep:]
        state.n_decoded, state.n_given = n_keep, None
        self.drafter.truncate(state.seq_id, n_keep)
        run.timing.prompt_s += perf_counter() - start

    def _keep(self, state: SequenceState, n_keep: int) -> int:
        """Brings the memory to as much of the first n_keep tokens as it and the drafter can use."""
        while True:
            n_keep = self.drafter.resume_at(state.seq_id, n_keep, state.tokens)
            n_held = self.rollback.keep(state, n_keep)
            if n_held == 0:
                self.target.memory.remove(state.seq_id)
            if n_held == n_keep:
                return n_keep
            state.n_decoded = n_keep = n_held  # a checkpoint, and the drafter may want less still

    def recover(self, state: SequenceState) -> None:
        """Brings memory and drafter back to what a sequence holds, after it was left in between."""
        self.rollback.recover(state)
        # The drafter knows the pending token too, and is not told again; of a prompt it knows less,
        # and it is told again of text that the memory has lost.
        n_keep = state.n_decoded
        is_whole = 0 < n_keep == len(state.tokens) - 1
        self.drafter.truncate(state.seq_id, n_keep + is_whole)

    def forget(self, state: SequenceState) -> None:
        """Empties a sequence, its memory and what the drafter knows of it."""
        self.rollback.forget(state)
        self.drafter.truncate(state.seq_id, 0)

    def fork(self, state: SequenceState, seq_id: int) -> SequenceState:
        """A copy of a sequence under another number.

        Raises:
            ArgumentError: it is the same number, or the context has no such sequence.

        """
        if seq_id == state.seq_id:
            raise ArgumentError(f"sequence {seq_id} cannot be copied onto itself")
        memory = self.target.memory
        memory.remove(seq_id)
        memory.copy(state.seq_id, seq_id)
        self.rollback.fork(state.seq_id, seq_id)
        self.drafter.copy(state.seq_id, seq_id)
        return SequenceState(seq_id, list(state.tokens), state.n_decoded, state.n_given)

    # ---- a round

    def step(self, runs: Sequence[SequenceRun]) -> Ended:
        """One round of some sequences that have begun and are not over.

        Returns:
            For each sequence that committed tokens or ended: its run and the Step. A sequence that
            is still reading its prompt is not there.

        Raises:
            ArgumentError: a sequence has not begun, is over, or waits for draw_first().
            BaseException: what no sequence is to blame for, such as Ctrl-C. Every sequence is as it
                was before the round, or behind it.

        """
        for run in runs:
            if run.is_over or not (run.n_generated or run.n_missing):
                raise ArgumentError(
                    f"sequence {run.seq_id} has nothing to compute: call begin() first, or "
                    "draw_first() behind a prompt without a sampler, and leave out what is over"
                )
        if len(runs) > 1 and len({run.seq_id for run in runs}) < len(runs):
            raise ArgumentError("two of the runs are on one sequence")
        out: Ended = []
        for run in runs:
            if run.is_cancelled:
                self._fail(run, CancelledError("the generation was cancelled"), out)
        spans = self.scheduler.plan([run for run in runs if not run.is_cancelled] if out else runs)
        start = perf_counter()
        try:
            if self.n_draft:
                self._draft(spans)
            propose_s = draft_s = perf_counter() - start
            verify_s = 0.0
            for decode in self.scheduler.decodes(spans):
                begun = perf_counter()
                if self._compute(decode, out):
                    computed = perf_counter()
                    verify_s += computed - begun
                    draft_s += self._settle(decode.spans, out)
        except BaseException:
            for span in spans:
                self.recover(span.run.state)
            raise
        round_s = perf_counter() - start
        for span in spans:
            count_seconds(span, round_s, draft_s, verify_s)
        learn(self.scheduler, self.drafter, spans, propose_s, verify_s, round_s)
        return out

    def _fail(self, run: SequenceRun, error: BaseException, out: Ended) -> None:
        """Ends one sequence; the others do not notice."""
        self.recover(run.state)
        run.error = error
        out.append((run, Step((), 0, 0, None, error)))

    def _draft(self, spans: Sequence[Span]) -> None:
        asked = [span for span in spans if span.n_draft]
        if not asked:
            return
        requests = [self.scheduler.request(span) for span in asked]
        for span, draft in zip(asked, self.drafter.propose(requests), strict=True):
            span.draft = draft
        self.scheduler.cut(spans)

    def _compute(self, decode: Decode, out: Ended) -> bool:
        """One decode of the target; False where it failed, and its sequences with it."""
        self._forget_rows()
        spans = decode.spans
        try:
            self.rollback.prepare([s.run.state for s in spans if s.draft.ids or s.n_pad])
            self._batch.compute(decode)
        except ContextFullError as error:
            # In a memory that sequences share one may leave no room for the others: each by itself.
            if len(spans) == 1:
                self._fail(spans[0].run, error, out)
                return False
            for span in spans:
                span.n_pad = 0
                if self._compute(Decode([span]), out):
                    self._settle([span], out)
            return False
        except PyllamaSpecError as error:
            blamed = [s.run for s in spans if s.run.is_cancelled] or [s.run for s in spans]
            for span in spans:
                if span.run in blamed or not isinstance(error, CancelledError):
                    self._fail(span.run, error, out)
                else:  # another one's cancel() ended the decode: this one goes on
                    self.recover(span.run.state)
            return False
        return True

    def _forget_rows(self) -> None:
        """Another batch is computed: nobody can draw from the last one any more."""
        while self._ready:
            self._ready.pop().ready_row = None

    def _settle(self, spans: Sequence[Span], out: Ended) -> float:
        """After a decode: accepts and commits, then decodes again what could not be taken back."""
        try:
            draft_s = self._commit(spans, out)
            if self.rollback.settle():
                self._forget_rows()
        except CancelledError:  # in the second decode: what was committed is read again
            for span in spans:
                self.recover(span.run.state)
            return 0.0
        return draft_s

    def _commit(self, spans: Sequence[Span], out: Ended) -> float:
        """Accepts, rolls back and commits what a decode gave; returns the drafter's seconds."""
        done: list[Committed] = []
        for span in spans:
            step = (self._read if span.n_prompt else self._verify)(span, done)
            if step is not None:
                out.append((span.run, step))
        drafter = self.drafter
        if not done and not drafter.has_failed:
            return 0.0
        start = perf_counter()
        if done:
            drafter.commit(done)
        if drafter.has_failed:
            for span in spans:
                failure, stats = drafter.failure(span.run.seq_id), span.run.stats
                if failure is not None:
                    stats.reason_off, stats.reason_off_error = failure.reason, failure.error
        return perf_counter() - start

    def _read(self, span: Span, done: list[Committed]) -> Step | None:
        """After a part of a prompt. Its last row gives the first token."""
        run, state, n = span.run, span.run.state, span.n_prompt
        first = state.n_decoded
        state.n_decoded += n
        tokens, step = state.tokens[first : first + n], None
        if span.n_pad:
            self.rollback.undo(state)
        if not run.n_generated:
            self.rollback.mark(state, is_end=not run.n_missing)
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
        done.append(Committed(state.seq_id, tokens, first, rows, first))
        return step

    def draw_first(self, run: SequenceRun) -> Step:
        """The first token of a run whose prompt was decoded without a sampler.

        Raises:
            ArgumentError: the target's last batch did not end with this prompt.

        """
        row = run.ready_row
        if row is None or run.sampler is None:
            raise ArgumentError("call prefill() with this sequence directly before generate()")
        self._ready.remove(run)
        run.ready_row = None
        start = perf_counter()
        step = self._draw_first(run, row)
        if step.tokens:
            state = run.state
            self.drafter.commit([Committed(state.seq_id, step.tokens, state.n_decoded)])
        run.timing.prompt_s += perf_counter() - start
        return step

    def _draw_first(self, run: SequenceRun, row: int) -> Step:
        tokens, error = drawn(run, self.target, row, ())
        run.state.tokens += tokens
        run.n_generated += len(tokens)
        run.finish_reason = finish_reason(run, self.target, tokens) if error is None else None
        return Step(tuple(tokens), 0, 0, run.finish_reason, error)

    def _verify(self, span: Span, done: list[Committed]) -> Step | None:
        """After a decode of the pending token and its draft."""
        run, state, ids = span.run, span.run.state, span.draft.ids
        tokens, error = drawn(run, self.target, span.first_row, ids)
        n_past, n = state.n_decoded, len(tokens)
        if tokens:
            if span.turn is not None:
                span.turn.tokens = tokens
            state.tokens += tokens
            state.n_decoded = n_past + n
            run.n_generated += n
            run.stats.count_round(len(ids), n - 1)
            if n < 1 + len(ids) + span.n_pad:
                self.rollback.undo(state)
            if self.drafter.listens:
                rows = self._batch.rows(self.drafter.target_layers, span, n)
                done.append(Committed(state.seq_id, tokens, n_past + 1, rows, n_past))
        if error is not None:
            self.rollback.recover(state, is_computed=True)
            return Step(tuple(tokens), len(ids), max(n - 1, 0), None, error)
        run.finish_reason = finish_reason(run, self.target, tokens)
        return Step(tuple(tokens), len(ids), n - 1, run.finish_reason)
