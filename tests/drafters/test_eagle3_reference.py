"""The NumPy reference of EAGLE-3 against cases computed without it; no engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.models import (
    Eagle3Config,
    RopeScaling,
    eagle3_tensors,
    model_path,
    perm_continuation,
    perm_next,
    write_eagle3,
)
from tests.parity.eagle3_reference import Reference, greedy_chain

N_CHAIN = 16
PERM_HEADS: list[dict[str, Any]] = [
    {},
    {"norm_output": True},
    {"norm_output": True, "norm_before_residual": True, "n_layer": 2, "reduced": True},
    {"target_layers": (0, 2, 4), "read_layer": 1, "fc_norm": True},
    {"target_layers": (0, 4), "norm_before_fc": True, "fc_bias": True, "attn_bias": True},
    {"n_cycles": 30, "output_gate": True, "qk_norm": True, "seed": 5, "weight_type": "bf16"},
    {"read_token": True},
    {"read_token": True, "norm_output": True, "norm_before_residual": True, "n_layer": 2},
]
ROPES = [
    RopeScaling(),
    RopeScaling("linear"),
    RopeScaling("yarn"),
    RopeScaling("llama3"),
    RopeScaling("longrope"),
    RopeScaling("longrope", attn_factor=1.19),
]


def random_rows(reference: Reference, n: int) -> NDArray[np.float64]:
    """Feature rows, float64 `[n, n_features]`."""
    return np.random.default_rng(9).standard_normal((n, reference.n_features))


def run(reference: Reference, first: int, *, n_features: int = 5, n_own: int = 4) -> list[Any]:
    """Logits `[n_draft_vocab]` of steps over feature rows, then own rows, from position `first`."""
    out = []
    row = np.zeros(0)
    for index, features in enumerate(random_rows(reference, n_features)):
        logits, row = reference.step(40 + index, features, first + index, own=False)
        out.append(logits)
    for index in range(n_features, n_features + n_own):
        logits, row = reference.step(40 + index, row, first + index, own=True)
        out.append(logits)
    return out


@pytest.mark.parametrize("options", PERM_HEADS, ids=str)
def test_perm_head_drafts_what_perm_says(options: dict[str, Any]) -> None:
    reference = Reference(model_path("perm_eagle3", **options))
    shape = {name: options[name] for name in ("seed", "n_cycles") if name in options}
    successor = perm_next(reference.n_vocab, **shape)
    rows = np.eye(reference.n_vocab)
    prompt = [84, 104, 101, 32]
    following = int(successor[prompt[-1]])
    for position, token in enumerate(prompt):
        features = np.tile(rows[token], len(reference.target_layers))
        after = [*prompt, following][position + 1]
        reference.truncate(position)
        drafted = greedy_chain(reference, after, features, position, N_CHAIN)
        # what it reads decides: the features' token, or the token itself
        last = after if options.get("read_token") else int(successor[token])
        assert drafted == perm_continuation(last, N_CHAIN, successor)


def test_perm_head_of_half_the_vocabulary_drafts_nothing_else() -> None:
    options = {"reduced": True, "n_draft_vocab": 160}
    reference = Reference(model_path("perm_eagle3", **options))
    successor = perm_next(reference.n_vocab)
    assert reference.d2t is not None
    assert len(set(reference.d2t.tolist())) == reference.n_draft_vocab == 160
    known = set(reference.d2t.tolist())
    for token in range(0, reference.n_vocab, 7):
        logits, _ = reference.step(0, np.eye(reference.n_vocab)[token], 0, own=False)
        full = reference.full_logits(logits)
        assert set(np.flatnonzero(np.isfinite(full)).tolist()) == known
        wanted = int(successor[successor[token]])
        assert (full.argmax() == wanted) == (wanted in known)


def hand_made(path: Path, *, output_gate: bool) -> Reference:
    """Four query heads over two K/V heads of size 2, without rotation; the FFN adds nothing.

    The row's half of the attention input is the row itself for one-hot rows.
    """
    cfg = Eagle3Config(
        n_embd=8,
        rope=RopeScaling("llama3"),
        attn_bias=True,
        output_gate=output_gate,
    )
    tensors = eagle3_tensors(cfg)
    for name, array in tensors.items():
        if name.startswith("blk.0.") and not name.endswith("norm.weight"):
            array[:] = 0.0
    tensors["blk.0.attn_norm_2.weight"][:] = np.sqrt(1 / 8 + cfg.norm_eps)
    tensors["rope_freqs.weight"][:] = 1e30
    tensors["blk.0.attn_output.weight"][:] = np.eye(8)
    # only query head 0 and K/V head 0 tell positions apart: their score is ln 3 for row 0
    tensors["blk.0.attn_q.bias"][0] = np.sqrt(2)
    tensors["blk.0.attn_k.weight"][0, 8 + 0] = np.log(3)
    tensors["blk.0.attn_v.weight"][:, 8 + 0] = [1, 2, 3, 4]
    tensors["blk.0.attn_v.weight"][:, 8 + 1] = [5, 6, 7, 8]
    if output_gate:
        # per head two query rows, then two gate rows: factors 1/2, but 3/4 for the last number
        tensors["blk.0.attn_q.bias"][4 * 3 + 3] = np.log(3)
    return Reference(write_eagle3(path, cfg, tensors))


@pytest.mark.parametrize("output_gate", [False, True])
def test_heads_by_hand(tmp_path: Path, output_gate: bool) -> None:
    reference = hand_made(tmp_path / "head.gguf", output_gate=output_gate)
    rows = np.eye(8)
    _, first = reference.step(65, rows[0], 0, own=True)
    _, second = reference.step(66, rows[1], 1, own=True)
    # alone, each K/V head's value goes to two neighbouring query heads; then head 0 takes
    # 3/4 of position 0, the others halves
    mixed_first = np.array([1, 2, 1, 2, 3, 4, 3, 4], dtype=float)
    mixed_second = np.array([2, 3, 3, 4, 5, 6, 5, 6], dtype=float)
    factors = np.array([0.5] * 7 + [0.75]) if output_gate else np.ones(8)
    np.testing.assert_allclose(first, mixed_first * factors + rows[0], atol=1e-6)
    np.testing.assert_allclose(second, mixed_second * factors + rows[1], atol=1e-6)


@pytest.mark.parametrize("rope", ROPES, ids=str)
def test_rope_knows_distances_only(rope: RopeScaling) -> None:
    path = model_path("eagle3", rope=rope, qk_norm=True)
    plain = run(Reference(model_path("eagle3", qk_norm=True)), 0)
    for n_ctx in (256, 257):
        here, there = run(Reference(path, n_ctx=n_ctx), 0), run(Reference(path, n_ctx=n_ctx), 1000)
        np.testing.assert_allclose(here, there, rtol=0, atol=1e-9)
        # but each kind turns by angles of its own
        assert (rope == RopeScaling()) == np.allclose(here, plain, rtol=0, atol=1e-3)
    short, long = (run(Reference(path, n_ctx=n_ctx), 0) for n_ctx in (256, 257))
    assert (rope.kind != "longrope") == np.array_equal(short, long)


def test_yarn_and_llama3_frequencies() -> None:
    """Head size 16, base 10^4, original context 256, factor 8: pairs 0..7 by hand."""
    plain = 10.0 ** (-np.arange(8) / 2)
    # 32 rotations in 256 positions: pair 0.21; 1 rotation: pair 3.22; ramp over 0..4
    kept = np.array([1, 0.75, 0.5, 0.25, 0, 0, 0, 0])
    yarn = Reference(model_path("eagle3", rope=RopeScaling("yarn")))
    np.testing.assert_allclose(yarn.frequencies, plain * kept + plain / 8 * (1 - kept))
    assert yarn.rope_scale == pytest.approx(1.2079441541679836)
    # wavelengths 6.28, 19.9, 62.8 are below 256 / 4, 628 and more above 256; 198.7 lies between
    smooth = (256 / 198.691765 - 1) / 3
    factors = np.array([1, 1, 1, 1 / ((1 - smooth) / 8 + smooth), 8, 8, 8, 8])
    llama3 = Reference(model_path("eagle3", rope=RopeScaling("llama3")))
    np.testing.assert_allclose(llama3.frequencies, plain / factors, rtol=1e-6)


def test_truncated_positions_leave_no_trace() -> None:
    path = model_path("eagle3", n_layer=2, output_gate=True, norm_output=True)
    fresh = run(Reference(path), 0)
    reference = Reference(path)
    run(reference, 0, n_features=3, n_own=6)
    reference.truncate(0)
    np.testing.assert_array_equal(run(reference, 0), fresh)
    # a position written again takes the place of the old one, and later ones are not seen
    rows = random_rows(reference, 5)
    again, _ = reference.step(44, rows[4], 4, own=False)
    np.testing.assert_array_equal(again, fresh[4])
    reference.step(7, rows[0], 3, own=False)
    other, _ = reference.step(44, rows[4], 4, own=False)
    assert not np.allclose(other, fresh[4])


def test_reduced_and_lent_vocabularies_keep_the_logits() -> None:
    full = run(Reference(model_path("eagle3")), 0)
    reduced = Reference(model_path("eagle3", n_draft_vocab=100, sorted_d2t=False))
    assert reduced.d2t is not None
    np.testing.assert_allclose(run(reduced, 0), np.array(full)[:, reduced.d2t], atol=1e-9)
    # a head's own file lends as a target's does
    poor = model_path("eagle3", own_embedding=False, own_output=False)
    np.testing.assert_array_equal(run(Reference(poor, model_path("eagle3")), 0), full)
    with pytest.raises(ValueError, match=r"token_embd\.weight"):
        Reference(poor)
    # BF16 keeps 8 bits
    error = np.array(run(Reference(model_path("eagle3", weight_type="bf16")), 0)) - full
    assert 0 < np.sqrt(np.mean(error**2)) < 0.05 * np.std(full)
