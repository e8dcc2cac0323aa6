"""The cost of a head's step relative to a target row, known before the first step."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyllama_spec.drafters import DraftOptions, Mtp, make_drafter
from pyllama_spec.gguf.sizes import tensor_bytes
from pyllama_spec.speculative import ProfitController, Round
from tests.models import model_path
from tests.mtp_tools import mtp_context, with_head

N_SLOTS, N_VOCAB = 64, 320


def _bytes(path: Path, begins: str) -> int:
    return sum(n for name, n in tensor_bytes(path).items() if name.startswith(begins))


@pytest.mark.parametrize("n_output", [0, N_SLOTS])
def test_the_share_of_a_head(n_output: int) -> None:
    path, model = model_path("qwen35", n_heads=1), with_head("qwen35", n_heads=1)
    drafter = Mtp(n_output=n_output)
    with mtp_context(model, drafter) as target:
        assert drafter.step_share == 0.0
        drafter.attach(target)
        output, head = _bytes(path, "output.weight"), _bytes(path, "blk.4.")
        rest = sum(_bytes(path, f"blk.{i}.") for i in range(4)) + _bytes(path, "output")
        wanted = (head + output * (n_output or N_VOCAB) / N_VOCAB) / rest
        assert drafter.step_share == pytest.approx(wanted)
        drafter.close()


def test_of_several_heads_a_step_takes_one_and_of_experts_those_used() -> None:
    path, model = model_path("step35", n_heads=3), with_head("step35", n_heads=3)
    drafter = Mtp(n_output=0)
    with mtp_context(model, drafter) as target:
        drafter.attach(target)
        sizes = tensor_bytes(path)

        def read(first: int, end: int) -> float:
            blocks = tuple(f"blk.{i}." for i in range(first, end))
            names = [name for name in sizes if name.startswith(blocks)]
            return sum(sizes[n] / (2 if "_exps." in n else 1) for n in names)

        beside = sum(n for name, n in sizes.items() if name[:4] not in ("blk.", "toke"))
        wanted = (read(4, 7) / 3 + sizes["output.weight"]) / (read(0, 4) + beside)
        assert drafter.step_share == pytest.approx(wanted, rel=1e-3)
        drafter.close()


def test_the_controller_is_told_the_price_before_the_first_round() -> None:
    model = with_head("qwen35", n_heads=1)
    for drafter in (Mtp(n_output=0), make_drafter("mtp", DraftOptions())):
        controller = ProfitController()
        with mtp_context(model, drafter) as target:
            Round(target, drafter, controller=controller)
            assert controller._limits.step_share == drafter.step_share > 0.1
            drafter.close()
