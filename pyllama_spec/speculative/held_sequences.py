"""The contents of a context's sequences, in the target's memory and in the drafter.

A request begins on what its sequence holds of the prompt. A sequence's content can be rolled back
after a failure, copied to another one or to the host's memory, and put away for later prompts.
"""

from __future__ import annotations

from pyllama_spec.engine import Context
from pyllama_spec.errors import ArgumentError
from pyllama_spec.speculative.isolated_drafter import IsolatedDrafter
from pyllama_spec.speculative.prefixes import Prefixes
from pyllama_spec.speculative.rollback import Rollback
from pyllama_spec.speculative.sequence import (
    SavedSequence,
    SequenceRun,
    SequenceState,
    n_common,
)


class HeldSequences:
    """The sequences of a context between decodes.

    Args:
        target: the target's context.
        rollback: the rollback of its memory.
        drafter: the drafter, whose state of a sequence is copied and restored too.
        prefixes: the beginnings of prompts that sequences hold.

    """

    def __init__(
        self, target: Context, rollback: Rollback, drafter: IsolatedDrafter, prefixes: Prefixes
    ) -> None:
        self._target, self._rollback = target, rollback
        self._drafter, self._prefixes = drafter, prefixes

    def cut_for(self, run: SequenceRun) -> None:
        """Cuts a run's sequence at the first token that differs from the prompt."""
        prompt, state = run.prompt, run.state
        n_keep = n_common(state.tokens[: state.n_decoded], prompt[:-1])
        n_keep = n_keep if run.max_held is None else min(n_keep, run.max_held)
        n_keep = self._keep(state, n_keep)
        state.tokens[n_keep:] = prompt[n_keep:]
        state.n_decoded, state.n_given, run.n_cached = n_keep, None, n_keep
        self._drafter.truncate(state.seq_id, n_keep)

    def _keep(self, state: SequenceState, n_keep: int) -> int:
        """Keeps as much of the first n_keep tokens as target and drafter can use."""
        while True:
            n_keep = self._drafter.resume_at(state.seq_id, n_keep, state.tokens)
            n_held = self._rollback.keep(state, n_keep)
            if n_held == 0:
                self._target.memory.remove(state.seq_id)
            if n_held == n_keep:
                return n_keep
            state.n_decoded = n_keep = n_held  # the drafter may need an earlier one still

    def recover(self, state: SequenceState) -> None:
        """Restores memory and drafter to a sequence's committed tokens, after an interruption."""
        self._rollback.recover(state)
        # The drafter knows the pending token too, and is not told again; of a prompt it knows less,
        # and it is told again of text that the memory has lost.
        n_keep = state.n_decoded
        is_whole = 0 < n_keep == len(state.tokens) - 1
        self._drafter.truncate(state.seq_id, n_keep + is_whole)

    def forget(self, state: SequenceState) -> None:
        """Empties a sequence in the target's memory and in the drafter."""
        self._prefixes.forget(state.seq_id)
        self._rollback.forget(state)
        self._drafter.truncate(state.seq_id, 0)

    def put_away(self, state: SequenceState) -> None:
        """Empties a sequence, and stores a copy for later prompts with the same prefix."""
        self._prefixes.shelve(state)
        self.forget(state)

    def fork(self, state: SequenceState, seq_id: int) -> SequenceState:
        """Copies a sequence to another number.

        Raises:
            ArgumentError: it is the same number, or the context has no such sequence.

        """
        if seq_id == state.seq_id:
            raise ArgumentError(f"sequence {seq_id} cannot be copied onto itself")
        memory = self._target.memory
        self._prefixes.forget(seq_id)
        memory.remove(seq_id)
        memory.copy(state.seq_id, seq_id)
        self._rollback.fork(state.seq_id, seq_id)
        self._drafter.copy(state.seq_id, seq_id)
        return SequenceState(
            seq_id, list(state.tokens), state.n_decoded, state.n_given, state.adapters
        )

    def save(self, state: SequenceState) -> SavedSequence:
        """Copies a sequence to the host's memory.

        Raises:
            OutOfMemoryError: there is no memory for the copy.

        """
        memory = self._target.memory.save(state.seq_id) if state.n_decoded else b""
        drafter = self._drafter.save(state.seq_id)
        return SavedSequence(
            tuple(state.tokens), state.n_decoded, state.n_given, memory, drafter, state.adapters
        )

    def restore(self, state: SequenceState, saved: SavedSequence) -> None:
        """Restores a copy of save(), of this or another sequence.

        Raises:
            ArgumentError: the bytes are damaged, or from a context that differs from this one;
                the sequence is empty then.

        """
        self.forget(state)
        state.n_given = None
        if saved.n_decoded:
            self._target.memory.restore(state.seq_id, saved.memory)
        state.tokens[:] = saved.tokens
        state.n_decoded, state.n_given = saved.n_decoded, saved.n_given
        state.adapters = saved.adapters
        self._drafter.restore(state.seq_id, saved.drafter, len(saved.tokens))
        self._prefixes.hold(state)
