"""The matches of `memory forget TEXT`: texts in parts, and parts within TEXT."""

from __future__ import annotations

import random
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyllama_spec.drafters.suffix import upkeep
from pyllama_spec.drafters.suffix.store import Store, vocabulary_digest
from pyllama_spec.engine import Model
from pyllama_spec.engine.vocab import Vocab
from tests.models import model_path

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
    """Two short files adjacent in the store are not read as one text."""
    parts = built(store, vocab, tmp_path, letters(5, 20), letters(6, 20))
    assert len(parts) == 2
    assert upkeep.forget(store, vocab, parts[0][-3:] + parts[1].strip()[:3]) == (0, 0)
    assert said(store, vocab) == parts
