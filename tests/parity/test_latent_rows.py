"""Rows of latent attention in batches equal single rows, however the batch is split.

Its products have three dimensions, its values are a view of its keys, and a batch may be wider than
a physical one. All architectures with latent attention, with heads of random sizes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyllama_spec.engine import Batch, Context, Model
from pyllama_spec.errors import ContextOpenError
from tests.models import model_path
from tests.parity.latent_files import (
    LATENT,
    QUANTISED_SIZES,
    Sizes,
    latent_file,
    latent_path,
    random_sizes,
)
from tests.tiers import release_except

_N_ROWS = 64
_MAX_WIDTH = 32
_QUICK = ("deepseek2", "deepseek32", "kimi-linear", "plm")
_SEEDS = range(8)
_QUANTISED = ("q8_0", "q4_0")
_CACHES = (None, None, "f32", "bf16", *_QUANTISED)
_WITH_TWO_THREADS = 7
# Ranks and rotated parts with which the engine puts the turned key of a single token less than a
# vector behind the one that is turned, and those of several tokens elsewhere: the compiler has
# another loop then. With one head the distance is 16 to 28 bytes (AVX2 too), with four 32.
_NEAR = [
    Sizes(n_head=1, kv_rank=kv_rank, rope=rope)
    for kv_rank, rope in ((17, 4), (18, 4), (19, 4), (20, 4), (17, 6), (18, 6), (26, 6))
] + [Sizes(n_head=4, kv_rank=16, rope=8)]


def _random_params(rng: random.Random, cache: str | None) -> dict[str, Any]:
    n_ubatch = rng.choice((1, 2, 3, 4, 5, 8, 9, 16, 31, 32, 33, 64, 512))
    params: dict[str, Any] = {
        "n_ubatch": n_ubatch, "n_batch": max(n_ubatch, 33), "n_outputs_max": _MAX_WIDTH,
    }  # fmt: skip
    if rng.random() < 0.5 or cache in _QUANTISED:
        params["flash_attn"] = True
    if cache is not None:
        params |= {"type_k": cache, "type_v": cache}
    return params


def _unequal_rows(path: Path, rng: random.Random, params: dict[str, Any]) -> list[tuple[int, int]]:
    """Positions, and widths of their batches, whose row is not what it is alone."""
    n_before = rng.choice((1, 7, 30, 250))
    n = n_before + _N_ROWS
    bad: list[tuple[int, int]] = []
    with Model(path) as model:
        tokens = [rng.randrange(model.info.n_vocab) for _ in range(n)]
        alone: dict[int, Any] = {}
        batch = Batch(512)
        for is_alone in (True, False):
            with Context(model, n_ctx=n, **params) as context:
                assert context.exact_rows == _MAX_WIDTH
                for start in range(0, n_before, _MAX_WIDTH):
                    batch.clear()
                    batch.extend(tokens[start : min(start + _MAX_WIDTH, n_before)], start)
                    context.decode(batch)
                at = n_before
                while at < n:
                    width = 1 if is_alone else min(rng.randrange(2, _MAX_WIDTH + 1), n - at)
                    batch.clear()
                    batch.extend(tokens[at : at + width], at, output_all=True)
                    context.decode(batch)
                    for i in range(width):
                        if is_alone:
                            alone[at] = context.logits(0).copy()
                        elif not np.array_equal(context.logits(i), alone[at + i]):
                            bad.append((at + i, width))
                    at += width
        assert np.isfinite(list(alone.values())).all()
        assert len({row.tobytes() for row in alone.values()}) > _N_ROWS // 2, (
            "rows of a text differ"
        )
    return bad


@pytest.mark.parametrize("seed", release_except(_SEEDS, (0, 1)))
@pytest.mark.parametrize("arch", release_except(LATENT, _QUICK))
def test_rows_are_those_of_single_tokens(arch: str, seed: int, tmp_path: Path) -> None:
    rng = random.Random(f"{arch} {seed}")
    # The engine divides by zero where it opens a quantised cache for deepseek4.
    cache = rng.choice(_CACHES[:4] if arch == "deepseek4" else _CACHES)
    sizes = random_sizes(rng, is_quantised=cache in _QUANTISED)
    path = latent_file(arch, tmp_path, sizes, seed)
    for _ in range(2):
        params = {**_random_params(rng, cache), "n_threads": 2 if seed == _WITH_TWO_THREADS else 1}
        try:
            assert _unequal_rows(path, rng, params) == [], params
        except ContextOpenError:
            # The engine's graph of plm does not fit its own cache with flash attention.
            assert arch == "plm" and params.get("flash_attn")


@pytest.mark.parametrize(
    "sizes",
    release_except(_NEAR, (_NEAR[1], _NEAR[5], _NEAR[-1])),
    ids=lambda s: f"{s.n_head}-{s.kv_rank}-{s.rope}",
)
@pytest.mark.parametrize("arch", release_except(("deepseek2", "mistral4"), ("deepseek2",)))
def test_keys_that_are_turned_nearby(arch: str, sizes: Sizes, tmp_path: Path) -> None:
    """In F32, since a cache of fewer bits rounds most of the difference away."""
    path = latent_file(arch, tmp_path, sizes, 1)
    params = {"n_ubatch": 32, "n_batch": 33, "n_outputs_max": _MAX_WIDTH, "n_threads": 1}
    cache = {"type_k": "f32", "type_v": "f32"}
    assert _unequal_rows(path, random.Random(3), {**params, **cache}) == []


def _rows_of(context: Context, texts: Sequence[Sequence[int]], rng: random.Random) -> list[Any]:
    """The logits of each token of each text, decoded in parts at random beside parts of others."""
    batch, left = Batch(64), [list(text) for text in texts]
    rows: list[list[Any]] = [[] for _ in texts]
    while any(left):
        batch.clear()
        of_rows: list[list[Any]] = []
        for seq, text in enumerate(texts):
            part = left[seq][: rng.randrange(7)]
            batch.extend(part, len(text) - len(left[seq]), seq=seq, output_all=True)
            left[seq] = left[seq][len(part) :]
            of_rows += [rows[seq]] * len(part)
        if of_rows:
            context.decode(batch)
        for i, its_rows in enumerate(of_rows):
            its_rows.append(context.logits(i).copy())
    return rows


@pytest.mark.parametrize("seed", release_except(range(6), (0, 1)))
@pytest.mark.parametrize("arch", release_except((*LATENT, "qwen4exp"), ("glm5-next", "qwen4exp")))
def test_rows_beside_other_texts(arch: str, seed: int) -> None:
    """An indexer sees the pools of all sequences, and scores, especially zeros, often tie."""
    rng = random.Random(f"beside {arch} {seed}")
    sizes = QUANTISED_SIZES + 1 + seed % 2
    path = latent_path(arch, sizes) if arch in LATENT else model_path(arch)
    texts = [[rng.randrange(97, 256) for _ in range(rng.randrange(30, 90))] for _ in range(3)]
    with Model(path) as model:
        alone = []
        for text in texts:
            with Context(model, n_ctx=96, n_threads=1) as context:
                alone += _rows_of(context, [text], rng)
        with Context(
            model, n_ctx=3 * 96, n_seq_max=3, n_ubatch=rng.choice((5, 32)), n_threads=1
        ) as context:
            assert context.exact_rows == _MAX_WIDTH
            together = _rows_of(context, texts, rng)
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(np.array(other), np.array(one))
