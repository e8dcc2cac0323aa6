"""The profit controller in worlds of other machines: never slower, and near who knows the odds."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from pyllama_spec.speculative.controller import ProfitController
from tests.controller_world import (
    Costs,
    Fixed,
    Place,
    made_up,
    oracle,
    plain,
    simulate,
)
from tests.tiers import release_except

WORLDS = {
    "dense GPU": Costs(lambda rows, n: 10 + 0.05 * (rows - 1) + 1e-4 * n, lambda k: 0.4 * k),
    "experts": Costs(lambda rows, n: 10 * (1 + 0.22 * (rows - 1)), lambda k: 0.4 * k),
    "hybrid": Costs(lambda rows, n: 10 * (1 + 0.1 * (rows - 1)), lambda k: 0.4 * k),
    "CPU": Costs(lambda rows, n: 4 * (1 + 0.22 * (rows - 1)) + 0.04 * rows**2, lambda k: 0.5 * k),
    "network": Costs(lambda rows, n: 60 + 2 * rows, lambda k: 1.0 * k),
}
RATES = [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.95]
CASES = [(world, rate) for world in WORLDS for rate in RATES]
LENGTHS = (1, 2, 3, 4, 6, 8)


def texts(
    rate: Callable[[int], float], n: int = 300, count: int = 4, exponent: float = 1.0
) -> list[list[Place]]:
    return [made_up(n, rate, seed, exponent=exponent) for seed in range(count)]


def check(found: float, all_texts: list[list[Place]], costs: Costs, least: float) -> None:
    """Never slower than plain decoding, and near whoever knows the chances of all tokens."""
    assert plain(all_texts, costs) / found > 0.97
    assert oracle(all_texts, costs) / found > least


@pytest.mark.parametrize("case", release_except(CASES, [("CPU", 0.0), ("CPU", 0.7)]))
def test_chains(case: tuple[str, float]) -> None:
    world, rate = case
    costs, written = WORLDS[world], texts(lambda at: rate)
    found = simulate(ProfitController(), written, costs).seconds
    check(found, written, costs, 0.92)
    best = min(simulate(Fixed(n), written, costs).seconds for n in LENGTHS)
    # Within 5% of the best fixed length, which nobody knows before; plain decoding is one too.
    assert min(best, plain(written, costs)) / found > 0.95


@pytest.mark.slow
@pytest.mark.parametrize("exponent", [0.2, 3.0], ids=["too sure", "too shy"])
@pytest.mark.parametrize("rate", [0.1, 0.4, 0.7])
def test_drafts_that_misjudge_themselves(exponent: float, rate: float) -> None:
    for costs in WORLDS.values():
        written = texts(lambda at: rate, exponent=exponent)
        check(simulate(ProfitController(), written, costs).seconds, written, costs, 0.90)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.0, 0.3, 0.6, 0.9])
def test_blocks(rate: float) -> None:
    for world in WORLDS.values():
        costs = Costs(world.verify, lambda n: 1.2 + 0.05 * n)
        written = texts(lambda at: rate)
        found = simulate(ProfitController(), written, costs, is_stepwise=False).seconds
        assert plain(written, costs) / found > 0.97
        assert oracle(written, costs, is_stepwise=False) / found > 0.88


@pytest.mark.slow
@pytest.mark.parametrize(
    "rate",
    [
        lambda at: 0.9 - 0.85 * at / 4000,
        lambda at: 0.05 + 0.85 * at / 4000,
        lambda at: 0.45 + 0.45 * math.sin(at / 150),
        lambda at: (0.05, 0.9)[at // 500 % 2],
    ],
    ids=["falling", "rising", "waves", "steps"],
)
def test_acceptance_that_drifts_over_4000_tokens(rate: Callable[[int], float]) -> None:
    for costs in WORLDS.values():
        written = texts(rate, 4000, 1)
        found = simulate(ProfitController(), written, costs).seconds
        check(found, written, costs, 0.92)
        assert min(simulate(Fixed(n), written, costs).seconds for n in LENGTHS) / found > 1.0


@pytest.mark.slow
def test_a_context_that_grows_to_32k() -> None:
    costs = Costs(lambda rows, n: 10 + 0.6 * (rows - 1) + n * rows * 1.5e-4, lambda k: 0.5 * k)
    written = texts(lambda at: 0.6, 32000, 1)
    controller = ProfitController()
    out = simulate(controller, written, costs)
    check(out.seconds, written, costs, 0.95)
    # A row costs 0.6 ms more at first and 5.4 at the end: less is drafted there.
    early, late = (
        [n for (_, n), at in zip(out.lengths, out.at, strict=True) if low <= at < low + 1500]
        for low in (200, 30000)
    )
    assert sum(late) / len(late) < 0.7 * sum(early) / len(early)


@pytest.mark.slow
@pytest.mark.parametrize("n_together", [8, 32])
@pytest.mark.parametrize("rate", [0.0, 0.3, 0.6, 0.9])
def test_many_sequences(n_together: int, rate: float) -> None:
    """They share one batch, whose rows cost more and more."""
    for name in ("dense GPU", "CPU"):
        costs = WORLDS[name]
        written = texts(lambda at: rate, 150, n_together)
        found, zero, fixed = (
            simulate(c, written, costs, n_together=n_together, max_draft=3).seconds
            for c in (ProfitController(), Fixed(0), Fixed(3))
        )
        assert zero / found > 0.97
        # Of 50 rounds or so, the first of which learn what so many rows cost.
        assert min(zero, fixed) / found > 0.93


def copied(n: int) -> list[Place]:
    """Prose with chance matches of three tokens, a copied passage, and prose again."""
    out = []
    for at in range(3 * n):
        if n <= at < 2 * n:
            left = min(7, 2 * n - at)
            out.append(Place(left, [0.5] * 7, (), 3 + at - n))
        elif at % 4 == 0:
            out.append(Place(0 if at % 16 else 1, [0.5] * 7, (), 3))
        else:
            out.append(Place(0, (), (), 0))
    return out


def test_prose_then_a_copy_then_prose() -> None:
    """A lookup alone: it follows within 20 rounds each way."""
    costs, n = WORLDS["CPU"], 300
    controller = ProfitController()
    out = simulate(controller, [copied(n)], costs, max_draft=7, is_stepwise=False)
    rounds = list(zip(out.at, (n for _, n in out.lengths), strict=True))
    assert plain([copied(n)], costs) / out.seconds > 1.05
    within = [length for at, length in rounds if n <= at < 2 * n]
    assert next(i for i, length in enumerate(within) if length >= 3) < 20
    assert sum(within) / len(within) > 2
    behind = [length for at, length in rounds if at >= 2 * n]
    assert all(length == 0 for length in behind[20:40])
    before = [length for at, length in rounds if at < n]
    assert sum(before) / len(before) < 0.3
