"""Rolls back the target's memory: by positions, within windows, or by snapshots.

The round calls undo() for each sequence after acceptance, mark() at the end of a prompt, keep()
when a request begins, and recover() after a failure. No caller depends on the kind of a model's
memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from pyllama_spec.engine import Context
from pyllama_spec.errors import PyllamaSpecError, UnsupportedError
from pyllama_spec.speculative.sequence import SequenceState

_SNAPSHOTS = "the number of snapshots of the target's state"
# Fewer tokens are read again rather than copied for.
_MIN_PART = 64
# The number of borders that a sequence keeps: places where other prompts differ.
_N_BORDERS = 2


class Checkpoint(NamedTuple):
    """The state of a sequence after its first n_tokens."""

    n_tokens: int
    data: memoryview
    is_part: bool = False
    is_border: bool = False


# Tokens of a physical batch that has room for a snapshot.
_MIN_BATCH = 3


class Rollback:
    """The rollback of a memory of positions: any number of last tokens.

    Of sliding-window layers the window before a position must be complete.

    Attributes:
        max_draft: the maximum number of tokens that can be rolled back after a round; None for any
            number.
        max_draft_reason: the reason for that limit, in words.
        needs_equal_rows: whether a common decode can be rolled back only if its sequences had
            equally many tokens and consecutive sequence ids.
        keeps_whole: whether the engine computes a sequence's tokens of a decode in one piece, and
            a sequence with more tokens than its neighbours alone.
        goes_alone: whether a sequence can be rolled back only after a decode of it alone.
        is_cut: whether any range of positions can be removed, so that prompts and drafts may
            share a decode.
        can_pad: whether padding after a draft is rolled back at no cost.
        can_fill: whether padding in an idle sequence can be rolled back.
        saves_whole: whether a restored copy of a sequence gives the same rows as the original.
    """

    max_draft: int | None = None
    max_draft_reason = _SNAPSHOTS
    needs_equal_rows = False
    keeps_whole = False
    goes_alone = False
    is_cut = True
    can_pad = True

    def __init__(self, target: Context) -> None:
        self._target = target
        # Of a memory that forgets what leaves its windows a saved copy has the last window alone,
        # at other places, where sums are made in another order.
        self._n_swa = target.model.info.n_swa
        self.saves_whole = target.params.swa_full or self._n_swa == 0
        self.can_fill = self.is_cut and self.saves_whole

    def undo(self, state: SequenceState) -> None:
        """Rolls back the tokens after the last committed one that was decoded."""
        if not self._target.memory.rollback(state.seq_id, state.n_decoded):
            arch = self._target.model.info.arch
            raise PyllamaSpecError(
                f"the engine could not roll {arch!r} back to {state.n_decoded} tokens; run it with "
                "draft=None and report this"
            )

    def mark(self, state: SequenceState, *, is_end: bool = True, is_border: bool = False) -> None:
        """Called at the end of a prompt or of a part: a later request may start here."""

    def keep(self, state: SequenceState, n_keep: int) -> int:
        """Rolls the memory back to the first n_keep tokens; returns how many it holds now.

        Fewer than n_keep if it can only roll back further; 0 if it has to be emptied.
        """
        memory = self._target.memory
        first, last = memory.positions(state.seq_id)
        if n_keep == 0 or last + 1 != state.n_decoded or not self._is_whole(first, n_keep):
            return 0
        return n_keep if memory.rollback(state.seq_id, n_keep) else 0

    def _is_whole(self, first: int, n_keep: int) -> bool:
        """Whether the content from position `first` on is enough to continue at n_keep."""
        return first == 0 or (self._n_swa > 0 and first <= n_keep - self._n_swa)

    def reach(self, first: int, n_decoded: int, n: int, checkpoints: Sequence[Checkpoint]) -> int:
        """The number of the first n tokens that a copy of a sequence can keep."""
        return n if self._is_whole(first, n) else 0

    def checkpoints_of(self, seq: int) -> Sequence[Checkpoint]:
        """The checkpoints that a copy of a sequence's memory needs; see take_over()."""
        return ()

    def take_over(self, seq: int, checkpoints: Sequence[Checkpoint]) -> None:
        """Called after a copy of a sequence's memory was put into another one."""

    def recover(self, state: SequenceState, *, is_computed: bool = False) -> None:
        """Restores a sequence after a failed round: to its committed tokens, or before, or to 0."""
        try:
            if not self._recover(state, is_computed):
                self._target.memory.remove(state.seq_id)
                state.n_decoded = 0
        except PyllamaSpecError:
            # The context is closed or broken; its next use says so.
            state.n_decoded = 0

    def _recover(self, state: SequenceState, is_computed: bool) -> bool:
        return self._target.memory.rollback(state.seq_id, state.n_decoded)

    def forget(self, state: SequenceState) -> None:
        """Empties a sequence's memory."""
        self._target.memory.remove(state.seq_id)
        state.tokens.clear()
        state.n_decoded = 0


