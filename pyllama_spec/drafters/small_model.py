"""A small model of any text architecture drafts for a larger one (arXiv 2211.17192).

It reads the text itself and needs no row of the target. Each drafted token is a decode of it, and
the first of them reads what the last round added: n drafted tokens are n decodes, however many
sequences draft together. What it has read of accepted guesses stays in TokenMemory. The
vocabularies may differ (VocabMap). A chat template in its file is never used: it continues the
text that the target reads. For a request with DraftRequest.draws its tokens are drawn from its own
distribution, each with a call of its own.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pyllama_spec.drafters.base import Committed, Drafter, DraftRequest
from pyllama_spec.drafters.draft_memory import (
    Chain,
    Choice,
    DraftMemory,
    fill,
    pack,
    passed,
    unpack,
)
from pyllama_spec.drafters.draws import TokenDraws
from pyllama_spec.drafters.model_drafter import ModelDrafter
from pyllama_spec.drafters.options import DraftOptions, FileOptions
from pyllama_spec.drafters.output_part import reduced_output
from pyllama_spec.engine.batch import Batch
from pyllama_spec.engine.closeable import closed_on_failure
from pyllama_spec.engine.context import Context
from pyllama_spec.engine.load_errors import UnknownArchitectureError
from pyllama_spec.engine.model import Model
from pyllama_spec.engine.sampler import Distribution
from pyllama_spec.engine.vocab import Vocab
from pyllama_spec.errors import ArgumentError, EngineError, ModelLoadError, UnsupportedError
from pyllama_spec.gguf.sizes import bytes_per_token, main_type, tensor_bytes

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Ids by which vocabularies of one family are padded differently, as in the engine's own pairing.
MAX_PADDING = 128
# The minimum share of the target's tokens with a counterpart.
_LEAST_SHARE = 0.05
# End tokens have another name in each family: where the names differ, roles are compared.
_ROLES = ("bos", "eos", "eot", "sep", "pad", "fim_pre", "fim_suf", "fim_mid")


class VocabMap:
    """The map between the vocabularies of a target and a draft model.

    Two models of one family have the same ids, but for padding at the end. Others have the same
    texts under other ids, as far as they have them at all: an id of the one stands for the id of
    the other whose token has the same bytes. What the draft lacks is put into its text as several
    of its tokens; what the target lacks ends a draft. A wrong guess only costs a row of a verify
    batch, so that the map has to be good and not perfect.

    Attributes:
        target: the vocabulary of the target.
        is_identity: whether the ids are equal, except for padding.
        n_target: the number of the target's ids.
        n_shared: the number of the target's ids with a counterpart in the draft.
    """

    def __init__(self, target: Vocab, draft: Vocab) -> None:
        self.target, self._draft = target, draft
        self.n_target = target.n_tokens
        n_common = min(target.n_tokens, draft.n_tokens)
        self.is_identity = abs(target.n_tokens - draft.n_tokens) <= MAX_PADDING and all(
            target.piece(i, special=True) == draft.piece(i, special=True) for i in range(n_common)
        )
        self._to_target: Sequence[int] = ()
        self._to_draft: list[tuple[int, ...] | None] = []
        if self.is_identity:
            self._n_draft = n_common
            self.n_shared = n_common
        else:
            self._n_draft = draft.n_tokens
            self._map()

    def _map(self) -> None:
        target, draft = self.target, self._draft
        of_key: dict[tuple[bytes, bytes], int] = {}
        for i in range(draft.n_tokens):
            of_key.setdefault(_key(draft, i), i)  # of several with the same bytes the first is used
        to_target = [-1] * draft.n_tokens
        self._to_draft = [None] * target.n_tokens
        roles = {target.special(role): draft.special(role) for role in _ROLES}
        # In reverse, so that of several with the same bytes the first is what a guess becomes.
        for i in reversed(range(target.n_tokens)):
            key = _key(target, i)
            other = of_key.get(key) if any(key) else None
            if other is None:
                other = roles.get(i)
            if other is not None:
                self._to_draft[i] = (other,)
                to_target[other] = i
        self._to_target = to_target
        self.n_shared = sum(ids is not None for ids in self._to_draft)

    @property
    def coverage(self) -> float:
        """The share of the target's ids that have a counterpart."""
        return self.n_shared / self.n_target

    def check(self, name: str) -> None:
        """Raises unless enough of the target's ids have a counterpart."""
        if self.coverage < _LEAST_SHARE:
            raise ArgumentError(
                "draft", name, "a model of the target's family",
                problem=f"shares {self.n_shared} of the target's {self.n_target} tokens, too few "
                "to draft",
            )  # fmt: skip

    def of_draft(self, token: int) -> int:
        """The target's id of a draft id; -1 for none."""
        if self.is_identity:
            return token if token < self.n_shared else -1
        return self._to_target[token]

    @cached_property
    def counterparts(self) -> npt.NDArray[np.int32] | None:
        """[draft ids] int32, of_draft() of each; None if the map is the identity."""
        n = self._draft.n_tokens
        if self.is_identity and n == self.n_shared:
            return None
        return np.array([self.of_draft(i) for i in range(n)], np.int32)

    def to_draft(self, token: int) -> tuple[int, ...]:
        """The draft's ids of a target id: one, or those of its text; () for none."""
        if token < 0:  # a row of a picture
            return ()
        if self.is_identity:
            return (token,) if token < self._n_draft else ()
        ids = self._to_draft[token]
        if ids is None:
            ids = self._to_draft[token] = self._tokenized(token)
        return ids

    def _tokenized(self, token: int) -> tuple[int, ...]:
        piece = self.target.piece(token)
        if not piece:
            return ()
        ids = self._draft.tokenize(piece, add_special=False)
        # Such as half a character: a tokenizer may replace it, and the draft would see another
        # text.
        return tuple(ids) if self._draft.detokenize(ids).lstrip() == piece.lstrip() else ()


