"""Texts of earlier requests to copy from, kept within a bound by usefulness.

The texts lie one after the other in a TokenIndex, and after each is a MARK, which is no token.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from pyllama_spec.drafters.base import n_common_ids
from pyllama_spec.drafters.suffix.token_index import MAX_MATCH, TokenIndex

MARK = -1
# Shorter texts are not worth a place.
_MIN_TEXT = 8
# The most turns of a conversation that are followed.
_MAX_PARTS = 128
# A full memory frees a share at once; the newest texts stay in any case.
_KEEP_SHARE, _NEWEST_SHARE = 0.75, 0.25
_FIRST_CAPACITY = 1 << 12
_MARK = np.array([MARK], np.int32)


class TokenOrigin(IntEnum):
    """Who chose a token of a text.

    GIVEN: it was in the prompt, or its origin is no longer known.
    CHOSEN: the target chose it.
    MISSED: the target chose it, and a draft model whose guesses before it were right missed it.
    """

    GIVEN = 0
    CHOSEN = 1
    MISSED = 2


@dataclass(slots=True, eq=False)
class RememberedText:
    """A remembered text.

    Attributes:
        ids: [n] int32, its tokens; of a text in an index, a view.
        minute: the time when it was added, in minutes since 1970.
        n_used: the number of its tokens that were copied and accepted.
        known_origins: a TokenOrigin for each token, as bytes; b"" if all were given.
        key: its number in a store, from 1 on; 0 outside of one.
        parent: the key of the text that it continues; 0 if it begins a conversation.
        n_before: how many tokens of that text it continues, its own first MAX_MATCH included.
        at: the place of its first token in the index.
    """

    ids: npt.NDArray[np.int32]
    minute: int
    n_used: int = 0
    known_origins: bytes = b""
    key: int = 0
    parent: int = 0
    n_before: int = 0
    at: int = 0

    @property
    def n_entry(self) -> int:
        """The number of places that it takes in an index."""
        return len(self.ids) + 1

    @property
    def origins(self) -> npt.NDArray[np.uint8]:
        """[n] the TokenOrigin of each token."""
        return np.frombuffer(self.known_origins or bytes(len(self.ids)), np.uint8)


def now_minute() -> int:
    """Minutes since 1970."""
    return int(time.time()) // 60


def known_part(index: TokenIndex, ids: Sequence[int]) -> tuple[int, list[int]]:
    """The number of a text's first tokens that an index holds, chained text by text.

    A conversation is one text after the first turn, and a part of a new one for each turn more.
    The places after the known part come with it, the newest first.
    """
    n = min(MAX_MATCH, len(ids))
    tokens, wanted = index.array(), np.array(ids, np.int32)
    places = _places(index, ids[:n])
    for _ in range(_MAX_PARTS):
        equal = [n_common_ids(tokens[at:], wanted[n:]) for at in places]
        if not any(equal):
            break
        n += max(equal)
        places = _places(index, ids[n - MAX_MATCH : n])
    return (n if places else 0), places


def _places(index: TokenIndex, ids: Sequence[int]) -> list[int]:
    length, places = index.places(ids)
    return places if length == len(ids) else []


def most_useful(texts: Iterable[RememberedText], n_tokens: int) -> list[RememberedText]:
    """The most useful texts that fit into n tokens, in their order.

    The newest stay; of the others those of which most was copied and right for their length.
    """
    ordered = list(texts)
    kept: set[int] = set()
    room = n_tokens
    for i in range(len(ordered) - 1, -1, -1):
        size = ordered[i].n_entry
        if n_tokens - room + size > _NEWEST_SHARE * n_tokens:
            break
        kept.add(i)
        room -= size
    rest = [i for i in range(len(ordered)) if i not in kept]
    rest.sort(key=lambda i: (-ordered[i].n_used / (1 + len(ordered[i].ids)), -i))
    for i in rest:
        size = ordered[i].n_entry
        if size <= room:
            kept.add(i)
            room -= size
    return [ordered[i] for i in sorted(kept)]


class Memory:
    """Texts in this process's memory to copy from; they are lost when it ends.

    Attributes:
        max_tokens: the maximum number of tokens, a place more for each text.
        index: the index of the texts.
        held: the texts, the oldest first.
    """

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.held: list[RememberedText] = []
        self.index = TokenIndex(min(_FIRST_CAPACITY, max_tokens))

    def refresh(self) -> None:
        """Called when a request begins: reads what other processes have written."""

    def texts(self) -> list[RememberedText]:
        """All texts, the oldest first. The ids are views."""
        return list(self.held)

    def note_use(self, at: int, n: int) -> None:
        """Counts the tokens from a place on that were copied and accepted."""
        text = self.text_at(at)
        if text is not None:
            text.n_used += n

    def text_at(self, at: int) -> RememberedText | None:
        """The text around a place of the index."""
        i = bisect_right(self.held, at, key=attrgetter("at"))
        return self.held[i - 1] if i else None

    def add(self, ids: Sequence[int], origins: Sequence[int] = ()) -> None:
        """Adds the new part of a request's text, with the TokenOrigin of each; () for none."""
        self.put(ids, origins=origins)

    def put(
        self,
        ids: Sequence[int],
        *,
        minute: int | None = None,
        n_used: int = 0,
        origins: Sequence[int] = (),
    ) -> RememberedText | None:
        """Adds the new part of a text; None if there is none.

        What other texts have already is left out, except for the last tokens that lead to the new
        part. Of a text longer than a quarter of the memory only the end is added.
        """
        if len(ids) < _MIN_TEXT or min(ids) < 0:
            return None
        known, places = known_part(self.index, ids)
        if known == len(ids):
            return None
        lead = min(known, MAX_MATCH)
        room = int(_NEWEST_SHARE * self.max_tokens) - 1
        begin = max(known - lead, len(ids) - room)
        of_part = bytearray(origins[begin:])
        if of_part and begin == known - lead:
            of_part[:lead] = bytes(lead)  # the other text has them already
        when = now_minute() if minute is None else minute
        text = RememberedText(
            np.array(ids[begin:], np.int32), when, n_used, bytes(of_part) if any(of_part) else b""
        )
        text.parent, text.n_before = self._parent(places)
        self._make_room(text.n_entry)
        self.load([text])
        return text

    def _parent(self, places: Sequence[int]) -> tuple[int, int]:
        """The text that ended at one of these places, else the first that was there."""
        found = [(one, at - one.at) for at in places if (one := self.text_at(at - 1)) is not None]
        if not found:
            return 0, 0
        text, end = next((f for f in found if f[1] == len(f[0].ids)), found[-1])
        while end <= MAX_MATCH and (before := self._text_of(text.parent)) is not None:
            text, end = before, text.n_before - (MAX_MATCH - end)
        return text.key, end

    def _text_of(self, key: int) -> RememberedText | None:
        i = bisect_left(self.held, key, key=attrgetter("key"))
        return self.held[i] if i < len(self.held) and self.held[i].key == key > 0 else None

    def load(self, texts: Sequence[RememberedText]) -> None:
        """Appends texts, for which there is room."""
        if not texts:
            return
        begin = self.index.n
        self.index.append(np.concatenate([part for one in texts for part in (one.ids, _MARK)]))
        tokens = self.index.array()
        for one in texts:
            one.at, begin = begin, begin + one.n_entry
            one.ids = tokens[one.at : begin - 1]
        self.held += texts

    def _make_room(self, n_more: int) -> None:
        """Makes a larger index for more tokens, or one with the most useful texts."""
        if self.index.n + n_more <= self.index.capacity:
            return
        texts = self.held
        if self.index.n + n_more > self.max_tokens:
            texts = most_useful(self.texts(), max(int(_KEEP_SHARE * self.max_tokens) - n_more, 0))
            for text in texts:
                text.n_used //= 2
            self.drop_all_but(texts)
        self.replace(texts, n_more)

    def drop_all_but(self, texts: Sequence[RememberedText]) -> None:
        """Called before texts leave for room; the counts of uses of those that stay are halved."""

    def replace(self, texts: Sequence[RememberedText], n_more: int = 0) -> None:
        """Holds these texts alone, with room for n tokens more."""
        wanted = sum(one.n_entry for one in texts) + n_more
        self.index = TokenIndex(max(min(max(2 * wanted, _FIRST_CAPACITY), self.max_tokens), wanted))
        self.held = []
        self.load(texts)
