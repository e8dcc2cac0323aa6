"""The memories of heads: the target's rows that each was fed, by sequence.

RowMemory feeds a head with rows of the target and the tokens beside them (kinds.py). They stay in
the head's context. Guesses do not: before the next draft they are removed, the accepted ones too,
since the target's own rows are better. So a rejected token costs nothing, and the call that feeds
the accepted rows is the first step of the next draft.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from pyllama_spec.drafters.base import Committed, Features
from pyllama_spec.drafters.draft_memory import Chain, Choice, DraftMemory, Rows, fill, pack, unpack
from pyllama_spec.drafters.kinds import HeadKind
from pyllama_spec.engine.batch import Batch
from pyllama_spec.engine.context import Context, LayerRows
from pyllama_spec.engine.media import MediaRows, PlacedRows
from pyllama_spec.engine.model_info import DraftBlock
from pyllama_spec.errors import PyllamaSpecError


class FeatureRows:
    """The feature rows of positions start .. end - 1, without a gap."""

    def __init__(self, n_features: int) -> None:
        self.n_features = n_features
        self.start = self.end = 0
        # shape: [capacity, n_features]
        self._buffer: Rows = np.empty((16, n_features), dtype=np.float32)

    def append(self, position: int, features: Features) -> None:
        """Adds rows from a position on; if they leave a gap, the earlier rows are dropped."""
        if position != self.end:
            self.start = self.end = position
        held = self.end - self.start
        n = held + len(features[0])
        if n > len(self._buffer):
            grown = np.empty((max(n, 2 * len(self._buffer)), self.n_features), dtype=np.float32)
            grown[:held] = self._buffer[:held]
            self._buffer = grown
        if isinstance(features, LayerRows):  # straight from the target: one call for all layers
            features.copy_to(self._buffer, held)
        else:
            np.concatenate(features, axis=1, out=self._buffer[held:n])
        self.end = self.start + n

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
        out.append(self.start, [self.view(self.start, self.end)])
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

    Always n_skipped <= first <= n_fed <= n_ready(). The head's context has positions first ..
    n_fed - 1, `rows` has the row of the next one, x[n_fed + kind.row], and all after it. Only the
    target can make a row again: before a cut resume_at() says from which token on it has to, which
    is none while that row is in `rows`, or is the last kept token's and in `pinned`.
    A cut may leave one position more than n_ready(): that of the last kept token's row beside
    `ahead`, the first removed token. If the same token comes again it stays; else note() rolls it
    back, and feeds it anew beside the other token.
    """

    tokens: list[int]  # the tokens x[0], x[1], ...; the last one is pending
    rows: FeatureRows
    n_fed: int = 0
    first: int = 0  # the first position that has not left the window
    ahead: int | None = None
    media: list[PlacedRows] = field(default_factory=list)  # pictures that are not fed yet
    pinned: dict[int, Rows] = field(default_factory=dict)  # by position, two of each place: pin()
    n_skipped: int = 0  # positions 0 .. n_skipped - 1 were dropped in a pause of the draft

    @property
    def is_in_prompt(self) -> bool:
        """Whether every token has its row: the last one of an answer is pending."""
        return self.rows.end >= len(self.tokens)

    def pin(self) -> None:
        """Keeps the last two rows, which end a prompt."""
        for i in range(max(self.rows.end - 2, self.rows.start), self.rows.end):
            self.pinned[i] = self.rows.view(i, i + 1).copy()
        for i in sorted(self.pinned)[:-_KEEP_PINNED]:
            del self.pinned[i]

    def truncate(self, n_keep: int) -> None:
        """Forgets tokens and rows from position n_keep on."""
        del self.tokens[n_keep:]
        self.media = [one for one in self.media if one.start < n_keep]
        self.rows.truncate(n_keep)
        self.pinned = {i: row for i, row in self.pinned.items() if i < n_keep}
        last = self.pinned.get(n_keep - 1)
        if last is not None and not self.rows.holds(n_keep - 1):
            self.rows.append(n_keep - 1, [last])


