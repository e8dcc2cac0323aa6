"""Copies the tokens after an earlier occurrence of the last tokens, in this or earlier texts.

Each place with the longest match that continues alike has a vote, token by token, as in
SuffixDecoding (arXiv 2411.04975). A draft ends where it is no longer likely by the length of the
match and the share of places that agree, and a copy resumes after a difference between both texts.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple
from weakref import ref

import numpy as np
import numpy.typing as npt

from pyllama_spec.drafters.base import NO_DRAFT, Committed, Draft, Drafter, DraftRequest
from pyllama_spec.drafters.prompt_lookup import PromptLookup
from pyllama_spec.drafters.suffix.memory import MARK, Memory
from pyllama_spec.drafters.suffix.token_index import MAX_MATCH, ORDERS, TokenIndex
from pyllama_spec.engine import Context, Model
from pyllama_spec.engine.checks import count
from pyllama_spec.engine.vocab import Vocab
from pyllama_spec.errors import ArgumentError

_LOW, _HIGH = 0.01, 0.995
# On the traces and mixed prompts of benchmarks/ 100 of 174 copies of the text itself were right
# after three equal tokens.
_AFTER_THREE = 0.6
# After so few equal tokens a place in another text is weaker evidence than one in this text.
_OF_OTHERS = 0.8


def chance_of(match_length: int, share: float, *, is_own: bool, is_resumed: bool = False) -> float:
    """The chance of a copied token, given that those before it are right.

    What held m times holds again with chance (m + 1) / (m + 2), by Laplace's rule of succession.
    That is too high where little has held: three equal tokens are often equal by chance. Counting
    the outcomes of copies by such facts gave nothing on the traces of benchmarks/.

    Args:
        match_length: the number of equal tokens before it, drafted ones included.
        share: of the places whose text equals the draft up to here, those with this token.
        is_own: whether the copy is from the text itself.
        is_resumed: whether the copy resumed after a difference, match_length tokens before.
    """
    m = match_length
    if is_resumed:
        p = (m + 1.0) / (m + 2.0) * _OF_OTHERS
    else:
        p = (m + 1.0) / (m + 2.0) if m > 3 else _AFTER_THREE
        p *= share * (1.0 if is_own else 1.0 - (1.0 - _OF_OTHERS) * 3 / max(m, 3))
    return min(max(p, _LOW), _HIGH)


# The most tokens that the text may have from the difference on before the copy is given up.
_MAX_GAP = 12
# How many more of them the copied text may have.
_MAX_EXTRA = 12
# The most equal tokens after a difference that are looked for; the index finds longer matches.
_MAX_EQUAL = 3


class Gap(NamedTuple):
    """A difference between a text and the text it was copied from.

    After a difference no n-gram matches until some tokens are equal again, though the text often
    continues as the copied one does. So the drafter remembers the difference for some tokens, and
    resumes the copy after the next equal ones.
    """

    source: OwnText | Memory  # what was copied from: the text itself, or a memory of others
    at: int  # the index in that text of the token that did not come
    begin: int  # the index in the own text of the token that came instead


def resume_point(gap: Gap, index: TokenIndex, new: list[int]) -> tuple[int, int] | None:
    """Where the copy may continue after the tokens `new`, and how many are equal before it."""
    n = len(new)
    copied: list[int] = index.tokens[gap.at : min(gap.at + n + _MAX_EXTRA, index.n)].tolist()
    for n_equal in range(min(n, _MAX_EQUAL), 0, -1):
        ending = new[n - n_equal :]
        for end in range(n_equal, len(copied)):
            if copied[end - n_equal : end] == ending:
                return gap.at + end, n_equal
    return None


# Tokens of earlier requests that a drafter keeps in memory: of one user, and in all.
_USER_TOKENS, _ALL_TOKENS = 1 << 18, 1 << 20
_FIRST_CAPACITY = 1 << 10
# A draft ends before a token whose chance, with all before it, is below this.
_LEAST_CHANCE = 0.1
# A draft model is asked instead where the first token of a copy is more likely wrong than right.
_BESIDE_A_MODEL = 0.5


class OwnText:
    """The text of one sequence and its user.

    Attributes:
        index: the index of its tokens.
        user: the user of its request.
        remembers: whether later requests may copy from its new tokens.
        n_remembered: the number of its tokens that were remembered already, or must not be.
        n_private: the number of those that must not be remembered.
        origins: a byte for each token, 1 if the target chose it, 0 if it was given.
        gap: the newest difference from what was copied, while a copy may resume after it.
    """

    def __init__(self) -> None:
        self.index = TokenIndex(_FIRST_CAPACITY)
        self.origins = bytearray()
        self.user, self.remembers = "", False
        self.n_remembered = self.n_private = 0
        self.gap: Gap | None = None

    def append(self, tokens: Sequence[int] | npt.NDArray[np.int32], n_chosen: int = 0) -> None:
        """Appends tokens; the target chose the last n_chosen."""
        self.origins += bytes(len(tokens) - n_chosen) + b"\1" * n_chosen
        wanted = self.index.n + len(tokens)
        if wanted > self.index.capacity:
            before, self.index = self.index, TokenIndex(2 * wanted)
            self.index.append(before.array())
        self.index.append(tokens)

    def cut(self, n: int) -> None:
        """Drops the tokens from n on."""
        self.index.cut(n)
        del self.origins[n:]
        self.gap = None
        self.n_remembered, self.n_private = min(self.n_remembered, n), min(self.n_private, n)

    def take_new(self) -> tuple[list[int], bytes]:
        """The part to remember now, with the tokens before it, and each token's origin."""
        begin, self.n_remembered = self.n_remembered, self.index.n
        if not self.remembers:
            self.n_private = self.index.n
        if not self.remembers or begin >= self.index.n:
            return [], b""
        lead = max(begin - MAX_MATCH, self.n_private)
        out: list[int] = self.index.tokens[lead : self.index.n].tolist()
        # The leading tokens were remembered with their own text.
        return out, bytes(begin - lead) + self.origins[begin : self.index.n]


