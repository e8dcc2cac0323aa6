"""Texts of earlier requests to copy from, kept within a bound: the oldest leave.

The texts lie one after the other in a TokenIndex, and after each is a MARK, which is no token.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
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
# A full memory frees a share at once; no text takes more than another one.
_KEEP_SHARE, _TEXT_SHARE = 0.75, 0.25
_FIRST_CAPACITY = 1 << 12
_MARK = np.array([MARK], np.int32)


@dataclass(slots=True, eq=False)
class RememberedText:
    """A remembered text."""

    ids: npt.NDArray[np.int32]  # [n] int32, its tokens; of a text in an index, a view
    minute: int  # the time when it was added, in minutes since 1970
    known_origins: bytes = b""  # see origins; b"" if all were given
    key: int = 0  # its number in a store, from 1 on; 0 outside of one
    parent: int = 0  # the key of the text that it continues; 0 if it begins a conversation
    n_before: int = 0  # how many tokens of that text it continues, its own first MAX_MATCH included
    at: int = 0  # the place of its first token in the index

    @property
    def n_entry(self) -> int:
        """The number of places that it takes in an index."""
        return len(self.ids) + 1

    @property
    def origins(self) -> npt.NDArray[np.uint8]:
        """[n] 0 for each token that was in a prompt, or whose origin is lost; 1 for a chosen one.

        Earlier versions wrote 2 for a chosen token that a draft model had missed.
        """
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


def newest_texts(texts: Sequence[RememberedText], n_tokens: int) -> list[RememberedText]:
    """The newest texts that fit into n tokens, in their order."""
    room, n = n_tokens, 0
    for one in reversed(texts):
        room -= one.n_entry
        if room < 0:
            break
        n += 1
    return list(texts[len(texts) - n :])


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

    def text_at(self, at: int) -> RememberedText | None:
        """The text around a place of the index."""
        i = bisect_right(self.held, at, key=attrgetter("at"))
        return self.held[i - 1] if i else None

    def add(self, ids: Sequence[int], origins: Sequence[int] = ()) -> None:
        """Adds the new part of a request's text, with each token's origin; () if all were given."""
        self.put(ids, origins=origins)

    def put(
        self,
        ids: Sequence[int],
        *,
        minute: int | None = None,
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
        room = int(_TEXT_SHARE * self.max_tokens) - 1
        begin = max(known - lead, len(ids) - room)
        of_part = bytearray(origins[begin:])
        if of_part and begin == known - lead:
            of_part[:lead] = bytes(lead)  # the other text has them already
        when = now_minute() if minute is None else minute
        text = RememberedText(
            np.array(ids[begin:], np.int32), when, bytes(of_part) if any(of_part) else b""
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
        """Makes a larger index for more tokens, or one with the newest texts."""
        if self.index.n + n_more <= self.index.capacity:
            return
        texts = self.held
        if self.index.n + n_more > self.max_tokens:
            texts = newest_texts(texts, max(int(_KEEP_SHARE * self.max_tokens) - n_more, 0))
            self.drop_all_but(texts)
        self.replace(texts, n_more)

    def drop_all_but(self, texts: Sequence[RememberedText]) -> None:
        """Called before other texts leave for room."""

    def replace(self, texts: Sequence[RememberedText], n_more: int = 0) -> None:
        """Holds these texts alone, with room for n tokens more."""
        wanted = sum(one.n_entry for one in texts) + n_more
        self.index = TokenIndex(max(min(max(2 * wanted, _FIRST_CAPACITY), self.max_tokens), wanted))
        self.held = []
        self.load(texts)
