"""What a head remembers: pairs of a token and a row of the target (see drafter.py)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pyllama_spec.drafters.base import Committed
from pyllama_spec.drafters.feature_rows import FeatureRows
from pyllama_spec.drafters.saved_state import pack, unpack
from pyllama_spec.engine.batch import Batch
from pyllama_spec.engine.context import Context
from pyllama_spec.errors import ArgumentError

# Rows that are kept after they were fed: a conversation that goes on where it ended, or a little
# before, then needs no row again.
_KEEP_ROWS = 32


@dataclass(slots=True)
class Choice:
    """What the head says after a pair.

    Attributes:
        ids: the likeliest tokens, as ids of the target, likeliest first.
        p: their probabilities in the head's own distribution.
        row: [n_embd] the head's own row, to feed with whichever token is chosen.

    """

    ids: Sequence[int]
    p: Sequence[float]
    row: npt.NDArray[np.float32]


@dataclass(slots=True)
class _Known:
    """What the head knows of one sequence.

    Attributes:
        tokens: x[0 ..], the last one pending.
        rows: features of the newest tokens.
        n_fed: pairs 0 .. n_fed - 1 were fed. It may be as many as there are tokens: then the last
            pair was fed with the token `ahead`, which truncate() has taken back.
        first: pairs before that one have left the window.

    """

    tokens: list[int]
    rows: FeatureRows
    n_fed: int = 0
    first: int = 0
    ahead: int | None = None

    @property
    def n_waiting(self) -> int:
        """Pairs that are complete and not fed."""
        return len(self.tokens) - 1 - self.n_fed


class Pairs:
    """The pairs of all sequences, in the context of a head.

    Args:
        context: the head's.
        n_features: the width of a row of features.
        n_window: how many pairs of a sequence fit.

    Attributes:
        n_calls: how many decodes were made, for who counts the cost.

    """

    def __init__(self, context: Context, n_features: int, n_window: int) -> None:
        self.context = context
        self.n_calls = 0
        self._n_features, self._n_window = n_features, n_window
        self._batch = Batch(
            context.n_batch, n_row=n_features, n_model_row=context.model.info.n_embd_inp
        )
        self._batch.logits = False
        self._sequences: dict[int, _Known] = {}

    def of(self, seq: int) -> _Known:
        """What is known of a sequence."""
        if seq not in self._sequences:
            self._sequences[seq] = _Known([], FeatureRows(self._n_features))
        return self._sequences[seq]

    def n_fed(self, seq: int) -> int:
        """How many pairs of a sequence were fed: the position of the first guess."""
        return self._sequences[seq].n_fed

    def commit(self, done: Sequence[Committed]) -> None:
        """Notes tokens and their rows. Pairs of a prompt are fed; others wait for ask()."""
        for one in done:
            s = self.of(one.seq)
            self._meet(one.seq, s, one.tokens)
            if one.features:
                s.rows.append(one.first_row, one.features)
            s.tokens.extend(one.tokens)
        due = [one.seq for one in done if self._is_due(self._sequences[one.seq])]
        if due:
            self._feed(due)

    def _is_due(self, s: _Known) -> bool:
        """Whether pairs should be fed now: more of the prompt follows, or they are too many."""
        is_in_prompt = s.rows.end >= len(s.tokens)
        return s.n_waiting > (0 if is_in_prompt else self._batch.n_max)

    def ask(self, seqs: Iterable[int]) -> dict[int, Choice]:
        """Feeds what waits, and says what follows the last pair of each sequence."""
        wanted = sorted(seqs)
        for seq in wanted:
            s = self._sequences[seq]
            if s.n_waiting == 0:  # asked again: the last pair says it again
                s.n_fed -= 1
        return self._feed(wanted, output=True)

    def _feed(self, seqs: Iterable[int], *, output: bool = False) -> dict[int, Choice]:
        """Feeds all complete pairs of some sequences."""
        left = sorted(seqs)
        for seq in left:
            s = self._sequences[seq]
            self._make_room(seq, s, len(s.tokens) - 1)
            # What lies behind are guesses of the last draft, or pairs that no longer count.
            self.context.memory.rollback(seq, s.n_fed)
        found: dict[int, Choice] = {}
        while left:
            parts = self._fill(left, output)
            self.decode(self._batch)
            # Only now: an interrupt before would leave a hole in the memory.
            for seq, n, end in parts:
                s = self._sequences[seq]
                s.n_fed += n
                if end is None:
                    continue
                if output:
                    ids, p, row = self.context.draft_candidates(end)
                    # The row is a view that the next decode overwrites.
                    found[seq] = Choice(ids, p, row.copy() if left else row)
                s.rows.keep_last(_KEEP_ROWS)
        return found

    def _fill(self, left: list[int], output: bool) -> list[tuple[int, int, int | None]]:
        """Fills the batch with pairs of the first of these sequences.

        Returns:
            Of each that is in it: how many pairs, and the row of the last pair of those that are
            no longer left.

        """
        batch = self._batch
        batch.clear()
        parts: list[tuple[int, int, int | None]] = []
        while left and batch.n_tokens < batch.n_max:
            seq = left[0]
            s = self._sequences[seq]
            first, n = s.n_fed, min(s.n_waiting, batch.n_max - batch.n_tokens)
            is_end = n == s.n_waiting
            batch.extend(
                s.tokens[first + 1 : first + n + 1], first, seq,
                rows=[s.rows.view(first, first + n)], output_last=output and is_end,
            )  # fmt: skip
            if is_end:
                left.pop(0)
            parts.append((seq, n, batch.n_tokens - 1 if is_end else None))
        return parts

    def decode(self, batch: Batch) -> None:
        """A decode of the head."""
        self.n_calls += 1
        self.context.decode(batch)

    def _meet(self, seq: int, s: _Known, tokens: Sequence[int]) -> None:
        """The pair that truncate() left at the end is right if the text goes on as it did."""
        if tokens and s.n_fed and s.n_fed == len(s.tokens) and s.ahead != tokens[0]:
            self._cut(seq, s, len(s.tokens) - 1)
        s.ahead = None

    def _make_room(self, seq: int, s: _Known, end: int) -> None:
        """Forgets the oldest pairs, so that all up to `end` fit the window."""
        if end - s.first <= self._n_window:
            return
        # An eighth more, so that this is not done in every round.
        first = end - self._n_window + self._n_window // 8
        if first > s.n_fed:  # a long prompt: its first pairs need not be fed at all
            self.context.memory.remove(seq)
            s.n_fed = first
        else:
            self.context.memory.remove(seq, s.first, first)
        s.first = first

    def resume_at(self, seq: int, n_keep: int) -> int:
        """How many of the first n_keep tokens the target may keep.

        The pair of the token that follows them needs the row of the last one. Where that row is
        gone, the target has to make it again.
        """
        s = self._sequences.get(seq)
        if s is None:
            return 0
        n_keep = min(n_keep, len(s.tokens))
        if n_keep == 0 or (s.rows.holds(n_keep - 1) and s.rows.start <= s.n_fed):
            return n_keep
        # Its own pair, with the row of the token before, is in the memory and stays there.
        return min(n_keep - 1, s.n_fed)

    def truncate(self, seq: int, n_keep: int) -> None:
        """Keeps the pairs of the first n_keep tokens, and the one of the last with its next."""
        s = self._sequences.get(seq)
        if s is None:
            return
        if n_keep < len(s.tokens):
            s.ahead = s.tokens[n_keep] if s.n_fed >= n_keep else None
            del s.tokens[n_keep:]
            s.rows.truncate(n_keep)
        if s.n_fed > n_keep:
            self._cut(seq, s, n_keep)
        if n_keep == 0:
            self.forget(seq)

    def _cut(self, seq: int, s: _Known, n_pairs: int) -> None:
        self.context.memory.rollback(seq, n_pairs)
        s.n_fed = min(s.n_fed, n_pairs)
        s.first = min(s.first, s.n_fed)

    def forget(self, seq: int) -> None:
        """Forgets a sequence."""
        if self._sequences.pop(seq, None) is not None:
            self.context.memory.remove(seq)

    def copy(self, seq: int, to: int) -> None:
        """Lets `to` begin as a copy of `seq`."""
        s = self.of(seq)
        self.forget(to)
        self.context.memory.copy(seq, to)
        self._sequences[to] = _Known(list(s.tokens), s.rows.copy(), s.n_fed, s.first, s.ahead)

    def save(self, seq: int, fingerprint: str) -> bytes:
        """What is known of a sequence, for restore()."""
        s = self.of(seq)
        facts = {
            "draft": fingerprint, "n_fed": s.n_fed, "first": s.first, "ahead": s.ahead,
            "start": s.rows.start,
        }  # fmt: skip
        rows = s.rows.view(s.rows.start, s.rows.end)
        tokens = np.array(s.tokens, dtype="<i4")
        return pack(facts, [tokens.tobytes(), rows.tobytes(), self.context.memory.save(seq)])

    def restore(self, seq: int, data: bytes, fingerprint: str) -> int:
        """Puts back what save() gave with the same fingerprint; returns the number of tokens.

        Raises:
            ArgumentError: the state is damaged, or of another draft. The sequence is forgotten.

        """
        facts, parts = unpack(data)
        self.forget(seq)
        if facts["draft"] != fingerprint:
            raise ArgumentError("the state was saved with another draft")
        self.context.memory.restore(seq, parts[2])
        s = self.of(seq)
        s.tokens = np.frombuffer(parts[0], dtype="<i4").tolist()
        rows = np.frombuffer(parts[1], dtype="<f4").reshape(-1, self._n_features)
        s.rows.append(facts["start"], [rows])
        s.n_fed, s.first, s.ahead = facts["n_fed"], facts["first"], facts["ahead"]
        return len(s.tokens)