def _key(vocab: Vocab, token: int) -> tuple[bytes, bytes]:
    """The bytes of a token, or a control token's name."""
    piece = vocab.piece(token)
    return (piece, b"") if piece else (b"", vocab.piece(token, special=True))


_NO_ROW = np.zeros(0, np.float32)


@dataclass(slots=True)
class SequenceText:
    """The memory of one sequence."""

    tokens: list[int] = field(default_factory=list)  # the ids of the target, the last one pending
    # The same text in ids of the draft, without pictures; the same list if it is equal.
    ids: list[int] = field(default_factory=list)
    # [len(tokens)] the number of ids up to the end of each token; unused if the list is the same.
    ends: list[int] = field(default_factory=list)
    # The ids in the draft's memory: those of the text without the oldest, then guesses.
    held: list[int] = field(default_factory=list)
    # The number of `held` ids that are known to equal the text's and are not compared again.
    n_equal: int = 0
    # The index of the id at position 0 of the memory: after a text longer than the window, the
    # memory starts again.
    base: int = 0
    first: int = 0  # the index of the first id that is in the window and was read
    # The recurrent state after the first n_checkpoint of those ids.
    checkpoint: memoryview | bytes | None = None
    n_checkpoint: int = 0
    # Whether a decode was interrupted: the memory may hold more than recorded here.
    is_torn: bool = False


