"""Attention-only decoders with a mixture of experts, some with heads in their files."""

from __future__ import annotations

from functools import partial

import numpy as np

from . import parts
from .parts import Keys, attention, biased_experts, decoder, dense_until, head_norms, norms
from .sketch import Sketch

INDEXER_HEADS, INDEXER_WIDTH = 2, 64
Q_RANK, KV_RANK, ROPE, NOPE = 24, 16, 8, 8


def qwen3moe(m: Sketch) -> None:
    """qwen3's attention with routed experts in every layer."""
    keys = {**parts.expert_sizes(m), **parts.head_sizes(m)}
    decoder(m, attention, head_norms, parts.experts, keys=keys)


def gpt_oss(m: Sketch) -> None:
    """Sliding windows on layers 0, 2, ..., attention sinks, biases everywhere."""
    keys = {**parts.expert_sizes(m), "attention.sliding_window": m.cfg.sliding_window}
    biased = partial(attention, bias=True, out_bias=True)
    experts = partial(parts.experts, bias=True)
    names = ("attn_norm", "post_attention_norm")
    decoder(m, biased, parts.sinks, experts, names=names, keys=keys)


# ---- latent attention


def latent_sizes(m: Sketch) -> Keys:
    """The keys of a model with latent attention and experts."""
    return {
        **parts.expert_sizes(m),
        "attention.head_count_kv": 1,  # the latent is one head shared by all
        "attention.q_lora_rank": Q_RANK,
        "attention.kv_lora_rank": KV_RANK,
        "attention.key_length": KV_RANK + ROPE,
        "attention.value_length": KV_RANK,
        "attention.key_length_mla": NOPE + ROPE,
        "attention.value_length_mla": m.cfg.head_dim,
        "rope.dimension_count": ROPE,
        "leading_dense_block_count": 1,
        "expert_shared_count": 1,
        "expert_weights_scale": 1.5,
    }


def deepseek2(m: Sketch) -> None:
    """Latent attention (the absorbed form); layer 0 dense, routed and shared experts after."""
    keys = {**latent_sizes(m), "expert_gating_func": 1}  # softmax
    decoder(m, latent_layer, names=(), keys=keys)


def deepseek32(m: Sketch) -> None:
    """deepseek2 with an indexer that chooses the attended tokens, and with sigmoid gates."""
    keys = {
        **latent_sizes(m), "expert_gating_func": 2, "expert_weights_norm": True,
        "attention.indexer.head_count": INDEXER_HEADS,
        "attention.indexer.key_length": INDEXER_WIDTH, "attention.indexer.top_k": 2048,
    }  # fmt: skip
    decoder(m, indexed_layer, names=(), keys=keys)


def latent_layer(m: Sketch, blk: str) -> None:
    norms(m, blk, "attn_norm", "ffn_norm")
    latent_attention(m, blk)
    dense_until(1, parts.all_experts)(m, blk)


def latent_attention(
    m: Sketch, blk: str, *, rope: int = ROPE, q_rank: int | None = Q_RANK, kv_gain: float = 1.5
) -> None:
    """Add latent attention, whose queries come from a latent of their own if they have a rank."""
    cfg = m.cfg
    if q_rank is None:
        m.matrix(f"{blk}attn_q.weight", cfg.n_head * (NOPE + rope), cfg.n_embd, gain=1.5)
    else:
        m.matrix(f"{blk}attn_q_a.weight", q_rank, cfg.n_embd)
        m.norm(f"{blk}attn_q_a_norm", q_rank)
        m.matrix(f"{blk}attn_q_b.weight", cfg.n_head * (NOPE + rope), q_rank, gain=1.5)
    m.matrix(f"{blk}attn_kv_a_mqa.weight", KV_RANK + rope, cfg.n_embd, gain=kv_gain)
    m.norm(f"{blk}attn_kv_a_norm", KV_RANK)
    m.matrix(f"{blk}attn_k_b.weight", cfg.n_head, KV_RANK, NOPE, gain=1.5)
    m.matrix(f"{blk}attn_v_b.weight", cfg.n_head, cfg.head_dim, KV_RANK)
    m.matrix(f"{blk}attn_output.weight", cfg.n_embd, cfg.n_embd, gain=1.5)


def indexed_layer(m: Sketch, blk: str) -> None:
    latent_layer(m, blk)
    indexer(m, blk, INDEXER_HEADS)


def indexer(m: Sketch, blk: str, n_head: int) -> None:
    n_embd = m.cfg.n_embd
    m.norm(f"{blk}indexer.k_norm", INDEXER_WIDTH, bias=True)
    m.matrix(f"{blk}indexer.proj.weight", n_head, n_embd)
    m.matrix(f"{blk}indexer.attn_k.weight", INDEXER_WIDTH, n_embd)
    m.matrix(f"{blk}indexer.attn_q_b.weight", n_head * INDEXER_WIDTH, Q_RANK)


# ---- those that are here for their MTP heads


