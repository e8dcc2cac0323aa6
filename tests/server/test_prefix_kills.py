"""Killing a process that stores states loses none that was finished, and leaves no part of one."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from pyllama_spec.llama.caches import LlamaDiskCache
from pyllama_spec.llama.open_model import LlamaState
from pyllama_spec.server.prefix_folder import PrefixFolder
from tests.drafters.test_suffix_store_kills import N_KILLS, killed

_N_TOKENS, _BOUND = 256, 24 << 20


def state(seed: int) -> LlamaState:
    """A state of some tokens that no other one begins with; of different sizes."""
    rng = random.Random(seed)
    memory = rng.randbytes(rng.choice((1 << 10, 1 << 16, 1 << 20)))
    tokens = (seed, *range(1, _N_TOKENS))
    return LlamaState(tokens, _N_TOKENS, memory, None, None, "model", None, (("k", "f16"),))


def store(report: Connection, folder: Path, seeds: Sequence[int]) -> None:
    """Stores states, and reports each that is in the folder."""
    cache = (PrefixFolder if seeds[0] % 2 else LlamaDiskCache)(folder, _BOUND)
    for seed in seeds:
        cache[()] = one = state(seed)
        while one.tokens not in cache:
            time.sleep(0.001)
        report.send(seed)


@pytest.mark.parametrize("n_kills", N_KILLS)
@pytest.mark.parametrize("has_thread", [False, True], ids=["states", "prefixes"])
def test_states_of_a_killed_process(tmp_path: Path, has_thread: bool, n_kills: int) -> None:
    rng = random.Random(n_kills)
    for kill in range(n_kills):
        first = 10_000 * kill + has_thread
        done = killed(store, tmp_path, range(first, first + 9000), rng)
        cache = LlamaDiskCache(tmp_path, _BOUND)
        for seed in done[-8:]:  # the oldest may have made room
            assert cache[[seed]].memory == state(seed).memory
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= _BOUND