class RowMemory(DraftMemory):
    """The rows of all sequences in a head's context, and the guesses of a chain after them.

    Args:
        context: the head's.
        kind: what the head reads.
        n_features: the width of the target's rows, of all layers together.
        n_window: the number of positions of a sequence that stay in the context.
        n_lanes: the number of heads, each with rows of its own in a lane of the context.
        lane: the number of the head.
    """

    def __init__(
        self,
        context: Context,
        kind: HeadKind,
        n_features: int,
        n_window: int,
        n_lanes: int = 1,
        lane: int = 0,
    ) -> None:
        super().__init__(context)
        self._row, self._token = kind.row, kind.token
        # At a position P the picture's row x[P + _id] is read, if there is one.
        self._id = self._row if self._token is None else self._token
        # How many of the first n tokens' positions have to wait for a later token or row.
        self._n_open = max(self._row, self._id)
        self._lane, self._n_lanes = lane, n_lanes
        self._n_features, self._n_window = n_features, n_window
        self._batch = Batch(context.n_batch, n_row=n_features, n_model_row=context.n_row)
        self._batch.logits = False
        self._batch.head = lane
        n_hidden = context.model.info.n_embd if kind.arch else n_features
        self._step = Batch(context.n_seq_max, n_row=n_hidden, n_model_row=context.n_row)
        self._step.hidden_rows = True
        self._step.logits = False
        self._sequences: dict[int, SequenceMemory] = {}
        # The share of the last rounds, over all sequences, in which a draft was asked for.
        self._use = 1.0

    def of(self, seq: int) -> SequenceMemory:
        """The memory of a sequence."""
        if seq not in self._sequences:
            self._sequences[seq] = SequenceMemory([], FeatureRows(self._n_features))
        return self._sequences[seq]

    def tokens(self, seq: int) -> list[int]:
        """The tokens of a sequence."""
        return self.of(seq).tokens

    @property
    def is_paused(self) -> bool:
        """Whether drafts are rarely requested; rows are then fed only with a request.

        One of several heads never is: the later heads are asked less often than the first, and all
        of them need the same rows.
        """
        return self._n_lanes == 1 and self._use < _PAUSE_BELOW

    def n_unread(self, seq: int) -> int:
        """The rows of a sequence that the next draft feeds first; 0 unless the draft is paused."""
        s = self._sequences.get(seq)
        return self.n_waiting(s) if s is not None and self.is_paused else 0

    def lane_of(self, seq: int) -> int:
        """The sequence id of a text's rows in the draft's context."""
        return seq * self._n_lanes + self._lane

    def place_of(self, seq: int, position: int) -> int:
        """The place in the head's context: rows of a picture may share some, as in the target."""
        return self.context.memory.position_of(self.lane_of(seq), position)

    def n_ready(self, s: SequenceMemory) -> int:
        """The number of positions of which all that the head reads is known, fed or not."""
        n, token = s.rows.end - self._row, self._token
        return n if token is None else min(n, len(s.tokens) - token)

    def n_waiting(self, s: SequenceMemory) -> int:
        """The number of positions that can be fed."""
        return self.n_ready(s) - s.n_fed

    # ---- drafting

    def ask(self, chains: Sequence[Chain], n: int) -> None:
        """Feeds the waiting rows; sets the guess after the last one of each sequence."""
        self._count_asked(len(chains))
        by_seq = {chain.seq: chain for chain in chains}
        for seq in by_seq:
            s = self.of(seq)
            # Where it is asked again, the last position is fed again.
            s.n_fed = min(s.n_fed, self.n_ready(s) - 1)

        def read(seq: int, end: int, has_more: bool) -> None:
            ids, p, row = self.context.draft_candidates(end)
            # The row is a view that the next decode overwrites.
            by_seq[seq].choice = Choice(ids, p, row.copy() if has_more else row)

        self.feed(by_seq, read)

    def step(self, chains: Sequence[Chain]) -> None:
        """Feeds each chain its newest token with the head's own row for it."""
        step = self._step
        step.clear()
        for chain in chains:
            assert chain.choice is not None  # it was extended
            seq, ids = chain.request.seq, chain.ids
            position = self.place_of(seq, self._sequences[seq].n_fed + len(ids) - 1)
            step.add(ids[-1], position, seq, output=True, row=chain.choice.row)
        self.decode(step)
        for i, chain in enumerate(chains):
            chain.choice = Choice(*self.context.draft_candidates(i))

    def _count_asked(self, n: int) -> None:
        self._use = min(self._use + n * (1.0 - _KEEP_USE), 1.0)

    # ---- the text

    def commit(self, done: Sequence[Committed]) -> None:
        """Notes tokens and their rows. Feeds those of a prompt; others wait for the next draft."""
        self.note(done)
        self.feed_due(done)

    def note(self, done: Sequence[Committed]) -> None:
        """Records tokens and their rows without computing."""
        for one in done:
            s = self.of(one.seq)
            end = max(len(s.tokens) - self._n_open, 0)
            if one.tokens and s.n_fed > end and s.ahead != one.tokens[0]:
                self._roll_back(one.seq, s, end)
            s.ahead = None
            was_in_prompt = s.is_in_prompt
            if one.features:
                s.rows.append(one.first_row, one.features)
            s.tokens.extend(one.tokens)
            if one.media is not None:
                s.media.append(PlacedRows(one.start, one.media))
            if not was_in_prompt:
                self._use *= _KEEP_USE
            if (was_in_prompt and not s.is_in_prompt) or one.is_border:
                s.pin()

    def feed_due(self, done: Sequence[Committed]) -> None:
        """Feeds the noted rows that are due, and drops rows that will never be fed."""
        seqs = {one.seq: self._sequences[one.seq] for one in done}
        if self.is_paused:
            for seq, s in seqs.items():
                if self.n_waiting(s) > _MAX_WAITING or s.media:
                    # The draft's context drops what it was fed too: it cannot continue after a gap.
                    n_kept = 0 if s.media else _KEEP_WAITING
                    s.n_fed = s.first = s.n_skipped = self.n_ready(s) - n_kept
                    s.media.clear()
                    self._empty(seq, s)
                    s.rows.keep_last(s.rows.end - s.n_fed + 1)
            return
        n_most = self._batch.n_max  # after a prompt: what waits is fed with the next draft
        self.feed(
            seq for seq, s in seqs.items()
            if self.n_waiting(s) > (0 if s.is_in_prompt else n_most)
        )  # fmt: skip

    def feed(self, seqs: Iterable[int], read: ReadLast | None = None) -> None:
        """Feeds all rows of some sequences that are ready."""
        left = {seq: n for seq in sorted(seqs) if (n := self._prepare(seq))}

        def put(seq: int, n: int, is_end: bool) -> None:
            self._put(self._batch, seq, n, is_end and read is not None)

        while left:
            parts = fill(self._batch, left, put)
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

    def _prepare(self, seq: int) -> int:
        """Makes room for what waits, and removes the guesses of the last draft.

        Returns the number of positions that wait.
        """
        s = self._sequences[seq]
        end = self.n_ready(s)
        self._make_room(seq, s, end)
        self.context.memory.rollback(self.lane_of(seq), s.n_fed)
        if s.media:
            self._feed_media(seq, s)
        return end - s.n_fed

    def _feed_media(self, seq: int, s: SequenceMemory) -> None:
        """Feeds what waits up to the end of the last picture, texts and pictures in turn."""
        batch, end = self._batch, self.n_ready(s)
        for start, media in s.media:
            first = start - self._id
            for is_text, stop in ((True, first), (False, first + len(media.ids))):
                while (n := min(stop, end, s.n_fed + batch.n_max) - s.n_fed) > 0:
                    batch.clear()
                    if is_text:
                        self._put(batch, seq, n, is_read=False)
                    else:
                        self._set_media(seq, s, start, media.part(s.n_fed - first, n))
                    self.decode(batch)
                    s.n_fed += n
        s.media.clear()
        s.rows.keep_last(KEEP_ROWS)

    def _set_media(self, seq: int, s: SequenceMemory, start: int, media: MediaRows) -> None:
        """Makes the batch of the next positions, which are those of a picture's rows."""
        n, n_embd, embd = len(media.ids), self.context.model.info.n_embd_inp, None
        places = np.broadcast_to(np.arange(s.n_fed, s.n_fed + n, dtype=np.int32), (3, n))
        if self.context.has_grid:
            self._note_media(seq, s)
            places = media.positions + self.place_of(seq, start)
        if self._token is not None:
            # A head that is not as wide as the target has embeddings of its own, and none of these.
            is_known = self._n_features == n_embd * max(len(self.context.model.target_layers), 1)
            embd = media.rows[:, :n_embd] if is_known else np.zeros((n, n_embd), np.float32)
        rows = self._rows_at(s, n)
        self._batch.set_media(rows, places, self.lane_of(seq), embd=embd)

    def _note_media(self, seq: int, s: SequenceMemory) -> None:
        """Notes where the head's context has rows of pictures that share places."""
        if self.context.has_grid:
            self.context.memory.note_media(self.lane_of(seq), s.tokens)

    def _empty(self, seq: int, s: SequenceMemory) -> None:
        """Drops what was fed of a sequence that continues."""
        self.context.memory.remove(self.lane_of(seq))
        self._note_media(seq, s)

    def _put(self, batch: Batch, seq: int, n: int, is_read: bool) -> None:
        """Adds a sequence's next n positions to a batch; `is_read` requests the last output."""
        s, token = self._sequences[seq], self._token
        at, rows = s.n_fed, self._rows_at(s, n)
        ids = None if token is None else s.tokens[at + token : at + token + n]
        place = self.place_of(seq, at)
        batch.extend(ids, place, self.lane_of(seq), rows=[rows], output_last=is_read)

    def _rows_at(self, s: SequenceMemory, n: int) -> Rows:
        """The target's rows at the next n positions."""
        first, end = s.n_fed + self._row, s.n_fed + self._row + n
        rows = s.rows.view(max(first, 0), end)
        if first < 0:
            rows = np.concatenate((np.zeros((-first, s.rows.n_features), np.float32), rows))
        return rows

    def _make_room(self, seq: int, s: SequenceMemory, end: int) -> None:
        """Drops the oldest rows so that all rows up to `end` fit the window."""
        if end - s.first <= self._n_window:
            return
        # An eighth more, so that this is not done in every round.
        first = end - self._n_window + self._n_window // 8
        while self.place_of(seq, first) < 0:
            first += 1  # rows of a picture that share places leave together
        if first > s.n_fed:  # a long prompt: its first rows need not be fed at all
            self._empty(seq, s)
            s.n_fed = first
        else:
            self.context.memory.remove(self.lane_of(seq), s.first, first)
        s.first = first

    def resume_at(self, seq: int, n_keep: int) -> int:
        """How many of the first n_keep tokens the target may keep: see SequenceMemory.

        Fewer where most of what a draft sees there has left the window.
        """
        s = self._sequences.get(seq)
        if s is None:
            return 0
        n = self._n_known(s, n_keep)
        if 0 < s.first == s.n_skipped:
            return n  # the target must not decode again what a paused draft dropped
        n_seen = min(n, self.n_seen)
        n_there = n - min(s.first, n)
        return n if 2 * n_there >= n_seen else n - n_seen

    def _n_known(self, s: SequenceMemory, n_keep: int) -> int:
        """How many of the first n_keep tokens have the rows that the next position needs."""
        n_keep = min(n_keep, len(s.tokens))
        n_fed = min(s.n_fed, n_keep - self._n_open)
        first = max(n_fed + self._row, 0)
        if first == n_keep - 1 and first in s.pinned:
            return n_keep
        return min(n_keep, max(first, s.rows.end if s.rows.start <= first else 0))

    @property
    def n_seen(self) -> int:
        """The minimum number of rows that a draft reads in a long text."""
        return self._n_window - self._n_window // 8

    def truncate(self, seq: int, n_keep: int) -> None:
        """Keeps what was fed of the first n_keep tokens, and of the next one beside their rows."""
        s = self._sequences.get(seq)
        if s is None:
            return
        if n_keep == 0:
            self.forget(seq)
            return
        end = n_keep - self._n_open
        if n_keep < len(s.tokens):
            is_fed = self._token is not None and self._row < self._token and s.n_fed > end
            s.ahead = s.tokens[n_keep] if is_fed else None
            s.truncate(n_keep)
        end += s.ahead is not None
        if s.n_fed > end:
            self._roll_back(seq, s, end)

    def _roll_back(self, seq: int, s: SequenceMemory, n: int) -> None:
        """Drops all but the first n fed positions."""
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
        self._sequences[to] = replace(
            s, tokens=list(s.tokens), rows=s.rows.copy(), pinned=dict(s.pinned),
            media=list(s.media),
        )  # fmt: skip

    def save(self, seq: int, draft: str) -> bytes:
        """The state of a sequence."""
        s = self.of(seq)
        if s.media:
            self.feed((seq,))
        facts = {
            "n_fed": s.n_fed, "first": s.first, "ahead": s.ahead, "start": s.rows.start,
            "n_skipped": s.n_skipped, "pinned": list(s.pinned),
        }  # fmt: skip
        rows = s.rows.view(s.rows.start, s.rows.end)
        tokens = np.array(s.tokens, dtype="<i4")
        pinned = b"".join(row.tobytes() for row in s.pinned.values())
        memory = self.context.memory.save(self.lane_of(seq))
        return pack(facts, [tokens.tobytes(), rows.tobytes(), memory, pinned], draft)

    def restore(self, seq: int, data: bytes, draft: str) -> int:
        """Restores a state of save(); returns the number of tokens."""
        self.forget(seq)
        facts, parts = unpack(data, draft)
        self.context.memory.restore(self.lane_of(seq), parts[2])
        s = self.of(seq)
        s.tokens = np.frombuffer(parts[0], dtype="<i4").tolist()
        self._note_media(seq, s)
        rows = np.frombuffer(parts[1], dtype="<f4").reshape(-1, self._n_features)
        s.rows.append(facts["start"], [rows])
        s.n_fed, s.first, s.ahead = facts["n_fed"], facts["first"], facts["ahead"]
        s.n_skipped = facts["n_skipped"]
        pinned = np.frombuffer(parts[3], dtype="<f4").reshape(-1, 1, self._n_features)
        s.pinned = dict(zip(facts["pinned"], pinned, strict=True))
        return len(s.tokens)


