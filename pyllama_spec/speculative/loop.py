"""The one loop: draft, verify in one batch, accept, roll back.

    propose -> decode [pending] + draft -> accept -> roll back -> commit

Plain decoding is this loop with a drafter that proposes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from pyllama_spec.drafters.base import AttachedDrafter, Drafter, Features
from pyllama_spec.engine.batch import Batch
from pyllama_spec.engine.context import Context
from pyllama_spec.engine.errors import ArgumentError, ContextFullError, PyllamaSpecError
from pyllama_spec.speculative.acceptance import RowObserver, TokenSampler, sample_and_match
from pyllama_spec.speculative.draft_guard import GuardedDrafter
from pyllama_spec.speculative.stats import SpeculationStats, Timing


@dataclass(frozen=True, slots=True)
class Step:
    """What one round committed.

    Attributes:
        tokens: the committed tokens, in order.
        n_drafted: how many tokens were verified.
        n_accepted: how many of `tokens`, from the first on, were drafted.
        finish_reason: "stop" for an end-of-generation token, "length" for a limit, None to go on.

    """

    tokens: tuple[int, ...]
    n_drafted: int
    n_accepted: int
    finish_reason: str | None


@dataclass(slots=True)
class SequenceState:
    """What is known of one sequence of a context.

    Attributes:
        seq_id: its number in the context.
        tokens: prompt and committed tokens.
        n_decoded: how many of them, from the first on, the target's memory holds. While text is
            generated it is one less than all: the last committed token is pending.

    """

    seq_id: int = 0
    tokens: list[int] = field(default_factory=list)
    n_decoded: int = 0


class SpeculativeLoop:
    """Generates on one context with one drafter.

    Args:
        target: the target's context, opened with the drafter's target_layers.
        drafter: who proposes.
        n_draft: the most tokens to draft per round; None for the drafter's max_draft.

    Raises:
        ArgumentError: the context does not keep the layer inputs that the drafter wants, or the
            drafter was made for another target.

    """

    def __init__(self, target: Context, drafter: Drafter, n_draft: int | None = None) -> None:
        missing = set(drafter.target_layers) - set(target.target_layers)
        if missing:
            raise ArgumentError(
                f"the drafter {drafter.name!r} reads the inputs of layers {sorted(missing)}; open "
                f"the target's context with target_layers={drafter.target_layers}"
            )
        if n_draft is not None and n_draft < 0:
            raise ArgumentError(f"n_draft={n_draft} must not be negative")
        if isinstance(drafter, AttachedDrafter):
            drafter.attach(target)
        self.target = target
        self.drafter = GuardedDrafter(drafter, target.model.info.n_vocab)
        self.n_draft = drafter.max_draft if n_draft is None else min(n_draft, drafter.max_draft)
        # Every token of a verify batch has logits.
        n_rows = min(target.n_batch, target.params.n_outputs_max or target.n_batch)
        self.n_draft = min(self.n_draft, n_rows - 1)
        self._limit_draft()
        self._batch = Batch(target.n_batch)
        # The sequence whose prompt the target's last batch ended with.
        self._ready: SequenceState | None = None
        self.stats = SpeculationStats()
        self.timing = Timing()

    def _limit_draft(self) -> None:
        """Fits n_draft to how far the target's state can go back."""
        info = self.target.model.info
        if self.n_draft == 0 or not info.has_recurrent_state:
            return
        if self.target.n_rs_seq == 0:
            why = "open the context with n_rs_seq" if info.can_roll_back else "the engine has none"
            self.drafter.disable(
                f"the state of {info.arch!r} cannot be rolled back without snapshots: {why}"
            )
        self.n_draft = min(self.n_draft, self.target.n_rs_seq)

    def prefill(self, seq: SequenceState, prompt: Sequence[int]) -> None:
        """Brings the sequence to the prompt, reusing what it already holds of it.

        Afterwards the target's last batch ends with the logits of the prompt's last token.

        Raises:
            ContextFullError: the prompt does not fit the context.
            ArgumentError: it is empty, or an id is outside the vocabulary.

        """
        if not prompt:
            raise ArgumentError("the prompt has no tokens: there is nothing to continue")
        self.target.model.vocab.check_ids(prompt, "the prompt")
        if len(prompt) > self.target.n_ctx_seq:
            raise ContextFullError(
                f"the prompt has {len(prompt)} tokens and the context {self.target.n_ctx_seq}; "
                "shorten the prompt or choose a larger n_ctx"
            )
        start = perf_counter()
        self._ready = None
        self.stats = SpeculationStats(drafter=self.drafter.name)
        self.timing = Timing(load_s=self.timing.load_s)
        self._keep(seq, _n_common(seq.tokens[: seq.n_decoded], prompt[:-1]))
        # One physical batch at a time, so that Ctrl-C is answered within one.
        size = min(self.target.n_batch, self.target.n_ubatch)
        for at in range(seq.n_decoded, len(prompt), size):
            part = prompt[at : at + size]
            self._batch.clear()
            self._batch.extend(part, at, seq.seq_id, output_last=at + len(part) == len(prompt))
            try:
                self.target.decode(self._batch)
            except BaseException:
                self._recover(seq)
                raise
            seq.tokens.extend(part)
            seq.n_decoded += len(part)
            self.drafter.begin(seq.seq_id, part, self._features(len(part)))
        # The last request's failure no longer counts, and this one may have brought another.
        self.stats.reason_off = self.drafter.reason_off
        self._ready = seq
        self.timing.prompt_s = perf_counter() - start

    def fork(self, seq: SequenceState, seq_id: int) -> SequenceState:
        """A copy of a sequence under another number, so that two texts share a beginning.

        Raises:
            ArgumentError: it is the same number, or the context has no such sequence.

        """
        if seq_id == seq.seq_id:
            raise ArgumentError(f"sequence {seq_id} cannot be copied onto itself")
        self._ready = None
        memory = self.target.memory
        memory.remove(seq_id)
        memory.copy(seq.seq_id, seq_id)
        self.drafter.copy(seq.seq_id, seq_id)
        return SequenceState(seq_id, list(seq.tokens), seq.n_decoded)

    def generate(
        self,
        seq: SequenceState,
        sampler: TokenSampler,
        max_tokens: int,
        observe: RowObserver | None = None,
    ) -> Iterator[Step]:
        """Generates after prefill(). Closing the generator leaves the sequence consistent.

        Yields:
            A Step per round, the first one with the token that the prompt's last row gave. The
            last one has a finish_reason.

        Raises:
            ArgumentError: prefill() was not called for this sequence last, or max_tokens is below
                1.

        """
        if self._ready is not seq:
            raise ArgumentError("call prefill() with this sequence directly before generate()")
        if max_tokens < 1:
            raise ArgumentError(f"max_tokens={max_tokens} must be at least 1")
        self._ready = None
        start = perf_counter()
        first = sampler.sample(self.target, self._batch.n_tokens - 1)
        if observe is not None:
            observe(self._batch.n_tokens - 1, first)
        sampler.accept(first)
        seq.tokens.append(first)
        self.drafter.commit(seq.seq_id, (first,), ())
        self.timing.prompt_s += perf_counter() - start
        finish = self._finish_reason(seq, first, max_tokens - 1)
        n_left = max_tokens - 1
        step = Step((first,), 0, 0, finish)
        while step.finish_reason is None:
            yield step
            try:
                step = self._round(seq, sampler, n_left, observe)
            except BaseException:
                self._recover(seq)
                raise
            n_left -= len(step.tokens)
        # Before the last step goes out: with it the caller may let another thread decode.
        self.target.rest()
        yield step

    def _round(
        self, seq: SequenceState, sampler: TokenSampler, n_left: int, observe: RowObserver | None
    ) -> Step:
        """One round, from the proposal to the commit. It never commits more than n_left tokens."""
        start = perf_counter()
        pending, n_past = seq.tokens[-1], seq.n_decoded
        n_room = min(self.n_draft, n_left - 1, self.target.n_ctx_seq - n_past - 1)
        draft = self.drafter.propose(seq.seq_id, pending, n_room) if n_room > 0 else []
        drafted = perf_counter()

        batch = self._batch
        batch.clear()
        batch.extend([pending, *draft], n_past, seq.seq_id, output_all=True)
        self.target.decode(batch)
        verified = perf_counter()

        is_eog = self.target.model.vocab.is_eog
        tokens = sample_and_match(sampler, self.target, draft, is_eog, observe)
        n_accepted = len(tokens) - 1
        features = self._features(len(tokens))
        if n_accepted < len(draft):
            self._roll_back(seq, n_past + 1 + n_accepted)
        seq.tokens.extend(tokens)
        seq.n_decoded = n_past + 1 + n_accepted
        accepted = perf_counter()

        self.drafter.commit(seq.seq_id, tokens, features)
        end = perf_counter()
        self._count(len(draft), n_accepted, end - start, (drafted - start) + (end - accepted))
        self.timing.verify_s += verified - drafted
        finish = self._finish_reason(seq, tokens[-1], n_left - len(tokens))
        return Step(tuple(tokens), len(draft), n_accepted, finish)

    def _count(self, n_drafted: int, n_accepted: int, round_s: float, draft_s: float) -> None:
        self.stats.count_round(n_drafted, n_accepted)
        self.stats.reason_off = self.drafter.reason_off
        self.timing.decode_s += round_s
        self.timing.draft_s += draft_s
        self.timing.n_decoded += n_accepted + 1

    def _finish_reason(self, seq: SequenceState, token: int, n_left: int) -> str | None:
        if self.target.model.vocab.is_eog(token):
            return "stop"
        is_full = seq.n_decoded >= self.target.n_ctx_seq
        return "length" if n_left <= 0 or is_full else None

    def _features(self, n_rows: int) -> Features:
        """The first n_rows rows of the last batch, of each layer that the drafter wants."""
        layers = self.drafter.target_layers
        return [self.target.layer_input(layer)[:n_rows] for layer in layers]

    def _roll_back(self, seq: SequenceState, n_keep: int) -> None:
        if not self.target.memory.rollback(seq.seq_id, n_keep):
            raise PyllamaSpecError(
                f"the engine could not roll {self.target.model.info.arch!r} back by "
                f"{seq.n_decoded - n_keep} tokens; run it with draft=None and report this"
            )

    def _keep(self, seq: SequenceState, n_keep: int) -> None:
        """Cuts sequence, memory and drafter back to n_keep tokens, or fewer where that must be."""
        memory = self.target.memory
        n_keep = self.drafter.resume_at(seq.seq_id, n_keep, seq.tokens)
        if not self._can_resume(seq, n_keep) or not memory.rollback(seq.seq_id, n_keep):
            n_keep = 0
            memory.remove(seq.seq_id)
        del seq.tokens[n_keep:]
        seq.n_decoded = n_keep
        self.drafter.truncate(seq.seq_id, n_keep)

    def _can_resume(self, seq: SequenceState, n_keep: int) -> bool:
        """Whether decoding can go on at n_keep with what the memory still holds before it."""
        first, last = self.target.memory.positions(seq.seq_id)
        if n_keep == 0 or last + 1 != seq.n_decoded:
            return False
        info = self.target.model.info
        # Without swa_full, sliding-window layers forget; their window must still be whole.
        is_whole = first == 0 or (info.n_swa > 0 and first <= n_keep - info.n_swa)
        return is_whole or info.has_recurrent_state

    def _recover(self, seq: SequenceState) -> None:
        """After a failure in mid-round: back to what was committed, or to nothing."""
        try:
            if self.target.model.info.has_recurrent_state:
                # A whole batch cannot be undone in a recurrent state: begin again from nothing.
                self.target.memory.remove(seq.seq_id)
                seq.n_decoded = 0
            elif not self.target.memory.rollback(seq.seq_id, seq.n_decoded):
                seq.n_decoded = 0
        except PyllamaSpecError:
            # The context is closed or broken; its next use says so.
            seq.n_decoded = 0
        self.drafter.truncate(seq.seq_id, seq.n_decoded)


def _n_common(held: Sequence[int], wanted: Sequence[int]) -> int:
    """The length of the common prefix."""
    for i, (a, b) in enumerate(zip(held, wanted, strict=False)):
        if a != b:
            return i
    return min(len(held), len(wanted))