def cohere2moe(m: Sketch) -> None:
    """Attention and experts in parallel; windows on odd layers, layer 0 dense."""
    keys = {
        **parts.expert_sizes(m), **parts.head_sizes(m), **parts.windows_on_odd_layers(m),
        "logit_scale": 0.5, "leading_dense_block_count": 1, "expert_shared_count": 1,
        "expert_weights_norm": True, "expert_gating_func": 2,
    }  # fmt: skip
    decoder(m, cohere2moe_layer, names=(), keys=keys, gain=2.0)


def cohere2moe_layer(m: Sketch, blk: str) -> None:
    norms(m, blk, "attn_norm")
    attention(m, blk)
    dense_until(1, parts.all_experts)(m, blk)


def glm4moe(m: Sketch) -> None:
    """Half of each head rotated; layer 0 dense, sigmoid-gated and shared experts after."""
    keys = {
        **parts.expert_sizes(m), **parts.head_sizes(m),
        "rope.dimension_count": m.cfg.head_dim // 2, "leading_dense_block_count": 1,
        "expert_shared_count": 1, "expert_weights_scale": 1.5, "expert_weights_norm": True,
        "expert_gating_func": 2,
    }  # fmt: skip
    decoder(m, glm4moe_layer, names=(), keys=keys)


def glm4moe_layer(m: Sketch, blk: str) -> None:
    norms(m, blk, "attn_norm", "post_attention_norm")
    attention(m, blk, bias=True)
    head_norms(m, blk)
    dense_until(1, biased_experts)(m, blk)


def hy_v3(m: Sketch) -> None:
    """Full attention, head norms; layer 0 dense, sigmoid-gated and shared experts after."""
    decoder(m, hy_v3_layer, names=(), keys=parts.sigmoid_experts(m))


def hy_v3_layer(m: Sketch, blk: str) -> None:
    norms(m, blk, "attn_norm", "ffn_norm")
    attention(m, blk)
    head_norms(m, blk)
    dense_until(1, parts.all_experts)(m, blk)
    if parts.layer_of(blk):
        m.put(f"{blk}exp_probs_b", m.rng(f"{blk}exp_probs_b").normal(0.0, 0.1, m.cfg.n_expert))


def step35(m: Sketch) -> None:
    """Odd layers have windows and rotate whole heads; even ones rotate half, by other angles.

    Each attention head has a gate. Layer 0 is dense. The experts' activations are clamped.
    """
    cfg = m.cfg
    keys = {
        **parts.sigmoid_experts(m), **parts.windows_on_odd_layers(m),
        "rope.freq_base_swa": float(np.sqrt(cfg.rope_freq_base)),
        "swiglu_clamp_exp": [1.5] * cfg.n_layer, "swiglu_clamp_shexp": [1.0] * cfg.n_layer,
    }  # fmt: skip
    # One for each angle of a wholly rotated head.
    m.uniform("rope_freqs.weight", cfg.head_dim // 2, low=1.0, high=4.0)
    decoder(m, step35_layer, names=(), keys=keys)


def step35_layer(m: Sketch, blk: str) -> None:
    norms(m, blk, "attn_norm", "ffn_norm")
    attention(m, blk)
    head_norms(m, blk)
    m.matrix(f"{blk}attn_gate.weight", m.cfg.n_head, m.cfg.n_embd)
    dense_until(1, biased_experts)(m, blk)


def mimo2(m: Sketch) -> None:
    """Windows with sinks on odd layers, which have more key heads; values are narrower than keys.

    Layer 0 is dense, and so are the MTP heads.
    """
    cfg = m.cfg
    keys = {
        **parts.expert_sizes(m), **parts.windows_on_odd_layers(m),
        "rope.freq_base_swa": float(np.sqrt(cfg.rope_freq_base)),
        "attention.head_count_kv": [_n_kv(m, i) for i in range(cfg.n_layer)],
        "attention.key_length": cfg.head_dim, "attention.value_length": cfg.head_dim // 2,
        "attention.value_scale": 0.75, "rope.dimension_count": cfg.head_dim // 2,
        "expert_gating_func": 2,  # sigmoid, for other readers; the engine always uses it
    }  # fmt: skip
    decoder(m, mimo2_layer, names=(), keys=keys)


def _n_kv(m: Sketch, index: int) -> int:
    is_wide = index % 2 and index < m.cfg.n_layer
    return m.cfg.n_head if is_wide else m.cfg.n_head_kv


def mimo2_layer(m: Sketch, blk: str) -> None:
    cfg, k, v = m.cfg, m.cfg.head_dim, m.cfg.head_dim // 2
    index = parts.layer_of(blk)
    n_kv, is_head = _n_kv(m, index), index >= cfg.n_layer
    norms(m, blk, "attn_norm", "ffn_norm")
    m.matrix(f"{blk}attn_qkv.weight", cfg.n_head * k + n_kv * (k + v), cfg.n_embd, gain=1.5)
    m.matrix(f"{blk}attn_output.weight", cfg.n_embd, cfg.n_head * v, gain=1.5)
    if index % 2 or is_head:
        parts.sinks(m, blk)
    if index == 0 or is_head:
        parts.gated_ffn(m, blk)
    else:
        parts.experts(m, blk)
        m.normal(f"{blk}exp_probs_b.bias", cfg.n_expert, std=0.1)
