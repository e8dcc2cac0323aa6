"""MTP ("nextn"): a head trained with the target, in the target's own file.

At position P the head reads the token x[P] and the row of x[P-1], its *pair*, as the engine's own
driver has it; before the first token stands a row of zeros:

    position        0          1          2          3
    token         x[0]       x[1]       x[2]       x[3] = pending
    row of       zeros       x[0]       x[1]       x[2]        from the target
                                                     |
                                                     +-> first drafted token d[1], row h[1]
    then            4: (d[1], h[1]) -> d[2], h[2]    5: (d[2], h[2]) -> ...

Which row of the target that is depends on the architecture: the engine's graph defines it, and
Model gives it as HEAD_ROWS. Which pairs stay, and what a draft costs: drafters/chain.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyllama_spec.drafters.base import Committed, Drafter
from pyllama_spec.drafters.chain import Chain, ChainDrafter, ChainMemory
from pyllama_spec.drafters.model_drafter import Choice, add_lookup, note_of_few_bits
from pyllama_spec.drafters.options import DraftOptions, FileOptions
from pyllama_spec.drafters.row_memory import KEEP_ROWS, Rows, SequenceMemory
from pyllama_spec.drafters.saved_state import pack, unpack
from pyllama_spec.engine.batch import Batch
from pyllama_spec.engine.context import Context
from pyllama_spec.engine.model import HEAD_ROWS, Model
from pyllama_spec.errors import ArgumentError

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Rows of a prompt that have waited for its end are fed then from this many on; fewer wait for a
# draft.
_FEED_FROM = 64


class MtpMemory(ChainMemory):
    """The pairs of all sequences, in a head's context.

    A sequence's n_fed may be one more than it has tokens: then the last pair was fed with the token
    `ahead`, which truncate() has removed.
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


class Guesses(NamedTuple):
    """The draft of the earlier heads for a sequence: tokens and the row of each."""

    ids: Sequence[int]
    rows: Sequence[Rows]