class TokenMemory(DraftMemory):
    """The texts of all sequences, in a draft model's context.

        the text           x[0] ... x[n-1]                    committed, the last one pending
        the model holds    x[0] ... x[n-1] d[1] ... d[k-1]    after a draft d[1] ... d[k]
        accepted are       d[1] ... d[a], then the target's own token t

    Accepted guesses stay in its memory, since they are tokens of the text now: it rolls back to
    where its memory and the text differ, and decodes the missing tokens in one batch, the first
    step of the next draft. A recurrent state cannot be cut: a copy is taken of it where the text
    ended, before the first guess, and what was accepted is read again after it, in the same batch.

    It decodes nothing before the first draft, so a text without drafts costs nothing.

    Attributes:
        n_read: the number of decoded tokens.
    """

    def __init__(self, context: Context, vocab: VocabMap, n_window: int, n_guesses: int) -> None:
        super().__init__(context)
        self.vocab, self.n_read = vocab, 0
        self._n_window, self._n_guesses = n_window, n_guesses
        self._has_state = context.model.info.has_recurrent_state
        self._batch = Batch(context.n_batch)
        self._sequences: dict[int, SequenceText] = {}

    def of(self, seq: int) -> SequenceText:
        """The memory of a sequence."""
        if seq not in self._sequences:
            text = SequenceText()
            if self.vocab.is_identity:
                text.ids = text.tokens
            self._sequences[seq] = text
        return self._sequences[seq]

    def tokens(self, seq: int) -> list[int]:
        """The tokens of a sequence, as ids of the target."""
        return self.of(seq).tokens

    # ---- the text

    def commit(self, done: Sequence[Committed]) -> None:
        """Notes tokens without computing."""
        for one in done:
            s = self.of(one.seq)
            if s.ids is s.tokens and min(one.tokens, default=0) < 0:
                s.ids, s.ends = list(s.tokens), list(range(1, len(s.tokens) + 1))
            s.tokens.extend(one.tokens)
            if s.ids is not s.tokens:
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
        if s.ids is not s.tokens and len(s.ends) > n_keep:
            del s.ids[s.ends[n_keep - 1] :], s.ends[n_keep:]
        s.n_equal = min(s.n_equal, len(s.ids))

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
        ids = tokens if s.ids is s.tokens else list(s.ids)
        self._sequences[to] = replace(
            s, tokens=tokens, ids=ids, ends=list(s.ends), held=list(s.held)
        )

    # ---- drafting

    def n_unread(self, seq: int) -> int:
        """The number of the text's ids that the context does not hold."""
        s = self.of(seq)
        return len(s.ids) - self._n_common(s)

    def ask(self, chains: Sequence[Chain], n: int) -> None:
        """Feeds the missing ids of each text; sets the guess after it."""
        by_seq = {chain.seq: chain for chain in chains}
        left = {}
        for seq in sorted(by_seq):
            s = self._sequences[seq]
            self._go_back(seq, s)
            left[seq] = len(s.ids) - len(s.held)
        while left:
            parts = fill(self._batch, left, self._put)
            self._decode_for(self._batch, [self._sequences[seq] for seq, _, _ in parts])
            # Only now: an interrupt before would leave a hole in the memory.
            for seq, n_fed, end in parts:
                s = self._sequences[seq]
                s.held.extend(s.ids[len(s.held) : len(s.held) + n_fed])
                s.n_equal = len(s.held)
                if end is not None:
                    by_seq[seq].choice = self._choice_at(end, by_seq[seq].request.draws)
        if self._has_state:
            for seq in by_seq:
                s = self._sequences[seq]
                s.checkpoint, s.n_checkpoint = self.context.memory.checkpoint(seq), len(s.held)

    def _put(self, seq: int, n: int, is_end: bool) -> None:
        s = self._sequences[seq]
        at = len(s.held)
        self._batch.extend(s.ids[at : at + n], at - s.base, seq, output_last=is_end)

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

    def step(self, chains: Sequence[Chain]) -> None:
        """Feeds each chain's newest token, which both vocabularies have."""
        batch, texts = self._batch, [self._sequences[chain.seq] for chain in chains]
        newest = [self.vocab.to_draft(chain.ids[-1])[0] for chain in chains]
        batch.clear()
        for chain, s, token in zip(chains, texts, newest, strict=True):
            batch.add(token, len(s.held) - s.base, chain.seq, output=True)
        self._decode_for(batch, texts)
        for i, (chain, s, token) in enumerate(zip(chains, texts, newest, strict=True)):
            s.held.append(token)
            chain.choice = self._choice_at(i, chain.request.draws)

    def draft_on(self, guesses: dict[int, int], goes_on: Callable[[int, Choice], bool]) -> None:
        """Feeds a guess after the text of each sequence, and further ones while they continue.

        goes_on(i, choice) returns whether the choice after the newest guess of the i-th sequence is
        a guess as well.
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

    def _choice_at(self, row: int, draws: TokenDraws | None) -> Choice:
        """The draft's choice at a row of the last batch, among ids that the target has."""
        if draws is not None:
            return self._drawn(draws, row)
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
        self.n_read += batch.n_tokens
        super().decode(batch)

    # ---- a state that outlasts a request

    def save(self, seq: int, draft: str) -> bytes:
        """The state of a sequence."""
        s = self.of(seq)
        facts = {
            "base": s.base, "first": s.first, "n_checkpoint": s.n_checkpoint, "is_torn": s.is_torn,
        }  # fmt: skip
        tokens, held = (np.array(ids, dtype="<i4").tobytes() for ids in (s.tokens, s.held))
        state = self.context.memory.save(seq)
        return pack(facts, [tokens, held, state, bytes(s.checkpoint or b"")], draft)

    def restore(self, seq: int, data: bytes, draft: str) -> int:
        """Restores a state of save(); returns the number of tokens."""
        self.forget(seq)
        facts, parts = unpack(data, draft)
        self.context.memory.restore(seq, parts[2])
        s = self.of(seq)
        self.commit([Committed(seq, np.frombuffer(parts[0], dtype="<i4").tolist(), 0)])
        s.held = np.frombuffer(parts[1], dtype="<i4").tolist()
        s.base, s.first, s.is_torn = facts["base"], facts["first"], facts["is_torn"]
        s.checkpoint, s.n_checkpoint = parts[3] or None, facts["n_checkpoint"]
        return len(s.tokens)


