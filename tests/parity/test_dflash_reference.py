"""The DFlash reference and the builders of DFlash drafts agree with themselves.

The engine only opens the files here; other tests compare its graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pyllama_spec.engine import Model
from tests.models import RopeScaling, model_path, perm_continuation, perm_next
from tests.parity.dflash_reference import Reference
from tests.parity.numpy_forward import forward

Rows = NDArray[np.float64]
MASK = 300
VARIANTS: list[dict[str, Any]] = [
    {},
    {"variant": "dflash2"},
    {"variant": "dspark"},
    {"variant": "dspark", "sample_from_anchor": False},
]
OPTIONS: list[dict[str, Any]] = [
    {"causal": True},
    {"sliding_window": 5},
    {"sliding_window": 5, "window_pattern": (True, False), "causal": True},
    {"n_draft_vocab": 200, "sorted_d2t": False},
    {"target_layers": (4,), "n_head_kv": 1, "head_dim": 24},
    {"post_norms": True, "output_scales": True, "sinks": True},
    {"shared_kv": True, "attention_scale": 0.4},
    {"hidden_activation": "gelu_pytorch_tanh"},
    {"embedding_scale": 8.0, "value_scale": 0.7, "mrope": True},
    {"rope": RopeScaling("yarn")},
    {"rope": RopeScaling("llama3")},
    {"rope": RopeScaling("linear")},
    {"block_size": 2, "mask_token": 0},
]


def reference(**options: Any) -> Reference:
    return Reference(model_path("dflash", seed=7, **options))


def random_rows(draft: Reference, n: int, seed: int = 0) -> Rows:
    return np.random.default_rng(seed).standard_normal((n, draft.n_features))


def noise(n: int, first: int = 97) -> list[int]:
    return [first, *[MASK] * (n - 1)]


def filled(n: int, **options: Any) -> Reference:
    """A draft with `n` random rows."""
    draft = reference(**options)
    draft.inject(random_rows(draft, n), range(n))
    return draft


@pytest.mark.parametrize("weight_type", ["bf16", "f16", "q8_0"])
def test_the_engine_opens_other_types(weight_type: str) -> None:
    assert Model(model_path("dflash", seed=7, weight_type=weight_type)).info.arch == "dflash"
    exact = filled(9).block(noise(4), 9)
    rounded = filled(9, weight_type=weight_type).block(noise(4), 9)
    assert np.corrcoef(exact.ravel(), rounded.ravel())[0, 1] > 0.99


@pytest.mark.parametrize("options", VARIANTS + OPTIONS, ids=str)
def test_logits_are_well_spread(options: dict[str, Any]) -> None:
    draft = filled(20, **options)
    logits = draft.block(noise(6), 20)
    best = np.sort(logits, axis=-1)[:, -2:]
    assert np.isin(logits.argmax(axis=-1), (256, 257, 258, 259)).sum() == 0
    assert (best[:, 1] - best[:, 0]).min() > 1e-2
    finite = logits[:, np.isfinite(logits[0])]
    assert 4.0 < finite.std() < 16.0
    # rows differ although all slots but one hold the mask
    assert np.abs(np.diff(finite, axis=0)).max(axis=1).min() > 1.0


@pytest.mark.parametrize("n", [2, 4, 6])
def test_the_walk_follows_its_lattice(n: int) -> None:
    """Recomputing the scores pair by pair from the tensors gives the same walk."""
    draft = filled(9, variant="dflash2")
    ids = noise(n)
    walk, logits, y = draft.walk(ids, 9), draft.block(ids, 9), draft.hidden(ids, 9)
    tensors = draft._tensors
    before = ids[0]
    for slot in range(n - 1):
        best = set(np.argsort(-logits[slot + 1])[:4].tolist())
        assert set(walk.candidates[slot].tolist()) == best
        gate = tensors["selector_hidden.weight"] @ y[slot + 1]
        a = tensors["selector_predecessor.weight"][before] * gate
        scores = {
            c: logits[slot + 1, c] + a @ tensors["selector_successor.weight"][c] for c in best
        }
        before = max(scores, key=scores.__getitem__)
        total = sum(np.exp(score - scores[before]) for score in scores.values())
        assert walk.ids[slot] == before
        assert walk.probabilities[slot] == pytest.approx(1 / total)
    assert (walk.scores[0] == walk.scores[0, 0]).all()


def test_a_walk_is_not_the_row_by_row_choice() -> None:
    draft = filled(9, variant="dflash2")
    blocks = [noise(6, first) for first in range(40)]
    walked = [draft.walk(ids, 9).ids for ids in blocks]
    assert walked != [draft.drafts(draft.block(ids, 9)) for ids in blocks]
    with pytest.raises(ValueError, match="the selector knows 6"):
        draft.walk(noise(7), 9)


@pytest.mark.parametrize("reduced", [{}, {"n_draft_vocab": 200, "sorted_d2t": False}])
@pytest.mark.parametrize("from_anchor", [None, True, False])
def test_the_chain_conditions_each_slot(from_anchor: bool | None, reduced: dict[str, Any]) -> None:
    draft = filled(9, variant="dspark", sample_from_anchor=from_anchor, **reduced)
    ids, first = noise(6), 0 if from_anchor is not False else 1
    chain, logits = draft.chain(ids, 9), draft.block(ids, 9)
    assert len(chain.ids) == len(chain.probabilities) == 6 - first
    np.testing.assert_array_equal(chain.logits[:first], logits[:first])
    w1, w2 = draft._tensors["markov_w1.weight"], draft._tensors["markov_w2.weight"]
    before = ids[0]
    named = np.arange(320) if draft.d2t is None else draft.d2t
    for slot, token in enumerate(chain.ids, start=first):
        biased = logits[slot, named] + w2 @ w1[before]
        np.testing.assert_allclose(chain.logits[slot, named], biased, atol=1e-9)
        assert token == named[biased.argmax()]
        p = np.exp(biased - biased.max())
        assert chain.probabilities[slot - first] == pytest.approx(p.max() / p.sum())
        before = token
    assert chain.ids != draft.drafts(logits)
    assert chain.confidences is not None
    assert ((chain.confidences > 0) & (chain.confidences < 1)).all()
    assert np.isneginf(chain.logits).sum() == 6 * (320 - len(named))


def test_a_chain_needs_a_trained_block() -> None:
    draft = filled(9, variant="dspark", confidence=False)
    assert draft.chain(noise(6), 9).confidences is None
    with pytest.raises(ValueError, match="the head knows 6"):
        draft.chain(noise(7), 9)
    with pytest.raises(ValueError, match="without selector"):
        draft.walk(noise(6), 9)


# PERM: acceptance of a draft built by hand. The text starts at "a" and follows the permutation.
Mangle = Callable[[Rows], Rows]


def perm_text(n: int, n_cycles: int = 1) -> list[int]:
    return [97, *perm_continuation(97, n - 1, perm_next(n_cycles=n_cycles))]


def accepted(draft: Reference, layer_inputs: Rows, text: list[int], mangle: Mangle | None) -> float:
    """The share of drafts that `text` accepts, over a few rounds."""
    rows = np.concatenate([layer_inputs[layer] for layer in draft.target_layers], axis=1)
    if mangle is not None:
        rows = mangle(rows.copy())
    n, n_right, n_drafted = draft.block_size, 0, 0
    for position in (17, 24, 30):
        draft.truncate(0)
        draft.inject(rows[:position], range(position))
        drafted = draft.drafts(draft.block(noise(n, text[position]), position))
        right = np.equal(drafted, text[position + 1 : position + 1 + len(drafted)])
        n_right += int(np.cumprod(right).sum())
        n_drafted += len(drafted)
    return n_right / n_drafted


def nan_row(rows: Rows) -> Rows:
    rows[12, 3] = np.nan
    return rows


def swapped_neighbours(rows: Rows) -> Rows:
    rows[16:30] = rows[16:30].reshape(7, 2, -1)[:, ::-1].reshape(14, -1)
    return rows


PERM_DRAFTS: list[dict[str, Any]] = [
    {},
    {"target_layers": (1, 2, 4)},
    {"read": "spread"},
    {"causal": True, "sliding_window": 17},
    {"variant": "dflash2", "reduced": True},
    {"variant": "dspark", "n_cycles": 3},
    {"variant": "dspark", "sample_from_anchor": False, "block_size": 5},
]


@pytest.mark.slow
@pytest.mark.parametrize("options", PERM_DRAFTS, ids=str)
def test_perm_drafts_need_the_right_rows(options: dict[str, Any]) -> None:
    cycles = {key: value for key, value in options.items() if key == "n_cycles"}
    target = model_path("perm", stepping=True, **cycles)
    text = perm_text(48, **cycles)
    result = forward(target, text)
    assert result.logits.argmax(axis=-1)[:-1].tolist() == text[1:]
    draft = Reference(model_path("perm_dflash", stepping=True, **options))

    def share(mangle: Mangle | None = None, inputs: Rows = result.layer_inputs) -> float:
        return accepted(draft, inputs, text, mangle)

    assert share() == 1.0
    assert share(lambda rows: np.roll(rows, 1, axis=0)) == 0.0
    assert share(lambda rows: np.roll(rows, -1, axis=0)) == 0.0
    assert share(lambda rows: rows[::-1]) < 0.1
    assert share(swapped_neighbours) < 0.5
    # layer ids off by one, either way
    assert share(inputs=np.roll(result.layer_inputs, 1, axis=0)) == 0.0
    assert share(inputs=np.roll(result.layer_inputs, -1, axis=0)) == 0.0
    with np.errstate(invalid="ignore"):
        assert share(nan_row) == 0.0


@pytest.mark.parametrize("read", ["newest", "spread"])
def test_which_rows_a_perm_draft_reads(read: str) -> None:
    """One wrong row, at each distance from the block, changes exactly the expected slots."""
    text = perm_text(40)
    inputs = forward(model_path("perm"), text).layer_inputs
    draft = Reference(model_path("perm_dflash", read=read))
    expected = text[21:28]
    for back in range(1, 10):
        rows = inputs[1][:20].copy()
        rows[20 - back] = inputs[1][35]
        draft.truncate(0)
        draft.inject(rows, range(20))
        drafted = draft.drafts(draft.block(noise(8, text[20]), 20))
        wrong = [
            slot
            for slot, pair in enumerate(zip(drafted, expected, strict=True), 1)
            if pair[0] != pair[1]
        ]
        if read == "newest":
            assert wrong == (list(range(1, 8)) if back == 1 else [])
        else:
            assert wrong == ([back] if back < 8 else [])
