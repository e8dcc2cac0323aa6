"""Copies of recurrent states in the host's memory, at the ends of turns.

A prompt of a later turn often leaves the text in the middle of the last answer: a chat template
drops what was thought, or an answer is asked for again. A memory of positions is cut there. A
recurrent state goes back to where it was copied, and the text after it is read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyllama_spec.engine import Context
from pyllama_spec.errors import PyllamaSpecError, UnsupportedError
from pyllama_spec.speculative.sequence import SequenceState

# Fewer tokens are read again rather than copied for.
_MIN_PART = 64
# The number of borders that a sequence keeps: places where other prompts differ.
_N_BORDERS = 2


class Checkpoint(NamedTuple):
    """The state of a sequence after its first n_tokens.

    Attributes:
        is_part: whether the sequence's prompt continued there.
        is_border: whether another prompt continued differently there.

    """

    n_tokens: int
    data: memoryview
    is_part: bool = False
    is_border: bool = False


class Checkpoints:
    """The last few checkpoints of each sequence.

    Args:
        target: the target's context.
        n_kept: the number of checkpoints of each sequence; each takes ModelInfo.state_bytes, and
            the contents of sliding-window layers.

    """

    def __init__(self, target: Context, n_kept: int) -> None:
        self._memory, self._has_snapshots = target.memory, target.n_rs_seq > 0
        self._n_kept = n_kept
        self._kept: dict[int, list[Checkpoint]] = {}

    def add(self, state: SequenceState) -> None:
        """Copies a state at the end of a prompt.

        One token before it, where a snapshot allows: the same prompt can begin there again, since
        its last token has to be decoded for its logits.
        """
        if self._n_kept == 0:
            return
        seq, n = state.seq_id, state.n_decoded
        try:
            checkpoint = Checkpoint(n - 1, self._memory.checkpoint(seq, back=1))
        except UnsupportedError:
            checkpoint = Checkpoint(n, self._memory.checkpoint(seq))
        kept = [one for one in self._kept.get(seq, ()) if one.n_tokens < checkpoint.n_tokens]
        self._kept[seq] = self._last([*kept, checkpoint])

    def add_part(self, state: SequenceState) -> None:
        """Copies a state within a prompt if no snapshot reaches back beyond the prompt's end.

        The same prompt continues from the last such place, in the same pieces as before.
        """
        if self._n_kept == 0 or self._has_snapshots:
            return
        seq, n = state.seq_id, state.n_decoded
        kept = [one for one in self._kept.get(seq, ()) if one.n_tokens < n]
        if kept and kept[-1].is_part:  # of the same prompt: an end stands after those of others
            kept.pop()
        if n - (kept[-1].n_tokens if kept else 0) >= _MIN_PART:
            checkpoint = Checkpoint(n, self._memory.checkpoint(seq), is_part=True)
            self._kept[seq] = self._last([*kept, checkpoint])

    def add_border(self, state: SequenceState) -> None:
        """Copies a state within a prompt at which another prompt continues differently."""
        seq, n = state.seq_id, state.n_decoded
        kept = [one for one in self._kept.get(seq, ()) if one.n_tokens != n]
        if self._n_kept:
            kept.append(Checkpoint(n, self._memory.checkpoint(seq), is_border=True))
        self._kept[seq] = self._last(sorted(kept, key=lambda one: one.n_tokens))

    def of(self, seq: int) -> list[Checkpoint]:
        """The checkpoints of a sequence, by position."""
        return list(self._kept.get(seq, ()))

    def replace(self, seq: int, checkpoints: Sequence[Checkpoint]) -> None:
        """Replaces a sequence's checkpoints by those of the sequence it copies."""
        self._kept[seq] = list(checkpoints)

    def _last(self, checkpoints: list[Checkpoint]) -> list[Checkpoint]:
        """The last ends of prompts, the checkpoints between them, and the last borders."""
        borders = [i for i, one in enumerate(checkpoints) if one.is_border]
        ends = [i for i, one in enumerate(checkpoints) if not (one.is_part or one.is_border)]
        n_over = len(ends) - self._n_kept
        first = ends[n_over - 1] + 1 if n_over > 0 else 0
        return [
            one for i, one in enumerate(checkpoints)
            if (i in borders[-_N_BORDERS:] if one.is_border else i >= first)
        ]  # fmt: skip

    def drop(self, seq: int, n_keep: int) -> None:
        """Drops the checkpoints after the first n_keep tokens."""
        self._kept[seq] = [one for one in self._kept.get(seq, ()) if one.n_tokens <= n_keep]

    def copy(self, source: int, target: int) -> None:
        """Copies the checkpoints of a copied sequence."""
        self._kept[target] = list(self._kept.get(source, ()))

    def return_to(self, seq: int, n_keep: int) -> int:
        """Restores the last checkpoint within n_keep tokens; returns its position, or 0."""
        for one in reversed(self._kept.get(seq, ())):
            if 0 < one.n_tokens <= n_keep:
                try:
                    self._memory.return_to(seq, one.data, one.n_tokens)
                except PyllamaSpecError:
                    return 0
                # A caller may have emptied the rest of the sequence's memory.
                is_there = self._memory.positions(seq)[1] + 1 == one.n_tokens
                return one.n_tokens if is_there else 0
        return 0
