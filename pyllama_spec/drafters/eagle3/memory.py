"""The memory of a head: pairs of a token and a target row (see drafter.py)."""

from __future__ import annotations

from collections.abc import Sequence

from pyllama_spec.drafters.chain import ChainMemory
from pyllama_spec.drafters.row_memory import SequenceMemory
from pyllama_spec.engine.batch import Batch


class Eagle3Memory(ChainMemory):
    """The pairs of all sequences, in a head's context.

    A sequence's n_fed may be as many as it has tokens: then the last pair was fed with the token
    `ahead`, which truncate() has removed.
    """

    def n_ready(self, s: SequenceMemory) -> int:
        """The complete pairs: a row needs the token after it."""
        return len(s.tokens) - 1

    def put(self, batch: Batch, seq: int, s: SequenceMemory, n: int, is_read: bool) -> None:
        """Adds each row with the token after it."""
        first = s.n_fed
        batch.extend(
            s.tokens[first + 1 : first + n + 1], first, seq,
            rows=[s.rows.view(first, first + n)], output_last=is_read,
        )  # fmt: skip

    def meet(self, seq: int, s: SequenceMemory, tokens: Sequence[int]) -> None:
        """Drops the pair that truncate() left at the end if the text continues differently."""
        if tokens and s.n_fed and s.n_fed == len(s.tokens) and s.ahead != tokens[0]:
            self.roll_back(seq, s, len(s.tokens) - 1)
        s.ahead = None

    def known(self, s: SequenceMemory, n_keep: int) -> int:
        """How many of the first n_keep tokens have rows here; the next pair needs the last row.

        Where that row is gone, the target has to make it again.
        """
        n_keep = min(n_keep, len(s.tokens))
        is_held = s.rows.holds(n_keep - 1) and s.rows.start <= s.n_fed
        if n_keep == 0 or is_held or (n_keep - 1 in s.pinned and n_keep - 1 <= s.n_fed):
            return n_keep
        # The last token's own pair, with the row before it, stays in the memory.
        return min(n_keep - 1, s.n_fed)
