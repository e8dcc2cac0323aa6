"""Thirty-two rows in two batches equal single rows, after no text and after a long one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from pyllama_spec.engine import Batch, Context, Model, quantize, quantize_types
from tests.conftest import smollm2
from tests.models import model_path
from tests.tiers import release_except

_N_ROWS = 32
# A first batch of so many rows, and one of the others: together all widths from 1 to 32.
_CUTS = tuple(range(_N_ROWS, _N_ROWS // 2 - 1, -1))
# The rows behind 2,030 tokens cross the end of a block of 256 cells.
_FAR = 2030
_N_CTX = 2304
_GRAPHS = ("llama", "qwen3", "qwen3moe", "gemma3", "gpt-oss", "qwen35")
_OF_GRAPHS = ("", "Q8_0", "Q4_K", "MXFP4", "Q2_K")
# Prefilling 2,000 tokens of a real model takes seconds: for the types that most files have.
_FAR_TYPES = ("BF16", "Q8_0", "Q4_0", "Q4_1", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K")


def _prefill(context: Context, tokens: Sequence[int]) -> None:
    batch = Batch(512)
    for start in range(0, len(tokens), 512):
        batch.clear()
        batch.extend(tokens[start : start + 512], start)
        context.decode(batch)


def _rows(
    context: Context, state: bytes, tokens: Sequence[int], n_before: int, sizes: Sequence[int]
) -> npt.NDArray[np.float32]:
    """Logits of batches of these sizes, from a state after n_before tokens."""
    context.memory.clear()
    if n_before:
        context.memory.restore(0, state)
    out = []
    batch = Batch(_N_ROWS)
    start = 0
    for size in sizes:
        batch.clear()
        batch.extend(tokens[start : start + size], n_before + start, output_all=True)
        context.decode(batch)
        out += [context.logits(i).copy() for i in range(size)]
        start += size
    return np.array(out)


def _unequal(path: Path, cuts: Mapping[int, Sequence[int]]) -> Iterator[tuple[int, int, int]]:
    """Threads, tokens before and first batches of which a row is not what it is alone.

    Cuts are given by the number of earlier tokens. With two threads only every other cut runs.
    """
    states: dict[int, bytes] = {}
    alone: dict[int, npt.NDArray[np.float32]] = {}
    with Model(path) as model:
        n_vocab = model.info.n_vocab
        tokens = np.random.default_rng(1).integers(
            min(300, n_vocab // 2), n_vocab, max(cuts) + _N_ROWS
        )
        for n_threads in (1, 2):
            with Context(
                model, n_ctx=_N_CTX, n_outputs_max=_N_ROWS, n_threads=n_threads
            ) as context:
                assert context.exact_rows == _N_ROWS
                for n_before, firsts in cuts.items():
                    rows = tokens[n_before : n_before + _N_ROWS].tolist()
                    if n_threads == 1:
                        context.memory.clear()
                        _prefill(context, tokens[:n_before].tolist())
                        states[n_before] = context.memory.save() if n_before else b""
                        alone[n_before] = _rows(
                            context, states[n_before], rows, n_before, [1] * _N_ROWS
                        )
                        assert np.isfinite(alone[n_before]).all()
                    for first in firsts[::n_threads]:
                        sizes = [size for size in (first, _N_ROWS - first) if size]
                        found = _rows(context, states[n_before], rows, n_before, sizes)
                        if not np.array_equal(alone[n_before], found):
                            yield n_threads, n_before, first


def _cuts(turn: int, share: int, *lengths: int) -> dict[int, Sequence[int]]:
    """A share of all cuts: the batch sizes, after each number of tokens."""
    return {n_before: _CUTS[(turn + i) % share :: share] for i, n_before in enumerate(lengths)}


@pytest.mark.parametrize("kind", release_except(_OF_GRAPHS, ("MXFP4",)))
@pytest.mark.parametrize("graph", _GRAPHS)
def test_graphs(graph: str, kind: str) -> None:
    """Experts, whose rows depend on the others' routes; windows; recurrent states; all widths."""
    path = model_path(graph, n_embd=256, n_ff=256, n_ff_exp=256, n_expert=8, quantised=kind)
    turn = _GRAPHS.index(graph) + _OF_GRAPHS.index(kind)
    assert list(_unequal(path, _cuts(turn, 3, 0, 100, _FAR))) == []


@pytest.mark.parametrize("kind", release_except(quantize_types(), ("Q4_0",)))
def test_types_on_smollm2(kind: str, tmp_path: Path) -> None:
    """Some matrices' widths are not a multiple of 256, so K-quants use other types there.

    The types together have all widths after 0 and 100 tokens.
    """
    path = tmp_path / "model.gguf"
    quantize(smollm2("BF16"), path, kind)
    turn = quantize_types().index(kind)
    lengths = (0, 100, _FAR) if kind in _FAR_TYPES else (0, 100)
    assert list(_unequal(path, _cuts(turn, 6, *lengths))) == []
    path.unlink()