class HeadsMemory:
    """The pairs of all sequences once per head, in lanes of one context.

    Each head has a layer of its own and remembers a text of its own. The pairs that are committed
    are those of MtpMemory for all of them, with rows of the target. Where head k is asked, the
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
        """Restores a state of save() with an equal fingerprint; returns the number of tokens."""
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


# Tokens that a head drafts per round by default: each costs a layer and the whole
# output matrix.
_MAX_DRAFT = 3
# And with a controller that ends drafts where they do not pay.
_MAX_ADAPTIVE = 6
# The engine's limit of a context.
_MAX_SEQUENCES = 256


class Mtp(ChainDrafter[MtpMemory | HeadsMemory]):
    """Drafts with the MTP heads of the target's own file, in a chain.

    Args:
        model: None for the target's own head, which has to be loaded with load_mtp=True; or a file
            with the head of such a target, with the same embedding and output.
        max_draft: the maximum number of tokens of a draft. If the file has several heads, each
            drafts one token, and check() lowers max_draft to their number.
        options: see FileOptions.

    Raises:
        ModelLoadError: the file cannot be read, or its parts contradict each other.
        ArgumentError: the file has no head that this version knows, or a number is out of range.
    """

    can_be_target = True

    def __init__(
        self,
        model: Model | str | os.PathLike[str] | None = None,
        max_draft: int = _MAX_DRAFT,
        **options: Unpack[FileOptions],
    ) -> None:
        super().__init__(model, "mtp", "an MTP head", max_draft=max_draft, **options)
        self.wants_head = model is None
        self._max_draft = self.max_draft

    def load(self, path: Any, **how: Any) -> Model:
        """Loads a head's file."""
        return Model(path, load_mtp=True, **how)

    def why_not(self, model: Model, kind: str) -> str:
        """The reason why a model has no head to draft with; "" if it has one."""
        return "" if model.info.has_head else why_no_head(model)

    def layers_read(self) -> tuple[int, ...]:
        """The target rows that the head reads."""
        return (HEAD_ROWS,)

    def check(self, target: Model) -> None:
        """Raises unless the target has a head, or this head was made for it.

        From here on max_draft is known: of several heads each drafts one token, and buffers, bounds
        and costs depend on it before attach(). With copies beside the heads they depend on the
        given one, since a copy may be longer than what the heads draft.
        """
        if not self.wants_head:
            super().check(target)
        elif not target.info.has_head:
            raise ArgumentError(f'draft="mtp": {target.path.name} {why_no_head(target)}')
        n_heads = (target if self.wants_head else self.model).info.n_heads
        self.max_draft = self._max_draft if n_heads == 1 else min(self._max_draft, n_heads)

    def attach(self, target: Context) -> None:
        """Opens the head's context, which shares the target's threads."""
        if self.wants_head and isinstance(target, Context):
            self.check(target.model)
            self._model = target.model
        super().attach(target)

    def open_memory(self, target: Context) -> MtpMemory | HeadsMemory:
        """Opens room for as many pairs as the target has tokens, and for guesses after them."""
        n_heads, n_seqs = self.model.info.n_heads, target.params.n_seq_max
        if n_heads > 1 and n_seqs * n_heads > _MAX_SEQUENCES:
            raise ArgumentError(
                f"{n_seqs} sequences with {n_heads} MTP heads each are more than the engine's "
                f"{_MAX_SEQUENCES}; {_MAX_SEQUENCES // n_heads} sequences are possible"
            )
        context, n_window = self.open_head(target, is_own=True, n_lanes=n_heads)
        weights = self.model.head_weights
        if weights is not None:
            less = "the head may be right less often than it was trained to be"
            self.add_note(note_of_few_bits("the head", weights.type, weights.bits, less))
        is_short = n_window < target.n_ctx_seq
        if n_heads > 1:
            return HeadsMemory(context, self._n_features, n_window, n_heads, is_short=is_short)
        return MtpMemory(context, self._n_features, n_window, is_short=is_short)

    def step_all(self, chains: Sequence[Chain]) -> None:
        """Feeds each chain its newest token; with several heads, to the next head."""
        memory = self.memory_or_fail()
        if not isinstance(memory, HeadsMemory):
            super().step_all(chains)
            return
        for one in chains:
            assert one.choice is not None  # it was extended
            one.rows.append(one.choice.row.copy())
        # All have been extended as often.
        head = len(chains[0].ids)
        choices = memory.guess(head, {c.seq: Guesses(c.ids, c.rows) for c in chains})
        for one in chains:
            one.choice = choices[one.seq]

    def describe(self) -> dict[str, Any]:
        """The head's file, sizes and devices; {} for a target's head before attach()."""
        if self._model is None:
            return {}
        weights = self._model.head_weights
        return {
            **super().describe(),
            "size_bytes": weights.n_bytes if weights else 0,
            "weights": weights.type if weights else "",
            "n_layer": self._model.info.n_heads,
            "target_layers": [],
            "reads": "the rows that the target's graph has for its MTP head",
        }


def why_no_head(model: Model) -> str:
    """The reason why a model cannot draft with its own head, as the end of a sentence."""
    info = model.info
    if not info.n_heads:
        return f"({info.arch}) has no MTP head; {_INSTEAD}"
    try:
        model.check_draft_of(model)
    except ArgumentError as error:
        return f"cannot draft for itself: {str(error).partition(': ')[2]}; {_INSTEAD}"
    return f"was opened without its MTP head; {_INSTEAD}"


_INSTEAD = 'give a draft\'s file, or draft="suffix"'


def open_mtp(path: Path | None, options: DraftOptions) -> Drafter:
    """Opens the target's or a file's head, with lookups unless options.lookup is 0."""
    head = Mtp(path, options.length(_MAX_DRAFT, _MAX_ADAPTIVE), **options.of_file())
    return add_lookup(head, options)
