"""The index of a suffix drafter, against a full search."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from pyllama_spec.drafters.suffix.token_index import (
    MAX_MATCH,
    ORDERS,
    TokenIndex,
)


def expected_places(text: Sequence[int], tail: Sequence[int]) -> tuple[int, list[int]]:
    longest = min(ORDERS)
    found: list[int] = []
    for at in range(len(text) - 1, 0, -1):
        n = 0
        while n < min(len(tail), at, MAX_MATCH) and text[at - n - 1] == tail[-n - 1]:
            n += 1
        if n > longest:
            longest, found = n, []
        if n == longest:
            found.append(at)
    return longest, found


def random_text(rng: random.Random, n: int) -> list[int]:
    text: list[int] = []
    while len(text) < n:
        if len(text) > 8 and rng.random() < 0.3:
            begin = rng.randrange(len(text) - 4)
            text += text[begin : begin + rng.randrange(3, 40)]
        else:
            text += [rng.randrange(200) for _ in range(rng.randrange(1, 9))]
    return text[:n]


def check(index: TokenIndex, text: Sequence[int], tail: Sequence[int]) -> int:
    """Chains are followed so far and no farther: what is found is right, and the longest is."""
    longest, wanted = expected_places(text, tail)
    length, places = index.places(tail)
    if not wanted:
        assert (length, places) == (0, [])
        return 0
    assert places and length == longest
    assert places == wanted[: len(places)]
    assert len(places) >= min(len(wanted), 8)
    return longest


@pytest.mark.parametrize("seed", range(6))
def test_places_are_the_longest_matches(seed: int) -> None:
    rng = random.Random(seed)
    text, index, n_long = random_text(rng, 700), TokenIndex(1024), 0
    at = 0
    while at < len(text):  # in parts of which some are indexed by NumPy and some are not
        n = rng.choice((1, 1, 2, 5, 30, 90))
        index.append(text[at : at + n])
        at += n
        done = text[:at]
        n_long += check(index, done, done[-MAX_MATCH:]) >= max(ORDERS)
        begin = rng.randrange(len(done))
        check(index, done, done[begin : begin + 12])
    assert n_long > 3


def tables(index: TokenIndex) -> list[list[int]]:
    parts = [*index._heads.values()]
    return [part.tolist() for part in parts]


@pytest.mark.parametrize("seed", range(6))
def test_what_is_cut_leaves_no_trace(seed: int) -> None:
    rng = random.Random(seed)
    text = random_text(rng, 600)
    index, have = TokenIndex(1024), 0
    for _ in range(40):
        keep = rng.randrange(have + 1)
        index.cut(keep)
        other = TokenIndex(1024)
        other.append(text[:keep])
        assert tables(index) == tables(other)
        assert index.array().tolist() == text[:keep]
        have = keep + rng.choice((0, 1, 3, 40, 200))
        have = min(have, len(text))
        index.append(text[keep:have])
        done = text[:have]
        if done:
            check(index, done, done[-MAX_MATCH:])


def test_a_large_text_takes_no_longer_to_look_up() -> None:
    small, large = TokenIndex(1 << 10), TokenIndex(1 << 18)
    rng = np.random.default_rng(1)
    for index in (small, large):
        tokens = rng.integers(0, 64, index.capacity).astype(np.int32)
        index.append(tokens)
    reads = {}
    for name, index in (("small", small), ("large", large)):
        counted = _Counting(index.tokens)
        index.tokens = counted  # type: ignore[assignment]
        for begin in range(0, 1000, 50):
            index.places(list(counted.inner[begin : begin + MAX_MATCH]))
        reads[name] = counted.n
    assert reads["large"] < 3 * max(reads["small"], 20 * 32)


class _Counting:
    def __init__(self, inner: memoryview) -> None:
        self.inner, self.n = inner, 0

    def __getitem__(self, at: int | slice) -> memoryview | int:
        self.n += 1
        found: memoryview | int = self.inner[at]
        return found
