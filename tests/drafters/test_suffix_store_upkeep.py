"""A store in odd states, forged, moved or read-only; and commands: forget, merge, build."""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import string
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from pyllama_spec.cli import main
from pyllama_spec.drafters.suffix import store as store_module
from pyllama_spec.drafters.suffix import store_file, upkeep
from pyllama_spec.drafters.suffix.store import Store, vocabulary_digest
from pyllama_spec.drafters.suffix.token_index import index_bytes
from pyllama_spec.engine import Model
from pyllama_spec.engine.vocab import Vocab
from pyllama_spec.errors import ArgumentError, ForkedError, ModelLoadError, PyllamaSpecError
from tests.models import model_path

DIGEST = bytes(range(32))
TEXT = list(range(1000, 1060))
CLAIMED = 1 << 27
MIB = 1 << 20


def with_sum(body: bytes) -> bytes:
    return body + struct.pack("=I", zlib.crc32(body))


def header(capacity: int, max_tokens: int, version: int = 1) -> bytes:
    fields = (b"PLMEMORY", 0x01020304, version, capacity, max_tokens, DIGEST)
    return with_sum(store_file._HEADER.pack(*fields))


def forge(path: Path, slot: tuple[int, bool] | None, text: Sequence[int] = ()) -> None:
    """A file of 3.5 GB that the disk holds a few pages of."""
    with path.open("wb") as file:
        file.truncate(store_file.HEADER_BYTES + index_bytes(CLAIMED))
        file.write(header(CLAIMED, store_file.MAX_CAPACITY))
        if slot is not None:
            file.seek(store_file._SLOTS[0])
            file.write(with_sum(store_file._SLOT.pack(3, *slot)))
        file.seek(store_file.HEADER_BYTES)
        file.write(np.array(text, np.int32).tobytes())


