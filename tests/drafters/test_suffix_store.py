"""A store on disk: readers, writers, and failures."""

from __future__ import annotations

import contextlib
import os
import random
import stat
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from pyllama_spec.drafters import Suffix
from pyllama_spec.drafters.suffix.store import Store, capacity_of, vocabulary_digest
from pyllama_spec.drafters.suffix.token_index import index_bytes
from pyllama_spec.errors import ArgumentError, BusyError, ModelLoadError, PyllamaSpecError
from tests.oracles import tiny
from tests.suffix_tools import fresh, proposal, teach, tell
from tests.tiers import release_except

DIGEST = bytes(range(32))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "of mine.memory"


def opened(path: Path, **options: object) -> Store:
    return Store(path, DIGEST, **options)  # type: ignore[arg-type]


def knows(store: Store, text: Sequence[int]) -> bool:
    store.refresh()
    for end in range(12, len(text)):
        _, places = store.index.places(text[end - 12 : end])
        if not any(store.index.tokens[at] == text[end] for at in places):
            return False
    return True


@pytest.mark.posix
def test_dropped_stores_keep_no_descriptor(path: Path) -> None:
    opened(path).write_all([fresh(0)])
    before = len(list(Path("/dev/fd").iterdir()))
    for _ in range(20):
        assert knows(opened(path), fresh(0))
    assert len(list(Path("/dev/fd").iterdir())) == before


# ---- several who have it open


def test_what_one_writes_another_reads(path: Path) -> None:
    one, other = opened(path), opened(path)
    reader = Store(path, None, is_read_only=True)
    for seed in range(120):  # the file is replaced by larger ones meanwhile
        (one, other)[seed % 2].add(fresh(seed))
    for store in (one, other, reader, opened(path)):
        assert all(knows(store, fresh(seed)) for seed in range(120))
    assert len(reader.texts()) == 120
    assert list(path.parent.iterdir()) == [path]


def test_who_finds_it_locked_writes_later(path: Path) -> None:
    one, other = opened(path), opened(path)
    with one.locked():
        other.add(fresh(1))
        assert not knows(one, fresh(1))
        with pytest.raises(BusyError):
            other.write_all([fresh(2)])
    other.add(fresh(3))
    assert knows(one, fresh(1))
    assert knows(one, fresh(3))


@pytest.mark.posix
@pytest.mark.parametrize("is_there", [True, False])
def test_of_a_link_what_it_names_is_the_store(tmp_path: Path, is_there: bool) -> None:
    """The link stays when larger files replace the store, and both names forget a text."""
    path, link = tmp_path / "real.memory", tmp_path / "link.memory"
    if is_there:
        opened(path).add(fresh(0))
    link.symlink_to(path)
    store, other = opened(link), opened(path)
    for seed in range(120):
        (store, other)[seed % 2].add(fresh(seed))
    assert link.is_symlink()
    assert sorted(tmp_path.iterdir()) == [link, path]
    assert all(knows(opened(path), fresh(seed)) for seed in range(120))
    with store.locked():
        store.keep([])
    assert not opened(path).texts()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_draft_copies_from_it(path: Path) -> None:
    writer, reader = Suffix(8, store=opened(path)), Suffix(8, store=opened(path))
    teach(writer, [fresh(1)])
    teach(writer, [fresh(2)], remember=False)
    tell(reader, fresh(1)[:20], user="anyone")
    assert proposal(reader, fresh(1)[:20]) == fresh(1)[20:28]
    tell(reader, fresh(2)[:20])
    assert proposal(reader, fresh(2)[:20]) == []


# ---- its size


def test_it_is_bounded_and_keeps_what_is_new(path: Path) -> None:
    max_bytes = index_bytes(1 << 13)
    store = opened(path, max_bytes=max_bytes)
    assert capacity_of(max_bytes) == 1 << 13
    for seed in range(500):
        store.add(fresh(seed))
        assert path.stat().st_size <= max_bytes
    assert all(knows(store, fresh(seed)) for seed in range(440, 500))
    assert not knows(store, fresh(50))
    assert len(store.texts()) > 60


@pytest.mark.parametrize("n_bytes", [0, 20_000])
def test_a_store_that_would_hold_nothing(path: Path, n_bytes: int) -> None:
    with pytest.raises(ArgumentError, match=str(n_bytes)):
        opened(path, max_bytes=n_bytes)
    assert not path.exists()


