"""The n-gram table: lookups, and refused tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from pyllama_spec import ArgumentError
from pyllama_spec.drafters.ngram_table import (
    MAX_CONTEXT,
    NgramTable,
    context_keys,
    extend_hashes,
    keys_of,
)
from pyllama_spec.drafters.prompt_lookup import newest_match
from tests.eagle3_tools import ngram_table


def test_keys_are_those_of_the_format() -> None:
    """Keys computed by hand from docs/eagle3.md."""
    step, final, mask = 0x9E3779B97F4A7C15, 0x61C8864680B583EB, 2**64 - 1
    newest, before = 17, 49151
    one = newest + 1
    two = (one * step + before + 1) & mask
    expected = [((one * final) & mask) >> 32, ((two * final) & mask) >> 32]
    assert context_keys([newest, before]) == expected
    assert context_keys([]) == []


def test_arrays_have_the_same_keys() -> None:
    contexts = np.random.default_rng(1).integers(0, 200_000, size=(100, MAX_CONTEXT))
    hashes = np.zeros(len(contexts), np.uint64)
    columns = []
    for n in range(MAX_CONTEXT):
        hashes = extend_hashes(hashes, contexts[:, n].astype(np.uint64))
        columns.append(keys_of(hashes))
    assert np.stack(columns, axis=1).tolist() == [context_keys(c) for c in contexts.tolist()]


def test_the_longest_known_context_speaks() -> None:
    table = ngram_table({(3,): (10, 0.5), (2, 3): (11, 0.25), (9, 1, 2, 3): (12, 1.0)})
    assert len(table) == 3
    found = {
        (3,): (10, 0.5), (7, 3): (10, 0.5), (2, 3): (11, 0.25), (1, 2, 3): (11, 0.25),
        (9, 1, 2, 3): (12, 1.0), (4, 4, 4, 9, 1, 2, 3): (12, 1.0),
    }  # fmt: skip
    for tokens, (token, p) in found.items():
        got = table.find(tokens)
        assert got is not None
        assert got[0] == token
        assert got[1] == pytest.approx(p, abs=1 / 254)
    assert table.find((3, 4)) is None
    assert table.find(()) is None
    assert ngram_table({}).find((3,)) is None


DAMAGED: dict[str, tuple[Sequence[int], Sequence[int], Sequence[int], str]] = {
    "sizes": ([1, 2], [3], [4, 5], "2,.*1,.*2,"),
    "order": ([2, 1], [3, 4], [5, 6], "do not rise"),
    "one key twice": ([2, 2], [3, 4], [5, 6], "do not rise"),
    "an id too large": ([1, 2], [3, 320], [5, 6], "token 320.*320"),
    "a negative id": ([1, 2], [3, -1], [5, 6], "token -1"),
    "a negative probability": ([1, 2], [3, 4], [5, -6], "below 0"),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_table_is_refused(what: str) -> None:
    keys, ids, p, message = DAMAGED[what]
    with pytest.raises(ArgumentError, match=message):
        NgramTable(
            np.array(keys, np.uint32), np.array(ids, np.int32), np.array(p, np.int8), n_vocab=320
        )


def followed_by_search(text: list[int], tail: list[int]) -> tuple[int, int] | None:
    """The same, place by place from the end."""
    for n in (4, 3, 2):
        if len(tail) < n:
            continue
        for end in range(len(text) - 2, n - 2, -1):
            if text[end - n + 1 : end + 1] == tail[-n:]:
                return text[end + 1], n
    return None


@pytest.mark.parametrize("n_kinds", [2, 4, 12])
def test_what_followed_in_a_text(n_kinds: int) -> None:
    rng = np.random.default_rng(n_kinds)
    seen = set()
    for _ in range(300):
        text: npt.NDArray[np.int32] = rng.integers(0, n_kinds, rng.integers(0, 40)).astype(np.int32)
        drafted = rng.integers(0, n_kinds, rng.integers(0, 4)).tolist()
        tail = [*text[-5:].tolist(), *drafted][-5:]
        expected = followed_by_search(text.tolist(), tail)
        at, n = newest_match(text, tail, 4)
        assert ((int(text[at]), n) if n >= 2 else None) == expected
        seen.add(expected and expected[1])
    assert seen >= {None, 2, 3}
