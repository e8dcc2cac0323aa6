"""Sampler.distribution() is the distribution of sample(), after all of the chain.

For the CONSTANT model each chain's distribution is computed from its definition; for others it is
compared with the sampler's own draws.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from pyllama_spec.engine import Batch, Context, Sampler, SamplerParams
from pyllama_spec.errors import ArgumentError, PyllamaSpecError
from tests.models import CONSTANT_TOKENS, default_probabilities
from tests.oracles import tiny, tiny_context
from tests.parity.test_distribution import CHAINS, OFF, chi_square, params_of

N_DRAWS = 3000


@pytest.fixture(scope="module")
def context() -> Context:
    """A context of the CONSTANT model, after a token."""
    return behind_a_token("constant", n_layer=1, n_embd=32)


def behind_a_token(kind: str, **options: Any) -> Context:
    """A context that has just decoded a token."""
    context, batch = tiny_context(tiny(kind, **options)), Batch(4)
    batch.add(97, 0, output=True)
    context.decode(batch)
    return context


@pytest.mark.parametrize("chain", CHAINS)
def test_it_is_what_the_chain_leaves(context: Context, chain: str) -> None:
    expected = CHAINS[chain][1](default_probabilities())
    with closing(Sampler(context.model, params_of(chain))) as sampler:
        found = sampler.distribution(context, 0)
    p = np.array([found.of(token) for token in CONSTANT_TOKENS])
    assert np.allclose(p, expected, rtol=2e-5, atol=1e-12)
    # The rest of the vocabulary has e**-50 each, where nothing cuts it.
    assert abs(found.p.sum() - 1.0) < 1e-12


@pytest.mark.parametrize(
    "values",
    [
        {"top_k": 40, "top_p": 0.95, "min_p": 0.05, "temperature": 0.8},
        {"typical_p": 0.6},
        {"top_n_sigma": 1.0, "temperature": 1.5},
        {"top_k": 6, "logit_bias": {97: 3.0, 98: 2.0, 99: -100.0}},
        {"presence_penalty": 4.0, "frequency_penalty": 2.0, "repeat_penalty": 1.5, "top_p": 0.9},
        {"dry_multiplier": 2.0, "dry_allowed_length": 1, "top_k": 8},
        {"ignore_eos": True, "top_k": 12, "temperature": 2.0},
        {"stop_token_ids": (97, 98), "min_tokens": 9, "min_p": 0.02},
    ],
    ids=lambda values: next(iter(values)),
)
@pytest.mark.parametrize("kind", ["constant", "llama"])
def test_draws_agree(kind: str, values: dict[str, Any]) -> None:
    """The distribution agrees in mid-text too, after penalties and rules have seen tokens."""
    context = behind_a_token(kind, **({"n_layer": 1, "n_embd": 32} if kind == "constant" else {}))
    params = SamplerParams(seed=4, **{**OFF, "temperature": 1.0, **values})
    sampler = Sampler(context.model, params)
    for token in (97, 98, 99, 97, 98):
        sampler.accept(token)
    p = sampler.distribution(context, 0)
    again = sampler.clone().distribution(context, 0)
    assert again.ids.tolist() == p.ids.tolist() and (again.p == p.p).all(), "nothing is advanced"
    counts = Counter(sampler.sample(context, 0) for _ in range(N_DRAWS))
    found = np.array([counts.pop(token, 0) for token in p.ids.tolist()], np.float64)
    assert not counts, "a token that has no probability was drawn"
    chances, rare = p.p, p.p * N_DRAWS < 8.0
    if rare.any():  # they count together, with the likeliest if they are too few
        chances, found = (np.append(a[~rare], a[rare].sum()) for a in (chances, found))
        if chances[-1] * N_DRAWS < 8.0:
            chances, found = (np.append(a[1:-1], a[0] + a[-1]) for a in (chances, found))
    statistic, limit = chi_square(found, chances)
    assert statistic < limit
    assert p.of(99) < 1e-6 or "logit_bias" not in values


def test_a_forced_token_is_certain(context: Context) -> None:
    """When the thought budget is used up, the closing token is certain without the chain."""
    params = SamplerParams(
        temperature=1.0, thought_tags=("<t>", "</t>"), thought_is_open=True, thought_budget=0,
        thought_close=(ord("<"),),
    )  # fmt: skip
    with closing(Sampler(context.model, params)) as sampler:
        found = sampler.distribution(context, 0)
    assert (found.ids.tolist(), found.p.tolist()) == ([ord("<")], [1.0])


@pytest.mark.parametrize("values", [{"temperature": 0.0}, {"mirostat": 1}, {"mirostat": 2},
                                    {"grammar": "root ::= [a-p]*"}])  # fmt: skip
def test_where_there_is_none(context: Context, values: dict[str, Any]) -> None:
    with closing(Sampler(context.model, SamplerParams(**values))) as sampler:
        for one in (sampler, sampler.clone()):
            with pytest.raises(ArgumentError):
                one.distribution(context, 0)
        assert sampler.sample(context, 0) in CONSTANT_TOKENS, "it goes on"


def test_nothing_may_follow(context: Context) -> None:
    forbidding = SamplerParams(logit_bias=dict.fromkeys(range(320), float("-inf")))
    with pytest.raises(PyllamaSpecError, match="no token may follow"):
        Sampler(context.model, forbidding).distribution(context, 0)
