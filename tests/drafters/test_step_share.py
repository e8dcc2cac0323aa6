"""The cost of a small model's token relative to a target row, known before the first step."""

from __future__ import annotations

import pytest

from pyllama_spec.drafters import SmallModel
from pyllama_spec.speculative import ProfitController, Round
from tests.models import model_path
from tests.oracles import tiny, tiny_context


def test_the_controller_is_told_the_price_before_the_first_round() -> None:
    path, controller = model_path("llama"), ProfitController()
    with SmallModel(path) as drafter, tiny_context(tiny("llama")) as target:
        Round(target, drafter, controller=controller)
        assert controller._limits.step_share == drafter.step_share == pytest.approx(1.0)
