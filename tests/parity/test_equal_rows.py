"""A row in a batch equals the row alone, bit by bit, for all weights, graphs and caches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pyllama_spec.engine import Batch, Context, Model, quantize, quantize_types
from tests.models import model_path
from tests.tiers import release_except

_N_ROWS = 32
_WIDTHS = (2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 17, 31, 32)
# Types that quantize() does not make, of all matrices.
_OTHERS = (
    "MXFP4", "TQ1_0", "TQ2_0", "IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S",
    "Q4_K", "Q2_K",
)  # fmt: skip
_QUICK = ("Q4_K_M", "Q5_0", "Q2_K", "IQ4_XS")
_CACHES: tuple[dict[str, Any], ...] = (
    {},
    {"flash_attn": True},
    {"type_k": "bf16", "type_v": "bf16"},
    {"type_k": "q8_0"},
    {"type_k": "q4_0"},
    {"flash_attn": True, "type_k": "bf16", "type_v": "bf16"},
    {"flash_attn": True, "type_k": "q8_0", "type_v": "q8_0"},
    {"flash_attn": True, "type_k": "q4_0", "type_v": "q4_0"},
)


def _rows(
    context: Context, tokens: list[int], n_before: int, width: int
) -> npt.NDArray[np.float32]:
    """Logits of the tokens after the first n_before, decoded `width` at a time."""
    context.memory.clear()
    batch = Batch(512)
    for start in range(0, n_before, 512):
        batch.clear()
        batch.extend(tokens[start : min(start + 512, n_before)], start)
        context.decode(batch)
    out = []
    for start in range(n_before, len(tokens), width):
        part = tokens[start : start + width]
        batch.clear()
        batch.extend(part, start, output_all=True)
        context.decode(batch)
        out += [context.logits(i).copy() for i in range(len(part))]
    return np.array(out)


def _unequal(
    path: Path,
    n_before: int,
    *,
    widths: Sequence[int] = _WIDTHS,
    n_threads: Sequence[int] = (1, 2),
    **params: Any,
) -> Iterator[tuple[int, int]]:
    """Threads and widths at which a row is not what it is alone."""
    with Model(path) as model:
        n_vocab = model.info.n_vocab
        tokens = np.random.default_rng(1).integers(
            min(300, n_vocab // 2), n_vocab, n_before + _N_ROWS
        )
        alone = None
        for n in n_threads:
            with Context(
                model, n_ctx=n_before + 2 * _N_ROWS, n_outputs_max=_N_ROWS, n_threads=n, **params
            ) as context:
                assert context.exact_rows == _N_ROWS
                if alone is None:
                    alone = _rows(context, tokens.tolist(), n_before, 1)
                    assert np.isfinite(alone).all()
                for width in widths:
                    if not np.array_equal(alone, _rows(context, tokens.tolist(), n_before, width)):
                        yield n, width


@pytest.mark.parametrize("kind", release_except(quantize_types(), _QUICK))
def test_types(kind: str, tmp_path: Path) -> None:
    """Rows of width 256, and of 192, for which K-quants use other types."""
    source = model_path("llama", n_embd=256, n_ff=3 * 64, n_vocab=1003)
    quantize(source, tmp_path / "model.gguf", kind)
    assert list(_unequal(tmp_path / "model.gguf", 100)) == []


@pytest.mark.parametrize("n_embd", release_except((64, 96, 288), (96,)))
@pytest.mark.parametrize("kind", release_except(("Q8_0", "Q4_0", "Q5_1", "IQ4_NL"), ("Q5_1",)))
def test_rows_that_are_no_whole_group(kind: str, n_embd: int, tmp_path: Path) -> None:
    quantize(model_path("llama", n_embd=n_embd, n_ff=3 * 64), tmp_path / "model.gguf", kind)
    assert list(_unequal(tmp_path / "model.gguf", 0, widths=(2, 5, 8, 32))) == []


@pytest.mark.parametrize("kind", release_except(_OTHERS, ("TQ1_0", "IQ3_S")))
def test_other_types(kind: str) -> None:
    path = model_path("llama", n_embd=256, n_ff=512, quantised=kind)
    assert list(_unequal(path, 20, widths=(2, 5, 8, 32), n_threads=(1,))) == []


@pytest.mark.parametrize("cache", _CACHES, ids=str)
def test_caches(cache: dict[str, Any]) -> None:
    """From 512 positions on, the engine's flash attention computes single rows differently."""
    path = model_path("llama", n_embd=256, n_head=4, n_head_kv=2)
    assert list(_unequal(path, 500, widths=(2, 5, 32), n_threads=(1,), **cache)) == []


def test_wider_rows_are_not_promised() -> None:
    """Rows are exact up to 32 tokens, and not with one cache for several sequences."""
    with Model(model_path("llama", n_embd=256)) as model:
        with Context(model, n_ctx=64, n_seq_max=2, kv_unified=True) as context:
            assert context.exact_rows == 1  # cells of several sequences interleave
        with Context(model, n_ctx=64, n_seq_max=2) as context:
            assert context.exact_rows == _N_ROWS
