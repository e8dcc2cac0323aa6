"""The memory of a draft model: the target's rows that it was fed, by sequence."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pyllama_spec.drafters.base import Committed
from pyllama_spec.drafters.saved_state import pack, unpack
from pyllama_spec.engine.batch import Batch
from pyllama_spec.engine.context import Context, LayerRows
from pyllama_spec.errors import ArgumentError

Rows = npt.NDArray[np.float32]


class FeatureRows:
    """The feature rows of positions start .. end - 1, without a gap."""

    def __init__(self, n_features: int) -> None:
        self.n_features = n_features
        self.start = self.end = 0
        # shape: [capacity, n_features]
        self._buffer: Rows = np.empty((16, n_features), dtype=np.float32)

    def append(self, position: int, features: Sequence[Rows]) -> None:
        """Adds rows from a position on; if they leave a gap, the earlier rows are dropped.

        Args:
            position: the position of the first row.
            features: one array per target layer.  # [n_rows, n_embd] float32
        """
        if position != self.end:
            self.start = self.end = position
        first, column = self.end - self.start, 0
        if isinstance(features, LayerRows):  # straight from the target: one call for all layers
            n = features.n
            self._reserve(first + n)
            features.copy_to(self._buffer, first)
        else:
            n = len(features[0])
            self._reserve(first + n)
            for layer in features:
                width = layer.shape[1]
                self._buffer[first : first + n, column : column + width] = layer
                column += width
        self.end += n

    def _reserve(self, n: int) -> None:
        if n > len(self._buffer):
            held = self.end - self.start
            grown = np.empty((max(n, 2 * len(self._buffer)), self.n_features), dtype=np.float32)
            grown[:held] = self._buffer[:held]
            self._buffer = grown

    def view(self, first: int, end: int) -> Rows:
        """Rows first .. end - 1, [end - first, n_features], valid until a change."""
        assert self.start <= first <= end <= self.end
        return self._buffer[first - self.start : end - self.start]

    def holds(self, position: int) -> bool:
        """Whether it has the row of a position."""
        return self.start <= position < self.end

    def truncate(self, end: int) -> None:
        """Forgets the rows from position `end` on."""
        self.end = max(min(self.end, end), 0)
        self.start = min(self.start, self.end)

    def keep_last(self, n: int) -> None:
        """Forgets all but the newest n rows."""
        drop = self.end - self.start - n
        if drop > 0:
            held = self.end - self.start
            # The two ranges may overlap; NumPy copies as if they did not.
            self._buffer[:n] = self._buffer[drop:held].copy()
            self.start += drop
            if len(self._buffer) > 4 * max(n, 16):  # a long prompt's batch has gone through it
                self._buffer = self._buffer[: max(n, 16)].copy()

    def copy(self) -> FeatureRows:
        """An independent copy of the rows."""
        out = FeatureRows(self.n_features)
        if self.end > self.start:
            out.append(self.start, [self.view(self.start, self.end)])
        else:
            out.start = out.end = self.end
        return out


# Rows that are kept after they were fed: a conversation that continues where it ended, or a little
# before, then needs no row again.
KEEP_ROWS = 32
# Rows that are kept of the ends of prompts and of borders between them, two of each: a recurrent
# target has checkpoints there (speculative/rollback.py), however long the answer was.
_KEEP_PINNED = 12
# A draft is paused if drafts were asked for in less than this share of the last rounds, of which
# each counts half after 44 more. A paused draft notes rows and feeds none, so that a controller
# which retries it pays for the newest rows alone.
_PAUSE_BELOW, _KEEP_USE = 1 / 8, 63 / 64
# The most rows of a sequence that wait in a paused draft; if more would, this many are kept.
_MAX_WAITING, _KEEP_WAITING = 128, 64

# Is given a sequence, the row of the batch that is its last one, and whether another batch follows.
ReadLast = Callable[[int, int, bool], None]


@dataclass(slots=True)
class SequenceMemory:
    """The memory of one sequence.

    Attributes:
        tokens: the tokens x[0], x[1], ...; the last one is pending.
        rows: features of the newest tokens.
        n_fed: the rows of positions 0 .. n_fed - 1 were fed.
        first: the first position that has not left the window.
        n_skipped: the rows of positions 0 .. n_skipped - 1 were dropped in a pause of the draft.
        ahead: the token after the kept ones, before truncate() removed it.
        pinned: the last two rows of each of the last prompts, by position.
    """

    tokens: list[int]
    rows: FeatureRows
    n_fed: int = 0
    first: int = 0
    ahead: int | None = None
    pinned: dict[int, Rows] = field(default_factory=dict)
    n_skipped: int = 0

    def pin(self) -> None:
        """Keeps the last two rows, which end a prompt."""
        for i in range(max(self.rows.end - 2, self.rows.start), self.rows.end):
            self.pinned[i] = self.rows.view(i, i + 1).copy()
        for i in sorted(self.pinned)[:-_KEEP_PINNED]:
            del self.pinned[i]

    def truncate(self, n_keep: int) -> None:
        """Forgets tokens and rows from position n_keep on."""
        del self.tokens[n_keep:]
        self.rows.truncate(n_keep)
        self.pinned = {i: row for i, row in self.pinned.items() if i < n_keep}
        last = self.pinned.get(n_keep - 1)
        if last is not None and not self.rows.holds(n_keep - 1):
            self.rows.append(n_keep - 1, [last])


class RowMemory(ABC):
    """The rows of all sequences in a draft's context."""

    def __init__(
        self, context: Context, n_features: int, n_window: int, *, lane: int = 0, n_lanes: int = 1
    ) -> None:
        self.context = context
        self.n_calls = 0
        self._lane, self._n_lanes = lane, n_lanes
        self._n_features, self._n_window = n_features, n_window
        self._batch = Batch(context.n_batch, n_row=n_features, n_model_row=context.n_row)
        self._batch.logits = False
        self._batch.head = lane
        self._sequences: dict[int, SequenceMemory] = {}
        # The share of the last rounds, over all sequences, in which a draft was asked for.
        self._use = 1.0

    @property
    def is_paused(self) -> bool:
        """Whether drafts are rarely requested; rows are then fed only with a request.

        One of several heads never is: the later heads are asked less often than the first, and all
        of them need the same rows.
        """
        return self._n_lanes == 1 and self._use < _PAUSE_BELOW

    def note_asked(self, n: int) -> None:
        """Counts a round that requests drafts of n sequences."""
        self._use = min(self._use + n * (1.0 - _KEEP_USE), 1.0)

    def n_unread(self, seq: int) -> int:
        """The rows of a sequence that the next draft feeds first; 0 unless the draft is paused."""
        s = self._sequences.get(seq)
        return self.n_ready(s) - s.n_fed if s is not None and self.is_paused else 0

    def lane_of(self, seq: int) -> int:
        """The sequence id of a text's rows in the draft's context."""
        return seq * self._n_lanes + self._lane

    @abstractmethod
    def n_ready(self, s: SequenceMemory) -> int:
        """The number of a sequence's rows that can be fed, with those that were."""

    @abstractmethod
    def put(self, batch: Batch, seq: int, s: SequenceMemory, n: int, is_read: bool) -> None:
        """Adds a sequence's next n rows to a batch; `is_read` requests the last one's output."""

    def meet(self, seq: int, s: SequenceMemory, tokens: Sequence[int]) -> None:  # noqa: B027 - may do nothing
        """Called before tokens are appended to a sequence."""

    def of(self, seq: int) -> SequenceMemory:
        """The memory of a sequence."""
        if seq not in self._sequences:
            self._sequences[seq] = SequenceMemory([], FeatureRows(self._n_features))
        return self._sequences[seq]

    def n_fed(self, seq: int) -> int:
        """The number of a sequence's rows that were fed: the position of the first guess."""
        return self._sequences[seq].n_fed

    def commit(self, done: Sequence[Committed]) -> None:
        """Notes tokens and their rows. Feeds those of a prompt; others wait for feed()."""
        self.note(done)
        self.feed_due(done)

    def note(self, done: Sequence[Committed]) -> None:
        """Records tokens and their rows without computing."""
        for one in done:
            s = self.of(one.seq)
            self.meet(one.seq, s, one.tokens)
            was_in_prompt = s.rows.end >= len(s.tokens)
            if one.features:
                s.rows.append(one.first_row, one.features)
            s.tokens.extend(one.tokens)
            if not was_in_prompt:
                self._use *= _KEEP_USE
            if (was_in_prompt and s.rows.end < len(s.tokens)) or one.is_border:
                s.pin()

    def feed_due(self, done: Sequence[Committed]) -> None:
        """Feeds the noted rows that are due."""
        if self.is_paused:
            for one in done:
                self._drop_waiting(one.seq, self._sequences[one.seq])
            return
        due = [one.seq for one in done if self._is_due(self._sequences[one.seq])]
        if due:
            self.feed(due)

    def _drop_waiting(self, seq: int, s: SequenceMemory) -> None:
        """Drops all but the newest waiting rows if too many wait.

        The draft's context drops what it was fed too: it cannot continue after a gap.
        """
        end = self.n_ready(s)
        if end - s.n_fed > _MAX_WAITING:
            self.context.memory.remove(self.lane_of(seq))
            s.n_fed = s.first = s.n_skipped = end - _KEEP_WAITING
            s.rows.keep_last(s.rows.end - s.n_fed + 1)

    def _is_due(self, s: SequenceMemory) -> bool:
        """Whether to feed rows now: more of the prompt follows, or too many wait."""
        is_in_prompt = s.rows.end >= len(s.tokens)
        return self.n_ready(s) - s.n_fed > (0 if is_in_prompt else self._batch.n_max)

    def feed(self, seqs: Iterable[int], read: ReadLast | None = None) -> None:
        """Feeds all rows of some sequences that are ready."""
        left = sorted(seqs)
        for seq in left:
            s = self._sequences[seq]
            self._make_room(seq, s, self.n_ready(s))
            # What lies after are guesses of the last draft, or rows that no longer count.
            self.context.memory.rollback(self.lane_of(seq), s.n_fed)
        while left:
            parts = self._fill(left, read is not None)
            self.decode(self._batch)
            # Only now: an interrupt before would leave a hole in the memory.
            for seq, n, end in parts:
                s = self._sequences[seq]
                s.n_fed += n
                if end is None:
                    continue
                if read is not None:
                    read(seq, end, bool(left))
                s.rows.keep_last(KEEP_ROWS)

    def _fill(self, left: list[int], is_read: bool) -> list[tuple[int, int, int | None]]:
        """Fills the batch with rows of these sequences, in order.

        Returns for each sequence its number, how many it has in the batch, and the row of its last
        one where none is left, else None.
        """
        batch = self._batch
        batch.clear()
        parts: list[tuple[int, int, int | None]] = []
        while left and batch.n_tokens < batch.n_max:
            seq = left[0]
            s = self._sequences[seq]
            n_waiting = self.n_ready(s) - s.n_fed
            n = min(n_waiting, batch.n_max - batch.n_tokens)
            is_end = n == n_waiting
            self.put(batch, seq, s, n, is_read and is_end)
            if is_end:
                left.pop(0)
            parts.append((seq, n, batch.n_tokens - 1 if is_end else None))
        return parts

    def decode(self, batch: Batch) -> None:
        """Runs a decode of the draft."""
        self.n_calls += 1
        self.context.decode(batch)

    def _make_room(self, seq: int, s: SequenceMemory, end: int) -> None:
        """Drops the oldest rows so that all rows up to `end` fit the window."""
        if end - s.first <= self._n_window:
            return
        # An eighth more, so that this is not done in every round.
        first = end - self._n_window + self._n_window // 8
        if first > s.n_fed:  # a long prompt: its first rows need not be fed at all
            self.context.memory.remove(self.lane_of(seq))
            s.n_fed = first
        else:
            self.context.memory.remove(self.lane_of(seq), s.first, first)
        s.first = first

    def resume_at(self, seq: int, n_keep: int) -> int:
        """How many of the first n_keep tokens the target may keep: those whose rows are here.

        Where a window has forgotten most of what a draft would see there, the target has to decode
        as much again.
        """
        s = self._sequences.get(seq)
        if s is None:
            return 0
        n = self.known(s, n_keep)
        if 0 < s.first == s.n_skipped:
            return n  # the target must not decode again what a paused draft dropped
        n_seen = min(n, self.n_seen)
        n_there = n - min(s.first, n)
        return n if 2 * n_there >= n_seen else n - n_seen

    @abstractmethod
    def known(self, s: SequenceMemory, n_keep: int) -> int:
        """How many of the first n_keep tokens have their rows here, fed or waiting."""

    @property
    def n_seen(self) -> int:
        """The minimum number of rows that a draft reads in a long text."""
        return self._n_window - self._n_window // 8

    def truncate(self, seq: int, n_keep: int) -> None:
        """Keeps the rows of the first n_keep tokens."""
        s = self._sequences.get(seq)
        if s is None:
            return
        if n_keep < len(s.tokens):
            s.ahead = s.tokens[n_keep] if s.n_fed >= n_keep else None
            s.truncate(n_keep)
        if s.n_fed > n_keep:
            self.roll_back(seq, s, n_keep)
        if n_keep == 0:
            self.forget(seq)

    def roll_back(self, seq: int, s: SequenceMemory, n: int) -> None:
        """Drops all but the first n fed rows."""
        self.context.memory.rollback(self.lane_of(seq), n)
        s.n_fed = min(s.n_fed, n)
        s.first = min(s.first, s.n_fed)
        s.n_skipped = min(s.n_skipped, s.first)

    def forget(self, seq: int) -> None:
        """Drops a sequence."""
        if self._sequences.pop(seq, None) is not None:
            self.context.memory.remove(self.lane_of(seq))

    def copy(self, seq: int, to: int) -> None:
        """Starts `to` as a copy of `seq`."""
        s = self.of(seq)
        self.forget(to)
        self.context.memory.copy(self.lane_of(seq), self.lane_of(to))
        self._sequences[to] = SequenceMemory(
            list(s.tokens), s.rows.copy(), s.n_fed, s.first, s.ahead, dict(s.pinned), s.n_skipped
        )

    def save(self, seq: int, fingerprint: str) -> bytes:
        """The state of a sequence, for restore()."""
        s = self.of(seq)
        facts: dict[str, object] = {
            "draft": fingerprint, "n_fed": s.n_fed, "first": s.first, "ahead": s.ahead,
            "start": s.rows.start, "n_skipped": s.n_skipped,
        }  # fmt: skip
        rows = s.rows.view(s.rows.start, s.rows.end)
        tokens = np.array(s.tokens, dtype="<i4")
        facts["pinned"] = list(s.pinned)
        pinned = b"".join(row.tobytes() for row in s.pinned.values())
        memory = self.context.memory.save(self.lane_of(seq))
        return pack(facts, [tokens.tobytes(), rows.tobytes(), memory, pinned])

    def restore(self, seq: int, data: bytes, fingerprint: str) -> int:
        """Restores a state of save() with an equal fingerprint; returns the number of tokens."""
        facts, parts = unpack(data)
        self.forget(seq)
        if facts["draft"] != fingerprint:
            raise ArgumentError("the state was saved with another draft: read the text again")
        self.context.memory.restore(self.lane_of(seq), parts[2])
        s = self.of(seq)
        s.tokens = np.frombuffer(parts[0], dtype="<i4").tolist()
        rows = np.frombuffer(parts[1], dtype="<f4").reshape(-1, self._n_features)
        s.rows.append(facts["start"], [rows])
        s.n_fed, s.first, s.ahead = facts["n_fed"], facts["first"], facts["ahead"]
        s.n_skipped = facts["n_skipped"]
        pinned = np.frombuffer(parts[3], dtype="<f4").reshape(-1, 1, self._n_features)
        s.pinned = dict(zip(facts["pinned"], pinned, strict=True))
        return len(s.tokens)
