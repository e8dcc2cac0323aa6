"""Choices of a wide vocabulary that look at few of its tokens: the same, to the bit, as over all.

Biases and penalties are compared with NumPy's float32; the likeliest k with the engine's own sort,
which has the whole list if DRY precedes it. DRY changes nothing without a repetition.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pyllama_spec.engine import Model, Sampler, SamplerParams
from pyllama_spec.errors import PyllamaSpecError
from tests.models import model_path

Row = npt.NDArray[np.float32]
# No multiple of the 64 logits of a block.
N_VOCAB = 20_011
NO = -math.inf
PENALTIES: list[dict[str, Any]] = [
    {"repeat_penalty": 1.3},
    {"repeat_penalty": 0.7, "penalty_last_n": 7},
    {"frequency_penalty": 0.4, "penalty_last_n": -1},
    {"presence_penalty": -1.5, "penalty_last_n": 3},
    {"repeat_penalty": 1.1, "frequency_penalty": 0.2, "presence_penalty": 0.3},
    {"repeat_penalty": 1.3, "penalty_last_n": 0},
]
BIASES: list[dict[int, float]] = [{}, {5: 3.0, 17_000: NO, 20_010: -2.5}]
OFF = {"top_p": 1.0, "min_p": 0.0, "top_k": 0}


@cache
def model() -> Model:
    """A model with a wide vocabulary."""
    return Model(model_path("llama", n_vocab=N_VOCAB))


def rows(seed: int) -> list[Row]:
    """Rows of several shapes, some with equal logits and some that forbid most tokens."""
    rng = np.random.default_rng(seed)
    normal = (4 * rng.standard_normal(N_VOCAB)).astype(np.float32)
    rounded = np.round(normal, 1).astype(np.float32)
    few = np.full(N_VOCAB, NO, np.float32)
    few[rng.integers(0, N_VOCAB, 30)] = rng.standard_normal(30).astype(np.float32)
    flat = np.zeros(N_VOCAB, np.float32)
    rising = np.sort(normal)
    last = normal.copy()
    last[-3:] = np.array([30, 31, 32], np.float32)
    heavy = normal.copy()
    heavy[64 * 7 : 64 * 8] += np.float32(40)  # all of the likeliest stand in one block
    return [normal, rounded, few, flat, rising, last, heavy]


def changed(
    row: Row, history: Sequence[int], params: dict[str, Any], bias: dict[int, float]
) -> Row:
    """The same in NumPy, one float32 operation after the other."""
    out: Row = row.copy()
    for token, value in bias.items():
        out[token] += np.float32(value)
    last_n = params.get("penalty_last_n", 64)
    seen = Counter(history if last_n < 0 else history[len(history) - min(last_n, len(history)) :])
    repeat = np.float32(params.get("repeat_penalty", 1.0))
    frequency = np.float32(params.get("frequency_penalty", 0.0))
    presence = np.float32(params.get("presence_penalty", 0.0))
    for token, count in seen.items():
        x = out[token] * repeat if out[token] <= 0 else out[token] / repeat
        out[token] = x - (np.float32(count) * frequency + presence)
    return out


def what_is_drawn(sampler: Sampler, row: Row, n: int) -> list[int] | str:
    """The ids of n draws, or the error instead."""
    try:
        return [sampler.sample_row(row) for _ in range(n)]
    except PyllamaSpecError as error:
        return str(error)


@pytest.mark.parametrize("bias", BIASES, ids=["no bias", "biases"])
@pytest.mark.parametrize("params", PENALTIES, ids=[",".join(p) for p in PENALTIES])
@pytest.mark.parametrize("how", [{"temperature": 0}, {"temperature": 1.3, "top_k": 40}, {}])
def test_biases_and_penalties_are_those_of_every_token(
    how: dict[str, Any], params: dict[str, Any], bias: dict[int, float]
) -> None:
    rng = np.random.default_rng(3)
    fixed = {**OFF, "seed": 4, **how}
    with (
        closing(Sampler(model(), SamplerParams(**fixed, **params, logit_bias=bias))) as one,
        closing(Sampler(model(), SamplerParams(**fixed))) as plain,
    ):
        history: list[int] = []
        for turn, row in enumerate(rows(1)):
            # Tokens that are likely, and that come again.
            for token in [*np.argsort(-row)[:3].tolist(), *rng.integers(0, 50, 9).tolist()]:
                one.accept(token, generated=turn % 2 == 0)
                history.append(token)
            copy = one.clone()
            expected = what_is_drawn(plain, changed(row, history, params, bias), 6)
            assert what_is_drawn(one, row, 6) == expected
            assert what_is_drawn(copy, row, 6) == expected, "a copy has the history too"
            copy.close()


@pytest.mark.parametrize("k", [1, 2, 40, 129, 156, 157, N_VOCAB + 9])
@pytest.mark.parametrize(
    "cuts",
    [{}, {"top_p": 0.9, "min_p": 0.05}, {"typical_p": 0.7}, {"xtc_probability": 0.5}],
    ids=["none", "top_p and min_p", "typical_p", "XTC"],
)
def test_the_likeliest_k_are_those_of_a_sort_of_all(k: int, cuts: dict[str, Any]) -> None:
    params = {**OFF, "temperature": 1.5, "seed": 7, **cuts, "top_k": k}
    with (
        closing(Sampler(model(), SamplerParams(**params))) as few,
        closing(Sampler(model(), SamplerParams(**params, dry_multiplier=1.0))) as whole,
    ):
        for row in rows(5):
            assert what_is_drawn(few, row, 6) == what_is_drawn(whole, row, 6)


@pytest.mark.parametrize(
    "cuts",
    [
        {"top_k": 150}, {"top_k": 1000}, {"top_p": 0.95}, {"top_k": 200, "min_p": 0.05},
        {"typical_p": 0.9}, {"mirostat": 1}, {"mirostat": 2}, {"top_k": 200, "dry_multiplier": 1.0},
    ],
    ids=",".join,
)  # fmt: skip
@pytest.mark.parametrize("bias", [100.0, 1e9, 1e20])
def test_the_token_with_the_largest_bias_comes(cuts: dict[str, Any], bias: float) -> None:
    """A huge bias works: the engine's sort uses an int for a logit's size."""
    params = {**OFF, "temperature": 1.0, "seed": 3, **cuts}
    with closing(Sampler(model(), SamplerParams(**params, logit_bias={17: bias}))) as one:
        for row in rows(6)[:2]:
            assert what_is_drawn(one, row, 4) == [17] * 4
