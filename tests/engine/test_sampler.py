"""Every parameter reaches the engine's sampler chain, and only accept() changes its state."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pyllama_spec.engine import Batch, Sampler, SamplerParams
from pyllama_spec.errors import ArgumentError, EngineError, PyllamaSpecError
from tests.oracles import prompt_tokens, tiny, tiny_context

Row = npt.NDArray[np.float32]
OPEN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 5}
N_VOCAB = 320
NO = -math.inf


def row(**logits: float) -> Row:
    """Logits of the letters named, everything else far below."""
    out = np.full(N_VOCAB, -60.0, dtype=np.float32)
    for letter, value in logits.items():
        out[ord(letter)] = value
    return out


FLAT = row(a=3.0, b=2.5, c=2.0, d=1.0, e=0.5, f=0.0)


def sampler(**params: Any) -> Sampler:
    """A sampler of the tiny llama's vocabulary, with everything off that is not named."""
    return Sampler(tiny("llama"), SamplerParams(**{**OPEN, **params}))


def draws(chain: Sampler, logits: Row = FLAT, n: int = 300, *, accept: bool = False) -> str:
    """Letters drawn from one row."""
    letters: list[str] = []
    for _ in range(n):
        token = chain.sample_row(logits)
        letters.append(chr(token))
        if accept:
            chain.accept(token)
    return "".join(letters)


def test_greedy_takes_the_largest_and_the_first_of_equals() -> None:
    chain = sampler(temperature=0)
    assert set(draws(chain, n=5)) == {"a"}
    assert draws(chain, row(c=2.0, b=2.0, f=1.0), 1) == "b"
    rng = np.random.default_rng(1)
    for _ in range(50):
        values = rng.standard_normal(N_VOCAB).astype(np.float32)
        assert chain.sample_row(values) == int(values.argmax())


@pytest.mark.parametrize(
    ("params", "possible"),
    [
        ({}, "abcdef"),
        ({"top_k": 1}, "a"),
        ({"top_k": 3}, "abc"),
        ({"top_p": 0.5}, "ab"),
        ({"min_p": 0.5}, "ab"),
        ({"typical_p": 0.3}, "bc"),
        ({"top_n_sigma": 0.05}, "abcd"),
        ({"top_p": 0.01, "min_keep": 3}, "abc"),
        ({"temperature": 0.01}, "a"),
        ({"xtc_probability": 1.0, "xtc_threshold": 0.1}, None),
        ({"mirostat": 1, "mirostat_tau": 0.1}, None),
        ({"mirostat": 2, "mirostat_tau": 0.1}, None),
        ({"logit_bias": {ord("a"): NO, ord("f"): 2.0}}, "bcdef"),
        ({"logit_bias": {ord("z"): 80.0}}, "z"),
    ],
)
def test_each_cut_leaves_what_it_should(params: dict[str, Any], possible: str | None) -> None:
    got = set(draws(sampler(**params), accept="mirostat" in params))
    if possible is not None:
        assert got <= set(possible)
        assert len(got) >= min(len(possible), 4) or "top_n_sigma" in params
    if "xtc_probability" in params:
        assert "a" not in got
        assert "b" not in got
    if "mirostat" in params:
        assert draws(sampler(**params), accept=True) != draws(sampler(), accept=True)


def test_temperature_flattens_and_sharpens() -> None:
    share = {t: draws(sampler(temperature=t), n=1500).count("a") for t in (0.3, 1.0, 3.0)}
    assert share[0.3] > 1.3 * share[1.0] > 1.3 * 1.3 * share[3.0]


