"""Sampler.sample_chain() equals sample() and accept() row by row, in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pyllama_spec.engine import Batch, Context, Sampler, SamplerParams
from pyllama_spec.errors import ArgumentError, EngineError
from tests.models import EOS
from tests.oracles import GREEDY, prompt_tokens, sampled, tiny, tiny_context

N_ROWS = 9
PARAMS = {
    "greedy": GREEDY,
    "penalties": sampled(3),
    "penalties, greedy": sampled(3, temperature=0),
    "no cuts": SamplerParams(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=9),
    "DRY and XTC": sampled(4, dry_multiplier=0.8, xtc_probability=0.5, xtc_threshold=0.02),
    "mirostat": SamplerParams(mirostat=1, mirostat_tau=3.0, seed=5),
    "mirostat 2": SamplerParams(mirostat=2, mirostat_tau=3.0, seed=5),
    "grammar": sampled(6, grammar='root ::= ([a-z] [0-9]? " "?)*'),
    "lazy grammar": sampled(
        7, grammar='root ::= "a" [a-z]*', grammar_triggers=("(a)",), logit_bias={ord("a"): 4.0}
    ),
}


def decoded(context: Context, n_outputs: int = N_ROWS) -> None:
    """A batch of N_ROWS rows, the first n_outputs of them with logits."""
    batch = Batch(N_ROWS)
    for i, token in enumerate(prompt_tokens(N_ROWS, seed=1)):
        batch.add(token, i, output=i < n_outputs)
    context.decode(batch)


def step_by_step(
    sampler: Sampler, context: Context, row: int, draft: Sequence[int], is_eog: Any
) -> list[int]:
    """The same in Python: the definition."""
    tokens: list[int] = []
    for k in range(len(draft) + 1):
        token = sampler.sample(context, row + k)
        sampler.accept(token)
        tokens.append(token)
        if k == len(draft) or token != draft[k] or is_eog(token):
            break
    return tokens


def warmed_up(params: SamplerParams) -> Sampler:
    """A sampler that has seen a prompt."""
    sampler = Sampler(tiny("llama"), params)
    for token in prompt_tokens(20, seed=3):
        sampler.accept(token, generated=False)
    return sampler


@pytest.mark.parametrize("params", PARAMS.values(), ids=list(PARAMS))
def test_a_chain_is_its_steps(params: SamplerParams) -> None:
    """Drafts that are right up to each place give the same tokens and the same final state."""
    is_eog = tiny("llama").vocab.is_eog
    with tiny_context(tiny("llama")) as context:
        decoded(context)
        right = [-1] * (N_ROWS - 1)  # no token: differs at once
        for n_right in range(N_ROWS):
            for first in (0, 1):
                one, many = warmed_up(params), warmed_up(params)
                draft = right[: N_ROWS - 1 - first]
                expected = step_by_step(one, context, first, draft, is_eog)
                assert many.sample_chain(context, first, draft) == expected
                # What comes next depends on all that was accepted and drawn.
                again = [step_by_step(s, context, 0, [-1], is_eog) for s in (one, many, one, many)]
                assert again[0] == again[1] and again[2] == again[3]
                if first == 0:
                    next_right = expected[n_right] if n_right < len(expected) else -1
            if n_right < len(right):
                right[n_right] = next_right
        whole = warmed_up(params).sample_chain(context, 0, right)
        assert len(whole) == N_ROWS or whole[-1] == EOS or is_eog(whole[-1])


def test_no_draft_is_one_token() -> None:
    with tiny_context(tiny("llama")) as context:
        decoded(context)
        sampler = Sampler(tiny("llama"), GREEDY)
        for i in range(N_ROWS):
            assert sampler.sample_chain(context, i, ()) == [sampler.sample(context, i)]


def test_a_token_that_ends_the_text_is_the_last() -> None:
    with tiny_context(tiny("llama")) as context:
        decoded(context)
        sampler = Sampler(tiny("llama"), SamplerParams(temperature=0, logit_bias={EOS: 1e4}))
        assert sampler.sample_chain(context, 0, [EOS, EOS, EOS]) == [EOS]


def test_drafts_longer_than_any_before() -> None:
    model = tiny("llama")
    with tiny_context(model) as context:
        batch = Batch(40)
        batch.extend(prompt_tokens(40), 0, output_all=True)
        context.decode(batch)
        sampler = Sampler(model, SamplerParams(temperature=0, logit_bias={ord("x"): 1e4}))
        for n in (3, 16, 17, 39, 5):
            assert sampler.sample_chain(context, 0, [ord("x")] * n) == [ord("x")] * (n + 1)


def test_a_failure_keeps_what_was_accepted() -> None:
    """The failure is a row without logits, or a grammar that allows nothing more."""
    model = tiny("llama")
    with tiny_context(model) as context:
        decoded(context, n_outputs=3)
        right: list[int] = []
        for _ in range(3):
            right = Sampler(model, GREEDY).sample_chain(context, 0, [*right, -1][: len(right) + 1])
        sampler = warmed_up(GREEDY)
        with pytest.raises(ArgumentError) as caught:
            sampler.sample_chain(context, 0, right)
        assert caught.value.partial_tokens == tuple(right) and len(right) == 3
        with pytest.raises(ArgumentError) as caught:
            sampler.sample_chain(context, 9, [1])
        assert caught.value.partial_tokens == ()
        nothing = {i: float("-inf") for i in range(model.info.n_vocab) if i != ord("q")}
        strict = Sampler(
            model, SamplerParams(temperature=0, grammar='root ::= "q"', logit_bias=nothing)
        )
        decoded_again = tiny_context(model)
        decoded(decoded_again)
        with pytest.raises(EngineError, match="no token may follow") as failed:
            strict.sample_chain(decoded_again, 0, [ord("q"), ord("q")])
        assert failed.value.partial_tokens == (ord("q"),)
