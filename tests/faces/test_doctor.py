"""doctor ends in time, and says whether a draft pays."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pyllama_spec import Llama
from pyllama_spec.cli.doctor import measure_verify_cost
from pyllama_spec.cli.entry import main
from pyllama_spec.engine import Model
from tests.models import model_path


def test_what_there_was_time_for_is_given() -> None:
    with Model(model_path("llama")) as model:
        found = measure_verify_cost(model, 8, 1, most_s=1e-6)
    rows = found["verify_cost"]
    assert [row["n_rows"] for row in rows] == [1, 8]
    assert rows[0]["ratio"] == 1.0 and all(row["ms"] > 0 for row in rows)


@pytest.mark.parametrize(
    ("target", "draft", "most"),
    [
        (("mimo2", {"n_heads": 3}), "mtp", 3),
        (("llama", {}), ("eagle3", {}), 8),
        (("llama", {}), ("dflash", {"block_size": 4}), 3),
    ],
)
def test_drafts_as_long_as_a_generation_makes_them(
    target: tuple[str, dict[str, Any]],
    draft: str | tuple[str, dict[str, int]],
    most: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = str(model_path(target[0], **target[1]))
    name = draft if isinstance(draft, str) else str(model_path(draft[0], **draft[1]))
    assert main(["doctor", "-m", path, "-d", name, "-t", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    facts = found["draft"]
    assert facts["max_draft"] == most and facts["size_bytes"] > 0
    assert facts["gain"] > 0 and facts["gain_repeating"] > 0 and facts["verdict"]
    assert [cost["n_rows"] for cost in found["verify_cost"]][:2] == [1, 2]
    with Llama(path, draft=name, n_ctx=128, n_threads=1) as llm:
        assert llm._opened.runtime.round.max_draft == most
