"""The vocabulary: text to ids and back."""

from __future__ import annotations

import random

import pytest

from pyllama_spec.engine import Model, Vocab
from pyllama_spec.errors import ArgumentError
from tests import models
from tests.oracles import tiny

TEXTS = (
    "", " ", "the thing", "  two  spaces  ", "a\nb\t\r\n", "\u00fcml\u00e4ut", "\u65e5\u672c\u8a9e",
    "\U0001f600\U0001f468\u200d\U0001f469", "x = {'a': [1, 2.5]}\n", "<|im_end|>", "\x00\x01\x7f",
    "a" * 5000,
)  # fmt: skip


@pytest.fixture
def vocab() -> Vocab:
    return tiny("llama").vocab


@pytest.mark.parametrize("text", TEXTS)
def test_round_trips(vocab: Vocab, text: str) -> None:
    ids = vocab.tokenize(text)
    assert vocab.detokenize(ids).decode() == text
    assert all(0 <= token < vocab.n_tokens for token in ids)
    assert not any(vocab.is_control(token) for token in ids), "text names no control tokens"
    assert vocab.tokenize(text.encode()) == ids
    assert models.decode(ids) == text.encode()


def test_any_bytes_survive(vocab: Vocab) -> None:
    """The tiny vocabulary has a token for every byte, so that ids of any bytes can be decoded."""
    rng = random.Random(3)
    for _ in range(20):
        data = bytes(rng.randrange(256) for _ in range(rng.randrange(40)))
        assert vocab.detokenize(list(data)) == data


def test_lone_surrogates_are_replaced(vocab: Vocab) -> None:
    assert vocab.detokenize(vocab.tokenize("a\ud800b")) == b"a?b"


def test_special_tokens(vocab: Vocab) -> None:
    assert (vocab.bos, vocab.eos) == (models.BOS, models.EOS)
    assert vocab.special("pad") == models.ENDOFTEXT
    assert vocab.special("mask") is None
    with pytest.raises(ArgumentError):
        vocab.special("nosuch")
    text = "<|im_start|>a<|im_end|>"
    assert vocab.tokenize(text, parse_special=True) == [models.IM_START, ord("a"), models.IM_END]
    assert models.IM_START not in vocab.tokenize(text)
    for token, name in zip(models.SPECIAL_IDS, models.SPECIAL_TOKENS, strict=True):
        assert vocab.is_control(token)
        assert vocab.piece(token) == b""
        assert vocab.piece(token, special=True) == name.encode()
    assert not vocab.is_control(ord("a"))
    assert vocab.is_eog(models.EOS)
    assert not vocab.is_eog(ord("a"))
    assert (vocab.adds_bos, vocab.adds_eos) == (False, False)


def test_ids_outside_the_vocabulary(vocab: Vocab) -> None:
    for token in (-1, 320, 2**31 - 1):
        assert not vocab.is_eog(token)
        assert not vocab.is_control(token)
    with pytest.raises(ArgumentError):
        vocab.check_ids([1, 400], "the prompt")
    vocab.check_ids(range(320))


def test_a_vocabulary_outlives_its_model_object() -> None:
    vocab = Model(models.model_path("llama")).vocab
    assert vocab.detokenize(vocab.tokenize("still here")) == b"still here"