class _Copied(NamedTuple):
    """A draft whose tokens were not compared with the text yet."""

    ids: list[int]  # the tokens of the draft; none if the first is too unlikely
    p: list[float]  # the probability of each, given that those before it are right
    n_expected: float  # the expected number of correct tokens
    source: OwnText | Memory  # what was copied from: the text itself, or a memory of others
    at: int  # the index of the first copied token in the source
    match_length: int  # the number of equal tokens before it
    is_resumed: bool = False  # whether it resumed after a difference, and is no match


class Suffix(Drafter):
    """Proposes the tokens after the longest match in the text itself and in earlier ones.

    Args:
        max_draft: the maximum number of tokens of a draft.
        min_match: the number of last tokens that have to be equal.
        remembers: whether drafts are copied from texts of this drafter's earlier requests. They are
            kept in the memory of the process, apart for each user.
        store: the file of a store, which outlives the process, in place of that memory.
        least_chance: end a draft before a token if the probability of all tokens up to it is lower.
        first_chance: propose nothing if the first token's probability is lower.
        resumes: whether a copy that went wrong resumes after the difference, with fewer equal
            tokens than min_match.

    Raises:
        ArgumentError: a number is below 1, or min_match below 3, the least that an index has.
    """

    name = "suffix"
    has_lookup = is_lookup = True

    def __init__(
        self,
        max_draft: int = 15,
        *,
        min_match: int = min(ORDERS),
        remembers: bool = True,
        store: Memory | str | os.PathLike[str] | None = None,
        least_chance: float = _LEAST_CHANCE,
        first_chance: float = 0.0,
        resumes: bool = True,
    ) -> None:
        self.max_draft = count(max_draft, "max_draft", 1)
        self.min_match = count(min_match, "min_match", min(ORDERS))
        self._least_chance, self._first_chance = least_chance, first_chance
        self._remembers, self._resumes = remembers, resumes
        is_memory = isinstance(store, Memory)
        self._store_path: Any = None if is_memory else store
        self._store: Any = store if is_memory else None
        # The vocabulary of the open store; a strong reference would keep the weights alive.
        self._vocab: ref[Vocab] | None = None
        self._texts: dict[int, OwnText] = {}
        self._memories: OrderedDict[str, Memory] = OrderedDict()
        self._copied: dict[int, _Copied] = {}

    # ---- the target

    def check(self, target: Model) -> None:
        """Opens the store if there is one."""
        vocab = target.vocab
        if self._store_path is None or (self._vocab is not None and self._vocab() is vocab):
            return  # it takes a while for 150,000 tokens, and attach() comes here again
        from pyllama_spec.drafters.suffix.store import Store, vocabulary_digest

        digest = vocabulary_digest(vocab)
        if self._store is None or self._store.digest != digest:
            self._store = Store(self._store_path, digest)
        self._vocab = ref(vocab)

    def attach(self, target: Context) -> None:
        """Opens the store as check() does."""
        self.check(target.model)

    # ---- a request begins and ends

    def begin_request(self, seq: int, *, remember: bool = True, user: str = "") -> None:
        """Remembers the sequence's text if allowed; then the next request starts."""
        text = self._text(seq)
        self.end_request(seq)
        text.remembers, text.user = remember, user
        text.gap = None
        self._copied.pop(seq, None)
        for source in self._sources(user):
            source.refresh()

    def end_request(self, seq: int) -> None:
        """Remembers the text of the ended request, from which later ones may copy.

        What stands between pictures is remembered apart.
        """
        text = self._texts.get(seq)
        if text is None:
            return
        ids, origins = text.take_new()
        begin = 0
        for end in (*(i for i, token in enumerate(ids) if token < 0), len(ids)):
            if end > begin and self._store is not None:
                self._store.add(ids[begin:end], origins[begin:end])
            elif end > begin and self._remembers:
                self._memory(text.user).add(ids[begin:end])
            begin = end + 1

    def _text(self, seq: int) -> OwnText:
        text = self._texts.get(seq)
        if text is None:
            text = self._texts[seq] = OwnText()
        return text

    def _sources(self, user: str) -> list[Memory]:
        return [one for one in (self._store, self._memories.get(user)) if one is not None]

    def _memory(self, user: str) -> Memory:
        """A user's memory; for room, drops the memories unused for longest."""
        memory = self._memories.get(user)
        if memory is None:
            memory = self._memories[user] = Memory(_USER_TOKENS)
        self._memories.move_to_end(user)
        n_all = sum(one.index.capacity for one in self._memories.values())
        while n_all > _ALL_TOKENS and len(self._memories) > 1:
            n_all -= self._memories.popitem(last=False)[1].index.capacity
        return memory

    # ---- what it is given

    def commit_one(self, done: Committed) -> None:
        """Appends tokens, and notes where the last copy was wrong."""
        copied = self._copied.pop(done.seq, None)
        if copied is not None:
            self._compare(copied, done.tokens, self._text(done.seq))
        self._text(done.seq).append(done.tokens, done.n_chosen)

    def _compare(self, copied: _Copied, tokens: Sequence[int], text: OwnText) -> None:
        ids, source, at = copied.ids, copied.source, copied.at
        n_met, n_right = min(len(tokens), len(ids)), 0
        while n_right < n_met and ids[n_right] == tokens[n_right]:
            n_right += 1
        if not n_right and copied.is_resumed:
            return  # it resumed at a wrong place: the difference is where it was
        if _differs(copied, tokens, n_right):
            text.gap = Gap(source, at + n_right, text.index.n + n_right)

    def truncate(self, seq: int, n_keep: int) -> None:
        """Forgets all but the first n_keep tokens of the sequence."""
        self._copied.pop(seq, None)
        self._text(seq).cut(n_keep)

    def copy(self, seq: int, to: int) -> None:
        """Starts `to` with the tokens of `seq`."""
        self.end_request(to)
        self._copied.pop(to, None)
        before, text = self._text(to), OwnText()
        text.append(self._text(seq).index.array())
        text.user, text.remembers = before.user, before.remembers
        # Another request's, which remembers it: this one's text begins here.
        text.n_remembered = text.n_private = text.index.n
        self._texts[to] = text

    def tokens(self, seq: int) -> list[int]:
        """The tokens that it holds of a sequence."""
        out: list[int] = self._text(seq).index.array().tolist()
        return out

    # ---- drafting

    def propose_one(self, request: DraftRequest) -> Draft:
        """Proposes the tokens after the longest match, as far as they are likely.

        Of the text's copy and the memory's, the one that is likely right for longer counts.
        """
        text = self._text(request.seq)
        n = min(max(request.n_requested, request.n_lookup), self.max_draft)
        index = text.index
        if n < 1 or not index.n:
            return NO_DRAFT
        tail = index.tokens[max(index.n - MAX_MATCH, 0) : index.n].tolist()
        sources: list[OwnText | Memory] = [text, *self._sources(text.user)]
        found = [self._follow(source, tail, n) for source in sources]
        if text.gap is not None and self._resumes:
            found.append(self._resume(text.gap, text, n))
        copies = [copied for copied in found if copied is not None]
        if not copies:
            return NO_DRAFT
        best = max(copies, key=attrgetter("n_expected"))
        if best.p and best.p[0] < self._first_chance:
            best = best._replace(ids=[], p=[])
        # What is not drafted is compared with the text all the same: a copy may resume after it.
        self._copied[request.seq] = best
        if not best.ids:
            return NO_DRAFT
        is_remembered = best.source is not text
        return Draft(best.ids, best.p, match_length=best.match_length, is_remembered=is_remembered)

    def _follow(self, source: OwnText | Memory, tail: list[int], n: int) -> _Copied | None:
        """Continues after the longest match, token by token, as most occurrences do."""
        length, places = source.index.places(tail)
        if length < self.min_match:
            return None
        steps = _votes(source.index, length, places, n, is_own=isinstance(source, OwnText))
        return self._likely(steps, source, length)

    def _resume(self, gap: Gap, text: OwnText, n: int) -> _Copied | None:
        """Continues a copy after a difference, as far as it is likely to be right."""
        is_own, index = gap.source is text, gap.source.index
        new: list[int] = text.index.tokens[gap.begin : text.index.n].tolist()
        if len(new) > _MAX_GAP:
            text.gap = None
            return None
        point = resume_point(gap, index, new)
        if point is None:
            return None
        at, n_equal = point
        ids = _continuation(index, at, n, is_own=is_own)
        steps = (
            (token, chance_of(n_equal + depth, 1.0, is_own=is_own, is_resumed=True), at)
            for depth, token in enumerate(ids)
        )
        return self._likely(steps, gap.source, n_equal, is_resumed=True)

    def _likely(
        self,
        steps: Iterable[tuple[int, float, int]],
        source: OwnText | Memory,
        match_length: int,
        *,
        is_resumed: bool = False,
    ) -> _Copied | None:
        """Cuts a copy before its first unlikely token; None if there is nothing to copy."""
        ids, p = [], []
        survival, n_expected, begin = 1.0, 0.0, -1
        for token, chance, at in steps:
            if token < 0:
                break
            begin = at
            survival *= chance
            if survival < self._least_chance:
                break
            ids.append(token)
            p.append(chance)
            n_expected += survival
        if begin < 0:
            return None
        return _Copied(ids, p, n_expected, source, begin, match_length, is_resumed)

    # ---- for people

    def describe(self) -> dict[str, Any]:
        """The amount of remembered text."""
        path = None if self._store_path is None else str(self._store_path)
        return {"min_match": self.min_match, "n_users": len(self._memories), "store": path}

    def close(self) -> None:
        """Frees the memories. A store keeps its texts."""
        for seq in list(self._texts):
            self.end_request(seq)
        self._texts.clear()
        self._memories.clear()
        if self._store_path is not None and self._store is not None:
            self._store.close()
            self._store = self._vocab = None


