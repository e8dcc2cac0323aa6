"""Attention-only decoders with a mixture of experts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from . import parts
from .sketch import Sketch

INDEXER_HEADS, INDEXER_WIDTH = 2, 64
Q_RANK, KV_RANK, ROPE, NOPE = 24, 16, 8, 8


def qwen3moe(m: Sketch) -> None:
    """qwen3's attention with routed experts in every layer."""
    parts.moe_header(m)
    parts.head_sizes(m)
    parts.decoder(m, parts.attention, parts.head_norms, parts.experts)


def gpt_oss(m: Sketch) -> None:
    """Sliding windows on layers 0, 2, ..., attention sinks, biases everywhere."""
    parts.moe_header(m)
    attention = partial(parts.attention, bias=True, out_bias=True)
    names = ("attn_norm", "post_attention_norm")
    keys = {"attention.sliding_window": m.cfg.sliding_window}
    experts = partial(parts.experts, bias=True)
    parts.decoder(m, attention, _sinks, experts, names=names, keys=keys)


def _sinks(m: Sketch, blk: str) -> None:
    m.normal(f"{blk}attn_sinks.weight", m.cfg.n_head)


def deepseek2(m: Sketch) -> None:
    """Latent attention (the absorbed form); layer 0 dense, routed and shared experts after."""
    latent_header(m)
    m.key("expert_gating_func", 1)  # softmax
    dense_first(m, latent_layer)


def deepseek32(m: Sketch) -> None:
    """deepseek2 with an indexer that chooses the attended tokens, and with sigmoid gates."""
    latent_header(m)
    m.key("expert_gating_func", 2)
    m.key("expert_weights_norm", True)
    m.key("attention.indexer.head_count", INDEXER_HEADS)
    m.key("attention.indexer.key_length", INDEXER_WIDTH)
    m.key("attention.indexer.top_k", 2048)
    dense_first(m, indexed_layer)


def latent_header(m: Sketch) -> None:
    """Add the keys of a model with latent attention and experts."""
    parts.header(m)
    parts.moe_header(m)
    m.key("attention.head_count_kv", 1)  # the latent is one head shared by all
    m.key("attention.q_lora_rank", Q_RANK)
    m.key("attention.kv_lora_rank", KV_RANK)
    m.key("attention.key_length", KV_RANK + ROPE)
    m.key("attention.value_length", KV_RANK)
    m.key("attention.key_length_mla", NOPE + ROPE)
    m.key("attention.value_length_mla", m.cfg.head_dim)
    m.key("rope.dimension_count", ROPE)
    m.key("leading_dense_block_count", 1)
    m.key("expert_shared_count", 1)
    m.key("expert_weights_scale", 1.5)


def latent_layer(m: Sketch, blk: str, *, is_dense: bool) -> None:
    parts.norms(m, blk, "attn_norm", "ffn_norm")
    latent_attention(m, blk)
    dense_or_experts(m, blk, is_dense=is_dense)


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


def indexed_layer(m: Sketch, blk: str, *, is_dense: bool) -> None:
    latent_layer(m, blk, is_dense=is_dense)
    indexer(m, blk, INDEXER_HEADS)


def indexer(m: Sketch, blk: str, n_head: int) -> None:
    n_embd = m.cfg.n_embd
    m.norm(f"{blk}indexer.k_norm", INDEXER_WIDTH, bias=True)
    m.matrix(f"{blk}indexer.proj.weight", n_head, n_embd)
    m.matrix(f"{blk}indexer.attn_k.weight", INDEXER_WIDTH, n_embd)
    m.matrix(f"{blk}indexer.attn_q_b.weight", n_head * INDEXER_WIDTH, Q_RANK)


def shared_expert(m: Sketch, blk: str) -> None:
    cfg = m.cfg
    for part in ("gate", "up"):
        m.matrix(f"{blk}ffn_{part}_shexp.weight", cfg.n_ff_exp, cfg.n_embd)
    m.matrix(f"{blk}ffn_down_shexp.weight", cfg.n_embd, cfg.n_ff_exp, gain=2.5)


def dense_or_experts(m: Sketch, blk: str, *, is_dense: bool) -> None:
    """Add a dense block, or routed experts and a shared one."""
    if is_dense:
        parts.gated_ffn(m, blk)
    else:
        parts.experts(m, blk)
        shared_expert(m, blk)


def dense_first(m: Sketch, add_layer: Callable[..., None], gain: float = 1.0) -> None:
    """Add the embedding, layers of which the first is dense, and the output."""
    m.embedding()
    for index, blk in parts.layers(m):
        add_layer(m, blk, is_dense=index == 0)
    m.output(gain)


def dense_or_biased_experts(m: Sketch, blk: str, *, is_dense: bool) -> None:
    """Add a dense block, or routed experts with a selection bias and a shared expert."""
    (parts.gated_ffn if is_dense else biased_experts)(m, blk)


def biased_experts(m: Sketch, blk: str) -> None:
    """Add routed experts with a selection bias, and a shared expert."""
    parts.experts(m, blk)
    m.normal(f"{blk}exp_probs_b.bias", m.cfg.n_expert, std=0.1)
    shared_expert(m, blk)


def windows_on_odd_layers(m: Sketch) -> None:
    m.key("attention.sliding_window", m.cfg.sliding_window)
    m.key("attention.sliding_window_pattern", [i % 2 == 1 for i in range(m.cfg.n_layer)])


def cohere2moe(m: Sketch) -> None:
    """Attention and experts in parallel; windows on odd layers, layer 0 dense."""
    parts.header(m)
    parts.moe_header(m)
    parts.head_sizes(m)
    windows_on_odd_layers(m)
    m.key("logit_scale", 0.5)
    m.key("leading_dense_block_count", 1)
    m.key("expert_shared_count", 1)
    m.key("expert_weights_norm", True)
    m.key("expert_gating_func", 2)  # sigmoid
    dense_first(m, cohere2moe_layer, gain=2.0)


def cohere2moe_layer(m: Sketch, blk: str, *, is_dense: bool) -> None:
    parts.norms(m, blk, "attn_norm")
    parts.attention(m, blk)
    dense_or_experts(m, blk, is_dense=is_dense)


def glm4moe(m: Sketch) -> None:
    """Half of each head rotated; layer 0 dense, sigmoid-gated and shared experts after."""
    cfg = m.cfg
    parts.header(m)
    parts.moe_header(m)
    parts.head_sizes(m)
    m.key("rope.dimension_count", cfg.head_dim // 2)
    m.key("leading_dense_block_count", 1)
    m.key("expert_shared_count", 1)
    m.key("expert_weights_scale", 1.5)
    m.key("expert_weights_norm", True)
    m.key("expert_gating_func", 2)  # sigmoid
    dense_first(m, glm4moe_layer)


def glm4moe_layer(m: Sketch, blk: str, *, is_dense: bool) -> None:
    parts.norms(m, blk, "attn_norm", "post_attention_norm")
    parts.attention(m, blk, bias=True)
    parts.head_norms(m, blk)
    dense_or_biased_experts(m, blk, is_dense=is_dense)