# ---- privacy


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
@pytest.mark.posix
def test_it_is_its_owners_alone(path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        store = opened(path)
        for seed in range(200):
            store.add(fresh(seed))
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
    finally:
        os.umask(before)
    path.chmod(0o644)
    opened(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_is_forgotten_is_not_on_the_disk(path: Path) -> None:
    store, reader = opened(path), opened(path)
    store.write_all([fresh(seed) for seed in range(20)])
    old = path.open("rb")
    with store.locked():
        store.keep([text for text in store.texts() if text.ids[0] != fresh(7)[0]])
    for data in (path.read_bytes(), old.read()):
        assert b"".join(t.to_bytes(4, "little") for t in fresh(7)[:4]) not in data
    old.close()
    assert not knows(store, fresh(7))
    assert not knows(reader, fresh(7))
    assert all(knows(reader, fresh(seed)) for seed in range(20) if seed != 7)


# ---- what is not a store, or another one's


def test_another_tokenizer(path: Path) -> None:
    opened(path).add(fresh(1))
    before = path.read_bytes()
    with pytest.raises(ArgumentError, match="another vocabulary"):
        Store(path, DIGEST[::-1])
    assert path.read_bytes() == before
    llama, other = tiny("llama").vocab, tiny("qwen35", shuffle=3).vocab
    assert vocabulary_digest(llama) == vocabulary_digest(tiny("llama").vocab)
    assert vocabulary_digest(llama) != vocabulary_digest(other)


@pytest.mark.posix
def test_what_is_no_store(tmp_path: Path) -> None:
    text, folder, pipe = tmp_path / "text", tmp_path / "folder", tmp_path / "pipe"
    text.write_text("not a store" * 1000)
    folder.mkdir()
    os.mkfifo(pipe)
    for path in (text, folder, pipe, tmp_path / "no" / "such" / "folder"):
        with pytest.raises(ModelLoadError, match=path.name):
            opened(path)
    assert text.read_text().startswith("not a store")
    with pytest.raises(ModelLoadError, match="none"):
        Store(tmp_path / "none", None)


def mutations(data: bytes, n: int) -> Iterator[bytes]:
    """Bytes changed at random, more of them in the header, and files that were cut or grew."""
    rng = random.Random(5)
    for _ in range(n):
        changed = bytearray(data)
        kind = rng.random()
        if kind < 0.1:
            yield data[: rng.randrange(len(data))]
            continue
        if kind < 0.15:
            yield data + bytes(rng.randrange(1, 5000))
            continue
        size = len(data) if kind < 0.5 else 100 if kind < 0.6 else 6000
        for _ in range(rng.choice((1, 1, 4, 40))):
            at = rng.randrange(size)
            changed[at] = rng.choice((0, 255, rng.randrange(256)))
        yield bytes(changed)


@pytest.mark.parametrize("n", release_except((100, 2000), (100,)))
def test_damage(path: Path, n: int) -> None:
    """A damaged store raises a typed error, or works: its finds are right and it is writable."""
    store = opened(path)
    texts = [fresh(seed) for seed in range(20)]
    store.write_all(texts)
    data = path.read_bytes()
    n_opened = n_kept = 0
    for i, changed in enumerate(mutations(data, n)):
        store.close()
        path.unlink()
        path.write_bytes(changed)
        try:
            store = opened(path)
        except PyllamaSpecError as error:
            assert path.name in str(error)
            continue
        n_opened += 1
        index = store.index
        for text in texts:
            length, places = index.places(text[:30])
            for at in places:
                assert index.tokens[at - length : at].tolist() == text[30 - length : 30]
        drafter = Suffix(8, store=store)
        tell(drafter, texts[i % 20][:30])
        assert all(token >= 0 for token in proposal(drafter, texts[i % 20][:30]))
        n_kept += sum(knows(store, text) for text in texts[:3])
        with contextlib.suppress(PyllamaSpecError):
            store.write_all([fresh(1000 + i)])
            assert knows(opened(path), fresh(1000 + i))
    assert 0.2 * n < n_opened < 0.95 * n
    assert n_kept > 1.5 * n_opened  # of the three that were asked for


# ---- disks that are full


def full_disk(path: Path, limit: int) -> int:
    """In a child: no file may be larger. The exit code says what is wrong; 0 for nothing."""
    import resource  # not on Windows

    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            store = opened(path)
        except ModelLoadError as error:
            return 0 if "disk" in str(error) and not path.exists() else 2
        drafter = Suffix(8, store=store)
        for seed in range(200):
            teach(drafter, [fresh(seed)])
    if [str(w.message) for w in caught if "disk" not in str(w.message)]:
        return 3
    if len(caught) != 1:  # once, and not for every text
        return 4
    if not knows(store, fresh(1)):
        return 5
    return 0 if list(path.parent.iterdir()) == [path] else 6


@pytest.mark.parametrize("limit", [1000, 16_000, 40_000])
@pytest.mark.posix
def test_a_full_disk(path: Path, limit: int) -> None:
    child = os.fork()
    if not child:
        code = 1
        try:
            code = full_disk(path, limit)
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    if path.exists():
        assert knows(opened(path), fresh(1))