def copies_beside(
    max_draft: int, min_match: int, remembers: bool, store: str | os.PathLike[str] | None
) -> Suffix | PromptLookup:
    """The copier before a draft model, which drafts where a copy is unlikely.

    A match length that an index does not know is looked up in the text alone.
    """
    if not min(ORDERS) <= min_match <= MAX_MATCH:
        if store is None:
            return PromptLookup(max_draft, max_ngram=min_match, min_ngram=min_match)
        raise ArgumentError(
            "lookup", min_match, f"{min(ORDERS)} to {MAX_MATCH}, the match lengths of an index, "
            "with a `draft_memory`",
        )  # fmt: skip
    return Suffix(
        max_draft, min_match=min_match, remembers=remembers, store=store,
        first_chance=_BESIDE_A_MODEL, resumes=False,
    )  # fmt: skip


def _differs(copied: _Copied, tokens: Sequence[int], n_right: int) -> bool:
    """Whether the text differs from the copied one after n_right equal tokens."""
    if n_right == len(tokens):
        return False
    if n_right < len(copied.ids):
        return True
    at, index = copied.at + n_right, copied.source.index
    return at < index.n and 0 <= index.tokens[at] != tokens[n_right]


def _votes(
    index: TokenIndex, match_length: int, places: Sequence[int], n: int, *, is_own: bool
) -> Iterator[tuple[int, float, int]]:
    """The most frequent next tokens among the places that agreed so far, with their chances."""
    ways = [(at, _continuation(index, at, n, is_own=is_own)) for at in places]
    for depth in range(n):
        follows = [ids[depth] for _, ids in ways]
        token, n_places = follows[0], len(follows)
        n_agree = n_places if n_places == 1 else follows.count(token)
        if n_agree < n_places:
            # Among equals that of the newest place.
            token = max(follows, key=follows.count)
            n_agree = follows.count(token)
            ways = [way for way in ways if way[1][depth] == token]
        chance = chance_of(match_length + depth, n_agree / n_places, is_own=is_own)
        yield token, chance, ways[0][0]


def _continuation(index: TokenIndex, at: int, n: int, *, is_own: bool) -> list[int]:
    """The n tokens after a place; MARK after the end of the text there.

    A copy that reaches the text's end continues with the draft, which follows it.
    """
    ids: list[int] = index.tokens[at : min(at + n, index.n)].tolist()
    period = index.n - at
    while len(ids) < n:
        ids.append(ids[len(ids) - period] if is_own else MARK)
    return ids
