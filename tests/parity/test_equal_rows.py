"""A row in a batch equals the row alone, bit by bit, for all weights, graphs and caches.

So does a prompt, whatever the sizes of its batches: the part that a round reads beside texts
depends on the clock (PromptPace), and no text may depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pyllama_spec.engine import Batch, Context, Model, quantize, quantize_types
from tests.conftest import smollm2
from tests.models import model_path
from tests.oracles import prompt_tokens
from tests.tiers import release_except

_N_ROWS = 32
_WIDTHS = (2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 17, 31, 32)
# A first batch of so many rows, and one of the others: together all widths from 1 to 32.
_CUTS = [[n, _N_ROWS - n] for n in range(_N_ROWS, _N_ROWS // 2 - 1, -1)]
# The rows behind 2,030 tokens cross the end of a block of 256 cells.
_FAR = 2030
_GRAPHS = ("llama", "qwen3", "qwen3moe", "gemma3", "gpt-oss", "qwen35")
_OF_GRAPHS = ("", "Q8_0", "Q4_K", "MXFP4", "Q2_K")
# Prefilling 2,000 tokens of a real model takes seconds: for the types that most files have.
_FAR_TYPES = ("BF16", "Q8_0", "Q4_0", "Q4_1", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K")
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
    context: Context, state: bytes, tokens: Sequence[int], n_before: int, sizes: Sequence[int]
) -> npt.NDArray[np.float32]:
    """Logits of batches of these sizes, from a state after n_before tokens."""
    context.memory.clear()
    if n_before:
        context.memory.restore(0, state)
    out, batch, start = [], Batch(_N_ROWS), 0
    for size in sizes:
        batch.clear()
        batch.extend(tokens[start : start + size], n_before + start, output_all=True)
        if size:
            context.decode(batch)
        out += [context.logits(i).copy() for i in range(size)]
        start += size
    return np.array(out)


def _state(context: Context, tokens: Sequence[int]) -> bytes:
    context.memory.clear()
    batch = Batch(512)
    for start in range(0, len(tokens), 512):
        batch.clear()
        batch.extend(tokens[start : start + 512], start)
        context.decode(batch)
    return context.memory.save() if tokens else b""


def _unequal(
    path: Path,
    batches: Mapping[int, Sequence[Sequence[int]]],
    *,
    n_threads: Sequence[int] = (1, 2),
    is_sparse: bool = False,
    **params: Any,
) -> Iterator[tuple[int, int, Sequence[int]]]:
    """Threads, tokens before and sizes of batches of which a row is not what it is alone."""
    known: dict[int, tuple[bytes, npt.NDArray[np.float32]]] = {}
    with Model(path) as model:
        n_vocab = model.info.n_vocab
        n_ctx = max(batches) + 2 * _N_ROWS
        tokens = np.random.default_rng(1).integers(min(300, n_vocab // 2), n_vocab, n_ctx).tolist()
        for n in n_threads:
            with Context(
                model, n_ctx=n_ctx, n_outputs_max=_N_ROWS, n_threads=n, **params
            ) as context:
                assert context.exact_rows == _N_ROWS
                for n_before, lists in batches.items():
                    rows = tokens[n_before : n_before + _N_ROWS]
                    if n_before not in known:
                        state = _state(context, tokens[:n_before])
                        alone = _rows(context, state, rows, n_before, [1] * _N_ROWS)
                        assert np.isfinite(alone).all()
                        known[n_before] = (state, alone)
                    state, alone = known[n_before]
                    for sizes in lists[:: n if is_sparse else 1]:
                        if not np.array_equal(alone, _rows(context, state, rows, n_before, sizes)):
                            yield n, n_before, sizes


def _of_widths(n_before: int, widths: Sequence[int] = _WIDTHS) -> dict[int, list[list[int]]]:
    """Batches of each width, after so many tokens."""
    return {n_before: [[*[w] * (_N_ROWS // w), _N_ROWS % w] for w in widths]}


def _cuts(turn: int, share: int, *lengths: int) -> dict[int, list[list[int]]]:
    """A share of all cuts: the batch sizes, after each number of tokens."""
    return {n_before: _CUTS[(turn + i) % share :: share] for i, n_before in enumerate(lengths)}


@pytest.mark.parametrize("kind", release_except(quantize_types(), _QUICK))
def test_types(kind: str, tmp_path: Path) -> None:
    """Rows of width 256, and of 192, for which K-quants use other types."""
    source = model_path("llama", n_embd=256, n_ff=3 * 64, n_vocab=1003)
    quantize(source, tmp_path / "model.gguf", kind)
    assert list(_unequal(tmp_path / "model.gguf", _of_widths(100))) == []


@pytest.mark.parametrize("n_embd", release_except((64, 96, 288), (96,)))
@pytest.mark.parametrize("kind", release_except(("Q8_0", "Q4_0", "Q5_1", "IQ4_NL"), ("Q5_1",)))
def test_rows_that_are_no_whole_group(kind: str, n_embd: int, tmp_path: Path) -> None:
    quantize(model_path("llama", n_embd=n_embd, n_ff=3 * 64), tmp_path / "model.gguf", kind)
    assert list(_unequal(tmp_path / "model.gguf", _of_widths(0, (2, 5, 8, 32)))) == []


@pytest.mark.parametrize("kind", release_except(_OTHERS, ("TQ1_0", "IQ3_S")))
def test_other_types(kind: str) -> None:
    path = model_path("llama", n_embd=256, n_ff=512, quantised=kind)
    assert list(_unequal(path, _of_widths(20, (2, 5, 8, 32)), n_threads=(1,))) == []


@pytest.mark.parametrize("cache", _CACHES, ids=str)
def test_caches(cache: dict[str, Any]) -> None:
    """From 512 positions on, the engine's flash attention computes single rows differently."""
    path = model_path("llama", n_embd=256, n_head=4, n_head_kv=2)
    assert list(_unequal(path, _of_widths(500, (2, 5, 32)), n_threads=(1,), **cache)) == []