class BlockMemory(RowMemory):
    """The rows of all sequences, and a block after them: a round's guesses in one decode.

    A round is two calls, however many sequences draft together: one feeds the rows of the tokens
    that were accepted, one decodes a block as long as was asked for.
    """

    # The row of the last batch with each sequence's first guess.
    _first_row: Mapping[int, int]

    @cached_property
    def _block(self) -> DraftBlock:
        block = self.context.model.draft_block
        assert block is not None
        return block

    @cached_property
    def _slots(self) -> Batch:
        batch = Batch(self.context.n_seq_max * self._block.n_slots)
        batch.logits = False
        return batch

    def ask(self, chains: Sequence[Chain], n: int) -> None:
        """Feeds the waiting rows, then decodes a block after the rows of each sequence.

        The slots are forgotten at once: their keys and values are of guesses. What was guessed can
        be read until the next decode.
        """
        self._count_asked(len(chains))
        self.feed(c.seq for c in chains if self.n_waiting(self.of(c.seq)) > 0)
        self._slots.clear()
        texts = {chain.seq: self.of(chain.seq).tokens for chain in chains}
        self._first_row = {
            seq: self._put_block(seq, len(text) - 1, text[-1], n) for seq, text in texts.items()
        }
        try:
            self.decode(self._slots)
        except BaseException:
            with contextlib.suppress(PyllamaSpecError):  # such as of a context that is lost
                self._forget_guesses(chains)
            raise
        self._forget_guesses(chains)

    def _put_block(self, seq: int, position: int, token: int, n: int) -> int:
        """Adds a block of n guesses after a token; returns the row of its first guess."""
        slots, from_anchor = self._slots, self._block.sample_from_anchor
        first_row = slots.n_tokens + (not from_anchor)
        place = self.place_of(seq, position)
        slots.add(token, place, seq, output=from_anchor)
        masks = [self._block.mask_id] * (n - from_anchor)
        slots.extend(masks, place + 1, seq, output_all=True)
        return first_row

    def read(self, seq: int, i: int, before: int) -> Choice:
        """The candidates of a sequence's i-th guess, which may depend on the token before."""
        ids, p, more = self.context.draft_candidates(self._first_row[seq] + i, before)
        return Choice(ids, p, more, None, float(more[0]) if self._block.has_confidence else None)

    def _forget_guesses(self, chains: Sequence[Chain]) -> None:
        for chain in chains:
            self.context.memory.rollback(chain.seq, self.of(chain.seq).n_fed)

    @property
    def n_seen(self) -> int:
        """At most the window of its layers."""
        n = super().n_seen
        return n if self._block.n_window is None else min(n, self._block.n_window)


