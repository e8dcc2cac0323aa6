"""The profit controller on drafts of a real model."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from pyllama_spec.speculative.controller import Controller, ProfitController
from tests.controller_world import Costs, Fixed, plain, recorded, simulate
from tests.tiers import release_except
from tests.unit.test_controller_worlds import WORLDS

# Drafts, whether they are chains, and what their longest may be.
TRACES = {"smollm2-q4_0-eagle3": (True, 8), "smollm2-q4_0-dflash": (False, 3)}
GRID = [(n, p) for n in (1, 2, 3, 4, 6, 8) for p in (0.0, 0.3, 0.5, 0.7)]
CASES = [(trace, world) for trace in TRACES for world in WORLDS]
# Qwen2.5-Coder-0.5B with SmolLM2-135M, which has another vocabulary and reads each prompt: answers
# of up to 64 tokens to an extraction, a chat, a summary, a translation, a record and an edit (the
# third to the eighth of benchmarks/mixed_prompts.jsonl, without copies). As measured on one core of
# an EPYC with AVX2: two rows take hardly longer than one, and a drafted token a quarter of it.
PAIR = "qwen2.5-0.5b-q4_k_m-smollm2"
PAIR_ROWS = (45.2, 46.6, 57, 67, 77, 88, 98, 108, 118)
PAIR_COSTS = Costs(lambda rows, n: PAIR_ROWS[rows - 1], lambda k: 12.5 * k, read=3.16)
N_PROMPT, STEP_SHARE = 78, 0.23
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


@pytest.mark.parametrize("bad", [(), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (2, 3)], ids=str)
def test_a_small_model_that_gains_little_is_kept(bad: Collection[int]) -> None:
    """One token a round gains 8% with the prompts, whatever disturbs the clock in two rounds."""
    written = list(recorded(PAIR).values())
    costs = replace(PAIR_COSTS, hiccups=0.0, bad=bad)

    def seconds(controller: Controller, first: int = 0) -> float:
        return simulate(
            controller, written[first:] + written[:first], costs, seed=first, n_prompt=N_PROMPT,
            step_share=STEP_SHARE,
        ).seconds  # fmt: skip

    best = min(seconds(Fixed(n)) for n in (1, 2, 3))
    assert plain(written, costs, n_prompt=N_PROMPT) / best > 1.07
    # Each text comes first once, those that the draft does not know among them.
    for first in range(len(written)):
        assert best / seconds(ProfitController(), first) > 0.95