def use_all(path: Path) -> int:
    """In a child: everything that reads a store as a whole; what is wrong, 0 for nothing."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with Store(path, DIGEST).locked():
        pass
    store = Store(path, DIGEST)
    store.texts()
    other = Store(path.with_name("other.memory"), DIGEST)
    other.take(store.texts())
    store.write_all([TEXT])
    if TEXT not in [text.ids.tolist() for text in store.texts()]:
        return 2
    with store.locked():
        store.keep([])
    if sum(file.stat().st_blocks * 512 for file in path.parent.iterdir()) > 4 * MIB:
        return 3
    # In KiB; pages of the file that are mapped count.
    return 4 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before > 64 << 10)


def in_a_child(run: Callable[[], int]) -> int:
    child = os.fork()
    if not child:
        code = 1
        try:
            code = run()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


ONE_LONG_TEXT = [-1, -2, -2, -(2 + CLAIMED - 4), *range(20)]


@pytest.mark.parametrize(
    ("slot", "text"),
    [
        ((CLAIMED, False), []),
        ((CLAIMED, True), []),
        ((0, True), []),
        (None, []),
        ((CLAIMED, False), ONE_LONG_TEXT),
        ((24, True), ONE_LONG_TEXT),
        (None, ONE_LONG_TEXT),
    ],
    ids=["full", "busy", "empty busy", "no slots", "a text", "a busy text", "a text, no slots"],
)
def test_memory_is_taken_for_what_the_disk_holds(
    tmp_path: Path, slot: tuple[int, bool] | None, text: list[int]
) -> None:
    path = tmp_path / "a.memory"
    forge(path, slot, text)
    assert in_a_child(lambda: use_all(path)) == 0


@pytest.mark.parametrize("n_texts", [1, 100])
def test_a_copy_with_holes_is_a_store(tmp_path: Path, n_texts: int) -> None:
    """A sparse copy by `cp` reserves its disk space before the first write."""
    path, copy = tmp_path / "a.memory", tmp_path / "b.memory"
    store = Store(path, DIGEST)
    texts = [list(range(100 * i, 100 * i + 60)) for i in range(n_texts)]
    store.write_all(texts)
    data = path.read_bytes()
    with copy.open("wb") as file:
        for at in range(0, len(data), 4096):
            page = data[at : at + 4096]
            if any(page):
                file.seek(at)
                file.write(page)
        file.truncate(len(data))
    assert copy.stat().st_blocks < path.stat().st_blocks
    again = Store(copy, DIGEST)
    assert [text.ids.tolist() for text in again.texts()] == texts
    again.write_all([TEXT[::-1]])
    assert [text.ids.tolist() for text in Store(copy, DIGEST).texts()] == [*texts, TEXT[::-1]]
    info, of_store = copy.stat(), path.stat()
    # Where the disk held the whole store, it holds the whole copy.
    assert of_store.st_blocks * 512 < of_store.st_size or info.st_blocks * 512 >= info.st_size


def test_what_a_process_with_this_number_left_is_deleted(tmp_path: Path) -> None:
    """Files left by an earlier process with this pid are deleted: containers reuse the number."""
    path = tmp_path / "a.memory"
    left = tmp_path / f"a.memory.{os.getpid()}-7f.new"
    left.write_text("of the one before")
    os.utime(left, (1e9, 1e9))
    store = Store(path, DIGEST)
    with store.locked():
        store.keep([])
    assert list(tmp_path.iterdir()) == [path]


# ---- merge: all or nothing


def memory(*words: object) -> int:
    return main(["memory", *map(str, words)])


def broken(tmp_path: Path, kind: str) -> Path:
    path = tmp_path / f"{kind}.memory"
    if kind == "text":
        path.write_bytes(b"not a store" * 1000)
    elif kind == "folder":
        path.mkdir()
    elif kind == "vocabulary":
        Store(path, DIGEST[::-1]).close()
    elif kind == "damaged":
        Store(path, DIGEST).close()
        os.truncate(path, 9000)
    return path


@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("kind", ["missing", "text", "folder", "vocabulary", "damaged"])
def test_a_merge_that_fails_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, place: int, is_there: bool
) -> None:
    whole, new = tmp_path / "whole.memory", tmp_path / "new.memory"
    Store(whole, DIGEST).write_all([TEXT])
    if is_there:
        Store(new, DIGEST).write_all([TEXT[::-1]])
    bad = broken(tmp_path, kind)
    others = [whole, whole]
    others[place] = bad
    before, files = new.read_bytes() if is_there else b"", sorted(tmp_path.iterdir())
    assert memory("merge", new, *others) == 1
    said = capsys.readouterr().err.strip()
    assert "\n" not in said and bad.name in said and "Traceback" not in said
    assert "this model" not in said
    assert sorted(tmp_path.iterdir()) == files
    assert not is_there or new.read_bytes() == before


@pytest.mark.parametrize("is_there", [False, True])
def test_a_merge_that_breaks_off_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    one, other, new = (tmp_path / f"{name}.memory" for name in ("one", "other", "new"))
    Store(one, DIGEST).write_all([TEXT])
    Store(other, DIGEST).write_all([list(range(k, 60_000, 7)) for k in range(3)])
    if is_there:
        Store(new, DIGEST).write_all([TEXT[::-1]])
    before, files = new.read_bytes() if is_there else b"", sorted(tmp_path.iterdir())
    right = store_file.create_file

    def full(path: Path, facts: store_file.Facts) -> int:
        if facts.capacity > 1 << 13:
            raise OSError(28, "No space left on device")
        return right(path, facts)

    def interrupt(path: Path, facts: store_file.Facts) -> int:
        if facts.capacity > 1 << 13:
            raise KeyboardInterrupt
        return right(path, facts)

    for fail in (full, interrupt):
        monkeypatch.setattr("pyllama_spec.drafters.suffix.store.create_file", fail)
        assert memory("merge", new, one, other) != 0
        assert sorted(tmp_path.iterdir()) == files
        assert not is_there or new.read_bytes() == before
    monkeypatch.setattr("pyllama_spec.drafters.suffix.store.create_file", right)
    assert memory("merge", new, one, other) == 0
    assert len(Store(new, DIGEST).texts()) == 4 + is_there


# ---- build: what was named


@pytest.fixture
def model() -> Path:
    return model_path("llama")


def said_by(store: Path, model: Path) -> str:
    with Model(model, vocab_only=True) as opened:
        texts = Store(store, vocabulary_digest(opened.vocab)).texts()
        return "".join(upkeep.bytes_of(opened.vocab, one.ids).decode() for one in texts)


def test_build_leaves_links_in_a_folder_out(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Links inside a folder are skipped; named links, to a file or a folder, are followed."""
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    (outside / "sub").mkdir(parents=True)
    (inside / "sub").mkdir(parents=True)
    (outside / "secret.txt").write_text("the word is swordfish")
    (outside / "sub" / "deep.txt").write_text("the deep word is codfish")
    (inside / "sub" / "mine.txt").write_text("this is a text of mine")
    (inside / "to a file").symlink_to(outside / "secret.txt")
    (inside / "sub" / "to a folder").symlink_to(outside)
    (inside / "to itself").symlink_to(inside)
    (inside / "to nothing").symlink_to(tmp_path / "none")
    (inside / ".hidden").symlink_to(outside)
    store = tmp_path / "a.memory"
    assert memory("build", store, inside, "-m", model) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "1 files with text" in said and "left out: 4" in said
    assert said_by(store, model).strip() == "this is a text of mine"
    for named in (inside / "to a file", inside / "sub" / "to a folder"):
        assert memory("build", store, named, "-m", model) == 0
        assert "left out" not in capsys.readouterr().out
    assert "swordfish" in said_by(store, model) and "codfish" in said_by(store, model)