class HeadsMemory(RowMemory):
    """The rows of all sequences once per head, in lanes of one context.

    Each head has a layer of its own and remembers a text of its own. The pairs that are committed
    are the same for all of them, with rows of the target. Where head k is asked, the
    pairs after the pending token are the guesses of the heads before it:

        position          n            n+1          n+2
        token          pending         d[1]         d[2]
        row of      x[n-1], target   head 0's     head 1's
        head 0         -> d[1]
        head 1           fed          -> d[2]
        head 2           fed           fed         -> d[3]

    What a head has not been fed yet waits until it is asked, and is fed in the same call: a draft
    of n tokens is n calls, and a head that is never asked costs the feeding of prompts alone.

    The engine's memory has places for tokens, and each place a part for the layer of each head: two
    heads cannot take turns at the same places, since what one head feeds again may come to lie
    elsewhere. So a head has sequences of its own, its lane.
    """

    def follow(self, later: Sequence[Lane]) -> None:
        """Takes the memories of the heads after the first one, whose memory this is."""
        self.later = later
        for lane in later:
            lane.owner = self

    def step(self, chains: Sequence[Chain]) -> None:
        """Sets the guesses of the next head, after those of the earlier ones."""
        for chain in chains:
            assert chain.choice is not None  # it was extended
            chain.rows.append(chain.choice.row.copy())
        # All have been extended as often.
        self.later[len(chains[0].ids) - 1].step(chains)

    def commit(self, done: Sequence[Committed]) -> None:
        """Notes tokens and their rows, and feeds those of a prompt to all heads.

        All record them before any is fed: a cancel in between leaves them at the same token.
        """
        for head in (self, *self.later):
            head.note(done)
        for head in (self, *self.later):
            head.feed_due(done)

    def resume_at(self, seq: int, n_keep: int) -> int:
        """How many of the first n_keep tokens the target may keep: the minimum over all heads."""
        while n_keep:
            n = super().resume_at(seq, n_keep)
            n = min(n, *(lane.resume_at(seq, n_keep) for lane in self.later))
            if n == n_keep:
                break
            n_keep = n
        return n_keep

    def truncate(self, seq: int, n_keep: int) -> None:
        """Keeps the part of the first n_keep tokens."""
        super().truncate(seq, n_keep)
        for lane in self.later:
            lane.truncate(seq, n_keep)

    def copy(self, seq: int, to: int) -> None:
        """Starts `to` as a copy of `seq`."""
        super().copy(seq, to)
        for lane in self.later:
            lane.copy(seq, to)

    def save(self, seq: int, draft: str) -> bytes:
        """The state of a sequence."""
        lanes = [lane.save(seq, draft) for lane in self.later]
        return pack({}, [super().save(seq, draft), *lanes], draft)

    def restore(self, seq: int, data: bytes, draft: str) -> int:
        """Restores a state of save(); returns the number of tokens."""
        try:
            _, parts = unpack(data, draft)
            n = super().restore(seq, parts[0], draft)
            pairs = zip(self.later, parts[1:], strict=True)
            return min(n, *(lane.restore(seq, part, draft) for lane, part in pairs))
        except BaseException:
            for head in (self, *self.later):
                head.forget(seq)
            raise


