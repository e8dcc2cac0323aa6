"""A store in odd states: empty and busy, forged, moved, forked, read-only."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pyllama_spec.cli import main
from pyllama_spec.drafters.suffix.store import Store
from pyllama_spec.errors import ArgumentError, ForkedError, PyllamaSpecError

DIGEST = bytes(range(32))
TEXT = list(range(1000, 1060))


def leave_busy(path: Path) -> None:
    """Leaves the store as a writer that was killed in the first text does."""
    store = Store(path, DIGEST)
    store.write_all([[7] * 40])
    store.index.n = 0
    store._file.publish(is_busy=True)
    store.close()


def damage_slots(path: Path) -> None:
    Store(path, DIGEST).close()
    with path.open("r+b") as file:
        for at in (1024, 2048):
            file.seek(at)
            file.write(bytes(range(1, 29)))


def forget_all_and_leave_busy(path: Path) -> None:
    store = Store(path, DIGEST)
    store.write_all([TEXT])
    with store.locked():
        store.keep([])
    store._file.publish(is_busy=True)
    store.close()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("leave", [leave_busy, damage_slots, forget_all_and_leave_busy])
def test_an_empty_store_that_a_writer_left_is_written(
    leave: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / "a.memory"
    leave(path)
    store = Store(path, DIGEST)
    store.write_all([TEXT])
    assert [text.ids.tolist() for text in store.texts()][-1] == TEXT


@pytest.mark.timeout(60)
def test_a_forged_chain_is_followed_once(tmp_path: Path) -> None:
    """Every forged bucket leads to the last place, and each place to the one before it."""
    path = tmp_path / "a.memory"
    store = Store(path, DIGEST)
    index = store.index
    steps = 0
    for k in index._links:
        np.frombuffer(index._heads[k], np.int32)[:] = index.capacity - 1
        np.frombuffer(index._links[k], np.int32)[:] = np.arange(index.capacity) - 1
    index.n = 1

    class Counted:
        def __init__(self, links: memoryview) -> None:
            self.links = links

        def __getitem__(self, at: int) -> int:
            nonlocal steps
            steps += 1
            return int(self.links[at])

    n_buckets = sum(len(index._heads[k]) for k in index._links)
    most = len(index._links) * index.capacity + n_buckets
    wrapped = {k: Counted(np.frombuffer(links, np.int32)) for k, links in index._links.items()}  # type: ignore[arg-type]
    index._links = wrapped  # type: ignore[assignment]
    index.drop_heads()
    assert 0 < steps <= most


def test_growing_deletes_nothing_of_others(tmp_path: Path) -> None:
    """Growing removes only the files that a dead writer of this store left."""
    path = tmp_path / "a.memory"
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = tmp_path / f"a.memory.{dead.pid}-7f.new"
    mine, alive = tmp_path / "a.memory.mine.new", tmp_path / f"a.memory.{os.getpid()}-7f.new"
    folder, other = tmp_path / "a.memory.12-ab.new", tmp_path / f"a.memory.b.{dead.pid}-7f.new"
    for file in (left, mine, alive, other):
        file.write_text("precious")
    folder.mkdir()
    store = Store(path, DIGEST)
    for i in range(4):  # it is replaced by a larger one
        store.write_all([list(range(i, 60_000, 5))])
    assert sorted(tmp_path.iterdir()) == sorted((path, mine, alive, folder, other))


def test_a_relative_name_stays_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store("a.memory", DIGEST)
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    store.refresh()
    store.write_all([TEXT])
    assert list((tmp_path / "below").iterdir()) == []
    assert len(Store(tmp_path / "a.memory", DIGEST).texts()) == 1


@pytest.mark.parametrize("n", [10, 20, 40])
def test_equal_texts_are_stored_once(n: int, tmp_path: Path) -> None:
    one, other = Store(tmp_path / "a.memory", DIGEST), Store(tmp_path / "b.memory", DIGEST)
    for _ in range(3):
        one.write_all([TEXT[:n]])
    for _ in range(3):
        other.take(one.texts())
    assert len(one.texts()) == len(other.texts()) == 1


def test_a_store_is_not_merged_into_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.memory"
    Store(path, DIGEST).write_all([TEXT])
    assert main(["memory", "merge", str(path), str(path)]) != 0
    assert "into itself" in capsys.readouterr().err
    assert len(Store(path, DIGEST).texts()) == 1


def test_who_may_only_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.memory"
    Store(path, DIGEST).write_all([TEXT])
    right = os.open

    def refuse(name: str, flags: int, *args: int, **more: int) -> int:
        if flags & os.O_RDWR and Path(name) == path:
            raise PermissionError(13, "Permission denied")
        return right(name, flags, *args, **more)

    monkeypatch.setattr(os, "open", refuse)  # root may write whatever its mode is
    with pytest.warns(UserWarning, match="can only be read"):
        store = Store(path, DIGEST)
    store.add(list(range(2000, 2060)))
    assert len(store.texts()) == 1
    with pytest.raises(ArgumentError, match="can only be read"):
        store.write_all([TEXT[::-1]])
    with pytest.raises(ArgumentError, match="can only be read"):
        store.take(store.texts())


def _in_a_child(path: Path, store: Store, answers: multiprocessing.Queue[str]) -> None:
    store.add(list(range(3000, 3060)))
    try:
        store.write_all([list(range(4000, 4060))])
    except ForkedError as error:
        answers.put(str(error))
    else:
        answers.put("")


def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.memory"
    store = Store(path, DIGEST)
    store.write_all([TEXT])
    fork = multiprocessing.get_context("fork")
    answers = fork.Queue()
    child = fork.Process(target=_in_a_child, args=(path, store, answers))
    child.start()
    said = answers.get(timeout=60)
    child.join(60)
    assert "forked" in said
    assert len(store.texts()) == 1


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b", "a" * 300, "loop"])
def test_a_name_that_is_none(name: str, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(PyllamaSpecError):
        Store(tmp_path / name, DIGEST)
