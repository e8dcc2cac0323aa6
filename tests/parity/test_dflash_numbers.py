"""The engine's DFlash graph against the NumPy reference, for every option and many combinations.

Random drafts and random rows: several blocks after 0, 1, 7 and 300 of them, with rows in between.
Weights, keys and values are F32, so that only rounding differs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.dflash_tools import KINDS, Bench, Guessed, slots
from tests.models import RopeScaling, model_path, target_options
from tests.parity.dflash_reference import Reference, gelu
from tests.parity.numpy_model import Array, Float32Rope, apart, softmax
from tests.tiers import release_except


def gelu_of_a_table(x: Array) -> Array:
    """GELU of F16 in F16, between -10 and 10."""
    with np.errstate(over="ignore"):
        rounded = gelu(x.astype(np.float16).astype(np.float64)).astype(np.float16)
    out: Array = np.where(np.abs(x) < 10.0, rounded.astype(np.float64), np.maximum(x, 0.0))
    return out


class Rounding(Reference):
    """With the angles of the engine's kernels, and its GELU."""

    rope_kind = Float32Rope
    _gelu = staticmethod(gelu_of_a_table)


F32 = {"type_k": "f32", "type_v": "f32"}
COUNTS = (0, 1, 7, 300)
TOLERANCE = 1e-4


@dataclass
class Said:
    """One side's results for a block; see Guessed."""

    logits: npt.NDArray[Any]
    ids: list[int]
    probabilities: npt.NDArray[Any]
    confidences: npt.NDArray[Any] | None
    lattice: list[dict[int, float]] | None


def reference_block(draft: Reference, ids: list[int], position: int) -> Said:
    first = 0 if draft.from_anchor else 1
    if draft.is_dspark:
        chain = draft.chain(ids, position)
        confidences = chain.confidences
        return Said(chain.logits[first:], chain.ids, chain.probabilities, confidences, None)
    logits = draft.block(ids, position)[first:]
    if draft.is_dflash2:
        walk = draft.walk(ids, position)
        before = [0, *walk.choices]
        lattice = [
            dict(zip(candidates.tolist(), softmax(scores[b]).tolist(), strict=True))
            for candidates, scores, b in zip(walk.candidates, walk.scores, before, strict=False)
        ]
        return Said(logits, walk.ids, walk.probabilities, None, lattice)
    return Said(logits, [int(i) for i in logits.argmax(-1)], softmax(logits).max(-1), None, None)


def check_block(got: Guessed, expected: Said) -> None:
    assert got.ids == expected.ids
    assert np.abs(np.array(got.probabilities) - expected.probabilities).max() < TOLERANCE
    if expected.confidences is None:
        assert got.confidences is None
    else:
        assert np.abs(np.array(got.confidences) - expected.confidences).max() < TOLERANCE
    for slot, found in enumerate(got.candidates):
        assert list(found.values()) == sorted(found.values(), reverse=True)
        if expected.lattice is not None:
            wanted = expected.lattice[slot]
        else:
            p = softmax(expected.logits[slot])
            best = np.argsort(-p)[: len(found)]
            wanted = {int(id_): float(p[id_]) for id_ in best}
        assert found.keys() == wanted.keys()
        assert found == pytest.approx(wanted, abs=TOLERANCE)


