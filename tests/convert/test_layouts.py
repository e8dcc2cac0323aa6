"""The same head in every layout becomes the same GGUF with the head's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.convert.tools import (
    INPUTS,
    LAYOUTS,
    N_DRAFT,
    N_EMBD,
    N_VOCAB,
    Array,
    check_equal,
    convert_head,
    gguf_keys,
    gguf_tensors,
    make_head,
)
from tests.models import write_eagle3

OPTIONS: list[dict[str, Any]] = [
    {},
    {"norm_before_residual": True},
    {"norm_before_fc": True},
    {"fc_norm": True, "norm_output": True},
    {"qk_norm": True},
    {"output_gate": True},
    {"output_gate": True, "qk_norm": True, "attn_bias": True, "head_dim": 24},
    {"attn_bias": True, "fc_bias": True},
    {"own_embedding": False},
    {"n_draft_vocab": None},
    {"n_draft_vocab": None, "own_output": False},
    {"n_draft_vocab": None, "own_output": False, "own_embedding": False},
    {"sorted_d2t": False},
    {"target_layers": (8,)},
    {"target_layers": (0, 3, 4, 7, 8), "fc_norm": True},
    {"n_embd": 32, "norm_before_fc": True},
    {"head_dim": 32, "n_head_kv": 4},
    {"n_head_kv": 1, "n_ff": 40},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("layout", ["specforge", "speculators"])
def test_all_options_keep_the_numbers(tmp_path: Path, layout: str, options: dict[str, Any]) -> None:
    head = make_head(**options)
    if layout == "specforge" and 8 in head.cfg.target_layers:
        # Read as outputs, block 7 leaves what is input 8.
        head.config["eagle_aux_hidden_state_layer_ids"] = [k - 1 for k in head.cfg.target_layers]
        if 0 in head.cfg.target_layers:
            layout = "flat"
            head.config["eagle_aux_hidden_state_layer_ids"] = list(head.cfg.target_layers)
    report = convert_head(tmp_path, layout, head)
    check_equal(report.path, head.gguf)
    assert report.target_layers == head.cfg.target_layers
    assert report.n_tensors == len(head.gguf)
    # The keys are those that the tests' own builder writes, which the engine's references read.
    built = gguf_keys(write_eagle3(tmp_path / "built.gguf", head.cfg, head.gguf))
    keys = gguf_keys(report.path)
    for name in (key for key in built if key.startswith("eagle3.")):
        assert name == "eagle3.context_length" or keys[name] == built[name], name


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_are_tensor_equal(tmp_path: Path, layout: str) -> None:
    head = make_head(norm_before_residual=True, norm_output=True)
    report = convert_head(tmp_path, layout, head)
    check_equal(report.path, head.gguf)
    keys = gguf_keys(report.path)
    assert keys["eagle3.norm_before_residual"] is True
    assert keys["eagle3.norm_output"] is True
    assert report.target_layers == INPUTS
    assert report.n_draft_vocab == N_DRAFT
    assert report.type_name == "BF16"
    assert report.n_bytes == report.path.stat().st_size


def test_keys(tmp_path: Path) -> None:
    head = make_head(head_dim=24, norm_eps=2e-6, rope_freq_base=500000.0)
    report = convert_head(tmp_path, "safeailab", head)
    keys = gguf_keys(report.path)
    assert keys["general.architecture"] == "eagle3"
    assert keys["general.name"] == "safeailab"
    assert keys["general.file_type"] == 32
    expected = {
        "context_length": 2048, "embedding_length": 64, "block_count": 1,
        "feed_forward_length": 96, "attention.head_count": 4, "attention.head_count_kv": 2,
        "attention.key_length": 24, "attention.value_length": 24, "vocab_size": N_VOCAB,
        "rope.dimension_count": 24, "rope.freq_base": 500000.0, "target_layers": list(INPUTS),
        "target_hidden_size": N_EMBD,
    }  # fmt: skip
    for name, value in expected.items():
        assert keys[f"eagle3.{name}"] == value, name
    assert keys["eagle3.attention.layer_norm_rms_epsilon"] == pytest.approx(2e-6)
    off = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    assert not any(f"eagle3.{name}" in keys for name in off)
    assert {name: value for name, value in keys.items() if "convert" in name} == {
        "pyllama_spec.convert.version": "1",
        "pyllama_spec.convert.layer_ids": "default",
    }
    assert str(tmp_path) not in str(keys)


def rotate_halves(x: Array, position: int, base: float) -> Array:
    """RoPE as checkpoints compute it: x cos + [-x2, x1] sin. `x` is `[head_size]`."""
    half = len(x) // 2
    angles = position * base ** (-np.arange(half) / half)
    cos, sin = np.tile(np.cos(angles), 2), np.tile(np.sin(angles), 2)
    result: Array = x * cos + np.concatenate([-x[half:], x[:half]]) * sin
    return result


def rotate_neighbours(x: Array, position: int, base: float) -> Array:
    """RoPE as the engine computes it: each pair of neighbours is a complex number."""
    half = len(x) // 2
    angles = position * base ** (-np.arange(half) / half)
    turned = (x[0::2] + 1j * x[1::2]) * np.exp(1j * angles)
    return np.stack([turned.real, turned.imag], axis=1).ravel()


@pytest.mark.parametrize("gate", [False, True])
def test_scores_survive_the_reordering(tmp_path: Path, gate: bool) -> None:
    head = make_head(output_gate=gate, qk_norm=True, attn_bias=True, head_dim=24)
    path = convert_head(tmp_path, "speculators", head, kind="f32").path
    gguf = {
        name: np.frombuffer(raw, np.float32).reshape(shape)
        for name, (kind, shape, raw) in gguf_tensors(path).items()
        if kind == "F32"
    }
    a = np.random.default_rng(0).standard_normal(128)

    def scores(prefix: str, names: tuple[str, str], turn: Any, tensors: Any) -> list[float]:
        """The scores of each head with its K head, at several distances."""
        heads = {}
        for part, n_head in ((names[0], 4), (names[1], 2)):
            weight, bias = tensors[f"{prefix}{part}.weight"], tensors[f"{prefix}{part}.bias"]
            rows = (weight @ a + bias).reshape(n_head, -1)[:, :24]
            norm = tensors[f"{prefix}{part.replace('_proj', '')}_norm.weight"]
            heads[part] = rows / np.sqrt((rows**2).mean(1, keepdims=True)) * norm
        return [
            float(turn(heads[names[0]][h], p, 10000.0) @ turn(heads[names[1]][h // 2], 3, 10000.0))
            for h in range(4)
            for p in (3, 4, 50)
        ]

    ours = scores("blk.0.", ("attn_q", "attn_k"), rotate_neighbours, gguf)
    theirs = scores("layers.0.self_attn.", ("q_proj", "k_proj"), rotate_halves, head.tensors)
    assert ours == pytest.approx(theirs, rel=1e-5)
    wrong = scores("blk.0.", ("attn_q", "attn_k"), rotate_halves, gguf)
    assert wrong != pytest.approx(theirs, rel=1e-2)


def test_tied_output_is_the_embedding(tmp_path: Path) -> None:
    head = make_head(n_draft_vocab=None, own_output=False)
    head.config["tie_word_embeddings"] = True
    tensors = gguf_tensors(convert_head(tmp_path, "specforge", head).path)
    assert tensors["output.weight"] == tensors["token_embd.weight"]


def test_buffers_of_rope_are_ignored(tmp_path: Path) -> None:
    head = make_head()
    head.tensors["layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(8, np.float32)
    check_equal(convert_head(tmp_path, "safeailab", head).path, head.gguf)


@pytest.mark.parametrize("layout", ["nvidia", "speculators", "redhat", "flat"])
@pytest.mark.parametrize("n_layer", [2, 4])
def test_several_layers(tmp_path: Path, layout: str, n_layer: int) -> None:
    head = make_head(n_layer=n_layer, qk_norm=True, attn_bias=True)
    report = convert_head(tmp_path, layout, head)
    check_equal(report.path, head.gguf)
    assert report.n_layer == n_layer
    assert gguf_keys(report.path)["eagle3.block_count"] == n_layer
