"""Attention-only decoders with a mixture of experts."""

from __future__ import annotations

from collections.abc import Callable

from . import parts
from .sketch import Sketch


def qwen3moe(m: Sketch) -> None:
    """qwen3's attention with routed experts in every layer."""
    parts.header(m)
    parts.moe_header(m)
    m.key("attention.key_length", m.cfg.head_dim)
    m.key("attention.value_length", m.cfg.head_dim)
    m.embedding()
    for _, blk in parts.layers(m):
        parts.norms(m, blk, "attn_norm", "ffn_norm")
        parts.attention(m, blk)
        parts.head_norms(m, blk)
        parts.experts(m, blk)
    m.output()


def gpt_oss(m: Sketch) -> None:
    """Sliding windows on layers 0, 2, ..., attention sinks, biases everywhere."""
    parts.header(m)
    parts.moe_header(m)
    m.key("attention.sliding_window", m.cfg.sliding_window)
    m.embedding()
    for _, blk in parts.layers(m):
        parts.norms(m, blk, "attn_norm", "post_attention_norm")
        parts.attention(m, blk, bias=True, out_bias=True)
        m.normal(f"{blk}attn_sinks.weight", m.cfg.n_head)
        parts.experts(m, blk, bias=True)
    m.output()


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
    cfg = m.cfg
    q_rank, kv_rank, rope, nope = Q_RANK, KV_RANK, ROPE, NOPE
    parts.header(m)
    parts.moe_header(m)
    m.key("attention.head_count_kv", 1)  # the latent is one head shared by all
    m.key("attention.q_lora_rank", q_rank)
    m.key("attention.kv_lora_rank", kv_rank)
    m.key("attention.key_length", kv_rank + rope)
    m.key("attention.value_length", kv_rank)
    m.key("attention.key_length_mla", nope + rope)
    m.key("attention.value_length_mla", cfg.head_dim)
    m.key("rope.dimension_count", rope)
    m.key("leading_dense_block_count", 1)
    m.key("expert_shared_count", 1)
    m.key("expert_weights_scale", 1.5)


INDEXER_HEADS, INDEXER_WIDTH = 2, 64
Q_RANK, KV_RANK, ROPE, NOPE = 24, 16, 8, 8


def latent_layer(m: Sketch, blk: str, *, is_dense: bool) -> None:
    """Add a layer with latent attention."""
    cfg, q_rank, kv_rank, rope, nope = m.cfg, Q_RANK, KV_RANK, ROPE, NOPE
    parts.norms(m, blk, "attn_norm", "ffn_norm")
    m.matrix(f"{blk}attn_q_a.weight", q_rank, cfg.n_embd)
    m.norm(f"{blk}attn_q_a_norm", q_rank)
    m.matrix(f"{blk}attn_q_b.weight", cfg.n_head * (nope + rope), q_rank, gain=1.5)
    m.matrix(f"{blk}attn_kv_a_mqa.weight", kv_rank + rope, cfg.n_embd, gain=1.5)
    m.norm(f"{blk}attn_kv_a_norm", kv_rank)
    m.matrix(f"{blk}attn_k_b.weight", cfg.n_head, kv_rank, nope, gain=1.5)
    m.matrix(f"{blk}attn_v_b.weight", cfg.n_head, cfg.head_dim, kv_rank)
    m.matrix(f"{blk}attn_output.weight", cfg.n_embd, cfg.n_embd, gain=1.5)
    if is_dense:
        parts.gated_ffn(m, blk)
    else:
        parts.experts(m, blk)
        shared_expert(m, blk)


def indexed_layer(m: Sketch, blk: str, *, is_dense: bool) -> None:
    """Add a layer with latent attention and an indexer."""
    width, n_embd = INDEXER_WIDTH, m.cfg.n_embd
    latent_layer(m, blk, is_dense=is_dense)
    m.norm(f"{blk}indexer.k_norm", width, bias=True)
    m.matrix(f"{blk}indexer.proj.weight", INDEXER_HEADS, n_embd)
    m.matrix(f"{blk}indexer.attn_k.weight", width, n_embd)
    m.matrix(f"{blk}indexer.attn_q_b.weight", INDEXER_HEADS * width, Q_RANK)