def worst_difference(
    options: dict[str, Any],
    target: str = "llama",
    counts: tuple[int, ...] = COUNTS,
    *,
    is_rough: bool = False,
    **params: Any,
) -> float:
    """How far apart the logits of both sides are, over all blocks after all counts of rows.

    If is_rough, nothing else is compared.
    """
    path = model_path("dflash", seed=7, **options)
    reference = Rounding(path, model_path(target))
    rng, worst = np.random.default_rng(5), 0.0
    with Bench(path, target, **{**F32, **params}) as bench:
        most = bench.block.max_draft
        for n_rows in counts:
            bench.context.memory.clear()
            reference.truncate(0)
            position = 0
            # A whole block, shorter ones with rows between them, and one with nothing between.
            for n_new, n_guesses in ((n_rows, most), (1, max(most - 2, 1)), (3, most), (0, 1)):
                rows = rng.standard_normal((n_new, bench.n_features), dtype=np.float32)
                if n_new:
                    bench.inject(rows, position)
                    reference.inject(rows, range(position, position + n_new))
                position += n_new
                token = int(rng.integers(0, 256))
                expected = reference_block(
                    reference, slots(bench.block, token, n_guesses), position
                )
                got = bench.guess(token, n_guesses, position)
                assert got.logits is not None
                worst = max(worst, apart(got.logits, expected.logits))
                if not is_rough:
                    check_block(got, expected)
                fast = bench.guess(token, n_guesses, position, has_logits=False)
                assert fast.is_equal_to(got), "without logits"
                last = bench.context.memory.positions(0)[1]
                assert last == position - 1, "a block leaves nothing"
    return worst


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "not causal, said so": {"causal": False},
    "window": {"sliding_window": 5},
    "causal window": {"sliding_window": 5, "causal": True},
    "wide window": {"sliding_window": 150},
    "some layers slide": {"sliding_window": 5, "window_pattern": (True, False)},
    "others slide": {"sliding_window": 5, "window_pattern": (False, True), "causal": True},
    "causal where layers slide": {
        "sliding_window": 5,
        "window_pattern": (True, False),
        "causal_pattern": (True, False),
    },
    "no layer slides": {"sliding_window": 5, "window_pattern": (False, False)},
    "d2t": {"n_draft_vocab": 200},
    "d2t unsorted": {"n_draft_vocab": 200, "sorted_d2t": False, "own_embedding": False},
    "d2t of all ids": {"n_draft_vocab": 320, "sorted_d2t": False},
    "shared embedding": {"own_embedding": False},
    "shared both": {"own_embedding": False, "own_output": False},
    "one layer of the target": {"target_layers": (2,)},
    "final layer": {"target_layers": (1, 4)},
    "unordered": {"target_layers": (3, 0, 2)},
    "one layer": {"n_layer": 1},
    "three layers": {"n_layer": 3},
    "head size": {"n_head_kv": 1, "head_dim": 24},
    "M-RoPE": {"mrope": True},
    "biases": {"attention_bias": True},
    "sinks": {"sinks": True},
    "sinks in a window": {"sinks": True, "sliding_window": 5},
    "post norms": {"post_norms": True},
    "post norms, output scales": {"post_norms": True, "output_scales": True},
    "shared kv": {"shared_kv": True, "attention_scale": 1.0},
    "embedding scale": {"embedding_scale": 8.0, "value_scale": 0.7},
    "logit scale, soft cap": {"logit_scale": 0.5, "softcap": 15.0},
    "two slots": {"block_size": 2},
    "sixteen slots": {"block_size": 16},
}


SELECTORS: dict[str, dict[str, Any]] = {
    "one tap": {"conv_kernel_size": 1},
    "more taps than slots": {"conv_kernel_size": 9, "block_size": 4},
    "one group": {"conv_group_size": 64},
    "a group for each column": {"conv_group_size": 1},
    "one candidate": {"selector_top_k": 1},
    "seven candidates": {"selector_top_k": 7},
    "rank 1": {"selector_rank": 1},
    "reduced": {"n_draft_vocab": 64, "sorted_d2t": False, "selector_top_k": 6},
}
CHAINS: dict[str, dict[str, Any]] = {
    "no confidence": {"confidence": False},
    "rank 1": {"markov_rank": 1},
    "as wide as the draft": {"markov_rank": 64},
    "one slot": {"block_size": 1},
    "32 slots": {"block_size": 32},
    "reduced": {"n_draft_vocab": 64, "sorted_d2t": False},
    "causal window": {"causal": True, "sliding_window": 5},
}
OWN_VARIANTS: dict[str, dict[str, Any]] = {
    "a first slot that guesses, no chain": {"sample_from_anchor": True},
    **{f"selector, {name}": {**KINDS["dflash2"], **own} for name, own in SELECTORS.items()},
    **{f"chain, {name}": {**KINDS["dspark"], **own} for name, own in CHAINS.items()},
}
QUICK_OWN = ("a first slot that guesses, no chain", "selector, seven candidates", "chain, one slot")