class StateRollback(Rollback):
    """The rollback of a recurrent state, by snapshots that the last decode wrote.

    A prompt of a later turn often leaves the text in the middle of the last answer: a chat template
    drops what was thought, or an answer is asked for again. A memory of positions is cut there. A
    recurrent state goes back to where it was copied, and the text after it is read again.
    """

    is_cut = False
    keeps_whole = True
    n_checkpoints = 3  # of ends of prompts, for a sequence

    def __init__(self, target: Context) -> None:
        super().__init__(target)
        self._memory, n = target.memory, target.n_rs_seq
        self.max_draft, self.can_pad = n, n > 0
        if not n:
            self.max_draft_reason = _why_no_snapshots(target)
        # In one cache for all the engine computes sequences together that do not follow each other,
        # and moves states for it.
        self.needs_equal_rows = n > 0 and target.params.kv_unified
        # DeepSeek 4: its states lie in caches of its own, and nothing reports what a decode moved
        # there.
        self.goes_alone = target.model.info.state_bytes == 0
        self._checkpoints: dict[int, list[Checkpoint]] = {}

    def mark(self, state: SequenceState, *, is_end: bool = True, is_border: bool = False) -> None:
        """See Rollback.mark(). Copies the state, for the same prompt or for others like it."""
        if not self.n_checkpoints:
            return
        seq, n = state.seq_id, state.n_decoded
        if is_border:
            kept = [one for one in self.checkpoints_of(seq) if one.n_tokens != n]
            kept.append(Checkpoint(n, self._memory.checkpoint(seq), is_border=True))
            self._keep_last(seq, sorted(kept, key=attrgetter("n_tokens")))
        if is_end:
            try:
                # One token before it: the same prompt can begin there again, since its last token
                # has to be decoded for its logits.
                checkpoint = Checkpoint(n - 1, self._memory.checkpoint(seq, back=1))
            except UnsupportedError:
                checkpoint = Checkpoint(n, self._memory.checkpoint(seq))
            kept = [one for one in self.checkpoints_of(seq) if one.n_tokens < checkpoint.n_tokens]
            self._keep_last(seq, [*kept, checkpoint])
        elif not is_border and not self._target.n_rs_seq:
            # No snapshot reaches back beyond the prompt's end: the same prompt continues from the
            # last such place, in the same pieces as before.
            kept = [one for one in self.checkpoints_of(seq) if one.n_tokens < n]
            if kept and kept[-1].is_part:  # of the same prompt: an end stands after those of others
                kept.pop()
            if n - (kept[-1].n_tokens if kept else 0) >= _MIN_PART:
                kept.append(Checkpoint(n, self._memory.checkpoint(seq), is_part=True))
                self._keep_last(seq, kept)

    def _keep_last(self, seq: int, checkpoints: list[Checkpoint]) -> None:
        """Keeps the last ends of prompts, the checkpoints between them, and the last borders."""
        borders = [i for i, one in enumerate(checkpoints) if one.is_border]
        ends = [i for i, one in enumerate(checkpoints) if not (one.is_part or one.is_border)]
        n_over = len(ends) - self.n_checkpoints
        first = ends[n_over - 1] + 1 if n_over > 0 else 0
        self._checkpoints[seq] = [
            one for i, one in enumerate(checkpoints)
            if (i in borders[-_N_BORDERS:] if one.is_border else i >= first)
        ]  # fmt: skip

    def checkpoints_of(self, seq: int) -> Sequence[Checkpoint]:
        """See Rollback.checkpoints_of()."""
        return tuple(self._checkpoints.get(seq, ()))

    def take_over(self, seq: int, checkpoints: Sequence[Checkpoint]) -> None:
        """See Rollback.take_over()."""
        self._checkpoints[seq] = list(checkpoints)

    def _drop(self, seq: int, n_keep: int) -> None:
        self.take_over(seq, [one for one in self.checkpoints_of(seq) if one.n_tokens <= n_keep])

    def _return_to(self, seq: int, n_keep: int) -> int:
        """Restores the last checkpoint within n_keep tokens; returns its position, or 0."""
        for one in reversed(self.checkpoints_of(seq)):
            if 0 < one.n_tokens <= n_keep:
                try:
                    self._memory.return_to(seq, one.data, one.n_tokens)
                except PyllamaSpecError:
                    return 0
                # A caller may have emptied the rest of the sequence's memory.
                is_there = self._memory.positions(seq)[1] + 1 == one.n_tokens
                return one.n_tokens if is_there else 0
        return 0

    def keep(self, state: SequenceState, n_keep: int) -> int:
        """See Rollback.keep()."""
        self._drop(state.seq_id, n_keep)
        if self._memory.positions(state.seq_id)[1] + 1 != state.n_decoded:
            return 0
        return super().keep(state, n_keep) or self._return_to(state.seq_id, n_keep)

    def _is_whole(self, first: int, n_keep: int) -> bool:
        return True

    def _recover(self, state: SequenceState, is_computed: bool) -> bool:
        # A failed decode may have changed the state already, whatever the engine says of positions.
        if is_computed and self._memory.rollback(state.seq_id, state.n_decoded):
            return True
        state.n_decoded = self._return_to(state.seq_id, state.n_decoded)
        return state.n_decoded > 0

    def forget(self, state: SequenceState) -> None:
        """See Rollback.forget()."""
        super().forget(state)
        self._drop(state.seq_id, 0)

    def reach(self, first: int, n_decoded: int, n: int, checkpoints: Sequence[Checkpoint]) -> int:
        """See Rollback.reach(). A copy has no snapshots."""
        if n == n_decoded:
            return n
        return max((one.n_tokens for one in checkpoints if one.n_tokens <= n), default=0)


def _why_no_snapshots(target: Context) -> str:
    """The reason why a context has no snapshots, and the remedy."""
    n, info = min(target.n_batch, target.n_ubatch), target.model.info
    if not info.can_roll_back:
        return f"the state of {info.arch!r}, of which the engine keeps no snapshots here,"
    if n < _MIN_BATCH:
        return (
            f"a physical batch of {n} tokens (too small for snapshots of this state; give "
            f"n_ubatch, n_batch and n_ctx of {_MIN_BATCH} or more)"
        )
    return "n_rs_seq=0 (this state goes back by snapshots alone; open the context with some)"


def rollback_of(target: Context) -> Rollback:
    """The rollback of a context's memory."""
    return (StateRollback if target.model.info.has_recurrent_state else Rollback)(target)
