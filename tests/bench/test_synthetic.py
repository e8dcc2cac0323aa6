"""Synthetic acceptance: the requested rates, the target's text, and seeded coins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pyllama_spec import bench
from pyllama_spec.bench.figures import acceptance_by_depth
from pyllama_spec.bench.synthetic import SyntheticDrafter
from pyllama_spec.drafters import Committed, Draft, DraftRequest, NoDrafter
from tests.bench.tools import LINES, tiny_config, write_prompts
from tests.models import model_path
from tests.scripted import proposed, told

RATES = (0.8, 0.55, 0.3)


def measured(folder: Path, **options: Any) -> bench.BenchResult:
    lines = [{**LINES[1], "id": name} for name in "abcd"]
    values: dict[str, Any] = {
        "prompts": write_prompts(folder, lines), "model_path": model_path("llama"),
        "synthetic_acceptance": RATES, "n_tokens": 200, "repeats": 3, "draft": "none",
    }  # fmt: skip
    return bench.run(tiny_config(folder, **{**values, **options}))


def rounds(result: bench.BenchResult) -> list[tuple[tuple[int, int], ...]]:
    return [pair.spec.rounds for pair in result.pairs]


@pytest.mark.parametrize("draft", ["none", "prompt-lookup", "eagle3"])
def test_the_rates_are_those_asked_for(tmp_path: Path, draft: str) -> None:
    files: dict[str, Any] = {"model_path": model_path("perm"), "draft": model_path("perm_eagle3")}
    result = measured(tmp_path, **(files if draft == "eagle3" else {"draft": draft}))
    depths = acceptance_by_depth(pair.spec for pair in result.pairs)
    assert len(depths) == len(RATES)
    for depth, p in zip(depths, RATES, strict=True):
        assert depth.reached > 150
        # Four standard deviations of a binomial; the coins are seeded, so this never flickers.
        assert abs(depth.accepted - p * depth.reached) <= 4 * math.sqrt(depth.reached * p * (1 - p))
    assert result.n_off_script == 0
    assert all(pair.is_same for pair in result.pairs), "the text stays the target's"
    assert result.setup.drafter == f"synthetic({draft})"
    assert bench.to_json(result)["synthetic"]["probabilities"] == list(RATES)


def test_rounds_are_as_long_as_the_list(tmp_path: Path) -> None:
    result = measured(tmp_path, repeats=1)
    drafted = {n for run in rounds(result) for n, _ in run[:-3]}
    assert drafted == {3}
    fewer = measured(tmp_path, repeats=1, n_draft=2)
    assert {n for run in rounds(fewer) for n, _ in run[:-3]} == {2}


def test_a_seed_decides_the_coins(tmp_path: Path) -> None:
    one, again = measured(tmp_path, repeats=2), measured(tmp_path, repeats=2)
    assert rounds(one) == rounds(again)
    assert rounds(one) != rounds(measured(tmp_path, repeats=2, seed=2))
    # Each text has coins of its own.
    assert len(set(rounds(one))) == len(rounds(one))


class _Asked(NoDrafter):
    """Notes what it is asked and told."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.told: list[int] = []

    def propose(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        self.asked.extend(request.n_requested for request in requests)
        return [Draft([5] * request.n_requested) for request in requests]

    def commit(self, done: Sequence[Committed]) -> None:
        for one in done:
            assert one.start == len(self.told)
            self.told.extend(one.tokens)

    def truncate(self, seq: int, n_keep: int) -> None:
        del self.told[n_keep:]


def test_text_that_leaves_the_script_is_the_real_drafters() -> None:
    drafter = SyntheticDrafter(_Asked(), (1.0, 1.0), n_vocab=100, seed=1)
    drafter.follow(1, [10, 11, 12, 13], "a")
    drafter.commit(told([7, 10, 77]))
    assert proposed(drafter, [7, 10, 77], 2) == [5, 5]
    assert drafter.n_off_script == 1
    drafter.truncate(0, 0)
    drafter.follow(1, [10, 11, 12], "b")
    drafter.commit(told([7, 10]))
    assert proposed(drafter, [7, 10], 2) == [11, 12]
