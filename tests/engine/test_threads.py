"""A context's threads: the same numbers with any number of them, and no idle cost."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from pyllama_spec.engine import Batch, Context, Model, quantize
from tests.models import model_path
from tests.tiers import release_except

# Beyond 32 tokens the engine's kernels for many rows compute.
_SIZES = (1, 33, 100, 600)


def _decode(context: Context, n_tokens: int) -> None:
    context.memory.clear()
    batch = Batch(n_tokens)
    batch.extend([200 + 7 * i % 100 for i in range(n_tokens)], 0, output_last=True)
    context.decode(batch)


@pytest.mark.parametrize("flash_attn", [False, True])
@pytest.mark.parametrize(
    "kind", release_except(("F32", "BF16", "Q8_0", "Q4_0", "Q4_K_M", "Q2_K"), ("BF16", "Q4_0"))
)
def test_the_numbers_are_those_of_one_thread(kind: str, flash_attn: bool, tmp_path: Path) -> None:
    """For prompts and single tokens: the number of threads may change between two graphs."""
    path = tmp_path / "model.gguf"
    quantize(model_path("llama", n_vocab=512, n_embd=256, n_ff=512), path, kind)
    found: list[list[np.ndarray]] = []
    with Model(path) as model:
        for n_threads in (1, 2):
            with Context(model, n_ctx=640, n_threads=n_threads, flash_attn=flash_attn) as context:
                rows = []
                for n_tokens in _SIZES:
                    _decode(context, n_tokens)
                    rows.append(context.logits(n_tokens - 1).copy())
                found.append(rows)
    for n_tokens, one, two in zip(_SIZES, *found, strict=True):
        assert np.isfinite(one).all()
        assert np.array_equal(one, two), n_tokens


def test_workers_sleep_soon_after_a_decode() -> None:
    """Workers spin briefly for the next decode of a text, then sleep."""
    with Model(model_path("llama")) as model, Context(model, n_ctx=64, n_threads=2) as context:
        _decode(context, 8)
        before = time.process_time()
        time.sleep(0.6)
        assert time.process_time() - before < 0.05
