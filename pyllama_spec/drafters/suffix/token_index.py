"""Finds earlier places with the same last tokens: chains of places by hash.

It is how compressors of Lempel and Ziv's kind find repetitions. For each length in ORDERS a table
has, by a hash of that many tokens, the newest place after them, and each place has the one before
it. So a token costs two writes and a lookup follows chains of bounded length, however many tokens
there are. An entry is only a hint: its place is compared token by token.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul
from typing import Any

import numpy as np
import numpy.typing as npt

# How many tokens have to be equal: places with more are looked for first.
ORDERS = (8, 3)
# Longer matches are not told apart: what has been the same for so long stays so.
MAX_MATCH = 24
# How far a chain is followed, and how many places are enough to vote.
_MAX_STEPS, _MAX_PLACES = 32, 12
_MASK = (1 << 32) - 1
# A polynomial in the tokens, then Knuth's multiplicative hash.
_FACTOR, _FINAL = 0x01000193, 0x9E3779B1
_POWERS = {k: [pow(_FACTOR, k - 1 - i, 1 << 32) for i in range(k)] for k in ORDERS}
# Up to so many tokens Python is as quick as NumPy is to begin.
_FEW = 24
_INT = np.dtype("=i4")
_MIN_BITS, _MAX_BITS = 10, 26
# Places that NumPy sorts at once: larger sorts leave the processor's cache.
_BLOCK = 1 << 15


def table_bits(capacity: int) -> int:
    """The number of bits of the hash: about one table entry per token."""
    return min(max((capacity - 1).bit_length(), _MIN_BITS), _MAX_BITS)


def index_bytes(capacity: int) -> int:
    """The size in bytes of an index of n tokens."""
    n_orders = len(ORDERS)
    return _INT.itemsize * ((1 + n_orders) * capacity + n_orders * (1 << table_bits(capacity)))


class TokenIndex:
    """Tokens, and the places of each of their n-grams.

    Attributes:
        capacity: the maximum number of tokens.
        tokens: [capacity] int32, of which the first n count.
        n: the number of tokens.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity, self.n = capacity, 0
        self._shift = 32 - table_bits(capacity)
        self.tokens = _zeros(capacity)
        self._links = {k: _zeros(capacity) for k in ORDERS}
        self._heads = {k: _zeros(1 << table_bits(capacity)) for k in ORDERS}
        # N-grams before this place are in the tables; the last one has nothing after it yet.
        self._n_indexed = 0

    def array(self) -> npt.NDArray[np.int32]:
        """[n] the tokens, a view."""
        return np.frombuffer(self.tokens, _INT)[: self.n]

    # ---- writing

    def append(self, tokens: Sequence[int] | npt.NDArray[np.int32]) -> None:
        """Appends tokens. The caller checks that there is room."""
        begin, end = self.n, self.n + len(tokens)
        if len(tokens) <= _FEW:
            for at, token in enumerate(tokens, begin):
                self.tokens[at] = token
        else:
            np.frombuffer(self.tokens, _INT)[begin:end] = tokens
        self.n = end
        self._index_up_to(end - 1)

    def _index_up_to(self, end: int) -> None:
        """Adds the places up to and including `end`: each link before what leads to it."""
        begin = self._n_indexed + 1
        if end < begin:
            return
        for k in ORDERS:
            first = max(begin, k)
            if end - first >= _FEW:
                for low in range(first, end + 1, _BLOCK):
                    self._index_many(k, low, min(low + _BLOCK - 1, end))
                continue
            links, heads = self._links[k], self._heads[k]
            for at in range(first, end + 1):
                bucket = self._bucket(k, self.tokens[at - k : at])
                links[at] = heads[bucket]
                heads[bucket] = at
        self._n_indexed = end

    def _bucket(self, k: int, gram: Sequence[int] | memoryview) -> int:
        hash_: int = sum(map(mul, _POWERS[k], gram))
        return ((hash_ * _FINAL) & _MASK) >> self._shift

    def _buckets(self, k: int, first: int, end: int) -> npt.NDArray[np.uint32]:
        """The hash buckets of places first .. end."""
        tokens = np.frombuffer(self.tokens, _INT)[first - k : end].astype(np.uint32)
        n = end + 1 - first
        hashes = np.zeros(n, np.uint32)
        for i, power in enumerate(_POWERS[k]):
            hashes += tokens[i : i + n] * np.uint32(power)
        out: npt.NDArray[np.uint32] = (hashes * np.uint32(_FINAL)) >> np.uint32(self._shift)
        return out

    def _index_many(self, k: int, first: int, end: int) -> None:
        buckets = self._buckets(k, first, end)
        links, heads = np.frombuffer(self._links[k], _INT), np.frombuffer(self._heads[k], _INT)
        # By bucket, then by place; NumPy sorts numbers twice as fast as it finds their order.
        keys = buckets.astype(np.uint64) << np.uint64(32)
        keys |= np.arange(first, end + 1, dtype=np.uint64)
        keys.sort()
        places, grouped = (keys & np.uint64(_MASK)).astype(np.intp), keys >> np.uint64(32)
        is_first = np.ones(len(keys), bool)
        is_first[1:] = grouped[1:] != grouped[:-1]
        before = np.empty(len(keys), _INT)
        before[1:] = places[:-1]
        before[is_first] = heads[grouped[is_first]]
        links[places] = before
        is_last = np.roll(is_first, -1)
        heads[grouped[is_last]] = places[is_last]

    def cut(self, n: int) -> None:
        """Drops the tokens from n on, and their entries in the tables."""
        if n >= self.n:
            return
        begin = max(n, 1)  # the last gram that is kept leads to the first place that is gone
        for k in ORDERS:
            first = max(begin, k)
            if self._n_indexed < first:
                continue
            buckets = self._buckets(k, first, self._n_indexed)[::-1]
            links, heads = np.frombuffer(self._links[k], _INT), np.frombuffer(self._heads[k], _INT)
            # The last of several values for an entry counts: that of the oldest place.
            heads[buckets] = links[first : self._n_indexed + 1][::-1]
        self.n, self._n_indexed = n, min(self._n_indexed, max(n - 1, 0))

    # ---- reading

    def places(self, tail: Sequence[int]) -> tuple[int, list[int]]:
        """The places that the longest match of the end of `tail` is before, the newest first.

        Returns:
            The length of the match, and the places; (0, []) for none.
        """
        for k in ORDERS:
            if len(tail) >= k:
                length, places = self._follow(k, tail)
                if places:
                    return length, places
        return 0, []

    def _follow(self, k: int, tail: Sequence[int]) -> tuple[int, list[int]]:
        links, ending = self._links[k], list(tail[-MAX_MATCH:])
        most = longest = len(ending)
        gram = ending[-k:]
        at = self._heads[k][self._bucket(k, gram)]
        places: list[int] = []
        for _ in range(_MAX_STEPS):
            if at < k:
                break
            n = self._n_equal(k, at, ending, gram)
            if n and (not places or n > longest):
                longest = n
                places.clear()
            if n and n == longest:
                places.append(at)
                if n == most and len(places) == _MAX_PLACES:
                    break
            at = links[at]
        return longest, places[:_MAX_PLACES]

    def _n_equal(self, k: int, at: int, ending: list[int], gram: list[int]) -> int:
        """The number of equal tokens before a place and the tail's end; 0 for fewer than k."""
        n = len(ending)
        if n <= at:
            there = self.tokens[at - n : at].tolist()
            if there == ending:
                return n
            if there[-k:] != gram:
                return 0
        else:
            there = self.tokens[:at].tolist()
            if there[-k:] != gram:
                return 0
        n, most = k, min(n, at)
        while n < most and there[-n - 1] == ending[-n - 1]:
            n += 1
        return n


def _zeros(n: int) -> memoryview:
    """[n] int32 zeros, whose single numbers Python reads faster than NumPy's."""
    numbers: Any = np.zeros(n, _INT)  # takes memory only as it is written
    return memoryview(numbers)
