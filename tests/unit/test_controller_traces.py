"""The profit controller on drafts of a real model, recorded by benchmarks/record_traces.py."""

from __future__ import annotations

import pytest

from pyllama_spec.speculative.controller import ProfitController
from tests.controller_world import Costs, Fixed, plain, recorded, simulate
from tests.tiers import release_except
from tests.unit.test_controller_worlds import WORLDS

# Drafts, whether they are chains, and what their longest may be.
TRACES = {"smollm2-q4_0-eagle3": (True, 8), "smollm2-q4_0-dflash": (False, 3)}
GRID = [(n, p) for n in (1, 2, 3, 4, 6, 8) for p in (0.0, 0.3, 0.5, 0.7)]
CASES = [(trace, world) for trace in TRACES for world in WORLDS]
# As measured with SmolLM2-135M on two Zen 4 cores: rows of Q4_0, a head at a quarter of a row.
Q4_0 = Costs(lambda rows, n: 4.5 + 1.15 * (rows - 1), lambda k: 0.55 + 0.5 * k)


def check(name: str, costs: Costs) -> None:
    is_stepwise, max_draft = TRACES[name]
    texts = list(recorded(name).values())
    assert sum(map(len, texts)) > 500
    found = simulate(
        ProfitController(), texts, costs, max_draft=max_draft, is_stepwise=is_stepwise
    ).seconds
    assert plain(texts, costs) / found > 0.97
    best = min(
        simulate(Fixed(n, p), texts, costs, max_draft=max_draft, is_stepwise=is_stepwise).seconds
        for n, p in GRID
        if n <= max_draft
    )
    # The pair that is best on these very texts, which nobody knows before; plain is one too.
    assert min(best, plain(texts, costs)) / found > 0.95


@pytest.mark.parametrize("name", TRACES)
def test_on_the_machine_where_they_were_recorded(name: str) -> None:
    check(name, Q4_0)


@pytest.mark.parametrize("case", release_except(CASES, [("smollm2-q4_0-eagle3", "CPU")]))
def test_on_other_machines(case: tuple[str, str]) -> None:
    name, world = case
    check(name, WORLDS[world])
