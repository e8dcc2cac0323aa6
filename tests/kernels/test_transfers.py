"""Transfers between host and device are counted to the byte, for the right context."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyllama_spec.engine import Batch, Context, Transfers
from tests.kernels.programs import compiled, printed
from tests.oracles import tiny


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """transfers.cpp, built."""
    return compiled("transfers.cpp", tmp_path_factory.mktemp("transfers"))


@pytest.mark.parametrize(("n_in", "n_out", "n_rows"), [(64, 96, 5), (32, 256, 1)])
def test_a_product_on_a_device(program: Path, n_in: int, n_out: int, n_rows: int) -> None:
    """Counts the rows to the device and the results back, not weights or copies on the host."""
    lines = printed(program, str(n_in), str(n_out), str(n_rows))
    found = {name: Transfers(*map(int, counts)) for name, *counts in map(str.split, lines)}
    rows, result, weights = 4 * n_in * n_rows, 4 * n_out * n_rows, 4 * n_in * n_out
    # Two waits: before the rows are overwritten, and for the result; the CPU is none to wait for.
    once = Transfers(rows, result, 0, 1, 1, 0, 2, 1)
    assert found["target"] == once.plus(once)
    assert found["draft"] == once.plus(Transfers(bytes_between=weights, copies_between=1))
    assert found["whole"] == found["target"].plus(found["draft"])
    assert found["whole"].since(found["target"]) == found["draft"]


def test_nothing_crosses_on_the_cpu() -> None:
    context = Context(tiny("llama"), n_ctx=64, target_layers=[0, 1])
    batch = Batch(8)
    batch.extend([1, 2, 3, 4, 5], 0, output_all=True)
    context.decode(batch)
    assert context.logits(4).any() and context.layer_input(1).any()
    assert context.transfers == context.transfers_with_drafts == Transfers()
