"""Killing a process that grows a store, forgets or merges loses nothing finished."""

from __future__ import annotations

import contextlib
import random
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

import numpy as np
import pytest

from pyllama_spec.drafters.suffix.store import Store
from pyllama_spec.errors import BusyError

DIGEST = bytes(range(32))
N_KILLS = [5, pytest.param(50, marks=pytest.mark.slow)]
if sys.platform == "win32":
    from multiprocessing.context import SpawnProcess as Process
else:
    from multiprocessing.context import ForkProcess as Process
# Works on a store with some numbers, and sends each that is finished.
Job = Callable[[Connection, Path, Sequence[int]], None]


def text(seed: int) -> list[int]:
    """A text that shares no beginning with another one; of different lengths."""
    rng = random.Random(seed)
    return [seed + 100_000, *rng.sample(range(1000, 30_000), rng.choice((40, 300, 2000)))]


def killed(run: Job, path: Path, numbers: Sequence[int], rng: random.Random) -> list[int]:
    """Runs in a child and kills it some time after its first report; returns its reports."""
    reads, writes = Pipe(duplex=False)
    child = Process(target=run, args=(writes, path, numbers))
    child.start()
    writes.close()
    reports: list[int] = [reads.recv()]
    time.sleep(rng.random() * rng.choice((0.002, 0.02, 0.06)))
    child.kill()
    child.join()
    with contextlib.suppress(EOFError):
        while True:
            reports.append(reads.recv())
    reads.close()
    return reports


def write(report: Connection, path: Path, seeds: Sequence[int]) -> None:
    """Writes texts, and opens the store again after every seven."""
    for i in range(0, len(seeds), 7):
        store = Store(path, DIGEST)
        for seed in seeds[i : i + 7]:
            store.write_all([text(seed)])
            report.send(seed)
        store.close()


def write_beside(path: Path, seeds: Sequence[int]) -> None:
    """Writes texts whenever nobody else does."""
    store = Store(path, DIGEST)
    for seed in seeds:
        while True:
            with contextlib.suppress(BusyError):
                store.write_all([text(seed)])
                break


def forget(report: Connection, path: Path, seeds: Sequence[int]) -> None:
    """Forgets texts one by one, and waits to be killed."""
    store = Store(path, DIGEST)
    for seed in seeds:
        with store.locked():
            store.keep([one for one in store.texts() if one.ids[0] != seed + 100_000])
        report.send(seed)
    time.sleep(600)


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

    for kill in range(n_kills):
        if kill % 20 == 0:  # it grows from the beginning
            path.unlink(missing_ok=True)
            done.clear()
        first = 10_000 * kill
        done.update(killed(write, path, range(first, first + 10_000), rng))
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
    path = tmp_path / "a.memory"
    children = [
        Process(target=write_beside, args=(path, range(first, first + 30))) for first in (0, 1000)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
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

    for kill in range(n_kills):
        if len(left) < 12:
            left = list(range(1000 * kill, 1000 * kill + 40))
            path.unlink(missing_ok=True)
            Store(path, DIGEST).write_all([text(seed) for seed in left])
        gone = set(killed(forget, path, left[:-1], rng))
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
