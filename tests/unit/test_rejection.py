"""The rule of rejection sampling, over all random numbers, gives the target's distribution.

The probabilities are computed, not sampled: bisection finds the random numbers for which a rule
returns each token. The distribution of its answers is thus known to 1e-12, and so is that of faulty
rules.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pyllama_spec.engine import Distribution
from pyllama_spec.speculative import accept_or_redraw

# As accept_or_redraw().
Rule = Callable[[Distribution, Distribution, int, float, float], tuple[int, bool]]
N_IDS = 6
# The largest random number.
_MOST = 1.0 - 2.0**-53


def change(f: Callable[[float], bool]) -> float:
    """The end of the range from 0 on in which f is true, at most 1."""
    low, high = 0.0, 1.0
    if not f(low):
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if f(middle) else (low, middle)
    return high


def answers(rule: Rule, p: Distribution, q: Distribution) -> list[float]:
    """The chance of each id, where the drafted one is drawn from q."""
    out = [0.0] * N_IDS
    for x, q_x in zip(q.ids.tolist(), q.p.tolist(), strict=True):
        accepted = change(partial(_accepts, rule, p, q, x))
        out[x] += q_x * accepted
        v = 0.0
        # Ids come in one order as v rises.
        while accepted < 1.0 and v < _MOST:
            token, _ = rule(p, q, x, _MOST, v)
            end = change(partial(_answers_up_to, rule, p, q, x, v, token))
            out[token] += q_x * (1.0 - accepted) * (end - v)
            v = end
    return out


def _accepts(rule: Rule, p: Distribution, q: Distribution, x: int, u: float) -> bool:
    return rule(p, q, x, u, 0.5)[1]


def _answers_up_to(
    rule: Rule, p: Distribution, q: Distribution, x: int, v: float, token: int, w: float
) -> bool:
    """Whether w is below v, or gives the token too."""
    return w <= v or rule(p, q, x, _MOST, w)[0] == token


def error_of(rule: Rule, p: Distribution, q: Distribution) -> float:
    """How far the distribution of a rule's answers is from p, at the worst id."""
    return max(abs(a - p.of(i)) for i, a in enumerate(answers(rule, p, q)))


@st.composite
def distributions(draw: st.DrawFn) -> Distribution:
    """Over some of the ids, of which some have a weight of 0, in any order."""
    ids = draw(st.permutations(range(N_IDS)))[: draw(st.integers(1, N_IDS))]
    weight = st.sampled_from([0.0, 1e-9, 1.0]) | st.floats(0.01, 1.0)
    weights = [draw(weight) for _ in ids]
    assume(any(weights))
    return Distribution(ids, weights)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(distributions(), distributions())
def test_the_rule_has_the_targets_distribution(p: Distribution, q: Distribution) -> None:
    assert error_of(accept_or_redraw, p, q) < 1e-12


@settings(max_examples=100, deadline=None, derandomize=True)
@given(distributions(), distributions())
def test_what_is_accepted_and_what_is_left_add_up(p: Distribution, q: Distribution) -> None:
    """q(x) min(1, p/q) plus the rest's share times the rest is p."""
    rest = p.beyond(q)
    overlap = [min(p.of(i), q.of(i)) for i in range(N_IDS)]
    share = 1.0 - sum(overlap)
    for i in range(N_IDS):
        left = 0.0 if rest is None else share * rest.of(i)
        assert abs(overlap[i] + left - p.of(i)) < 1e-12


# ---- rules with a fault, each of which has to show


def upside_down(
    p: Distribution, q: Distribution, token: int, u: float, v: float
) -> tuple[int, bool]:
    """Accepts by q / p."""
    if u * p.of(token) < q.of(token):
        return token, True
    return (p.beyond(q) or p).draw(v), False


def always(p: Distribution, q: Distribution, token: int, u: float, v: float) -> tuple[int, bool]:
    """Accepts what has any chance."""
    if p.of(token) > 0.0:
        return token, True
    return (p.beyond(q) or p).draw(v), False


def unclipped(p: Distribution, q: Distribution, token: int, u: float, v: float) -> tuple[int, bool]:
    """Draws from |p - q|."""
    if u * q.of(token) < p.of(token):
        return token, True
    ids = sorted({*p.ids.tolist(), *q.ids.tolist()})
    return Distribution(ids, [abs(p.of(i) - q.of(i)) for i in ids]).draw(v), False


def whole(p: Distribution, q: Distribution, token: int, u: float, v: float) -> tuple[int, bool]:
    """Draws from p again."""
    if u * q.of(token) < p.of(token):
        return token, True
    return p.draw(v), False


P = Distribution([0, 1, 2, 3], [0.5, 0.3, 0.15, 0.05])
Q = Distribution([1, 0, 2, 4], [0.45, 0.25, 0.2, 0.1])


@pytest.mark.parametrize("rule", [upside_down, always, unclipped, whole])
def test_a_wrong_rule_shows(rule: Rule) -> None:
    assert error_of(accept_or_redraw, P, Q) < 1e-12
    assert error_of(rule, P, Q) > 0.01


def test_another_ones_distribution_shows() -> None:
    """The test detects the distribution of the previous position."""

    def stale(_: Distribution, q: Distribution, token: int, u: float, v: float) -> tuple[int, bool]:
        return accept_or_redraw(P, Distribution([0, 1, 2, 4], [0.7, 0.1, 0.1, 0.1]), token, u, v)

    assert error_of(stale, P, Q) > 0.01


def test_equal_distributions_accept_everything() -> None:
    for token in P.ids.tolist():
        assert accept_or_redraw(P, P, token, 1.0 - 2.0**-53, 0.0) == (token, True)
    assert P.beyond(P) is None


# ---- distributions


def test_numbers_choose_in_order() -> None:
    """Each id gets its share of 0 .. 1, and none with probability 0."""
    one = Distribution([7, 3, 9], [0.25, 0.0, 0.75])
    assert one.ids.tolist() == [7, 9] and one.p.tolist() == [0.25, 0.75]
    assert [one.draw(u) for u in (0.0, 0.2499, 0.25, 0.5, 1.0 - 2.0**-53)] == [7, 7, 9, 9, 9]
    assert (one.of(7), one.of(3), one.largest) == (0.25, 0.0, 0.75)


def test_logits_are_summed_in_float64() -> None:
    logits = np.array([0.0, -20.0, -np.inf, 3.0], np.float32)
    one = Distribution.of_logits(np.arange(4, dtype=np.int32), logits)
    expected = np.exp(np.array([0.0, -20.0, 3.0]))
    assert one.ids.tolist() == [0, 1, 3]
    assert np.allclose(one.p, expected / expected.sum(), rtol=1e-14, atol=0)
