"""The origin of each token in a remembered text, which training from use needs."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pyllama_spec.drafters import Suffix
from pyllama_spec.drafters.suffix import upkeep
from pyllama_spec.drafters.suffix.store import Store
from pyllama_spec.drafters.suffix.token_index import MAX_MATCH, index_bytes
from tests.suffix_tools import fresh, proposal, tell

DIGEST = bytes(range(32))
GIVEN, CHOSEN = 0, 1


def origins_of(seed: int, n: int = 60) -> list[int]:
    return random.Random(-1 - seed).choices([0, 1, 2], k=n)  # 2: earlier versions wrote it


def held(store: Store) -> dict[tuple[int, ...], list[int]]:
    return {tuple(one.ids.tolist()): one.origins.tolist() for one in store.texts()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.memory"


def test_they_outlive_all_that_becomes_of_a_store(path: Path, tmp_path: Path) -> None:
    store, expected = Store(path, DIGEST), {}
    for seed in range(150):  # the file is replaced by larger ones meanwhile
        origins = origins_of(seed) if seed % 3 else ()
        store.add(fresh(seed), origins)
        expected[tuple(fresh(seed))] = list(origins) or [GIVEN] * 60
    assert held(store) == held(Store(path, None, is_read_only=True)) == expected
    other = Store(tmp_path / "other.memory", DIGEST)
    other.add(fresh(500), origins_of(500))
    other.take(store.texts())
    assert held(other) == {**expected, tuple(fresh(500)): origins_of(500)}
    assert upkeep.prune(other, max_tokens=4000) > 0
    left = held(other)
    assert 20 < len(left) < 100
    assert all(expected[ids] == origins for ids, origins in left.items() if ids in expected)
    assert sum(one.n_entry for one in other.texts()) == other.index.n <= 4000
    # A text can be copied to its end, and no further.
    drafter = Suffix(8, store=Store(path, DIGEST))
    tell(drafter, fresh(1)[:56], remember=False)
    assert proposal(drafter, fresh(1)[:56]) == fresh(1)[56:]


def test_of_a_text_that_is_cut_the_end_keeps_its_own(path: Path) -> None:
    store = Store(path, DIGEST, max_bytes=index_bytes(1 << 10))
    long, origins = fresh(1, 900), origins_of(1, 900)
    store.add(long, origins)
    ((ids, kept),) = held(store).items()
    n = len(ids)
    assert 200 < n < 256
    assert list(ids) == long[-n:]
    assert kept == origins[-n:]


def test_what_another_text_has_already_is_not_said_twice(path: Path) -> None:
    store = Store(path, DIGEST)
    store.add(fresh(1), [CHOSEN] * 60)
    store.add(fresh(1) + fresh(2, 40), [CHOSEN] * 100)
    (_, first), (lead, second) = held(store).items()
    assert first == [CHOSEN] * 60
    assert list(lead) == fresh(1)[-MAX_MATCH:] + fresh(2, 40)
    assert second == [GIVEN] * MAX_MATCH + [CHOSEN] * 40
