"""How far the target's memory can go back: by positions, within windows, by snapshots.

The round calls undo() after it has accepted, keep() when a request begins and recover() after a
failure; none of its callers asks what kind of memory a model has.
"""

from __future__ import annotations

from pyllama_spec.engine import Context
from pyllama_spec.errors import PyllamaSpecError
from pyllama_spec.speculative.sequence import SequenceState


class Rollback:
    """A memory of positions: any number of the last ones can be taken back.

    Attributes:
        max_draft: the most tokens that can be taken back after a round; None for any number.
        reason_off: why drafts cannot be verified at all; None if they can.
        needs_equal_rows: whether sequences can be taken back after a common decode only if it had
            as many tokens of each, with sequence ids that follow each other.
        can_fill: whether tokens can be decoded into an idle sequence and taken back.

    """

    max_draft: int | None = None
    reason_off: str | None = None
    needs_equal_rows = False
    can_fill = True

    def __init__(self, target: Context) -> None:
        self._target = target

    def undo(self, seq_id: int, n_keep: int) -> None:
        """Takes back what a round decoded behind the first n_keep tokens.

        Raises:
            PyllamaSpecError: the engine refuses.

        """
        if not self._target.memory.rollback(seq_id, n_keep):
            arch = self._target.model.info.arch
            raise PyllamaSpecError(
                f"the engine could not roll {arch!r} back to {n_keep} tokens; run it with "
                "draft=None and report this"
            )

    def keep(self, state: SequenceState, n_keep: int) -> bool:
        """Brings the memory to the first n_keep tokens; False where it holds too little of them."""
        memory = self._target.memory
        first, last = memory.positions(state.seq_id)
        if n_keep == 0 or last + 1 != state.n_decoded or not self._is_whole(first, n_keep):
            return False
        return memory.rollback(state.seq_id, n_keep)

    def _is_whole(self, first: int, n_keep: int) -> bool:
        """Whether what is held from position `first` on is enough to go on at n_keep."""
        return first == 0

    def recover(self, state: SequenceState) -> None:
        """After a failure in mid-round: back to what was committed, or to nothing."""
        try:
            if not self._recover(state):
                self._target.memory.remove(state.seq_id)
                state.n_decoded = 0
        except PyllamaSpecError:
            # The context is closed or broken; its next use says so.
            state.n_decoded = 0

    def _recover(self, state: SequenceState) -> bool:
        return self._target.memory.rollback(state.seq_id, state.n_decoded)

    def forget(self, state: SequenceState) -> None:
        """Empties the memory of a sequence."""
        self._target.memory.remove(state.seq_id)
        state.tokens.clear()
        state.n_decoded = 0


class WindowRollback(Rollback):
    """A memory whose sliding-window layers forget: the window before a place must be whole."""

    def __init__(self, target: Context) -> None:
        super().__init__(target)
        self.can_fill = target.params.swa_full

    def _is_whole(self, first: int, n_keep: int) -> bool:
        return first == 0 or first <= n_keep - self._target.model.info.n_swa


class SnapshotRollback(Rollback):
    """A recurrent state, which goes back by snapshots that the last decode has written."""

    needs_equal_rows = True
    can_fill = False

    def __init__(self, target: Context) -> None:
        super().__init__(target)
        info = target.model.info
        self.max_draft = target.n_rs_seq
        if target.n_rs_seq == 0:
            why = "open the context with n_rs_seq" if info.can_roll_back else "the engine has none"
            self.reason_off = (
                f"the state of {info.arch!r} cannot be rolled back without snapshots: {why}"
            )

    def _is_whole(self, first: int, n_keep: int) -> bool:
        return True

    def _recover(self, state: SequenceState) -> bool:
        # A whole batch cannot be undone, and a failed one may have changed the state already.
        return False


def rollback_of(target: Context) -> Rollback:
    """The one for a context's memory."""
    info = target.model.info
    if info.has_recurrent_state:
        return SnapshotRollback(target)
    if info.n_swa > 0:
        return WindowRollback(target)
    return Rollback(target)
