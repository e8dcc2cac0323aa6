"""Killing a process that grows a store, forgets or merges loses nothing finished."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pyllama_spec.drafters.suffix.store import Store
from pyllama_spec.errors import BusyError

DIGEST = bytes(range(32))
N_KILLS = [5, pytest.param(40, marks=pytest.mark.slow)]
Report = Callable[[int], object]


def text(seed: int) -> list[int]:
    """A text that shares no beginning with another one; of different lengths."""
    rng = random.Random(seed)
    return [seed + 100_000, *rng.sample(range(1000, 30_000), rng.choice((40, 300, 2000)))]


def killed(run: Callable[[Report], None], rng: random.Random) -> list[int]:
    """Runs in a child and kills it some time after its first report; returns its reports."""
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reads)
            run(lambda number: os.write(writes, number.to_bytes(4, "little")))
        finally:
            os._exit(0)
    os.close(writes)
    data = os.read(reads, 4)
    time.sleep(rng.random() * rng.choice((0.002, 0.02, 0.06)))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while part := os.read(reads, 1 << 16):
        data += part
    os.close(reads)
    assert data, "it ended by itself, before it did anything"
    return [int(number) for number in np.frombuffer(data, "<u4")]


def held(path: Path) -> list[list[int]]:
    """The texts of a store that is opened again, and written as the next request would."""
    store = Store(path, DIGEST)
    with store.locked():  # nobody has left it locked, and it can be repaired
        pass
    texts = [one.ids.tolist() for one in store.texts()]
    store.close()
    return texts


@pytest.mark.parametrize("n_kills", N_KILLS)
def test_a_store_that_grows_and_is_opened_again(tmp_path: Path, n_kills: int) -> None:
    """Each completed text is whole, and no part of another one is there."""
    path, rng = tmp_path / "a.memory", random.Random(n_kills)
    done: set[int] = set()
    sizes = set()

    def write(report: Report) -> None:
        for begin in range(first, first + 10_000, 7):
            store = Store(path, DIGEST)
            for seed in range(begin, begin + 7):
                store.write_all([text(seed)])
                report(seed)
            store.close()

    for kill in range(n_kills):
        if kill % 20 == 0:  # it grows from the beginning
            path.unlink(missing_ok=True)
            done.clear()
        first = 10_000 * kill
        done.update(killed(write, rng))
        Store(path, None, is_read_only=True).close()  # a reader is not kept out
        texts = held(path)
        there = {one[0] - 100_000 for one in texts}
        assert done <= there
        assert len(there - done) <= 1  # it was written, and not reported
        assert all(one == text(one[0] - 100_000) for one in texts)
        done = there
        sizes.add(path.stat().st_size)
    assert len(sizes) > 1


def test_two_processes_that_write(tmp_path: Path) -> None:
    path, children = tmp_path / "a.memory", []
    for first in (0, 1000):
        child = os.fork()
        if not child:
            store = Store(path, DIGEST)
            for seed in range(first, first + 30):
                while True:
                    with contextlib.suppress(BusyError):
                        store.write_all([text(seed)])
                        break
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    texts = held(path)
    assert sorted(one[0] - 100_000 for one in texts) == [*range(30), *range(1000, 1030)]
    assert all(one == text(one[0] - 100_000) for one in texts)


def in_files(folder: Path, seed: int) -> bool:
    """Whether any file has a piece of a text."""
    piece = np.array(text(seed)[:6], np.int32).tobytes()
    return any(piece in file.read_bytes() for file in folder.iterdir())


@pytest.mark.parametrize("n_kills", N_KILLS)
def test_forgetting(tmp_path: Path, n_kills: int) -> None:
    path, rng = tmp_path / "a.memory", random.Random(n_kills)
    left: list[int] = []

    def forget(report: Report) -> None:
        store = Store(path, DIGEST)
        for seed in left[:-1]:
            with store.locked():
                store.keep([one for one in store.texts() if one.ids[0] != seed + 100_000])
            report(seed)
        time.sleep(600)

    for kill in range(n_kills):
        if len(left) < 12:
            left = list(range(1000 * kill, 1000 * kill + 40))
            path.unlink(missing_ok=True)
            Store(path, DIGEST).write_all([text(seed) for seed in left])
        gone = set(killed(forget, rng))
        texts = held(path)
        there = [one[0] - 100_000 for one in texts]
        stay = [seed for seed in left if seed not in gone]
        assert there in (stay, stay[1:])  # the next one may be gone, and not reported
        assert all(one == text(seed) for one, seed in zip(texts, there, strict=True))
        last = there.pop()
        store = Store(path, DIGEST)
        with store.locked():
            store.keep(store.texts()[:-1])
        store.close()
        assert list(tmp_path.iterdir()) == [path]
        assert not any(in_files(tmp_path, seed) for seed in (*gone, last))
        left = there
