"""A vocabulary's mask forbids what the engine forbids one by one; bytes are strict UTF-8."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from pyllama_spec.engine import Model, Sampler, SamplerParams
from pyllama_spec.errors import PyllamaSpecError
from tests.models import model_path
from tests.oracles import tiny

N_VOCAB = 320
# More than are tried one by one before the vocabulary is masked.
N_AHEAD = 40
GRAMMARS = {
    r'root ::= "[" [^x"] "]"': "[a]",
    r'root ::= "the " ("thing" | "another" | [a-c]{2,3}) "."': "the ab.",
    r'root ::= [^\x00-\x1F\\]{3} ("\u00e4" | "\u20ac" | .)': "abc",
    r'root ::= "{" ws "\"a\"" ws ":" ws ([0-9]+ | "null") ws "}"' + "\nws ::= [ \\n]*": '{ "a":12}',
    'root ::= (item "," )* item\nitem ::= [a-z]+ | [0-9]+ | inner\ninner ::= "(" item ")"':
        "a,(b),1",
    r"root ::= [\U0001f600-\U0001f64f] [\u00e4-\u00fc]*": "\U0001f600\u00e4",
}  # fmt: skip


def choice(chain: Sampler, row: npt.NDArray[np.float32]) -> int | None:
    try:
        return chain.sample_row(row)
    except PyllamaSpecError:
        return None


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_it_is_what_each_token_gives(grammar: str) -> None:
    chain = Sampler(tiny("llama"), SamplerParams(temperature=0.0, grammar=grammar))
    for byte in [None, *GRAMMARS[grammar].encode()]:
        if byte is not None:
            chain.accept(byte)
        alone = np.full(N_VOCAB, -math.inf, dtype=np.float32)
        allowed = set()
        for token in range(N_VOCAB):
            alone[token] = 0.0
            if choice(chain, alone) == token:
                allowed.add(token)
            alone[token] = -math.inf
        ahead = [token for token in range(N_VOCAB) if token not in allowed][:N_AHEAD]
        assert len(ahead) == N_AHEAD
        row = np.full(N_VOCAB, -math.inf, dtype=np.float32)
        row[ahead] = 9.0
        for token in range(N_VOCAB):
            if token not in ahead:
                row[token] = 5.0
                assert choice(chain, row) == (token if token in allowed else None)
                row[token] = -math.inf


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_choice_is_the_likeliest_that_may_follow(temperature: float) -> None:
    params = SamplerParams(
        temperature=temperature,
        top_k=1,
        top_p=1.0,
        min_p=0.0,
        seed=3,
        grammar="root ::= [b-y]{900}",
    )
    chain = Sampler(tiny("llama"), params)
    rng = np.random.default_rng(4)
    vocab, letters = tiny("llama").vocab, set(b"bcdefghijklmnopqrstuvwxy")
    fit = [i for i in range(N_VOCAB) if vocab.piece(i) and set(vocab.piece(i)) <= letters]
    for _ in range(100):
        row = rng.standard_normal(N_VOCAB).astype(np.float32) * 4
        best = max(fit, key=lambda i: row[i])
        assert chain.sample_row(row) == best
        chain.accept(best)


# ---- characters

FIRST = tuple(range(0xC0, 0x100))


def allowed(chain: Sampler, tokens: list[int]) -> set[int]:
    """The ids of the tokens that may follow."""
    sampled = set()
    for token in tokens:
        row = np.full(N_VOCAB, -math.inf, dtype=np.float32)
        row[token] = 0.0
        try:
            sampled.add(chain.sample_row(row))
        except PyllamaSpecError:
            continue
    return sampled


def beginnings() -> set[bytes]:
    """The first bytes of all characters of more than one byte."""
    return {
        char[:n]
        for code in range(0x80, 0x110000)
        if not 0xD800 <= code < 0xE000
        for char in [chr(code).encode()]
        for n in range(1, len(char) + 1)
    }


def test_a_character_is_one_that_unicode_has() -> None:
    known = beginnings()
    params = SamplerParams(temperature=0.0, grammar='root ::= "[" [^x] "]"')

    def walk(chain: Sampler, before: bytes, depth: int) -> Iterator[None]:
        # All bytes at the borders, and some between.
        tokens = [*range(0x80, 0x100)] if depth < 2 else [0x7F, 0x80, 0x9F, 0xA0, 0xBF, 0xC0]
        fit = {byte for byte in tokens if before + bytes([byte]) in known}
        assert allowed(chain, tokens) == fit, before
        yield
        for byte in sorted(fit & {0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, *FIRST}):
            after = before + bytes([byte])
            if any(after + bytes([more]) in known for more in (0x80, 0x8F, 0x90, 0x9F, 0xA0)):
                inner = chain.clone()
                inner.accept(byte)
                yield from walk(inner, after, depth + 1)

    chain = Sampler(tiny("llama"), params)
    chain.accept(ord("["))
    assert sum(1 for _ in walk(chain, b"", 0)) > 100


@pytest.fixture(scope="module")
def hiding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """A model with a token of a broken character followed by two quotation marks."""
    data = Path(model_path("llama")).read_bytes()
    word = "\u0120w0".encode()
    assert data.count(word + b"\x03") + data.count(word) >= 1
    at = data.index(len(word).to_bytes(8, "little") + word) + 8
    path = tmp_path_factory.mktemp("hiding") / "model.gguf"
    # "\u00e2" stands for the byte E2 in byte-level BPE, with which a character of three begins.
    path.write_bytes(data[:at] + '\u00e2""'.encode() + data[at + len(word) :])
    with Model(path) as model:
        yield model


def test_a_broken_character_hides_nothing(hiding: Model) -> None:
    token = next(i for i in range(N_VOCAB) if hiding.vocab.piece(i) == b'\xe2""')
    chain = Sampler(hiding, SamplerParams(temperature=0.0, grammar='root ::= "[" [^"]+ "]"'))
    chain.accept(ord("["))
    assert allowed(chain, [token, ord("a"), ord('"')]) == {ord("a")}


def test_a_limit_counts_characters() -> None:
    params = SamplerParams(temperature=0.0, grammar=r'root ::= [^"]{2} "\""')
    chain = Sampler(tiny("llama"), params)
    for byte in "\u00e4\U0001f600".encode():
        assert allowed(chain, [byte, ord('"')]) == {byte}
        chain.accept(byte)
    assert allowed(chain, [0xC3, ord("a"), ord('"')]) == {ord('"')}