@pytest.mark.parametrize("name", release_except(OWN_VARIANTS, QUICK_OWN))
def test_variants_of_one_kind(name: str) -> None:
    assert worst_difference(OWN_VARIANTS[name]) < TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", release_except(VARIANTS, ("plain", "causal where layers slide", "d2t"))
)
def test_variants(name: str, kind: str) -> None:
    assert worst_difference({**VARIANTS[name], **KINDS[kind]}) < TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
def test_gelu(kind: str) -> None:
    """A number between two entries of the engine's table may round to either."""
    options = {"hidden_activation": "gelu_pytorch_tanh", **KINDS[kind]}
    assert worst_difference(options, is_rough=True) < 0.01


ARCHS = ("llama", "qwen3", "qwen3moe", "gemma3", "qwen35", "lfm2")
ROPES = {name: RopeScaling(name) for name in ("linear", "yarn", "llama3")}


@pytest.mark.parametrize("name", ROPES)
def test_rope(name: str) -> None:
    options = {"rope": ROPES[name], "head_dim": 32}
    assert worst_difference(options) < TOLERANCE
    assert worst_difference({**options, **KINDS["dspark"]}) < TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("arch", release_except(ARCHS, ("gemma3", "qwen35")))
def test_drafts_that_borrow_from_a_target(arch: str, kind: str) -> None:
    """Gemma scales its embeddings, and qwen35 has positions for M-RoPE."""
    target = model_path(arch)
    known = target_options(target)
    assert ("embedding_scale" in known, "mrope" in known) == (arch == "gemma3", arch == "qwen35")
    options = {**KINDS[kind], "target": target, "own_embedding": False, "own_output": False}
    assert worst_difference(options, arch, (0, 7)) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("n_layer", [1, 3, 5, 8])
def test_long_chains_fit_the_graph(n_layer: int) -> None:
    """The engine's limit for a graph grows with the tensors, and a chain with the slots."""
    options = {**KINDS["dspark"], "block_size": 32, "n_layer": n_layer, "n_draft_vocab": 200}
    assert worst_difference(options, counts=(0, 7)) < TOLERANCE


@pytest.mark.slow
def test_combinations() -> None:
    """Options that meet in the graph, with further parts."""
    rest: Iterator[dict[str, Any]] = itertools.cycle(
        [
            {"sinks": True, "n_draft_vocab": 64, "block_size": 4},
            {"target_layers": (1, 4), "own_embedding": False, "n_layer": 3},
            {"mrope": True, "output_scales": True, "n_layer": 1},
            {"shared_kv": True, "attention_scale": 1.0, "embedding_scale": 8.0},
            {"own_embedding": False, "own_output": False, "head_dim": 24},
        ]
    )
    windows: tuple[dict[str, Any], ...] = (
        {}, {"sliding_window": 6},
        {"sliding_window": 6, "window_pattern": (True, False, True)},
    )  # fmt: skip
    for kind, causal, post_norms, window in itertools.product(
        KINDS, (False, True), (False, True), windows
    ):
        options = {
            **KINDS[kind],
            "causal": causal,
            "post_norms": post_norms,
            **window,
            **next(rest),
        }
        if "window_pattern" in options:
            n_layer = options.get("n_layer", 2)
            options["window_pattern"] = options["window_pattern"][:n_layer]
        assert worst_difference(options, counts=(1, 17)) < TOLERANCE, options


def test_a_walk_may_take_another_way() -> None:
    """Each candidate of the previous slot leads to scores of its own."""
    path = model_path("dflash", seed=7, **KINDS["dflash2"])
    reference = Rounding(path)
    rows = np.random.default_rng(5).standard_normal((9, reference.n_features), dtype=np.float32)
    reference.inject(rows, range(9))
    with Bench(path, **F32) as bench:
        bench.inject(rows, 0)
        bench.guess(97, 5, 9)
        walk = reference.walk(slots(bench.block, 97, 5), 9)
        for slot in range(1, 5):
            found = []
            for place, before in enumerate(walk.candidates[slot - 1].tolist()):
                ids, p, _ = bench.context.draft_candidates(slot + 1, before)
                scores = softmax(walk.scores[slot, place])
                wanted = dict(zip(walk.candidates[slot].tolist(), scores.tolist(), strict=True))
                assert dict(zip(ids, p, strict=True)) == pytest.approx(wanted, abs=TOLERANCE)
                found.append(ids)
            assert slot < 4 or len(set(found)) > 1
