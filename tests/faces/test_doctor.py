"""doctor ends in time and reports no impossible figures."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from pyllama_spec import Llama
from pyllama_spec.cli import doctor
from pyllama_spec.cli.doctor import measure_verify_cost
from pyllama_spec.cli.entry import main
from pyllama_spec.engine import Model
from tests.models import model_path

BUDGET_S = 3.0


def _busy_after(n_widths: int) -> list[int]:
    """Which widths there was time for, where the machine stands still after so many of them."""
    shown: list[float] = []

    def hold(share: float) -> None:
        shown.append(share)
        if len(shown) == n_widths:
            time.sleep(BUDGET_S + 0.5)

    with Model(model_path("llama")) as model:
        costs = measure_verify_cost(
            model, max_rows=8, repeats=2, n_threads=1, budget_s=BUDGET_S, progress=hold
        )
    assert max(shown) == shown[-1] == 1.0
    assert all(cost.ratio >= 1.0 for cost in costs)
    assert [cost.ratio for cost in costs] == sorted(cost.ratio for cost in costs)
    assert [cost.ms for cost in costs] == sorted(cost.ms for cost in costs)
    return [cost.n_rows for cost in costs]


@pytest.mark.slow  # it stands still for as long as doctor has
@pytest.mark.parametrize(
    ("n_widths", "widths"), [(1, [1]), (2, [1, 8]), (3, [1, 4, 8]), (9, [1, 2, 3, 4, 5, 6, 7, 8])]
)
def test_what_there_was_time_for_is_given(n_widths: int, widths: list[int]) -> None:
    assert _busy_after(n_widths) == widths


@pytest.mark.parametrize(
    ("target", "draft", "most"),
    [
        (("perm_mtp", {"arch": "qwen35"}), "mtp", 6),
        (("mimo2", {"n_heads": 3}), "mtp", 3),
        (("llama", {}), ("eagle3", {}), 8),
        (("llama", {}), ("llama", {"seed": 1}), 8),
        (("llama", {}), ("dflash", {"block_size": 4}), 3),
    ],
)
def test_drafts_as_long_as_a_generation_makes_them(
    target: tuple[str, dict[str, Any]],
    draft: str | tuple[str, dict[str, int]],
    most: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The doctor drafts with the controller, which stops drafts that do not pay."""
    path = str(model_path(target[0], **target[1]))
    name = draft if isinstance(draft, str) else str(model_path(draft[0], **draft[1]))
    command = ["doctor", "-m", path, "-d", name, "-t", "1", "--max-rows", "9", "--repeat", "1"]
    assert main([*command, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)["draft"]
    assert facts["max_draft"] == len(facts["draft_ms"]) == most
    assert facts["step_ms"] > 0 and facts["size_bytes"] > 0
    assert facts["is_stepwise"] == (draft[0] != "dflash")
    with Llama(path, draft=name, n_ctx=128, n_threads=1, lookup=0) as llm:
        assert llm._opened.runtime.round.max_draft == most


@pytest.mark.parametrize(
    ("rates", "above", "gives"),
    [
        ([0.65], {1: 1.5}, "1.65"), ([0.65, 0.4], {1: 1.5, 2: 1.7}, "2.05"),
        ([0.65, 0.01], {1: 1.5, 2: 2.4}, "1.10 times"), ([0.65], {1: 1.65}, "no length pays"),
        ([], {1: 1.5}, ""), ([0.65], {}, ""), ([0.65], {2: 1.1}, ""),
    ],
)  # fmt: skip
def test_the_trained_acceptance_is_compared_with_the_cost(
    rates: list[float], above: dict[int, float], gives: str
) -> None:
    found = doctor.conclusion(rates, above)
    assert gives in found and bool(found) == bool(gives)
