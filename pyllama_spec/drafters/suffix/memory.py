"""Texts of earlier requests to copy from, kept within a bound by usefulness.

The texts lie one after the other in a TokenIndex. Each begins with a header of negative numbers,
which no n-gram of a text is equal to: its mark, when it came, how many of its tokens were copied
and turned out right, and its length. After the tokens more of them may say whose each token was
(see TokenOrigin). So the tokens are all that there is to keep, and what is left of a damaged log
can be read.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from pyllama_spec.drafters.suffix.token_index import (
    MAX_MATCH,
    TokenIndex,
    index_bytes,
)

MARK = -1
HEADER_TOKENS = 4
# Shorter texts are not worth a header.
_MIN_TEXT = 8
# The most turns of a conversation that are followed.
_MAX_PARTS = 128
# A full memory frees a share at once; the newest texts stay in any case.
_KEEP_SHARE, _NEWEST_SHARE = 0.75, 0.25
_FIRST_CAPACITY = 1 << 12
_MAX_NUMBER = (1 << 31) - 3
# Two bits of a token's origin; 30 of them leave room for the two numbers that mean something else.
_ORIGINS_PER_NUMBER = 15
_NO_ORIGINS = np.empty(0, np.int32)
# Tokens that are looked through at once for marks.
_BLOCK = 1 << 20


class TokenOrigin(IntEnum):
    """Who chose a token of a text.

    GIVEN: it was in the prompt, or its origin is no longer known.
    CHOSEN: the target chose it.
    MISSED: the target chose it, and a draft model whose guesses before it were right missed it.
    """

    GIVEN = 0
    CHOSEN = 1
    MISSED = 2


@dataclass(slots=True)
class RememberedText:
    """A remembered text.

    Attributes:
        ids: [n] int32 view of its tokens.
        at: the index of its first token.
        minute: the time when it was added, in minutes since 1970.
        n_used: the number of its tokens that were copied and accepted.
        packed_origins: the origins of its tokens as stored in the log; empty if all were given.
    """

    ids: npt.NDArray[np.int32]
    at: int
    minute: int
    n_used: int
    packed_origins: npt.NDArray[np.int32] = field(default_factory=_NO_ORIGINS.copy)

    @property
    def n_entry(self) -> int:
        """The number of the log's entries that the text takes, header and origins included."""
        return HEADER_TOKENS + len(self.ids) + len(self.packed_origins)

    @property
    def origins(self) -> npt.NDArray[np.uint8]:
        """[n] TokenOrigin of each token."""
        return unpack_origins(self.packed_origins, len(self.ids))


class Source(Protocol):
    """A source of texts to copy from, beside the text itself."""

    @property
    def index(self) -> TokenIndex:
        """The current index of the texts."""

    def refresh(self) -> None:
        """Called when a request begins: reads what other processes have written."""

    def add(self, ids: Sequence[int], origins: Sequence[int] = ()) -> None:
        """Takes the text of a request that has ended, with the TokenOrigin of each; () for none."""

    def note_use(self, at: int, n: int) -> None:
        """Counts the tokens from a place on that were copied and accepted."""


def texts_of(index: TokenIndex) -> Iterator[RememberedText]:
    """All texts of an index, oldest first; of a damaged index, the readable ones.

    A text ends where its file has a hole: a part that no disk holds is not text.
    """
    for begin, end in index.held_tokens():
        yield from _texts_between(index.array(), begin, end)


def _texts_between(
    tokens: npt.NDArray[np.int32], first: int, last: int
) -> Iterator[RememberedText]:
    begins = np.concatenate(
        [
            low + np.flatnonzero(tokens[low : min(low + _BLOCK, last)] == MARK)
            for low in range(first, last, _BLOCK)
        ]
    )
    ends = np.append(begins[1:], last) if len(begins) else begins
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        at = begin + HEADER_TOKENS
        head = tokens[begin:at].tolist()
        if at >= end or max(head) >= 0:
            continue
        n = min(_number(head[3]), end - at)
        ids = tokens[at : at + n]
        if n and int(ids.min()) >= 0:
            packed = tokens[at + n : min(at + n + _n_packed(n), end)]
            if len(packed) < _n_packed(n) or int(packed.max()) >= MARK:
                packed = _NO_ORIGINS  # it has none, or they are damaged
            yield RememberedText(ids, at, _number(head[1]), _number(head[2]), packed)


