"""A store in odd states, forged, moved or read-only; and commands: forget, merge, build."""

from __future__ import annotations

import multiprocessing
import os
import random
import sqlite3
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyllama_spec.cli import main
from pyllama_spec.drafters.suffix import upkeep
from pyllama_spec.drafters.suffix.store import Store, vocabulary_digest
from pyllama_spec.drafters.suffix.token_index import MAX_MATCH
from pyllama_spec.engine import Model
from pyllama_spec.engine.vocab import Vocab
from pyllama_spec.errors import ArgumentError, ForkedError, ModelLoadError
from tests.models import model_path

DIGEST = bytes(range(32))
TEXT = list(range(1000, 1060))


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
        os.truncate(path, 5000)
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
    # Of two vocabularies the other one is odd.
    assert bad.name in said or (kind == "vocabulary" and whole.name in said)
    assert "\n" not in said and "Traceback" not in said
    assert sorted(tmp_path.iterdir()) == files
    assert not is_there or new.read_bytes() == before


# ---- forged files


def forged(path: Path, *statements: str) -> None:
    """A store whose file another program has changed."""
    Store(path, DIGEST).write_all([TEXT])
    file = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        file.execute(statement)
    file.close()


@pytest.mark.parametrize(
    "statements",
    [
        ["DROP TABLE texts"],
        ["DROP TABLE texts", "CREATE VIEW texts AS SELECT 1, 2, 3, 4, x'00000000', x'00'"],
        ["CREATE TRIGGER t AFTER INSERT ON texts BEGIN DELETE FROM texts; END"],
        ["CREATE TABLE more (a)"],
        ["CREATE TABLE more (a UNIQUE)"],
        ["DELETE FROM facts"],
        ["INSERT INTO facts SELECT * FROM facts"],
        *([f"UPDATE facts SET max_tokens = {n}"] for n in ("0", "1 << 31", "NULL", "'many'")),
        *([f"UPDATE facts SET generation = {n}"] for n in ("'x'", "NULL", f"{2**63 - 1}")),
        [f"UPDATE texts SET key = {2**63 - 1}"],
        ["UPDATE facts SET max_tokens = 1024", f"UPDATE texts SET ids = zeroblob({1 << 20})"],
        ["PRAGMA user_version = 7"],
        ["PRAGMA application_id = 7"],
    ],
    ids=str,
)
def test_a_forged_file_is_refused_and_stays(tmp_path: Path, statements: list[str]) -> None:
    path = tmp_path / "a.memory"
    forged(path, *statements)
    before = path.read_bytes()
    with pytest.raises(ModelLoadError, match=r"a\.memory"):
        Store(path, DIGEST)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "changes",
    ["ids = 'text'", "ids = x'ffffffff'", "ids = x'010203'", "ids = NULL", "origins = 7"],
)
def test_a_forged_text_is_left_out(tmp_path: Path, changes: str) -> None:
    path = tmp_path / "a.memory"
    forged(path, f"UPDATE texts SET {changes}, parent = 1 << 60, minute = 'x'")
    store = Store(path, DIGEST)
    assert store.texts() == []
    store.write_all([TEXT[::-1]])
    assert [text.ids.tolist() for text in Store(path, DIGEST).texts()] == [TEXT[::-1]]


def test_a_forged_text_before_itself_ends_no_search(tmp_path: Path) -> None:
    path = tmp_path / "a.memory"
    forged(path, "UPDATE texts SET parent = key")
    store = Store(path, DIGEST)
    store.write_all([[*TEXT[:MAX_MATCH], *TEXT[::-1]]])
    assert [text.parent for text in store.texts()] == [0, 1]


def test_a_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.memory"
    file = sqlite3.connect(path)
    file.execute("CREATE TABLE bookmarks (name)")
    file.close()
    before = path.read_bytes()
    with pytest.raises(ModelLoadError):
        Store(path, DIGEST)
    assert path.read_bytes() == before


# ---- build: what was named


@pytest.fixture
def model() -> Path:
    return model_path("llama")


def said_by(store: Path, model: Path) -> str:
    with Model(model, vocab_only=True) as opened:
        texts = Store(store, vocabulary_digest(opened.vocab)).texts()
        return "".join(upkeep.bytes_of(opened.vocab, one.ids).decode() for one in texts)


@pytest.mark.posix
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
    assert "1 file with text" in said and "left out: 4" in said
    assert said_by(store, model).strip() == "this is a text of mine"
    for named in (inside / "to a file", inside / "sub" / "to a folder"):
        assert memory("build", store, named, "-m", model) == 0
        assert "left out" not in capsys.readouterr().out
    assert "swordfish" in said_by(store, model) and "codfish" in said_by(store, model)


def test_who_may_only_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.memory"
    Store(path, DIGEST).write_all([TEXT])
    right = os.access
    # root may write whatever its mode is
    monkeypatch.setattr(os, "access", lambda name, mode: mode != os.W_OK and right(name, mode))
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


@pytest.mark.posix
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


@pytest.mark.parametrize(("n_before", "n_after"), [(3, 3), (5, 15), (2, 30), (30, 90)])
def test_a_text_across_a_border_of_a_files_parts(
    n_before: int, n_after: int, store: Store, vocab: Vocab, tmp_path: Path
) -> None:
    """The whole file goes, and no other."""
    parts = built(store, vocab, tmp_path, letters(1), letters(2))
    at = letters(1).index(parts[1].strip()) + 24
    wanted = letters(1)[at - n_before : at + n_after]
    assert wanted not in letters(2)
    assert sum(upkeep.forget(store, vocab, wanted)) > 3
    left = said(store, vocab)
    assert left == [part for part in parts if part in left]
    assert all(part[24:] in letters(2) for part in left) and len(left) > 3