class SmallModel(ModelDrafter[TokenMemory]):
    """Drafts in a chain with an ordinary model."""

    name = "draft-model"
    lengths = (4, 8)
    draws_tokens = True

    def __init__(
        self,
        model: Model | str | os.PathLike[str],
        max_draft: int | None = None,
        **options: Unpack[FileOptions],
    ) -> None:
        super().__init__(model, max_draft, **options)
        self._vocab: VocabMap | None = None

    @classmethod
    def open(cls, path: Any, options: DraftOptions) -> Drafter:
        """Opens a model, with lookups beside it unless options.lookup is 0."""
        try:
            return super().open(path, options)
        except UnknownArchitectureError as error:
            raise UnsupportedError(
                f"drafts of kind {error.arch!r} are not supported by this version ({path.name}); "
                'draft="prompt-lookup" needs no file'
            ) from None

    def check_kind(self, model: Model) -> None:
        """Raises unless a model drafts by itself."""
        info = model.info
        if info.n_target_layers or model.is_encoder or info.has_encoder or info.is_diffusion:
            problem = f"({info.arch}) is not a model that generates text"
            raise ArgumentError("draft", model.path.name, problem=problem)

    def check(self, target: Model) -> None:
        """Raises unless the draft shares enough of the target's vocabulary."""
        if self._vocab is None or self._vocab.target is not target.vocab:
            # It takes about a second for 150,000 tokens; attach() comes here again.
            self._vocab = VocabMap(target.vocab, self.model.vocab)
        self._vocab.check(self.model.path.name)

    def open_memory(self, target: Context) -> TokenMemory:
        """Opens room for as many tokens as the target has, and for guesses after them."""
        assert self._vocab is not None  # attach() checks first
        params = target.params
        n_window = min(self._n_ctx or target.n_ctx_seq, target.n_ctx_seq)
        # A step feeds one token of each sequence.
        n_batch = max(min(params.n_batch, params.n_ubatch), params.n_seq_max)
        n_guesses = self.max_draft
        context = self.open_context(target, n_window, n_guesses, n_batch, params.n_seq_max)
        if self._vocab.is_identity:
            with closed_on_failure(context):
                self._draft_ids = reduced_output(context, self._n_output, target.model)
        self.step_share = step_share(self.model, target.model)
        return TokenMemory(context, self._vocab, n_window + n_guesses, n_guesses)

    def can_draft(self, request: DraftRequest) -> bool:
        """Whether tokens are requested and the draft can read the text."""
        return super().can_draft(request) and bool(self.memory_or_fail().of(request.seq).ids)

    def go_on(self, going: list[Chain], errors: dict[int, Exception]) -> None:
        """Drafts all further tokens in one engine call, unless chance chooses."""
        if any(c.request.draws is not None for c in going):
            super().go_on(going, errors)
        elif going:
            memory = self.memory_or_fail()

            def goes_on(i: int, choice: Choice) -> bool:
                going[i].choice = choice
                return bool(passed([going[i]], self.extend, errors))

            memory.draft_on({c.seq: c.ids[-1] for c in going}, goes_on)

    def describe(self) -> dict[str, Any]:
        """The draft's file, sizes, and share of the target's vocabulary."""
        facts = super().describe()
        del facts["target_layers"]
        facts["reads"] = "the text"
        with contextlib.suppress(ModelLoadError):
            facts["weights"] = main_type(self.model.path)
        vocab = self._vocab
        if vocab is not None:
            facts["vocabulary"] = "the target's" if vocab.is_identity else "another one"
            facts["shared_tokens"], facts["target_tokens"] = vocab.n_shared, vocab.n_target
        return facts


def step_share(draft: Model, target: Model) -> float:
    """The cost of a drafted token relative to a target row, by the weights that each reads.

    Where weights are read from memory as fast as they come, that is the ratio of their times; a
    type that is expensive to unpack makes it larger.
    """
    return weight_bytes(draft) / max(weight_bytes(target), 1)


def weight_bytes(model: Model) -> int:
    """Bytes of weights that a plain token reads: of all where the file does not tell them apart."""
    metadata = model.metadata
    if int(metadata.get("split.count", "0")) > 1:
        return model.info.size_bytes
    try:
        return bytes_per_token(tensor_bytes(model.path), metadata)
    except ModelLoadError:
        return model.info.size_bytes
