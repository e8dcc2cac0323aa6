"""Promise 1 for sampling: with any drafts, tokens have the target's distribution.

The CONSTANT model gives the same 16 probabilities at every position, so the distribution after each
chain is known exactly, and draws are independent. Pearson's statistic is compared with its critical
value at 1e-6; seeds are fixed, so the result never changes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest

from pyllama_spec.drafters import Draft, Drafter, DraftRequest, NoDrafter
from pyllama_spec.engine import Context, Sampler, SamplerParams
from pyllama_spec.speculative import SequenceState, SpeculativeLoop, StepSampler, TokenSampler
from tests.models import CONSTANT_TOKENS, default_probabilities
from tests.oracles import tiny, tiny_context

Array = npt.NDArray[np.float64]
N_DRAWS = 20_000
PER_REQUEST = 200
# The standard normal's quantile at 1 - 1e-6.
Z_CRITICAL = 4.7534


def chi_square_limit(n_free: int) -> float:
    """The critical value at 1e-6 (Wilson and Hilferty 1931: the cube root is nearly normal)."""
    spread = 2.0 / (9.0 * n_free)
    return float(n_free * (1.0 - spread + Z_CRITICAL * math.sqrt(spread)) ** 3)


def chi_square(counts: Array, expected: Array) -> tuple[float, float]:
    """Pearson's statistic and its limit; anything drawn that cannot occur makes it infinite."""
    possible = expected > 0
    if counts[~possible].any():
        return math.inf, 0.0
    n = expected[possible] * counts.sum()
    assert n.min() > 5, "too few draws for the statistic"
    if len(n) == 1:
        return 0.0, 1.0
    statistic = float(((counts[possible] - n) ** 2 / n).sum())
    return statistic, chi_square_limit(len(n) - 1)


# What the chains do to a distribution, written from their definitions.


def normed(q: Array) -> Array:
    result: Array = q / q.sum()
    return result


def tempered(p: Array, temperature: float) -> Array:
    """Raises each probability to the power 1 / temperature, and normalises."""
    return normed(p ** (1.0 / temperature))


def top_k(p: Array, k: int) -> Array:
    return normed(np.where(np.argsort(np.argsort(-p)) < k, p, 0.0))


def top_p(p: Array, mass: float) -> Array:
    """The fewest largest that reach the mass, normed."""
    order = np.argsort(-p)
    n = int(np.searchsorted(np.cumsum(p[order]), mass)) + 1
    return top_k(p, n)


def min_p(p: Array, share: float) -> Array:
    """Keeps the probabilities of at least a share of the largest, and normalises."""
    return normed(np.where(p >= share * p.max(), p, 0.0))


OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
CHAINS: dict[str, tuple[dict[str, float], Callable[[Array], Array]]] = {
    "temperature-1": ({}, lambda p: p),
    "temperature-0.6": ({"temperature": 0.6}, lambda p: tempered(p, 0.6)),
    "top-k": ({"top_k": 5}, lambda p: top_k(p, 5)),
    "top-p": ({"top_p": 0.7}, lambda p: top_p(p, 0.7)),
    "min-p": ({"min_p": 0.2}, lambda p: min_p(p, 0.2)),
    "all-hot": (
        {"top_k": 12, "top_p": 0.9, "min_p": 0.1, "temperature": 1.5},
        lambda p: tempered(min_p(top_p(top_k(p, 12), 0.9), 0.1), 1.5),
    ),
}


class Guessing(Drafter):
    name = "guessing"

    def __init__(self, choose: Callable[[random.Random], int], max_draft: int = 3) -> None:
        self._choose, self.max_draft, self._random = choose, max_draft, random.Random(1)

    def propose_one(self, request: DraftRequest) -> Draft:
        return Draft([self._choose(self._random) for _ in range(request.n_requested)])


DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "none": NoDrafter,
    # Always the likeliest token: accepted as often as a constant guess can be.
    "good": lambda: Guessing(lambda _: CONSTANT_TOKENS[0]),
    "unlikely": lambda: Guessing(lambda _: CONSTANT_TOKENS[15]),
    "wrong": lambda: Guessing(lambda _: 7),
    "mixed": lambda: Guessing(lambda r: r.choice([*CONSTANT_TOKENS[:4], CONSTANT_TOKENS[11], 7])),
}