def test_a_build_that_fails_leaves_no_store(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, store = tmp_path / "a.txt", tmp_path / "a.memory"
    text.write_text("some words that are a text")
    assert memory("build", store, text, tmp_path / "none", "-m", model) == 1
    assert list(tmp_path.iterdir()) == [text]

    def interrupt(path: Path) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as changed:
        changed.setattr(upkeep, "text_of", interrupt)
        assert memory("build", store, text, "-m", model) != 0
        assert list(tmp_path.iterdir()) == [text]
        Store(store, None if store.exists() else digest_of(model)).close()
        assert memory("build", store, text, "-m", model) != 0
    assert store.exists()  # it was there before


def digest_of(model: Path) -> bytes:
    with Model(model, vocab_only=True) as opened:
        return vocabulary_digest(opened.vocab)


@pytest.mark.parametrize(
    "head",
    [
        b"\x7fELF1234" * 600,
        b"",
        header(1 << 13, 1 << 20, version=7),
        header(0, 1 << 20),
        header(1 << 31, 1 << 31),
        *(header(1 << 13, n) for n in (0, 1023, 8191, store_file.MAX_CAPACITY + 1, 2**63)),
    ],
)
def test_a_file_that_is_no_store_is_refused(tmp_path: Path, head: bytes) -> None:
    path = tmp_path / "a.memory"
    Store(path, DIGEST).close()
    if head[:8] == b"PLMEMORY":
        with path.open("r+b") as file:
            file.write(head)
    else:
        path.write_bytes(head)
    with pytest.raises(ModelLoadError, match=r"a\.memory"):
        Store(path, DIGEST)


def test_a_store_that_grows_keeps_its_own_draft_whatever_the_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The draft stays even if the folder's clock is behind and its file looks old."""
    source, target = Store(tmp_path / "a", DIGEST), Store(tmp_path / "b", DIGEST)
    rng = np.random.default_rng(1)
    texts = [rng.integers(0, 30000, 3000).tolist() for _ in range(40)]
    source.write_all(texts)
    monkeypatch.setattr(store_module, "_STARTED", time.time() + 1e6)
    assert target.take(source.texts()) == len(texts)
    assert [text.ids.tolist() for text in target.texts()] == texts
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_what_has_another_name_is_not_emptied(tmp_path: Path) -> None:
    store = Store(tmp_path / "a", DIGEST)
    store.write_all([TEXT])
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    other = Store(tmp_path / "b", DIGEST)
    with other.locked(), pytest.raises(ArgumentError, match="has 2 names"):
        other.keep([])
    with pytest.raises(ArgumentError, match="has 2 names"):
        upkeep.prune(other, days=0.0)
    assert [text.ids.tolist() for text in store.texts()] == [TEXT]


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


PART = 40


@pytest.fixture(scope="module")
def vocab() -> Iterator[Vocab]:
    with Model(model_path("llama"), vocab_only=True) as model:
        yield model.vocab


@pytest.fixture
def store(vocab: Vocab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(upkeep, "PART_TOKENS", PART)
    return Store(tmp_path / "a.memory", vocabulary_digest(vocab))


def letters(seed: int, n: int = 400) -> str:
    return "".join(random.Random(seed).choices(string.ascii_lowercase, k=n))


def built(store: Store, vocab: Vocab, folder: Path, *texts: str) -> list[str]:
    """Files of these texts, each in a store; what the store's parts say."""
    for i, text in enumerate(texts):
        path = folder / f"{i}.txt"
        path.write_text(text)
        upkeep.build(store, vocab, [path], lambda share: None)
    return said(store, vocab)


def said(store: Store, vocab: Vocab) -> list[str]:
    return [upkeep.bytes_of(vocab, one.ids).decode() for one in store.texts()]


def parts_without(text: str, parts: list[str], wanted: str) -> list[str]:
    """The parts of a text that no occurrence of another one touches."""
    begins = [at for at in range(len(text)) if text.startswith(wanted, at)]
    out, end = [], 0
    for part in parts:
        begin, end = end, end + len(part.lstrip())
        if not any(at < end and begin < at + len(wanted) for at in begins):
            out.append(part)
    assert end == len(text)
    return out


@pytest.mark.parametrize(("n_before", "n_after"), [(1, 1), (3, 3), (5, 15), (15, 5), (2, 30)])
def test_a_text_across_a_border_of_a_files_parts(
    n_before: int, n_after: int, store: Store, vocab: Vocab, tmp_path: Path
) -> None:
    parts = built(store, vocab, tmp_path, letters(1))
    assert len(parts) > 3
    wanted = parts[1][-n_before:] + parts[2].lstrip()[:n_after]
    without = parts_without(letters(1), parts, wanted)
    assert not {parts[1], parts[2]} & set(without)
    upkeep.forget(store, vocab, wanted)
    assert said(store, vocab) == without


@pytest.mark.parametrize("n_more", [0, 4, 20])
def test_parts_that_lie_in_the_text(
    n_more: int, store: Store, vocab: Vocab, tmp_path: Path
) -> None:
    """Also with too few characters of the parts before and after to recognise them."""
    parts = built(store, vocab, tmp_path, letters(2), letters(3))
    at = letters(2).index(parts[1].strip())
    wanted = letters(2)[at - n_more : at + len(parts[1].strip()) + n_more]
    gone = parts[:3] if n_more else [parts[1]]
    upkeep.forget(store, vocab, wanted)
    assert said(store, vocab) == [part for part in parts if part not in gone]


def test_a_short_text_that_lies_in_the_text(store: Store, vocab: Vocab) -> None:
    secret = "the word is swordfish"
    for text in ("word is swordfish", letters(4, 60)):
        store.write_all([vocab.tokenize(text, add_special=False)])
    upkeep.forget(store, vocab, f"so {secret}, he said")
    assert [text.strip() for text in said(store, vocab)] == [letters(4, 60)]


def test_texts_of_different_files_are_not_read_as_one(
    store: Store, vocab: Vocab, tmp_path: Path
) -> None:
    parts = built(store, vocab, tmp_path, letters(5, 20), letters(6, 20))
    assert len(parts) == 2
    assert upkeep.forget(store, vocab, parts[0][-3:] + parts[1].strip()[:3]) == (0, 0)
    assert said(store, vocab) == parts
