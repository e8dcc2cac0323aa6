"""d2t: three notations of the same table, and faulty tables."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from pyllama_spec.convert.vocabulary import map_vocabulary
from pyllama_spec.errors import ConversionError
from tests.convert.tools import N_DRAFT, N_VOCAB

Ids = NDArray[np.int64]
IDS = np.sort(np.random.default_rng(3).permutation(N_VOCAB)[:N_DRAFT]).astype(np.int64)
OFFSETS = IDS - np.arange(N_DRAFT)
MASK = np.isin(np.arange(N_VOCAB), IDS).astype(np.int64)
ONES = np.ones(N_VOCAB, np.int64)
ZEROS = np.zeros(N_DRAFT, np.int64)


def table(d2t: Ids | None, t2d: Ids | None, n_vocab: int = N_VOCAB) -> Ids | None:
    """The target ids of a head that knows N_DRAFT of N_VOCAB tokens."""
    mapped = map_vocabulary(d2t, t2d, n_output=N_DRAFT, n_trained=N_VOCAB, n_target=n_vocab)
    return mapped.target_ids


@pytest.mark.parametrize(
    ("d2t", "t2d"),
    [
        (OFFSETS, MASK), (OFFSETS, None), (None, MASK), (ZEROS, MASK), (IDS, MASK),
    ],
)  # fmt: skip
def test_the_same_table(d2t: Ids | None, t2d: Ids | None) -> None:
    ids = table(d2t, t2d)
    assert ids is not None
    assert ids.dtype == np.int64
    assert np.array_equal(ids, IDS)


def test_ids_in_any_order() -> None:
    ids = np.random.default_rng(4).permutation(IDS)
    for t2d in (MASK, None):
        assert np.array_equal(table(ids - np.arange(N_DRAFT), t2d), ids)  # type: ignore[arg-type]
    assert np.array_equal(table(ids, MASK), ids)  # type: ignore[arg-type]


def changed(array: Ids, index: int, value: int) -> Ids:
    """A copy with one other number."""
    out: Ids = array.copy()
    out[index] = value
    return out


@pytest.mark.parametrize(
    ("d2t", "t2d", "message"),
    [
        (None, None, "predicts 96 of 320 tokens, and there is neither d2t nor t2d"),
        (ZEROS, None, "d2t is all zero: without the table"),
        (None, ONES, "t2d marks 320 tokens, and the head knows 96"),
        (OFFSETS[:-1], MASK, r"d2t has the shape \[95\], not \[96\]"),
        (OFFSETS, 2 * MASK, "t2d is not a mask"),
        (changed(OFFSETS, 95, 400), None, "draft token 95 to target token 495, outside 0 .. 319"),
        (changed(OFFSETS, 1, OFFSETS[0] - 1), None, f"two draft tokens to target token {IDS[0]}"),
        (OFFSETS, changed(MASK, int(IDS[5]), 0), f"d2t has the target token {IDS[5]}, t2d has not"),
        (IDS, None, "outside 0 .. 319; is this the target"),
    ],
)
def test_tables_are_refused(d2t: Ids | None, t2d: Ids | None, message: str) -> None:
    with pytest.raises(ConversionError, match=message):
        table(d2t, t2d)


def test_the_target_is_smaller() -> None:
    last = int(IDS[-1])
    assert table(OFFSETS, MASK, last + 1) is not None
    with pytest.raises(ConversionError, match=f"target token {last}, outside 0 .. {last - 1}"):
        table(OFFSETS, MASK, last)


@pytest.mark.parametrize("d2t", [None, np.zeros(N_VOCAB, np.int64)])
@pytest.mark.parametrize("t2d", [None, ONES])
@pytest.mark.parametrize("n_vocab", [N_VOCAB, N_VOCAB - 8])
def test_a_whole_vocabulary_needs_no_table(d2t: Ids | None, t2d: Ids | None, n_vocab: int) -> None:
    mapped = map_vocabulary(d2t, t2d, n_output=N_VOCAB, n_trained=N_VOCAB, n_target=n_vocab)
    assert mapped.target_ids is None


def test_the_target_has_more_padding() -> None:
    mapped = map_vocabulary(None, None, n_output=N_VOCAB, n_trained=N_VOCAB, n_target=N_VOCAB + 64)
    assert mapped.target_ids is not None
    assert np.array_equal(mapped.target_ids, np.arange(N_VOCAB))
    assert "the rest is padding" in mapped.notes[0]
