"""doctor ends in time, and says nothing that cannot be."""

from __future__ import annotations

import re
import time

import pytest

from pyllama_spec.cli import diagnostics
from pyllama_spec.cli.diagnostics import measure_verify_cost, pays_above
from pyllama_spec.cli.entry import main
from pyllama_spec.engine import Model
from pyllama_spec.errors import EngineError
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
    assert all(cost.n_passes >= 1 for cost in costs)
    assert all(cost.ratio >= cost.lowest >= 1.0 for cost in costs)
    assert [cost.ratio for cost in costs] == sorted(cost.ratio for cost in costs)
    assert [cost.ms for cost in costs] == sorted(cost.ms for cost in costs)
    return [cost.n_rows for cost in costs]


@pytest.mark.slow  # it stands still for as long as doctor has
@pytest.mark.parametrize(
    ("n_widths", "widths"),
    [(1, [1]), (2, [1, 8]), (3, [1, 4, 8]), (9, [1, 2, 3, 4, 5, 6, 7, 8])],
)
def test_what_there_was_time_for_is_given(n_widths: int, widths: list[int]) -> None:
    assert _busy_after(n_widths) == widths


def test_no_time_at_all_is_an_error_that_says_what_to_do() -> None:
    with (
        Model(model_path("llama")) as model,
        pytest.raises(EngineError, match="ended within 0 s: other programs have"),
    ):
        measure_verify_cost(model, n_threads=1, budget_s=1e-6)


@pytest.mark.slow
def test_the_command_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A whole doctor within its time, whatever the widths and passes that were asked for."""
    monkeypatch.setattr(diagnostics, "VERIFY_S", BUDGET_S)
    monkeypatch.setattr(diagnostics, "DRAFT_S", 0.0)
    command = ["doctor", "-m", str(model_path("llama")), "-d", str(model_path("eagle3")), "-t", "1"]
    assert main([*command, "--max-rows", "64", "--repeat", "1000000"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"There was time for \d+ of 64 widths and \d+ of 1000000\s+passes", out)
    figures = [float(n) for n in re.findall(r"(\d+\.\d+) tokens per round", out)]
    assert len(figures) > 10
    assert min(figures) >= 1.0


@pytest.mark.parametrize(
    "verify_ms",
    [
        {1: 10.0, 2: 5.0, 3: 7.3}, {1: 10.0, 2: 11.0, 3: 30.0, 4: 12.0}, {1: 1.0},
        {1: 5.0, 16: 2.0},
    ],
)  # fmt: skip
def test_a_wider_batch_takes_no_less(verify_ms: dict[int, float]) -> None:
    """Of times that something else disturbed: a round pays above one token, never below."""
    rounds = pays_above(verify_ms, [0.0] * 16)
    said = [one["pays_above"] for one in rounds]
    assert said[0] == 1.0
    assert said == sorted(said)
    least = min(verify_ms.values())
    assert rounds[0]["verify_ms"] == least