def with_header(
    ids: npt.NDArray[np.int32], minute: int, n_used: int, packed_origins: npt.NDArray[np.int32]
) -> npt.NDArray[np.int32]:
    """A text in the log's format."""
    head = [MARK, _coded(minute), _coded(n_used), _coded(len(ids))]
    out: npt.NDArray[np.int32] = np.concatenate([np.array(head, np.int32), ids, packed_origins])
    return out


def _n_packed(n: int) -> int:
    return -(-n // _ORIGINS_PER_NUMBER)


def pack_origins(origins: Sequence[int] | npt.NDArray[np.uint8]) -> npt.NDArray[np.int32]:
    """Packs TokenOrigins as negative numbers for the log; () if all tokens were given."""
    values = np.asarray(origins, np.int32)
    if not values.any():
        return _NO_ORIGINS
    rows = np.zeros((_n_packed(len(values)), _ORIGINS_PER_NUMBER), np.int32)
    rows.reshape(-1)[: len(values)] = values
    numbers = (rows << (2 * np.arange(_ORIGINS_PER_NUMBER, dtype=np.int32))).sum(1)
    out: npt.NDArray[np.int32] = (-2 - numbers).astype(np.int32)
    return out


def unpack_origins(packed: npt.NDArray[np.int32], n: int) -> npt.NDArray[np.uint8]:
    """[n] Unpacks the numbers of pack_origins()."""
    out = np.zeros(n, np.uint8)
    if len(packed):
        shifts = 2 * np.arange(_ORIGINS_PER_NUMBER, dtype=np.int32)
        out[:] = (((-2 - packed)[:, None] >> shifts) & 3).reshape(-1)[:n]
    return out


def _coded(number: int) -> int:
    return -(2 + min(max(number, 0), _MAX_NUMBER))


def _number(coded: int) -> int:
    return max(-coded - 2, 0)


def now_minute() -> int:
    """Minutes since 1970."""
    return int(time.time()) // 60


def n_known(index: TokenIndex, ids: Sequence[int]) -> int:
    """The number of a text's first tokens that other texts already hold, chained text by text.

    A conversation is one text after the first turn, and a part of a new one for each turn more.
    """
    n = MAX_MATCH
    if len(ids) < n:
        # Nothing follows the newest text yet, so that no place leads to its end.
        newest = index.array()[max(index.n - len(ids), 0) : index.n].tolist()
        is_there = any(length == len(ids) for length, _ in index.places(ids))
        return len(ids) if is_there or newest == list(ids) else 0
    if not _is_there(index, ids[:n]):
        return 0
    tokens, wanted = index.array(), np.array(ids, np.int32)
    for _ in range(_MAX_PARTS):
        longest = n
        for length, at in index.places(ids[n - MAX_MATCH : n]):
            if length == MAX_MATCH:
                there = tokens[at : at + len(ids) - n]
                differs = np.flatnonzero(there != wanted[n : n + len(there)])
                longest = max(longest, n + (int(differs[0]) if len(differs) else len(there)))
        if longest == n:
            break
        n = longest
    return n


def _is_there(index: TokenIndex, ids: Sequence[int]) -> bool:
    return any(length == MAX_MATCH for length, _ in index.places(ids))


def new_part(index: TokenIndex, ids: Sequence[int]) -> Sequence[int]:
    """The new part of a text; () for none.

    A common beginning is left out, except for the last tokens that lead to the new part.
    """
    if len(ids) < _MIN_TEXT or min(ids) < 0:
        return ()
    n = n_known(index, ids)
    return () if n == len(ids) else ids[max(n - MAX_MATCH, 0) :]


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


def fill(index: TokenIndex, texts: Sequence[RememberedText], *, ages: bool) -> None:
    """Writes texts into an empty index."""
    if texts:
        parts = [with_header(t.ids, t.minute, t.n_used >> ages, t.packed_origins) for t in texts]
        index.append(np.concatenate(parts))


def note_use(index: TokenIndex, at: int, n: int) -> None:
    """Counts the text's tokens around a place that were copied and accepted."""
    tokens = index.array()
    low = max(at - (1 << 16), 0)
    marks = np.flatnonzero(tokens[low:at] == MARK)
    if len(marks):
        where = low + int(marks[-1]) + 2
        if tokens[where] < 0:
            index.tokens[where] = _coded(_number(int(tokens[where])) + n)


def entry_of(
    index: TokenIndex,
    ids: Sequence[int],
    max_tokens: int,
    *,
    minute: int | None = None,
    n_used: int = 0,
    origins: Sequence[int] = (),
) -> npt.NDArray[np.int32]:
    """The new part of a text in the log's format; empty for none.

    Of a text longer than a quarter of the memory only the end is added.
    """
    room = int(_NEWEST_SHARE * max_tokens) - HEADER_TOKENS
    if len(origins):
        room -= _n_packed(room)
    new = new_part(index, ids)
    part = new[-room:]
    if not len(part):
        return np.empty(0, np.int32)
    packed = _NO_ORIGINS
    if len(origins):
        of_part = np.array(origins[-len(part) :], np.uint8)
        if len(part) == len(new) < len(ids):
            of_part[:MAX_MATCH] = TokenOrigin.GIVEN  # the other text has them already
        packed = pack_origins(of_part)
    when = now_minute() if minute is None else minute
    return with_header(np.array(part, np.int32), when, n_used, packed)


class Room(NamedTuple):
    """The replacement for an index that is too small.

    Where it is_full, other texts were dropped, and the counts of uses of these are halved.
    """

    texts: list[RememberedText]
    capacity: int
    is_full: bool


def room_for(
    index: TokenIndex, n_more: int, max_tokens: int, *, is_due: bool = False
) -> Room | None:
    """A larger index for more tokens, or one with the most useful texts; None if they fit.

    The size that an index records may be forged, so its texts are counted.
    """
    if index.n + n_more <= index.capacity and not is_due:
        return None
    texts = list(texts_of(index))
    wanted = sum(text.n_entry for text in texts) + n_more
    is_full = wanted > max_tokens
    if is_full:
        texts = most_useful(texts, max(int(_KEEP_SHARE * max_tokens) - n_more, 0))
    return Room(texts, min(max(2 * wanted, _FIRST_CAPACITY), max_tokens), is_full)


class Memory:
    """Texts in this process's memory; they are lost when it ends."""

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.index = _new_index(min(_FIRST_CAPACITY, max_tokens))

    def refresh(self) -> None:
        """Does nothing: no other process writes here."""

    def note_use(self, at: int, n: int) -> None:
        """See Source."""
        note_use(self.index, at, n)

    def add(self, ids: Sequence[int], origins: Sequence[int] = ()) -> None:
        """Adds the new part of a text; drops the least useful texts for room.

        Origins are not kept: training never reads a memory that ends with the process.
        """
        entry = entry_of(self.index, ids, self.max_tokens)
        if not len(entry):
            return
        room = room_for(self.index, len(entry), self.max_tokens)
        if room is not None:
            index = _new_index(room.capacity)
            fill(index, room.texts, ages=room.is_full)
            self.index = index
        self.index.append(entry)


def _new_index(capacity: int) -> TokenIndex:
    return TokenIndex(memoryview(bytearray(index_bytes(capacity))), capacity)
