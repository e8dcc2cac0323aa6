"""Several MTP heads in a file; head k drafts token k + 1 after the pending one.

Each head has a layer of its own and remembers a text of its own. The pairs that are committed are
those of memory.py for all of them, with rows of the target. Where head k is asked, the pairs after
the pending token are the guesses of the heads before it:

    position          n            n+1          n+2
    token          pending         d[1]         d[2]
    row of      x[n-1], target   head 0's     head 1's
    head 0         -> d[1]
    head 1           fed          -> d[2]
    head 2           fed           fed         -> d[3]

What a head has not been fed yet waits until it is asked, and is fed in the same call: a draft of n
tokens is n calls, and a head that is never asked costs the feeding of prompts alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pyllama_spec.drafters.base import Committed
from pyllama_spec.drafters.choice import Choice
from pyllama_spec.drafters.feature_rows import Rows
from pyllama_spec.drafters.mtp.memory import MtpMemory
from pyllama_spec.drafters.row_memory import KEEP_ROWS, SequenceMemory
from pyllama_spec.drafters.saved_state import pack, unpack
from pyllama_spec.engine.batch import Batch
from pyllama_spec.engine.context import Context
from pyllama_spec.errors import ArgumentError


class Guesses(NamedTuple):
    """The draft of the earlier heads for a sequence: tokens and the row of each."""

    ids: Sequence[int]
    rows: Sequence[Rows]


class HeadsMemory:
    """The pairs of all sequences once per head, in lanes of one context.

    The engine's memory has places for tokens, and each place a part for the layer of each head: two
    heads cannot take turns at the same places, since what one head feeds again may come to lie
    elsewhere. So a head has sequences of its own, its lane.

    Args:
        context: the context of the heads, with n_heads sequences for each sequence of the target.
        n_features: the width of a row.
        n_window: the number of pairs of a sequence that fit.
        n_heads: the number of heads in the file.
        is_short: see MtpMemory.

    Attributes:
        n_calls: the number of decodes, to count the cost.

    """

    def __init__(
        self, context: Context, n_features: int, n_window: int, n_heads: int, *, is_short: bool
    ) -> None:
        self.context, self.n_calls = context, 0
        self._heads = [
            _Lane(self, n_features, n_window, is_short=is_short, lane=k, n_lanes=n_heads)
            for k in range(n_heads)
        ]

    def decode(self, batch: Batch) -> None:
        """Runs a decode of the head that the batch names."""
        self.n_calls += 1
        self.context.decode(batch)

    def of(self, seq: int) -> SequenceMemory:
        """The first head's memory of a sequence."""
        return self._heads[0].of(seq)

    def n_unread(self, seq: int) -> int:
        """0: several heads are never paused."""
        return self._heads[0].n_unread(seq)

    def n_fed(self, seq: int) -> int:
        """The pairs of a sequence fed to the first head: the position of the first guess."""
        return self._heads[0].n_fed(seq)

    def ask(self, seqs: Iterable[int]) -> Mapping[int, Choice]:
        """Feeds the first head the waiting pairs; returns its guess for each sequence."""
        return self._heads[0].ask(seqs)

    def guess(self, head: int, guesses: Mapping[int, Guesses]) -> Mapping[int, Choice]:
        """A head's guess after those of the earlier heads, by sequence."""
        return self._heads[head].guess(guesses)

    def commit(self, done: Sequence[Committed]) -> None:
        """Notes tokens and their rows, and feeds those of a prompt to all heads.

        Noted by all before any is fed: a cancel while one is fed leaves none behind the others.
        """
        for head in self._heads:
            head.note(done)
        for head in self._heads:
            head.feed_due(done)

    def resume_at(self, seq: int, n_keep: int) -> int:
        """How many of the first n_keep tokens the target may keep: the minimum over all heads."""
        while n_keep:
            n = min(head.resume_at(seq, n_keep) for head in self._heads)
            if n == n_keep:
                break
            n_keep = n
        return n_keep

    def truncate(self, seq: int, n_keep: int) -> None:
        """Keeps the part of the first n_keep tokens."""
        for head in self._heads:
            head.truncate(seq, n_keep)

    def copy(self, seq: int, to: int) -> None:
        """Starts `to` as a copy of `seq`."""
        for head in self._heads:
            head.copy(seq, to)

    def save(self, seq: int, fingerprint: str) -> bytes:
        """The state of a sequence, for restore()."""
        return pack({}, [head.save(seq, fingerprint) for head in self._heads])

    def restore(self, seq: int, data: bytes, fingerprint: str) -> int:
        """Restores a state of save() with an equal fingerprint; returns the number of tokens.

        Raises:
            ArgumentError: the state is damaged, or of another draft. The sequence is forgotten.

        """
        try:
            _, parts = unpack(data)
            if len(parts) != len(self._heads):
                raise ArgumentError("the state was saved with another draft: read the text again")
            counts = [
                head.restore(seq, part, fingerprint)
                for head, part in zip(self._heads, parts, strict=True)
            ]
        except BaseException:
            for head in self._heads:
                head.forget(seq)
            raise
        return counts[0]


class _Lane(MtpMemory):
    """The pairs of one head."""

    def __init__(self, owner: HeadsMemory, n_features: int, n_window: int, **how: Any) -> None:
        super().__init__(owner.context, n_features, n_window, **how)
        self._owner = owner

    def decode(self, batch: Batch) -> None:
        """Runs a decode of this head."""
        self._owner.decode(batch)

    def guess(self, guesses: Mapping[int, Guesses]) -> dict[int, Choice]:
        """Feeds the waiting rows and the guesses after them; returns the next guess."""
        seqs = sorted(guesses)
        for seq in seqs:
            s = self.of(seq)
            self._make_room(seq, s, self.n_ready(s))
            # What lies after are guesses of the last draft.
            self.context.memory.rollback(self.lane_of(seq), s.n_fed)
        n_waiting = sum(self.n_ready(s) - s.n_fed for s in map(self.of, seqs))
        batch = self._batch
        if n_waiting + sum(len(g.ids) for g in guesses.values()) > batch.n_max:
            self.feed(seqs)
        batch.clear()
        ends = {}
        for seq in seqs:
            s, (ids, rows) = self.of(seq), guesses[seq]
            end = self.n_ready(s)
            if end > s.n_fed:
                self.put(batch, seq, s, end - s.n_fed, is_read=False)
            for i, (token, row) in enumerate(zip(ids, rows, strict=True)):
                is_last = i == len(ids) - 1
                ends[seq] = batch.add(token, end + i, self.lane_of(seq), output=is_last, row=row)
        self.decode(batch)
        # Only now: an interrupt before would leave a hole in the memory.
        for seq in seqs:
            s = self.of(seq)
            if self.n_ready(s) > s.n_fed:
                s.n_fed = self.n_ready(s)
                s.rows.keep_last(KEEP_ROWS)
        return {seq: Choice(*self.context.draft_candidates(at)) for seq, at in ends.items()}