def counts_of(tokens: Sequence[int]) -> Array:
    """How often each of the 16 tokens was drawn; any other one fails."""
    counts = np.bincount(np.array(tokens), minlength=320).astype(np.float64)
    inside = counts[list(CONSTANT_TOKENS)]
    assert counts.sum() == inside.sum(), "a token that has no probability was drawn"
    return inside


def draw(
    context: Context,
    drafter: Drafter,
    params: SamplerParams,
    n: int = N_DRAWS,
    wrap: Callable[[Sampler], TokenSampler] = lambda sampler: sampler,
) -> tuple[list[int], int]:
    """Draws n tokens through the loop, and how many of them were drafted."""
    tokens: list[int] = []
    n_accepted = 0
    sampler = wrap(Sampler(context.model, params))
    loop, seq = SpeculativeLoop(context, drafter), SequenceState()
    while len(tokens) < n:
        loop.prefill(seq, [97, 98])
        for step in loop.generate(seq, sampler, PER_REQUEST):
            tokens += step.tokens
        n_accepted += loop.stats.accepted
    return tokens, n_accepted


def params_of(chain: str, seed: int = 12) -> SamplerParams:
    """A chain's parameters with everything else off."""
    return SamplerParams(seed=seed, **{**OFF, **CHAINS[chain][0]})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def context() -> Context:
    """The smallest possible context: the cost is that of the loop."""
    return tiny_context(tiny("constant", n_layer=1, n_embd=32))


def test_the_statistic_knows_its_distribution() -> None:
    """Over repeated samples of a known distribution, its mean is its degrees of freedom."""
    rng, p = np.random.default_rng(5), default_probabilities()
    values = [chi_square(rng.multinomial(20_000, p).astype(float), p)[0] for _ in range(400)]
    assert 14.0 < float(np.mean(values)) < 16.0
    assert max(values) < chi_square_limit(15)
    # From tables: the upper 0.1 % point of 15 degrees is 37.70; at 1e-6 it must lie well above.
    assert 50.0 < chi_square_limit(15) < 60.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chain", "kind"),
    [("temperature-1", kind) for kind in DRAFTERS]
    + [(chain, "mixed") for chain in CHAINS if chain != "temperature-1"],
)
def test_draws_have_the_distribution_of_the_chain(context: Context, chain: str, kind: str) -> None:
    """The cases draw independently, with different seeds."""
    expected = CHAINS[chain][1](default_probabilities())
    seed = 100 + 10 * list(CHAINS).index(chain) + list(DRAFTERS).index(kind)
    tokens, n_accepted = draw(context, DRAFTERS[kind](), params_of(chain, seed))
    statistic, limit = chi_square(counts_of(tokens), expected)
    assert len(tokens) >= N_DRAWS
    assert statistic < limit
    if kind in ("good", "mixed"):
        assert n_accepted > 1000, "drafted tokens must be among the draws"


class Biased(StepSampler):
    """A rule that is wrong: `choose` gets the sampler's token, and may draw again."""

    def __init__(self, inner: Sampler, choose: Callable[[int, Callable[[], int]], int]) -> None:
        self.inner, self.choose = inner, choose

    def sample(self, context: Context, i: int) -> int:
        return self.choose(
            self.inner.sample(context, i), lambda: int(self.inner.sample(context, i))
        )

    def accept(self, token: int, *, generated: bool = True) -> None:
        self.inner.accept(token, generated=generated)


DRAFTED = CONSTANT_TOKENS[0]


def takes(p: float) -> Callable[[int, Callable[[], int]], int]:
    """A rule that takes what was drafted as it stands, with some probability."""
    coin = random.Random(2)
    return lambda token, _: DRAFTED if coin.random() < p else token


@pytest.mark.slow
@pytest.mark.parametrize(
    ("choose", "n"),
    [
        (takes(1.0), 3000),
        (takes(0.2), 5000),
        (takes(0.05), N_DRAWS),
        # After a rejection a second draw favours tokens that are not drafted.
        (lambda token, again: token if token == DRAFTED else again(), 5000),
    ],
)
def test_a_wrong_rule_is_caught(
    context: Context, choose: Callable[[int, Callable[[], int]], int], n: int
) -> None:
    params = params_of("temperature-1")
    tokens, _ = draw(context, DRAFTERS["good"](), params, n, lambda one: Biased(one, choose))
    statistic, limit = chi_square(counts_of(tokens), default_probabilities())
    assert statistic > limit