def shared_expert(m: Sketch, blk: str) -> None:
    """Add an expert that every token uses."""
    cfg = m.cfg
    for part in ("gate", "up"):
        m.matrix(f"{blk}ffn_{part}_shexp.weight", cfg.n_ff_exp, cfg.n_embd)
    m.matrix(f"{blk}ffn_down_shexp.weight", cfg.n_embd, cfg.n_ff_exp, gain=2.5)


def dense_first(m: Sketch, add_layer: Callable[..., None]) -> None:
    """Add the embedding, layers of which the first is dense, and the output."""
    m.embedding()
    for index, blk in parts.layers(m):
        add_layer(m, blk, is_dense=index == 0)
    m.output()


def dense_or_biased_experts(m: Sketch, blk: str, *, is_dense: bool) -> None:
    """Add a dense block, or routed experts with a selection bias and a shared expert."""
    if is_dense:
        parts.gated_ffn(m, blk)
        return
    biased_experts(m, blk)


def biased_experts(m: Sketch, blk: str) -> None:
    """Add routed experts with a selection bias, and a shared expert."""
    parts.experts(m, blk)
    m.normal(f"{blk}exp_probs_b.bias", m.cfg.n_expert, std=0.1)
    shared_expert(m, blk)


def windows_on_odd_layers(m: Sketch) -> None:
    """Add the keys of sliding windows."""
    m.key("attention.sliding_window", m.cfg.sliding_window)
    m.key("attention.sliding_window_pattern", [i % 2 == 1 for i in range(m.cfg.n_layer)])


def cohere2moe(m: Sketch) -> None:
    """Attention and experts in parallel; windows on odd layers, layer 0 dense."""
    cfg = m.cfg
    parts.header(m)
    parts.moe_header(m)
    m.key("attention.key_length", cfg.head_dim)
    m.key("attention.value_length", cfg.head_dim)
    windows_on_odd_layers(m)
    m.key("logit_scale", 0.5)
    m.key("leading_dense_block_count", 1)
    m.key("expert_shared_count", 1)
    m.key("expert_weights_norm", True)
    m.key("expert_gating_func", 2)  # sigmoid
    m.embedding()
    for index, blk in parts.layers(m):
        cohere2moe_layer(m, blk, is_dense=index == 0)
    m.output(gain=2.0)


def cohere2moe_layer(m: Sketch, blk: str, *, is_dense: bool) -> None:
    """Add a layer of cohere2moe."""
    parts.norms(m, blk, "attn_norm")
    parts.attention(m, blk)
    if is_dense:
        parts.gated_ffn(m, blk)
    else:
        parts.experts(m, blk)
        shared_expert(m, blk)


def glm4moe(m: Sketch) -> None:
    """Half of each head rotated; layer 0 dense, sigmoid-gated and shared experts after."""
    cfg = m.cfg
    parts.header(m)
    parts.moe_header(m)
    m.key("attention.key_length", cfg.head_dim)
    m.key("attention.value_length", cfg.head_dim)
    m.key("rope.dimension_count", cfg.head_dim // 2)
    m.key("leading_dense_block_count", 1)
    m.key("expert_shared_count", 1)
    m.key("expert_weights_scale", 1.5)
    m.key("expert_weights_norm", True)
    m.key("expert_gating_func", 2)  # sigmoid
    dense_first(m, glm4moe_layer)


def glm4moe_layer(m: Sketch, blk: str, *, is_dense: bool) -> None:
    """Add a layer of glm4moe."""
    parts.norms(m, blk, "attn_norm", "post_attention_norm")
    parts.attention(m, blk, bias=True)
    parts.head_norms(m, blk)
    dense_or_biased_experts(m, blk, is_dense=is_dense)
