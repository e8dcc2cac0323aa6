"""The likeliest token of a row and its probability, against NumPy in double precision.

The tests write rows into the engine's own buffer: a model's logits are hardly ever NaN or equal.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pyllama_spec.engine import Batch, Context
from tests.oracles import tiny, tiny_context

Row = npt.NDArray[np.float32]
# Widths around the lanes of the processors.
WIDTHS = (272, 287, 289, 320, 640)


def planted(context: Context, row: int) -> Row:
    """The engine's logits of a row, to be written to."""
    view = context.logits(row)
    address = view.__array_interface__["data"][0]
    buffer: Any = (ctypes.c_float * view.size).from_address(address)
    out: Row = np.frombuffer(buffer, np.float32)
    return out


@pytest.fixture(params=WIDTHS)
def context(request: pytest.FixtureRequest) -> Iterator[Context]:
    with tiny_context(tiny("llama", n_vocab=request.param)) as out:
        batch = Batch(3)
        batch.extend([1, 2, 3], 0, output_last=True)
        out.decode(batch)
        yield out


def check_as_numpy(context: Context, counterparts: npt.NDArray[np.int32] | None = None) -> None:
    x = context.logits(2).astype(np.float64)
    among = np.arange(len(x)) if counterparts is None else np.flatnonzero(counterparts >= 0)
    best = among[x[among].argmax()]
    exponents = np.exp(x - x.max())
    got = context.likeliest(2, counterparts)
    assert got is not None
    assert got.id == best
    assert got.p == pytest.approx(exponents[best] / exponents.sum(), rel=1e-5, abs=1e-30)


def of_random(rng: np.random.Generator, row: Row) -> None:
    row[:] = rng.normal(0.0, 4.0, row.size)


def of_equal_tops(rng: np.random.Generator, row: Row) -> None:
    row[:] = np.round(rng.normal(0.0, 1.0, row.size))


def of_one_value(rng: np.random.Generator, row: Row) -> None:
    row[:] = rng.normal(0.0, 10.0)


def of_struck_out(rng: np.random.Generator, row: Row) -> None:
    row[rng.random(row.size) < 0.9] = -np.inf
    row[rng.integers(row.size)] = 3.0


@pytest.mark.parametrize(
    "plant",
    [
        of_random, of_equal_tops, of_one_value, of_struck_out,
    ],
)  # fmt: skip
def test_it_is_numpys(context: Context, plant: Callable[[np.random.Generator, Row], None]) -> None:
    rng, row = np.random.default_rng(3), planted(context, 2)
    for _ in range(20):
        plant(rng, row)
        check_as_numpy(context)
        counterparts = np.where(rng.random(row.size) < 0.3, 7, -1).astype(np.int32)
        counterparts[rng.integers(row.size)] = 0
        check_as_numpy(context, counterparts)


@pytest.mark.parametrize("at", [0, 1, 100, -33, -1])
@pytest.mark.parametrize("kind", [np.nan, np.inf])
def test_what_is_broken_is_seen(context: Context, kind: float, at: int) -> None:
    planted(context, 2)[at] = kind
    for counterparts in (None, np.arange(context.model.info.n_vocab, dtype=np.int32)):
        got = context.likeliest(2, counterparts)
        assert got is not None
        assert np.isnan(got.p)


def test_none_where_all_are_left_out(context: Context) -> None:
    assert context.likeliest(2, np.full(context.model.info.n_vocab, -1, np.int32)) is None


def test_chains_end_each_for_itself() -> None:
    """Each of three chains in one call equals the chain alone, and ends at the same token."""
    steps = {0: 1, 1: 4, 2: 2}
    with tiny_context(tiny("llama"), n_seq_max=3) as context:

        def chain(seqs: list[int]) -> dict[int, list[int]]:
            out: dict[int, list[int]] = {seq: [] for seq in seqs}

            def goes_on(i: int, token: int, _p: float) -> bool:
                out[seqs[i]].append(token)
                return len(out[seqs[i]]) < steps[seqs[i]]

            context.memory.clear()
            context.draft_chains([5 + seq for seq in seqs], [0] * len(seqs), seqs, goes_on)
            return out

        together = chain([0, 1, 2])
        assert {seq: len(ids) for seq, ids in together.items()} == steps
        for seq in steps:
            assert chain([seq])[seq] == together[seq]
