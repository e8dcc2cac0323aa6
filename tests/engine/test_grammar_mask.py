"""A vocabulary's mask forbids exactly the tokens that the engine forbids one by one."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from pyllama_spec.engine import Sampler, SamplerParams
from pyllama_spec.errors import PyllamaSpecError
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


LETTERS = "root ::= [b-y]{900}"


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