@pytest.mark.parametrize(
    "params",
    [
        {"repeat_penalty": 5.0},
        {"frequency_penalty": 3.0},
        {"presence_penalty": 3.0},
        {"repeat_penalty": 5.0, "penalty_last_n": -1},
        {"dry_multiplier": 5.0, "dry_allowed_length": 1},
    ],
)
def test_penalties_see_what_is_accepted(params: dict[str, Any]) -> None:
    """Penalties see accepted tokens, those of the prompt too, and no merely sampled ones."""
    logits = row(a=3.0, b=2.0)
    for generated in (True, False):
        chain = sampler(temperature=0, **params)
        assert draws(chain, logits, 20) == "a" * 20, "sampling alone is forgotten"
        # DRY asks for a repeated sequence: after "ac", "a" would be followed by "c" again.
        for letter in "acac" if "dry_multiplier" in params else "aa":
            chain.accept(ord(letter), generated=generated)
        if "dry_multiplier" in params:
            chain.accept(ord("a"), generated=generated)
            assert draws(chain, row(c=3.0, b=2.0), 1) == "b"
        else:
            assert draws(chain, logits, 1) == "b"
    assert SamplerParams(**params).n_history == params.get("penalty_last_n", 64)


def test_a_penalty_forgets_what_is_too_old() -> None:
    chain = sampler(temperature=0, repeat_penalty=5.0, penalty_last_n=3)
    chain.accept(ord("a"))
    seen = []
    for letter in "xyz":
        seen.append(draws(chain, row(a=3.0, b=2.0), 1))
        chain.accept(ord(letter))
    assert seen == ["b", "b", "b"]
    assert draws(chain, row(a=3.0, b=2.0), 1) == "a"


def test_a_seed_gives_the_same_draws() -> None:
    first = draws(sampler(seed=3))
    assert draws(sampler(seed=3)) == first != draws(sampler(seed=4))
    unseeded = {draws(sampler(seed=None)) for _ in range(3)}
    assert len(unseeded) == 3
    chain = sampler(seed=None)
    assert draws(sampler(seed=chain.seed)) == draws(chain)
    assert len(draws(sampler(seed=2**32 - 1))) == 300


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"mirostat": 1},
        {"mirostat": 2},
        {"xtc_probability": 0.5},
        {"repeat_penalty": 1.3, "frequency_penalty": 0.2},
        {"dry_multiplier": 0.8, "dry_allowed_length": 1},
        {"grammar": "root ::= ([ab] [cd] [ef])*"},
    ],
)
def test_a_clone_continues_on_its_own(params: dict[str, Any]) -> None:
    chain = sampler(**params)
    begin = draws(chain, n=40, accept=True)
    copy = chain.clone()
    rest = draws(copy, n=40, accept=True)
    assert draws(chain, n=40, accept=True) == rest
    assert draws(copy.clone(), n=10, accept=True) == draws(copy, n=10, accept=True)
    assert begin != rest


def test_a_grammar_forbids_and_advances() -> None:
    chain = sampler(temperature=0, grammar='root ::= "d" [a-c] "e"')
    said = ""
    for _ in range(3):
        token = chain.sample_row(FLAT)
        assert chain.sample_row(FLAT) == token, "sampling does not advance it"
        chain.accept(token)
        said += chr(token)
    assert said == "dae"
    with pytest.raises(PyllamaSpecError):
        chain.accept(ord("a"))
    chain = sampler(temperature=0, grammar='root ::= "d" [a-c] "e"')
    chain.accept(ord("x"), generated=False)
    assert chr(chain.sample_row(FLAT)) == "d", "a prompt is not what the grammar describes"


def test_a_grammar_ends_with_the_end_of_generation() -> None:
    chain = sampler(temperature=0, grammar='root ::= "a"')
    chain.accept(ord("a"))
    token = chain.sample_row(FLAT)
    assert tiny("llama").vocab.is_eog(token)


def test_a_lazy_grammar_waits_for_its_trigger() -> None:
    chain = sampler(temperature=0, grammar='root ::= "f" "e"', grammar_triggers=("f[\\s\\S]*",))
    assert draws(chain, n=5, accept=True) == "aaaaa"
    chain.accept(ord("f"))
    assert draws(chain, n=1) == "e"


