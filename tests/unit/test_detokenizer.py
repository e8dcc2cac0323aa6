"""Text from tokens against the definition: decode everything, then cut at the first stop."""

from __future__ import annotations

import random

import pytest

from pyllama_spec.engine import Model, Vocab
from pyllama_spec.requests.run import Detokenizer, Piece
from tests.models import BOS, model_path

TEXTS = ["the stop, then", "aaaabaaab", "日本語🙂é", "x\n\nUser:", "é", "ing the re"]


@pytest.fixture(scope="module")
def vocab() -> Vocab:
    return Model(model_path("llama"), vocab_only=True).vocab


def run(vocab: Vocab, tokens: list[int], stops: list[str]) -> tuple[list[Piece], bool]:
    assembler = Detokenizer(vocab, stops)
    pieces: list[Piece] = []
    for token in tokens:
        pieces += assembler.feed(token, from_draft=token % 2 == 0)
        if assembler.stop is not None:
            return pieces, True
    return pieces + assembler.flush(), False


@pytest.mark.parametrize("seed", range(40))
def test_equals_decoding_everything_and_cutting(vocab: Vocab, seed: int) -> None:
    rng = random.Random(seed)
    text = "".join(rng.choice(TEXTS) for _ in range(12))
    stops = [
        text[at : at + rng.randint(1, 6)] if rng.random() < 0.5 else "aab" * rng.randint(1, 3)
        for at in (rng.randrange(len(text)) for _ in range(rng.randint(0, 3)))
    ]
    # Single bytes, so that every character and every stop is split.
    tokens = list(text.encode()) if rng.random() < 0.5 else vocab.tokenize(text, add_special=False)
    pieces, is_stopped = run(vocab, tokens, stops)
    found = [at for at in map(text.find, stops) if at >= 0]
    # After each token the first stop that is whole by then ends the text.
    expected = text
    for n in range(1, len(tokens) + 1):
        now = vocab.detokenize(tokens[:n]).decode(errors="ignore")
        ends = [at for at in map(now.find, stops) if at >= 0]
        if ends:
            expected = now[: min(ends)]
            break
    assert is_stopped == bool(found)
    got = "".join(piece.text for piece in pieces)
    assert got == expected
    given = [token for piece in pieces for token in piece.tokens]
    assert given == tokens[: len(given)]
    assert [flag for piece in pieces for flag in piece.from_draft] == [t % 2 == 0 for t in given]
    # The tokens end with the one that gave the last of the text.
    assert vocab.detokenize(given).decode(errors="ignore").startswith(got)
    assert not given or len(vocab.detokenize(given[:-1])) < len(got.encode()) or not is_stopped


@pytest.mark.parametrize("seed", range(20))
def test_what_no_stop_begins_with_is_given_at_once(vocab: Vocab, seed: int) -> None:
    rng = random.Random(seed)
    text = "".join(rng.choice("ab") for _ in range(60))
    stops = ["".join(rng.choice("ab") for _ in range(rng.randint(1, 9))) + "c" for _ in range(9)]
    detokenizer = Detokenizer(vocab, stops)
    given = ""
    for n, token in enumerate(text.encode(), 1):
        given += "".join(piece.text for piece in detokenizer.feed(token))
        # The longest end of it that a stop begins with; of nothing all do.
        held = next(k for k in range(n + 1) if any(stop.startswith(text[k:n]) for stop in stops))
        assert given == text[:held]


def test_control_tokens_go_with_what_follows(vocab: Vocab) -> None:
    pieces, _ = run(vocab, [97, BOS, 98, BOS], [])
    assert [piece.text for piece in pieces] == ["a", "b", ""]
    assert [piece.tokens for piece in pieces] == [(97,), (BOS, 98), (BOS,)]


def test_an_unfinished_character_at_the_end_is_dropped_but_its_tokens_are_not(vocab: Vocab) -> None:
    tokens = [97, *"é".encode()[:1]]
    pieces, _ = run(vocab, tokens, [])
    assert "".join(piece.text for piece in pieces) == "a"
    assert [token for piece in pieces for token in piece.tokens] == tokens


def test_broken_utf8_is_replaced_and_does_not_stop_the_rest(vocab: Vocab) -> None:
    pieces, _ = run(vocab, [97, 0xFF, 98, 0xC3, 99], [])
    assert "".join(piece.text for piece in pieces) == "a\ufffdb\ufffdc"
