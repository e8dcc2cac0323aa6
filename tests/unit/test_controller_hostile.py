"""The profit controller with drafters and clocks that mislead it, on a clock of their own."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from pyllama_spec.drafters import Draft
from pyllama_spec.speculative.controller import (
    Limits,
    ProfitController,
    Span,
    Spent,
)

PLAIN_S, ROW_S, REST_S = 0.005, 0.0012, 0.00005
MAX_DRAFT = 8
# From the number of the call, of the tokens so far, and of the tokens asked for: how many tokens
# are right, what each of them claims, seconds, and how long a match the draft claims to copy.
Drafter = Callable[[int, int, int], tuple[int, float, float, int]]


def ratio(
    drafter: Drafter,
    n_tokens: int = 2000,
    n_request: int = 200,
    *,
    seed: int = 1,
    noise: float = 0.03,
    first_plain: float = 1.0,
) -> float:
    """Seconds of plain decoding over those of the controller."""
    draw = random.Random(seed)
    controller = ProfitController()
    controller.attach(Limits(MAX_DRAFT))
    costs = {n: PLAIN_S + ROW_S * (n - 1) for n in range(1, MAX_DRAFT + 2)}
    controller.learn_costs({**costs, 1: first_plain * PLAIN_S})
    total, done, n_calls = 0.0, 0, 0
    while done < n_tokens:
        controller.begin(0)
        at = 0
        while at < n_request:
            span = Span(0, 100 + at, max(min(MAX_DRAFT, n_request - at - 1), 0))
            span.decide(controller.decide([span])[0])
            draft_s, n_right = 0.0, 0
            if span.asks_model:
                n = span.n_requested
                n_right, p, draft_s, match_length = drafter(n_calls, done, n)
                span.draft = Draft(
                    [1] * n_right + [0] * (n - n_right), [p] * n, match_length=match_length
                )
                n_calls += 1
            span.verify(controller.verify_lengths([span])[0])
            n_new = min(min(span.n_verified, n_right) + 1, n_request - at)
            span.tokens = [1] * n_new
            verify_s = PLAIN_S + ROW_S * span.n_verified
            controller.learn(
                [span], Spent(draft_s, verify_s * draw.lognormvariate(0, noise), REST_S)
            )
            total += draft_s + verify_s + REST_S
            at, done = at + n_new, done + n_new
    return done * (PLAIN_S + REST_S) / total


def some_right(rate: float) -> Callable[[int], int]:
    draw = random.Random(2)

    def count(n: int) -> int:
        return next((i for i in range(n) if draw.random() >= rate), n)

    return count


@pytest.mark.parametrize("first_s", [0.05, 1.0, 5.0])
def test_a_slow_first_call_is_soon_forgotten(first_s: float) -> None:
    right = some_right(0.9)
    found = ratio(
        lambda call, at, n: (right(n), 0.9, 0.001 if call else first_s, 0), n_tokens=20_000
    )
    # Once only, the five seconds are a twentieth of the plain time.
    assert found > (1.6 if first_s == 5.0 else 1.8)


@pytest.mark.parametrize("draft_s", [0.001, 0.005, 0.02, 0.1])
def test_tries_of_a_dear_draft_are_rare(draft_s: float) -> None:
    found = ratio(lambda call, at, n: (0, 0.3, draft_s, 0), n_tokens=6000, n_request=6000)
    assert found > 0.97


@pytest.mark.parametrize("p", [0.2, 0.8])
@pytest.mark.parametrize("first_plain", [1.0, 1.5])
def test_wrong_tokens_that_cost_nothing_to_draft(p: float, first_plain: float) -> None:
    """With a clock so noisy that two rows may seem as cheap as one, or a slow start."""
    found = [
        ratio(
            lambda call, at, n: (0, p, 1e-6, 0), 100, 100, seed=i, noise=0.2,
            first_plain=first_plain,
        )
        for i in range(24)
    ]  # fmt: skip
    assert sum(found) / len(found) > 0.96
    assert min(found) > 0.9


@pytest.mark.parametrize(("period", "n_good"), [(40, 8), (20, 4), (40, 2)])
@pytest.mark.parametrize("row_s", [0.0009, 0.0012])
def test_a_copier_that_is_right_now_and_then(
    period: int, n_good: int, row_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies whose match lengths and probabilities say nothing: most are wrong at once."""
    monkeypatch.setattr("tests.unit.test_controller_hostile.ROW_S", row_s)

    def drafter(call: int, at: int, n: int) -> tuple[int, float, float, int]:
        return min(max(n_good - at % period, 0), n), 0.8, 1e-6, 1 + call * 7 % 32

    found = [ratio(drafter, 1000, 250, seed=i, noise=0.1, first_plain=1.2) for i in range(8)]
    assert sum(found) / len(found) > 0.96
    assert min(found) > 0.92


@pytest.mark.parametrize("n_request", [3, 5, 10])
def test_not_each_short_request_tries_a_useless_draft(n_request: int) -> None:
    found = ratio(lambda call, at, n: (0, 0.7, 0.001, 0), n_request=n_request)
    assert found > 0.97


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.6])
def test_a_price_that_jumps_is_followed(rate: float) -> None:
    right = some_right(rate)
    found = ratio(
        lambda call, at, n: (right(n), rate, 1e-5 if at < 400 else 0.02, 0), n_tokens=4000
    )
    assert found > 0.96


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_copies_that_are_dear_have_to_pay(rate: float) -> None:
    right = some_right(rate)
    assert ratio(lambda call, at, n: (right(n), 0.5, 0.005, 5)) > 0.96
