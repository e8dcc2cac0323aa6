"""The memory of a DFlash draft: keys and values computed from the target's rows."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from pyllama_spec.drafters.row_memory import RowMemory, SequenceMemory
from pyllama_spec.engine.batch import Batch
from pyllama_spec.engine.context import Context
from pyllama_spec.engine.model_info import DraftBlock
from pyllama_spec.errors import PyllamaSpecError


class DFlashMemory(RowMemory):
    """The rows of all sequences in a draft's context, and the blocks after them.

    Args:
        context: the draft's context.
        n_features: the width of a feature row.
        n_window: the number of rows of a sequence that fit.
        block: the block of the draft.

    """

    def __init__(self, context: Context, n_features: int, n_window: int, block: DraftBlock) -> None:
        super().__init__(context, n_features, n_window)
        self._block = block
        self._slots = Batch(context.n_seq_max * block.n_slots)
        self._slots.logits = False

    def n_ready(self, s: SequenceMemory) -> int:
        """Every row: none needs a token beside it."""
        return s.rows.end

    def put(self, batch: Batch, seq: int, s: SequenceMemory, n: int, is_read: bool) -> None:
        """Adds rows; they give no output."""
        batch.extend(None, s.n_fed, seq, rows=[s.rows.view(s.n_fed, s.n_fed + n)])

    def guess(self, seqs: Sequence[int], n: int) -> list[int]:
        """Feeds the waiting rows, then decodes a block after the rows of each sequence.

        The slots are forgotten at once: their keys and values are of guesses. What was guessed can
        be read until the next decode.

        Args:
            seqs: numbers of the sequences.
            n: the number of tokens to guess for each sequence; equal for all, since the heads of
                some drafts require it and other drafts read a block as a whole.

        Returns:
            For each sequence the row of its first guess; the others follow.

        """
        self.note_asked(len(seqs))
        waiting = [seq for seq in seqs if self._has_waiting(self.of(seq))]
        if waiting:
            self.feed(waiting)
        slots, mask = self._slots, self._block.mask_id
        slots.clear()
        rows = []
        for seq in seqs:
            s = self.of(seq)
            position = len(s.tokens) - 1
            rows.append(slots.n_tokens + (not self._block.guesses_behind))
            slots.add(s.tokens[-1], position, seq, output=self._block.guesses_behind)
            n_masks = n - 1 if self._block.guesses_behind else n
            slots.extend([mask] * n_masks, position + 1, seq, output_all=True)
        try:
            self.decode(slots)
        except BaseException:
            with contextlib.suppress(PyllamaSpecError):  # such as of a context that is lost
                self._forget_guesses(seqs)
            raise
        self._forget_guesses(seqs)
        return rows

    def try_block(self, _: int) -> None:
        """Decodes a block of an empty sequence, for timing."""
        slots, guesses_behind = self._slots, self._block.guesses_behind
        slots.clear()
        slots.add(0, 0, 0, output=guesses_behind)
        slots.extend([self._block.mask_id] * (self._block.n_slots - 1), 1, 0, output_all=True)
        self.context.decode(slots)
        self.context.memory.remove(0)

    def _forget_guesses(self, seqs: Sequence[int]) -> None:
        for seq in seqs:
            self.context.memory.rollback(seq, self.of(seq).n_fed)

    def _has_waiting(self, s: SequenceMemory) -> bool:
        return s.rows.end > s.n_fed

    def known(self, s: SequenceMemory, n_keep: int) -> int:
        """How many of the first n_keep tokens have rows that were fed, or wait."""
        n_known = s.rows.end if s.rows.start <= s.n_fed else s.n_fed
        return min(n_keep, max(n_known, s.n_fed))

    @property
    def n_seen(self) -> int:
        """At most the window of its layers."""
        n = super().n_seen
        return n if self._block.n_window is None else min(n, self._block.n_window)
