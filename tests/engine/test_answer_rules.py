"""A request's rules for its answer, against a mask computed token by token in Python."""

from __future__ import annotations

import numpy as np
import pytest

from pyllama_spec import EngineError
from pyllama_spec.engine import Model, Sampler, SamplerParams
from tests.models import EOS, model_path

N_STEPS = 60


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(model_path("llama"))


def allowed_by_hand(
    model: Model, n: int, params: SamplerParams
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """For each id whether it may come as the n-th token."""
    vocab = model.vocab
    allowed = np.ones(vocab.n_tokens, dtype=bool)
    for token in range(vocab.n_tokens):
        is_end = vocab.is_eog(token)
        early = n < params.min_tokens and (is_end or token in params.stop_token_ids)
        allowed[token] = not (early or (params.ignore_eos and is_end))
    return allowed


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "ends", [{}, {"min_tokens": 25, "stop_token_ids": (97, 100)}, {"ignore_eos": True}]
)
def test_each_token_is_one_that_a_mask_by_hand_allows(
    model: Model, ends: dict[str, object], temperature: float
) -> None:
    params = SamplerParams(
        temperature=temperature, top_k=0, top_p=1.0, min_p=0.0, seed=3,
        **ends,  # type: ignore[arg-type]
    )  # fmt: skip
    sampler = Sampler(model, params)
    rng = np.random.default_rng(1)
    n_barred = 0
    for n in range(N_STEPS):
        row = rng.standard_normal(model.vocab.n_tokens).astype(np.float32)
        row[[EOS, 97, 100]] += 6.0
        allowed = allowed_by_hand(model, n, params)
        token = sampler.sample_row(row)
        assert allowed[token], token
        if temperature == 0:
            assert token == int(np.argmax(np.where(allowed, row, -np.inf)))
        n_barred += not allowed[int(np.argmax(row))]
        sampler.accept(token)
    assert n_barred or not ends
    copy = sampler.clone()
    row = rng.standard_normal(model.vocab.n_tokens).astype(np.float32)
    assert copy.sample_row(row) == sampler.sample_row(row)


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("budget", range(7))
def test_a_thought_ends_where_its_budget_does(model: Model, budget: int, is_open: bool) -> None:
    close = tuple(model.vocab.tokenize("</think>", add_special=False))
    sampler = Sampler(
        model,
        SamplerParams(
            temperature=0.0, thought_tags=("<think>", "</think>"), thought_is_open=is_open,
            thought_budget=budget, thought_close=close,
        ),
    )  # fmt: skip
    before = b"" if is_open else b"so <think>"
    thought, answer = b"one two three", b" four five <think>more"
    # A second thought has no budget left: it is closed at once.
    expected = (
        before + thought[:budget] + b"</think>" + thought[budget:]
        + answer.replace(b"<think>", b"<think></think>")
    )  # fmt: skip
    said, text = before + thought + answer, b""
    while len(text) < len(expected):
        row = np.zeros(model.vocab.n_tokens, dtype=np.float32)
        row[said[min(len(text.replace(b"</think>", b"")), len(said) - 1)]] = 1.0
        token = sampler.sample_row(row)
        sampler.accept(token)
        text += model.vocab.piece(token)
    assert text == expected


def test_an_end_that_has_begun_is_gone_on_with(model: Model) -> None:
    close = tuple(model.vocab.tokenize("</think>", add_special=False))
    assert len(close) > 3
    params = SamplerParams(
        temperature=0.0, thought_tags=("<think>", "</think>"), thought_is_open=True,
        thought_budget=4, thought_close=close,
    )  # fmt: skip
    sampler = Sampler(model, params)
    for token in [*b"ab", *close[:2]]:
        sampler.accept(token)
    row = np.zeros(model.vocab.n_tokens, dtype=np.float32)
    for token in close[2:]:
        assert sampler.sample_row(row) == token
        sampler.accept(token)
    row[ord("x")] = 1.0
    assert sampler.sample_row(row) == ord("x")


def test_where_nothing_else_may_follow_the_text_ends(model: Model) -> None:
    for ends in ({"min_tokens": 9}, {"ignore_eos": True}):
        for temperature in (0.0, 1.0):
            params = SamplerParams(temperature=temperature, seed=1, grammar='root ::= "ab"', **ends)
            sampler = Sampler(model, params)
            row = np.zeros(model.vocab.n_tokens, dtype=np.float32)
            for token in b"ab":
                assert sampler.sample_row(row) == token
                sampler.accept(token)
            assert model.vocab.is_eog(sampler.sample_row(row))


def test_a_grammar_may_skip_thoughts(model: Model) -> None:
    close = tuple(model.vocab.tokenize("</t>", add_special=False))
    params = SamplerParams(
        temperature=0.0, grammar='root ::= "yes" | "no"', thought_tags=("<t>", "</t>"),
        thought_is_open=True, thought_budget=3, thought_close=close, grammar_skips_thoughts=True,
    )  # fmt: skip
    sampler = Sampler(model, params)
    row = np.zeros(model.vocab.n_tokens, dtype=np.float32)
    row[ord("q")] = 1.0
    said: list[int] = []
    for _ in range(3 + len(close) + 2):
        assert len(said) >= 3 + len(close) or sampler.forced() == b""
        said.append(sampler.sample_row(row))
        sampler.accept(said[-1])
    text = model.vocab.detokenize(said)
    assert text.startswith(b"qqq</t>")
    assert b"yes".startswith(text[7:]) or text[7:] == b"no"


def test_a_grammar_that_knows_no_end_of_a_thought_is_an_error(model: Model) -> None:
    params = SamplerParams(
        temperature=0.0, grammar='root ::= "a"+', thought_tags=("<t>", "</t>"),
        thought_is_open=True, thought_budget=1, thought_close=(ord("<"),),
    )  # fmt: skip
    sampler = Sampler(model, params)
    sampler.accept(ord("a"))
    with pytest.raises(EngineError, match="no end of the thought"):
        sampler.sample_row(np.zeros(model.vocab.n_tokens, dtype=np.float32))
