"""doctor ends in time, and says nothing that cannot be."""

from __future__ import annotations

import json
import re
import time

import pytest

from pyllama_spec import Llama
from pyllama_spec.cli import diagnostics
from pyllama_spec.cli.diagnostics import measure_verify_cost, pays_above
from pyllama_spec.cli.entry import main
from pyllama_spec.drafters import output_part
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
    # A line of its own, which the terminal's width alone breaks.
    missing = r"^There was time for \d+ of 64 widths and \d+ of 1000000 passes: .* ask for less\.$"
    assert re.search(missing, out, re.MULTILINE)
    figures = [float(n) for n in re.findall(r"(\d+\.\d+) tokens per round", out)]
    assert len(figures) > 10
    assert min(figures) >= 1.0


@pytest.mark.parametrize(
    ("target", "draft", "most"),
    [
        (("qwen35", {"n_heads": 1}), "mtp", 6),
        (("mimo2", {"n_heads": 3}), "mtp", 3),
        (("llama", {}), ("eagle3", {}), 8),
        (("llama", {}), ("llama", {"seed": 1}), 8),
    ],
)
def test_drafts_as_long_as_a_generation_makes_them(
    target: tuple[str, dict[str, int]],
    draft: str | tuple[str, dict[str, int]],
    most: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With the controller, which ends what does not pay."""
    path = str(model_path(target[0], **target[1]))
    name = draft if isinstance(draft, str) else str(model_path(draft[0], **draft[1]))
    command = ["doctor", "-m", path, "-d", name, "-t", "1", "--max-rows", "9", "--repeat", "1"]
    assert main([*command, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)["draft"]
    assert facts["max_draft"] == len(facts["draft_ms"]) == most
    assert facts["opening"][-1]["n_drafted"] == most
    with Llama(path, draft=name, n_ctx=128, n_threads=1, lookup=0) as llm:
        assert llm._opened.runtime.round.max_draft == most


def test_how_many_ids_a_head_chooses_among(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output_part, "LEAST_VOCAB", 320)
    monkeypatch.setattr(output_part, "_WORTH_IT", 1e9)  # whatever the steps took
    pairs = (
        (model_path("qwen35", n_heads=1), "mtp"),
        (model_path("llama"), str(model_path("eagle3"))),
    )
    for path, draft in pairs:
        command = ["doctor", "-m", str(path), "-d", draft, "-t", "1"]
        assert main([*command, "--max-rows", "2", "--repeat", "1"]) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert "chooses among 80 of 320 tokens, those of the text among them" in said
    monkeypatch.setattr(output_part, "_WORTH_IT", 0.0)
    assert main([*command, "--max-rows", "2", "--repeat", "1"]) == 0
    assert "chooses" not in capsys.readouterr().out


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
