"""Ids below 0: rows of images among the tokens of a text.

They are made of a medium's rows, and say where a medium begins and how many positions it takes,
so that the ids of a text alone say where each of them is in a model's memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

_FIRST = 1 << 30  # set in the id of a medium's first row


class MediaRun(NamedTuple):
    """Where a run of rows is among the ids of a text, and what it takes of its positions."""

    start: int
    n_rows: int
    n_positions: int

    @property
    def end(self) -> int:
        """The index after its last row."""
        return self.start + self.n_rows


def media_ids(content: bytes, n_rows: int, n_positions: int) -> tuple[int, ...]:
    """An id below 0 for each row: the first says that it is, the second n_positions.

    All others are 31 bits of a digest of the content and the row's number.
    """
    import hashlib  # not for a model without pictures

    words = np.frombuffer(hashlib.shake_256(content).digest(4 * n_rows), np.uint32) & (_FIRST - 1)
    values = words.astype(np.int64)
    values[0] |= _FIRST
    if n_rows > 1:
        values[1] = n_positions
    return tuple((-1 - values).tolist())


def is_media(token: int) -> bool:
    """Whether an id is that of a row of a medium."""
    return token < 0


def begins_media(token: int) -> bool:
    """Whether an id is that of the first row of a medium."""
    return token < 0 and (-1 - token) & _FIRST != 0


def media_runs(tokens: Sequence[int]) -> Iterator[MediaRun]:
    """The runs of rows among the ids of a text."""
    starts = [i for i, token in enumerate(tokens) if begins_media(token)]
    for start in starts:
        end = start + 1
        while end < len(tokens) and is_media(tokens[end]) and not begins_media(tokens[end]):
            end += 1
        n_positions = -1 - tokens[start + 1] if end > start + 1 else 1
        yield MediaRun(start, end - start, n_positions)


def up_to_medium(tokens: Sequence[int], n: int) -> int:
    """n, or less where the first n tokens would end inside a medium: where that begins."""
    while 0 < n < len(tokens) and is_media(tokens[n]) and not begins_media(tokens[n]):
        n -= 1
    return n
