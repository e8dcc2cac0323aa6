"""Decoders with a mixture of experts whose files have several MTP heads; two have windows."""

from __future__ import annotations

import numpy as np

from . import parts
from .moe import dense_first, dense_or_biased_experts, dense_or_experts, windows_on_odd_layers
from .sketch import Sketch


def step35(m: Sketch) -> None:
    """Odd layers have windows and rotate whole heads; even ones rotate half, by other angles.

    Each attention head has a gate. Layer 0 is dense. The experts' activations are clamped.
    """
    cfg = m.cfg
    _windowed(m)
    _sigmoid_experts(m)
    m.key("swiglu_clamp_exp", [1.5] * cfg.n_layer)
    m.key("swiglu_clamp_shexp", [1.0] * cfg.n_layer)
    # One for each angle of a wholly rotated head.
    m.uniform("rope_freqs.weight", cfg.head_dim // 2, low=1.0, high=4.0)
    dense_first(m, step35_layer)


def step35_layer(m: Sketch, blk: str, *, is_dense: bool) -> None:
    parts.norms(m, blk, "attn_norm", "ffn_norm")
    parts.attention(m, blk)
    parts.head_norms(m, blk)
    m.matrix(f"{blk}attn_gate.weight", m.cfg.n_head, m.cfg.n_embd)
    dense_or_biased_experts(m, blk, is_dense=is_dense)


def mimo2(m: Sketch) -> None:
    """Windows with sinks on odd layers, which have more key heads; values are narrower than keys.

    Layer 0 is dense, and so are the MTP heads.
    """
    cfg = m.cfg
    _windowed(m)
    m.key("attention.head_count_kv", [_n_kv(m, i) for i in range(cfg.n_layer)])
    m.key("attention.key_length", cfg.head_dim)
    m.key("attention.value_length", cfg.head_dim // 2)
    m.key("attention.value_scale", 0.75)
    m.key("rope.dimension_count", cfg.head_dim // 2)
    m.key("expert_gating_func", 2)  # sigmoid, for other readers; the engine always uses it
    m.embedding()
    for index, blk in parts.layers(m):
        mimo2_layer(m, blk, n_kv=_n_kv(m, index), is_dense=index == 0, has_sinks=index % 2 == 1)
    m.output()


def _n_kv(m: Sketch, index: int) -> int:
    return m.cfg.n_head if index % 2 else m.cfg.n_head_kv


def mimo2_layer(m: Sketch, blk: str, *, n_kv: int, is_dense: bool, has_sinks: bool) -> None:
    cfg, k, v = m.cfg, m.cfg.head_dim, m.cfg.head_dim // 2
    parts.norms(m, blk, "attn_norm", "ffn_norm")
    m.matrix(f"{blk}attn_qkv.weight", cfg.n_head * k + n_kv * (k + v), cfg.n_embd, gain=1.5)
    m.matrix(f"{blk}attn_output.weight", cfg.n_embd, cfg.n_head * v, gain=1.5)
    if has_sinks:
        m.normal(f"{blk}attn_sinks.weight", cfg.n_head)
    if is_dense:
        parts.gated_ffn(m, blk)
    else:
        parts.experts(m, blk)
        m.normal(f"{blk}exp_probs_b.bias", cfg.n_expert, std=0.1)


def hy_v3(m: Sketch) -> None:
    """Full attention, head norms; layer 0 dense, sigmoid-gated and shared experts after."""
    parts.header(m)
    parts.moe_header(m)
    _sigmoid_experts(m)
    dense_first(m, hy_v3_layer)


def hy_v3_layer(m: Sketch, blk: str, *, is_dense: bool) -> None:
    parts.norms(m, blk, "attn_norm", "ffn_norm")
    parts.attention(m, blk)
    parts.head_norms(m, blk)
    dense_or_experts(m, blk, is_dense=is_dense)
    if not is_dense:
        m.put(f"{blk}exp_probs_b", m.rng(f"{blk}exp_probs_b").normal(0.0, 0.1, m.cfg.n_expert))


def _windowed(m: Sketch) -> None:
    parts.header(m)
    parts.moe_header(m)
    windows_on_odd_layers(m)
    m.key("rope.freq_base_swa", float(np.sqrt(m.cfg.rope_freq_base)))


def _sigmoid_experts(m: Sketch) -> None:
    m.key("expert_shared_feed_forward_length", m.cfg.n_ff_exp)
    m.key("expert_gating_func", 2)  # sigmoid
    m.key("expert_weights_norm", True)
    m.key("expert_weights_scale", 1.5)