THOUGHTS: dict[str, Any] = {
    "temperature": 0.0, "grammar": 'root ::= "f" "e"', "thought_tags": ("<t>", "</t>", "<f"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("said", "is_open", "wakes"),
    [
        ("f", False, True),
        ("<t>f", False, False),
        ("f", True, False),
        ("<t>f</t>", False, False),
        ("<t>f</t>f", False, True),
        ("f f</t> f", True, True),
        ("<t>a</t><t>f</t>b", False, False),
        ("<t>a</t><t>f</t>bf", False, True),
        ("<t>a<f", False, True),  # a call may end the thought
        ("<<t>f", False, False),
        ("<t f", False, True),
        ("</t>f", False, True),
        ("<t></t></t>f", False, True),
        ("<t>" + "f" * 3000 + "</t", False, False),
    ],
)
@pytest.mark.parametrize("trigger", ["text", "token"])
def test_a_thought_wakes_no_grammar(said: str, is_open: bool, wakes: bool, trigger: str) -> None:
    """A triggered grammar leaves only 'e'. A clone behaves the same."""
    by: dict[str, Any] = {"grammar_triggers": ("f[\\s\\S]*",)}
    if trigger == "token":
        by = {"grammar_trigger_tokens": (ord("f"),)}
    chain = sampler(**THOUGHTS, **by, thought_is_open=is_open)
    for char in said:
        chain.accept(ord(char))
    assert (draws(chain, n=1) == "e") == wakes
    copy = chain.clone()
    assert (draws(copy, n=1) == "e") == wakes


def test_a_thought_within_a_call_is_text() -> None:
    """A triggered grammar sees every token: a thought's tags in a call are an argument."""
    rules = 'root ::= "f<t>" [a-c]* "</t>e"'
    chain = sampler(**{**THOUGHTS, "grammar": rules}, grammar_triggers=("f[\\s\\S]*",))
    for char in "xf<t>cb</t>":
        chain.accept(ord(char))
    assert draws(chain, n=1) == "e"


KINDS: list[dict[str, Any]] = [
    {}, {"temperature": 0}, {"mirostat": 1}, {"mirostat": 2}, {"xtc_probability": 1.0},
    {"typical_p": 0.5}, {"top_n_sigma": 1.0}, {"repeat_penalty": 1.1},
    {"grammar": 'root ::= "a"'},
]  # fmt: skip


@pytest.mark.parametrize("params", KINDS, ids=",".join)
def test_rows_that_are_no_logits(params: dict[str, Any]) -> None:
    with pytest.raises(EngineError):
        sampler(**params).sample_row(np.full(N_VOCAB, math.nan, np.float32))
    for place in (0, 63, 64, N_VOCAB - 1) if params in KINDS[:2] else ():
        row = np.array(FLAT)
        row[place] = math.nan
        with pytest.raises(EngineError):
            sampler(**params).sample_row(row)
    wide = np.repeat(FLAT, 2)[::2].astype(np.float64)
    assert sampler(temperature=0).sample_row(wide) == ord("a")  # type: ignore[arg-type]


def test_a_row_of_a_context_and_the_same_row_given() -> None:
    with tiny_context(tiny("llama", output_scale=3.0)) as context:
        batch = Batch(8)
        batch.extend(prompt_tokens(8), 0, output_all=True)
        context.decode(batch)
        cases: list[dict[str, Any]] = [{}, {"temperature": 0}, {"top_k": 10, "repeat_penalty": 1.2}]
        for params in cases:
            chain = sampler(**params)
            for i in range(8):
                expected = chain.clone().sample_row(context.logits(i))
                assert chain.sample(context, i) == expected
                chain.accept(expected)
        for i in (-1, 8, 2**31 - 1):
            with pytest.raises(ArgumentError):
                chain.sample(context, i)