def test_wider_rows_are_not_promised() -> None:
    """Rows are exact up to 32 tokens, and not with one cache for several sequences."""
    with Model(model_path("llama", n_embd=256)) as model:
        with Context(model, n_ctx=64, n_seq_max=2, kv_unified=True) as context:
            assert context.exact_rows == 1  # cells of several sequences interleave
        with Context(model, n_ctx=64, n_seq_max=2) as context:
            assert context.exact_rows == _N_ROWS


@pytest.mark.parametrize("kind", release_except(_OF_GRAPHS, ("MXFP4",)))
@pytest.mark.parametrize("graph", _GRAPHS)
def test_graphs(graph: str, kind: str) -> None:
    """Experts, whose rows depend on the others' routes; windows; recurrent states; all widths."""
    path = model_path(graph, n_embd=256, n_ff=256, n_ff_exp=256, n_expert=8, quantised=kind)
    turn = _GRAPHS.index(graph) + _OF_GRAPHS.index(kind)
    assert list(_unequal(path, _cuts(turn, 3, 0, 100, _FAR), is_sparse=True)) == []


@pytest.mark.parametrize("kind", release_except(quantize_types(), ("Q4_0",)))
def test_types_on_smollm2(kind: str, tmp_path: Path) -> None:
    """Some matrices' widths are not a multiple of 256, so K-quants use other types there.

    The types together have all widths after 0 and 100 tokens.
    """
    path = tmp_path / "model.gguf"
    quantize(smollm2("BF16"), path, kind)
    turn = quantize_types().index(kind)
    lengths = (0, 100, _FAR) if kind in _FAR_TYPES else (0, 100)
    assert list(_unequal(path, _cuts(turn, 6, *lengths), is_sparse=True)) == []
    path.unlink()


N = 300
# Sizes in turns: what a pace gives, and what is left of a prompt.
CUTS = ((32,), (64,), (96, 32, 160), (256, 32), (32, 7, 64))
KINDS = ("llama", "gemma3", "gpt-oss", "qwen3moe", "qwen35", "lfm2", "mamba2", "rwkv7")
TYPES = ("Q8_0", "Q4_K_M", "Q6_K", "Q4_0", "Q4_1", "IQ4_NL", "F16", "Q2_K")


def read(
    model: Model, tokens: Sequence[int], cuts: Sequence[int], n_threads: int
) -> tuple[bytes, npt.NDArray[np.float32]]:
    """The memory's state after a prompt, and the row of its last token."""
    with Context(
        model, n_ctx=512, n_batch=512, n_ubatch=512, n_threads=n_threads, n_threads_batch=n_threads
    ) as context:
        batch, at, i, n = Batch(512), 0, 0, 0
        while at < len(tokens):
            n = min(cuts[i % len(cuts)], len(tokens) - at)
            batch.clear()
            batch.extend(tokens[at : at + n], at, output_last=True)
            context.decode(batch)
            at, i = at + n, i + 1
        return context.memory.save(), context.logits(n - 1).copy()


def check(
    path: Path, tokens: Sequence[int], all_cuts: Sequence[Sequence[int]], n_threads: int = 1
) -> None:
    with Model(path) as model:
        memory, row = read(model, tokens, (512,), 1)
        for cuts in all_cuts:
            found, found_row = read(model, tokens, cuts, n_threads)
            assert np.array_equal(found_row, row), cuts
            assert found == memory, cuts


@pytest.mark.parametrize("n_threads", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_a_prompt(kind: str, n_threads: int) -> None:
    check(model_path(kind), prompt_tokens(N, seed=1), CUTS, n_threads)


@pytest.mark.slow
@pytest.mark.parametrize("kind", release_except(TYPES, ("Q4_K_M",)))
def test_parts_of_a_prompt_of_a_real_model(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"{kind}.gguf"
    quantize(smollm2("BF16"), path, kind)
    tokens = [5 + i * i * 7 % 40_000 for i in range(N)]
    check(path, tokens, CUTS[:3])
