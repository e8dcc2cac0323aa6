"""The memory of an MTP head: pairs of a token and the row before it (see drafter.py)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pyllama_spec.drafters.base import Committed
from pyllama_spec.drafters.chain import ChainMemory
from pyllama_spec.drafters.feature_rows import Rows
from pyllama_spec.drafters.row_memory import SequenceMemory
from pyllama_spec.engine.batch import Batch
from pyllama_spec.engine.context import Context

# Rows of a prompt that have waited for its end are fed then from this many on; fewer wait for a
# draft.
_FEED_FROM = 64


class MtpMemory(ChainMemory):
    """The pairs of all sequences, in a head's context.

    A sequence's n_fed may be one more than it has tokens: then the last pair was fed with the token
    `ahead`, which truncate() has removed.

    Args:
        context: the head's context.
        n_features: the width of a row.
        n_window: the number of pairs of a sequence that fit.
        is_short: whether a text may be longer than the window. The rows of a prompt then wait for
            its end, so that no row is fed that has left the window by that time.
        lanes: see RowMemory.

    """

    def __init__(
        self, context: Context, n_features: int, n_window: int, *, is_short: bool = False,
        **lanes: int,
    ) -> None:  # fmt: skip
        super().__init__(context, n_features, n_window, **lanes)
        self._is_short = is_short

    def feed_due(self, done: Sequence[Committed]) -> None:
        """Feeds the rows that are due, and drops rows that will never be fed."""
        super().feed_due(done)
        for seq in {one.seq for one in done} if self._is_short else ():
            s = self.of(seq)
            if self.n_ready(s) - s.n_fed > self._n_window + self._batch.n_max:
                self._make_room(seq, s, self.n_ready(s))
                s.rows.keep_last(s.rows.end - s.n_fed + 1)

    def _is_due(self, s: SequenceMemory) -> bool:
        """Whether to feed rows now."""
        if not self._is_short:
            return super()._is_due(s)
        is_in_prompt = s.rows.end >= len(s.tokens)
        return not is_in_prompt and self.n_ready(s) - s.n_fed > _FEED_FROM

    def n_ready(self, s: SequenceMemory) -> int:
        """All pairs: the row before a token is known with the token."""
        return len(s.tokens)

    def put(self, batch: Batch, seq: int, s: SequenceMemory, n: int, is_read: bool) -> None:
        """Adds each token with the row before it; the first of a text gets a row of zeros."""
        first = s.n_fed
        rows: Rows = s.rows.view(max(first - 1, 0), first + n - 1)
        if first == 0:
            zeros = np.zeros((1, s.rows.n_features), np.float32)
            rows = np.concatenate((zeros, rows))
        batch.extend(
            s.tokens[first : first + n], first, self.lane_of(seq), rows=[rows], output_last=is_read
        )

    def meet(self, seq: int, s: SequenceMemory, tokens: Sequence[int]) -> None:
        """Drops the pair that truncate() left at the end if the text continues differently."""
        if tokens and s.n_fed > len(s.tokens) and s.ahead != tokens[0]:
            self.roll_back(seq, s, len(s.tokens))
        s.ahead = None

    def truncate(self, seq: int, n_keep: int) -> None:
        """Keeps the pairs of the first n_keep tokens, and the pair of the next one."""
        s = self._sequences.get(seq)
        if s is None:
            return
        if n_keep == 0:
            self.forget(seq)
            return
        if n_keep < len(s.tokens):
            s.ahead = s.tokens[n_keep] if s.n_fed > n_keep else None
            s.truncate(n_keep)
        end = n_keep + (s.ahead is not None)
        if s.n_fed > end:
            self.roll_back(seq, s, end)

    def known(self, s: SequenceMemory, n_keep: int) -> int:
        """How many of the first n_keep tokens have rows here; the next pair needs the last row.

        Where that row is gone, the target has to make it again: of a token whose pair is there.
        """
        n_keep = min(n_keep, len(s.tokens))
        before_next = max(min(s.n_fed, n_keep) - 1, 0)
        is_held = s.rows.holds(n_keep - 1) and s.rows.start <= before_next
        if n_keep == 0 or is_held or (n_keep - 1 in s.pinned and n_keep <= s.n_fed):
            return n_keep
        return max(min(n_keep, s.n_fed) - 1, 0)
