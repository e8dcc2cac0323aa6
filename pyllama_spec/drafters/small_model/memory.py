"""The tokens that a draft model has processed, and the rollback of wrong guesses.

    the text           x[0] ... x[n-1]                    committed, the last one pending
    the model holds    x[0] ... x[n-1] d[1] ... d[k-1]    after a draft d[1] ... d[k]
    accepted are       d[1] ... d[a], then the target's own token t

Accepted guesses stay in its memory, since they are tokens of the text now: it rolls back to
where its memory and the text differ, and decodes the missing tokens in one batch, the first step of
the next draft. A recurrent state cannot be cut: a copy is taken of it where the text ended, before
the first guess, and what was accepted is read again after it, in the same batch.

It decodes nothing before the first draft, so a text without drafts costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pyllama_spec.drafters.base import Committed
from pyllama_spec.drafters.choice import Choice
from pyllama_spec.drafters.draws import TokenDraws
from pyllama_spec.drafters.saved_state import pack, unpack
from pyllama_spec.drafters.small_model.vocab_map import VocabMap
from pyllama_spec.engine.batch import Batch
from pyllama_spec.engine.context import Context
from pyllama_spec.engine.distribution import Distribution
from pyllama_spec.errors import ArgumentError, EngineError

_NO_ROW = np.zeros(0, np.float32)


@dataclass(slots=True)
class SequenceText:
    """The memory of one sequence.

    Attributes:
        tokens: the ids of the target, the last one pending.
        ids: the same text in ids of the draft; the same list if the vocabularies are equal.
        ends: [len(tokens)] the number of ids up to the end of each token; unused if the
            vocabularies are equal.
        held: the ids in the draft's memory: those of the text without the oldest, then guesses.
        n_equal: the number of `held` ids that are known to equal the text's and are not compared
            again.
        base: the index of the id at position 0 of the memory: after a text longer than the window,
            the memory begins anew.
        first: the index of the first id that is in the window and was read.
        checkpoint: the recurrent state after the first n_checkpoint of those ids.
        is_torn: whether a decode was interrupted: the memory may hold more than recorded here.

    """

    tokens: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    n_equal: int = 0
    base: int = 0
    first: int = 0
    checkpoint: memoryview | bytes | None = None
    n_checkpoint: int = 0
    is_torn: bool = False


class TokenMemory:
    """The texts of all sequences, in a draft model's context.

    Args:
        context: the draft's context.
        vocab: the map between the target's ids and the draft's.
        n_window: the number of tokens of a sequence that fit, guesses included.
        n_guesses: the maximum number of guesses after a text.

    Attributes:
        n_calls: the number of decodes, for callers that count the cost.
        n_read: the number of decoded tokens.
        draws: by sequence, the random numbers of requests whose tokens are drawn; set while they
            are drafted.

    """

    def __init__(self, context: Context, vocab: VocabMap, n_window: int, n_guesses: int) -> None:
        self.context, self.vocab = context, vocab
        self.n_calls = self.n_read = 0
        self._n_window, self._n_guesses = n_window, n_guesses
        self._has_state = context.model.info.has_recurrent_state
        self._batch = Batch(context.n_batch)
        self._sequences: dict[int, SequenceText] = {}
        self.draws: Mapping[int, TokenDraws] = {}

    def of(self, seq: int) -> SequenceText:
        """The memory of a sequence."""
        if seq not in self._sequences:
            text = SequenceText()
            if self.vocab.is_identity:
                text.ids = text.tokens
            self._sequences[seq] = text
        return self._sequences[seq]

    # ---- what it is given

    def commit(self, done: Sequence[Committed]) -> None:
        """Notes tokens without computing."""
        for one in done:
            s = self.of(one.seq)
            if one.start != len(s.tokens):
                raise ArgumentError(
                    f"tokens were committed from position {one.start}, but {len(s.tokens)} tokens "
                    "are known: commit them in order"
                )
            s.tokens.extend(one.tokens)
            if not self.vocab.is_identity:
                for token in one.tokens:
                    s.ids.extend(self.vocab.to_draft(token))
                    s.ends.append(len(s.ids))

    def truncate(self, seq: int, n_keep: int) -> None:
        """Keeps the first n_keep tokens. The next ask() compares what the context holds."""
        s = self._sequences.get(seq)
        if s is None:
            return
        if n_keep == 0:
            self.forget(seq)
            return
        del s.tokens[n_keep:]
        if not self.vocab.is_identity and len(s.ends) > n_keep:
            del s.ids[s.ends[n_keep - 1] :], s.ends[n_keep:]
        s.n_equal = min(s.n_equal, len(s.ids))

    def resume_at(self, seq: int, n_keep: int) -> int:
        """n_keep: the draft needs no row of the target."""
        return n_keep

    def forget(self, seq: int) -> None:
        """Drops a sequence."""
        if self._sequences.pop(seq, None) is not None:
            self.context.memory.remove(seq)

    def copy(self, seq: int, to: int) -> None:
        """Starts `to` as a copy of `seq`."""
        s = self.of(seq)
        self.forget(to)
        self.context.memory.copy(seq, to)
        tokens = list(s.tokens)
        ids = tokens if self.vocab.is_identity else list(s.ids)
        self._sequences[to] = SequenceText(
            tokens, ids, list(s.ends), list(s.held), s.n_equal, s.base, s.first, s.checkpoint,
            s.n_checkpoint, s.is_torn,
        )  # fmt: skip

    # ---- what it is asked for

    def n_fed(self, seq: int) -> int:
        """The position after the text."""
        return len(self._sequences[seq].ids)

    def n_unread(self, seq: int) -> int:
        """The number of the text's ids that the context does not hold."""
        s = self.of(seq)
        return len(s.ids) - self._n_common(s)

    def can_ask(self, seq: int) -> bool:
        """Whether the draft can read any of the text."""
        return bool(self.of(seq).ids)

    def ask(self, seqs: Iterable[int]) -> dict[int, Choice]:
        """Feeds the missing ids of each text; returns the guess after it."""
        left = sorted(seqs)
        for seq in left:
            self._go_back(seq, self._sequences[seq])
        choices: dict[int, Choice] = {}
        asked = list(left)
        while left:
            parts = self._fill(left)
            self._decode_for(self._batch, [self._sequences[seq] for seq, _, _ in parts])
            # Only now: an interrupt before would leave a hole in the memory.
            for seq, n, end in parts:
                s = self._sequences[seq]
                s.held.extend(s.ids[len(s.held) : len(s.held) + n])
                s.n_equal = len(s.held)
                if end is not None:
                    choices[seq] = self.choice(seq, end)
        if self._has_state:
            for seq in asked:
                s = self._sequences[seq]
                s.checkpoint, s.n_checkpoint = self.context.memory.checkpoint(seq), len(s.held)
        return choices

    def _go_back(self, seq: int, s: SequenceText) -> None:
        """Rolls the context back to a prefix of the text, at least one token shorter."""
        n = min(self._n_common(s), len(s.ids) - 1)
        # A window that has moved on is kept for a text that was cut, unless little of it is left.
        n_seen = min(len(s.ids), self._n_window - self._n_window // 4)
        if n <= s.first or (s.first and 2 * (n - s.first) < n_seen):
            self._empty(seq, s, 0)
        elif n < len(s.held) or s.is_torn:
            self._cut(seq, s, n)
        s.is_torn = False
        self._make_room(seq, s)

    def _n_common(self, s: SequenceText) -> int:
        """The number of the text's first ids that the context holds."""
        n, most = s.n_equal, min(len(s.held), len(s.ids))
        while n < most and s.held[n] == s.ids[n]:
            n += 1
        s.n_equal = n
        return n

    def _cut(self, seq: int, s: SequenceText, n: int) -> None:
        memory = self.context.memory
        s.n_equal = min(s.n_equal, n)
        if not self._has_state:
            if memory.rollback(seq, n - s.base):
                del s.held[n:]
            else:
                self._empty(seq, s, 0)
        elif s.checkpoint is not None and s.first < s.n_checkpoint <= n:
            memory.return_to(seq, memoryview(s.checkpoint), s.n_checkpoint - s.base)
            del s.held[s.n_checkpoint :]
            s.n_equal = s.n_checkpoint
        else:
            self._empty(seq, s, 0)

    def _empty(self, seq: int, s: SequenceText, first: int) -> None:
        """Empties the context; the text then starts at position `first`."""
        self.context.memory.remove(seq)
        s.held, s.base, s.first, s.n_equal = s.ids[:first], first, first, first
        s.checkpoint, s.n_checkpoint = None, 0

    def _make_room(self, seq: int, s: SequenceText) -> None:
        """Drops the oldest tokens so that the text and its guesses fit the window."""
        n = len(s.ids) + self._n_guesses
        if n - s.first <= self._n_window:
            return
        # A quarter more, so that this is not done in every round.
        first = min(n - self._n_window + self._n_window // 4, len(s.ids) - 1)
        if first >= len(s.held) or self._has_state:
            self._empty(seq, s, first)
        else:
            self.context.memory.remove(seq, s.first - s.base, first - s.base)
            s.first = first

    def _fill(self, left: list[int]) -> list[tuple[int, int, int | None]]:
        """Fills the batch with unread ids of these sequences, in order.

        Returns:
            For each sequence in the batch its number, the number of its tokens, and the index of
            the last token in the batch if no token of it is left, else None.

        """
        batch = self._batch
        batch.clear()
        parts: list[tuple[int, int, int | None]] = []
        while left and batch.n_tokens < batch.n_max:
            s = self._sequences[left[0]]
            at = len(s.held)
            n = min(len(s.ids) - at, batch.n_max - batch.n_tokens)
            is_end = at + n == len(s.ids)
            batch.extend(s.ids[at : at + n], at - s.base, left[0], output_last=is_end)
            parts.append((left[0], n, batch.n_tokens - 1 if is_end else None))
            if is_end:
                left.pop(0)
        return parts

    def guess(
        self, guesses: Sequence[tuple[int, Sequence[int]]], batch: Batch
    ) -> dict[int, Choice]:
        """Feeds guesses after the texts of some sequences; returns the guess after each.

        Args:
            guesses: for each sequence its ids of the draft, at least one.
            batch: a batch with room for them.

        """
        batch.clear()
        ends = []
        for seq, ids in guesses:
            s = self._sequences[seq]
            batch.extend(ids, len(s.held) - s.base, seq, output_last=True)
            ends.append(batch.n_tokens - 1)
        self._decode_for(batch, [self._sequences[seq] for seq, _ in guesses])
        for seq, ids in guesses:
            self._sequences[seq].held.extend(ids)
        return {seq: self.choice(seq, end) for (seq, _), end in zip(guesses, ends, strict=True)}

    def draft_on(self, guesses: dict[int, int], goes_on: Callable[[int, Choice], bool]) -> None:
        """Feeds a guess after the text of each sequence, and further ones while they continue.

        Args:
            guesses: for each sequence the target's id that choice() gave last.
            goes_on: called with the index of a sequence and the choice after its newest guess;
                returns whether that is a guess as well.

        """
        texts = [self._sequences[seq] for seq in guesses]
        newest = [self.vocab.to_draft(token)[0] for token in guesses.values()]
        n_steps = [0] * len(texts)

        def on_next(i: int, id_: int, p: float) -> bool:
            texts[i].held.append(newest[i])
            newest[i] = id_
            n_steps[i] += 1
            return goes_on(i, self._choice(id_, p))

        ends = [len(s.held) - s.base for s in texts]
        for s in texts:
            s.is_torn = True
        self.context.draft_chains(newest, ends, list(guesses), on_next, self.vocab.counterparts)
        for s in texts:
            s.is_torn = False
        self.n_calls += max(n_steps)
        self.n_read += sum(n_steps)

    def choice(self, seq: int, row: int) -> Choice:
        """The draft's choice at a row of the last batch, among ids that the target has."""
        if seq in self.draws:
            return self._drawn(self.draws[seq], row)
        likely = self.context.likeliest(row, self.vocab.counterparts)
        return self._choice(-1, 0.0) if likely is None else self._choice(*likely)

    def _drawn(self, draws: TokenDraws, row: int) -> Choice:
        """Draws a target token from the draft's distribution over the ids that both have."""
        try:
            q = draws.distribution(self.context, row)
        except EngineError:
            # NaN: choose() raises it for this sequence alone.
            return Choice((0,), (math.nan,), _NO_ROW)
        counterparts = self.vocab.counterparts
        if counterparts is not None:
            ids = counterparts[q.ids]
            is_shared = ids >= 0
            if not is_shared.any():
                return self._choice(-1, 0.0)
            q = Distribution(ids[is_shared], q.p[is_shared])
        token, p = draws.choice(q)
        return Choice((token,), (p,), _NO_ROW, q)

    def _choice(self, id_: int, p: float) -> Choice:
        if id_ < 0:
            return Choice((), (), _NO_ROW)
        return Choice((self.vocab.of_draft(id_),), (p,), _NO_ROW)

    def _decode_for(self, batch: Batch, sequences: Sequence[SequenceText]) -> None:
        for s in sequences:
            s.is_torn = True
        self.decode(batch)
        for s in sequences:
            s.is_torn = False

    def decode(self, batch: Batch) -> None:
        """Runs a decode of the draft."""
        self.n_calls += 1
        self.n_read += batch.n_tokens
        self.context.decode(batch)

    # ---- a state that outlasts a request

    def save(self, seq: int, fingerprint: str) -> bytes:
        """The state of a sequence, for restore()."""
        s = self.of(seq)
        facts = {
            "draft": fingerprint, "base": s.base, "first": s.first,
            "n_checkpoint": s.n_checkpoint, "is_torn": s.is_torn,
        }  # fmt: skip
        tokens, held = (np.array(ids, dtype="<i4").tobytes() for ids in (s.tokens, s.held))
        state = self.context.memory.save(seq)
        return pack(facts, [tokens, held, state, bytes(s.checkpoint or b"")])

    def restore(self, seq: int, data: bytes, fingerprint: str) -> int:
        """Restores a state of save() with an equal fingerprint; returns the number of tokens.

        Raises:
            ArgumentError: the state is damaged, or of another draft. The sequence is forgotten.

        """
        facts, parts = unpack(data)
        self.forget(seq)
        if facts["draft"] != fingerprint:
            raise ArgumentError("the state was saved with another draft: read the text again")
        self.context.memory.restore(seq, parts[2])
        s = self.of(seq)
        self.commit([Committed(seq, np.frombuffer(parts[0], dtype="<i4").tolist(), 0)])
        s.held = np.frombuffer(parts[1], dtype="<i4").tolist()
        s.base, s.first, s.is_torn = facts["base"], facts["first"], facts["is_torn"]
        s.checkpoint, s.n_checkpoint = parts[3] or None, facts["n_checkpoint"]
        return len(s.tokens)
