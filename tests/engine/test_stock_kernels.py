"""The benchmarks' switch between the engine's kernels and ours, in one context, in turns."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from pyllama_spec.engine import Batch, Context, Model, quantize, row_kernels
from pyllama_spec.engine.system import stock_kernels
from tests.models import model_path

WIDTH = 8


def _rows(context: Context) -> npt.NDArray[np.float32]:
    batch = Batch(WIDTH)
    batch.extend(list(range(300, 300 + WIDTH)), 0, output_all=True)
    context.memory.clear()
    context.decode(batch)
    return np.array([context.logits(i).copy() for i in range(WIDTH)])


@pytest.mark.parametrize("kind", ["BF16", "Q8_0", "Q4_0"])
def test_other_roundings_of_the_same_numbers(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"{kind}.gguf"
    quantize(model_path("llama", n_vocab=512, n_embd=256, n_ff=512), path, kind)
    with Model(path) as model, Context(model, n_ctx=64, n_outputs_max=WIDTH) as context:
        ours = _rows(context)
        with stock_kernels():
            stock = _rows(context)
            others: list[npt.NDArray[np.float32]] = []
            thread = threading.Thread(target=lambda: others.append(_rows(context)))
            thread.start()
            thread.join()
        again = _rows(context)
    assert np.array_equal(ours, again)
    assert np.array_equal(ours, others[0])  # the switch is of the thread that throws it
    assert np.abs(stock - ours).max() < 0.02 * np.abs(ours).max()
    assert np.array_equal(stock, ours) == (kind not in row_kernels())