class Lane(RowMemory):
    """The rows of one of several heads after the first."""

    owner: HeadsMemory

    def decode(self, batch: Batch) -> None:
        """Runs a decode of this head."""
        self.owner.decode(batch)

    def step(self, chains: Sequence[Chain]) -> None:
        """Feeds the waiting rows and the guesses after them; sets the next guess."""
        chains = sorted(chains, key=lambda chain: chain.seq)
        for chain in chains:
            self._prepare(chain.seq)
        n_waiting = sum(self.n_waiting(self.of(c.seq)) + len(c.ids) for c in chains)
        batch = self._batch
        if n_waiting > batch.n_max:
            self.feed(chain.seq for chain in chains)
        batch.clear()
        ends = []
        for chain in chains:
            seq, s = chain.seq, self.of(chain.seq)
            if self.n_waiting(s):
                self._put(batch, seq, self.n_waiting(s), is_read=False)
            first, n = self.n_ready(s), len(chain.ids)
            for i, (token, row) in enumerate(zip(chain.ids, chain.rows, strict=True)):
                place = self.place_of(seq, first + i)
                batch.add(token, place, self.lane_of(seq), output=i == n - 1, row=row)
            ends.append(batch.n_tokens - 1)
        self.decode(batch)
        # Only now: an interrupt before would leave a hole in the memory.
        for chain, end in zip(chains, ends, strict=True):
            s = self.of(chain.seq)
            if self.n_waiting(s):
                s.n_fed = self.n_ready(s)
                s.rows.keep_last(KEEP_ROWS)
            chain.choice = Choice(*self.context.draft_candidates(end))
