"""Prompt lookup against a brute-force search."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from pyllama_spec.drafters import Committed, PromptLookup
from tests.scripted import proposed

SIZES = [(1, 1), (2, 2), (1, 3), (2, 4), (3, 6)]


def search(tokens: Sequence[int], n: int, min_ngram: int, max_ngram: int) -> list[int]:
    """The expected copy by full search: longest suffix first, its most recent occurrence."""
    for size in range(max_ngram, min_ngram - 1, -1):
        suffix = list(tokens[-size:])
        for stop in range(len(tokens) - 1, size - 1, -1):
            if len(suffix) == size and list(tokens[stop - size : stop]) == suffix:
                period = list(tokens[stop:])
                return [period[i % len(period)] for i in range(n)]
    return []


def eager() -> PromptLookup:
    """A lookup that finds short suffixes too, so that small examples are enough."""
    return PromptLookup(10, max_ngram=4, min_ngram=2)


def told(tokens: Sequence[int], drafter: PromptLookup | None = None, seq: int = 0) -> PromptLookup:
    drafter = drafter or eager()
    drafter.commit([Committed(seq, tokens, 0)])
    return drafter


def proposal(drafter: PromptLookup, tokens: Sequence[int], n: int = 10, seq: int = 0) -> list[int]:
    return proposed(drafter, tokens, n, seq)


@pytest.mark.parametrize(("min_ngram", "max_ngram"), SIZES)
@pytest.mark.parametrize("n_kinds", [2, 3, 6, 40])
def test_it_finds_what_a_search_finds(n_kinds: int, min_ngram: int, max_ngram: int) -> None:
    rng = random.Random(1000 * n_kinds + 10 * min_ngram + max_ngram)
    n_found = 0
    for _ in range(12):
        drafter = PromptLookup(8, max_ngram=max_ngram, min_ngram=min_ngram)
        tokens: list[int] = []
        while len(tokens) < 60:
            part = [rng.randrange(n_kinds) for _ in range(rng.randrange(1, 7))]
            drafter.commit([Committed(0, part, len(tokens))])
            tokens += part
            n = rng.randrange(1, 12)
            expected = search(tokens, min(n, 8), min_ngram, max_ngram)
            assert proposal(drafter, tokens, n) == expected
            n_found += bool(expected)
    assert n_found > 0 or n_kinds == 40


def test_nothing_to_find() -> None:
    for tokens in ([], [1], [1, 2], [1, 2, 3, 4, 5], [2, 1, 1]):
        assert proposal(told(tokens), tokens) == []
    assert proposal(told([1, 2, 1, 2]), [1, 2, 1, 2], 0) == []
    assert proposal(told([1, 2, 1, 2]), [1, 2, 1, 2], seq=5) == []


@pytest.mark.parametrize(("min_ngram", "max_ngram"), SIZES)
def test_truncate_gives_the_state_of_a_fresh_one(min_ngram: int, max_ngram: int) -> None:
    """Any order of growing, proposing, cutting and copying, on two sequences, gives this state."""
    rng = random.Random(7 * min_ngram + max_ngram)

    def fresh() -> PromptLookup:
        return PromptLookup(6, max_ngram=max_ngram, min_ngram=min_ngram)

    for _ in range(15):
        drafter, texts = fresh(), [list[int](), list[int]()]
        for _ in range(60):
            seq = rng.randrange(2)
            tokens = texts[seq]
            match rng.randrange(6):
                case 0 | 1 | 2:
                    part = [rng.randrange(3) for _ in range(rng.randrange(9))]
                    drafter.commit([Committed(seq, part, len(tokens))])
                    tokens += part
                case 3:
                    n_keep = rng.randrange(len(tokens) + 3)
                    drafter.truncate(seq, n_keep)
                    del tokens[n_keep:]
                case 4:
                    drafter.copy(seq, 1 - seq)
                    texts[1 - seq] = list(tokens)
                case _:
                    expected = search(tokens, 6, min_ngram, max_ngram)
                    assert proposal(drafter, tokens, 6, seq) == expected
            for i in range(2):
                again = told(texts[i], fresh(), seq=i)
                assert drafter.tokens(i) == texts[i]
                assert proposal(drafter, texts[i], 6, i) == proposal(again, texts[i], 6, i)
