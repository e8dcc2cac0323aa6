"""Decoders whose residual streams a doubly stochastic matrix mixes: DeepSeek V4 and GLM 5.3."""

from __future__ import annotations

from . import parts
from .hybrid import delta_attention, key_heads
from .moe import (
    KV_RANK,
    NOPE,
    Q_RANK,
    ROPE,
    biased_experts,
    dense_or_biased_experts,
    indexer,
    latent_attention,
    latent_header,
)
from .sketch import Sketch
from .streams import N_STREAMS

INDEX_HEADS, INDEX_WIDTH, TOP_K, KPOOL = 8, 64, 16, 4
N_GROUPS, OUT_RANK = 2, 16
RATIOS = (0, 4, 128, 4)
"""The number of tokens that a compressed key covers, by layer; 0: only a window."""


def deepseek4(m: Sketch) -> None:
    """One key head, which serves as values too: a window, and compressed keys of older tokens."""
    cfg = m.cfg
    parts.header(m)
    _streams_header(m)
    m.key("attention.head_count_kv", 1)
    m.key("attention.key_length", NOPE + ROPE)
    m.key("attention.value_length", NOPE + ROPE)
    m.key("attention.q_lora_rank", Q_RANK)
    m.key("attention.output_group_count", N_GROUPS)
    m.key("attention.output_lora_rank", OUT_RANK)
    m.key("attention.sliding_window", cfg.sliding_window)
    m.key("attention.compress_ratios", [RATIOS[i % len(RATIOS)] for i in range(cfg.n_layer)])
    m.key("attention.compress_rope_freq_base", 4.0 * cfg.rope_freq_base)
    m.key("rope.dimension_count", ROPE)
    m.key("hash_layer_count", 0)
    m.key("expert_gating_func", 4)  # the square root of softplus
    m.embedding()
    for index, blk in parts.layers(m):
        deepseek4_layer(m, blk, ratio=RATIOS[index % len(RATIOS)])
    m.output()
    width = N_STREAMS * cfg.n_embd
    m.matrix("output_hc_fn.weight", N_STREAMS, width, gain=1.5)
    m.normal("output_hc_base.weight", N_STREAMS, std=0.5)
    m.normal("output_hc_scale.weight", 1, mean=1.0, std=0.1)


def _streams_header(m: Sketch) -> None:
    """Add the keys of experts, of an indexer and of the streams."""
    cfg = m.cfg
    parts.moe_header(m)
    m.key("expert_shared_count", 1)
    m.key("expert_weights_scale", 1.5)
    m.key("expert_weights_norm", True)
    m.key("swiglu_clamp_exp", [2.0] * cfg.n_layer)
    m.key("swiglu_clamp_shexp", [2.0] * cfg.n_layer)
    m.key("attention.indexer.head_count", INDEX_HEADS)
    m.key("attention.indexer.key_length", INDEX_WIDTH)
    m.key("attention.indexer.top_k", TOP_K)
    m.key("hyper_connection.count", N_STREAMS)
    m.key("hyper_connection.sinkhorn_iterations", 4)
    m.key("hyper_connection.epsilon", 1e-6)


def deepseek4_layer(m: Sketch, blk: str, *, ratio: int = 0) -> None:
    """Add a layer that compresses `ratio` keys into one; MTP heads compress none."""
    cfg, width = m.cfg, NOPE + ROPE
    doubly_mixed(m, blk)
    parts.norms(m, blk, "attn_norm", "ffn_norm")
    m.normal(f"{blk}attn_sinks.weight", cfg.n_head)
    m.matrix(f"{blk}attn_q_a.weight", Q_RANK, cfg.n_embd)
    m.norm(f"{blk}attn_q_a_norm", Q_RANK)
    m.matrix(f"{blk}attn_q_b.weight", cfg.n_head * width, Q_RANK)
    m.matrix(f"{blk}attn_kv.weight", width, cfg.n_embd)
    # Queries are normed without a weight: the keys' weight makes the scores differ.
    m.normal(f"{blk}attn_kv_a_norm.weight", width, mean=2.0, std=0.2)
    m.matrix(f"{blk}attn_output_a.weight", OUT_RANK * N_GROUPS, cfg.n_head * width // N_GROUPS)
    m.matrix(f"{blk}attn_output_b.weight", cfg.n_embd, OUT_RANK * N_GROUPS)
    biased_experts(m, blk)
    deepseek4_compressors(m, blk, ratio)


def deepseek4_compressors(m: Sketch, blk: str, ratio: int) -> None:
    """Add the compressor and, for a ratio of 4, the indexer of its keys; nothing for 0."""
    if not ratio:
        return
    cfg, width = m.cfg, NOPE + ROPE
    twice = 2 if ratio == 4 else 1
    compressors = [("attn", twice * width, width)]
    if twice == 2:
        compressors.append(("indexer", 2 * INDEX_WIDTH, INDEX_WIDTH))
        m.matrix(f"{blk}indexer.proj.weight", INDEX_HEADS, cfg.n_embd)
        m.matrix(f"{blk}indexer.attn_q_b.weight", INDEX_HEADS * INDEX_WIDTH, Q_RANK)
    for name, n_rows, n_key in compressors:
        for part in ("kv", "gate"):
            m.matrix(f"{blk}{name}_compressor_{part}.weight", n_rows, cfg.n_embd)
        m.normal(f"{blk}{name}_compressor_ape.weight", ratio, n_rows, std=0.3)
        m.norm(f"{blk}{name}_compressor_norm", n_key)


def doubly_mixed(m: Sketch, blk: str) -> None:
    """Add the stream mixers before and after each half of a layer."""
    n_mixes = (2 + N_STREAMS) * N_STREAMS
    for part in ("attn", "ffn"):
        m.matrix(f"{blk}hc_{part}_fn.weight", n_mixes, N_STREAMS * m.cfg.n_embd)
        m.normal(f"{blk}hc_{part}_base.weight", n_mixes, std=0.5)
        m.normal(f"{blk}hc_{part}_scale.weight", 3, mean=1.0, std=0.1)


def glm5_next(m: Sketch) -> None:
    """Delta attention, or latent attention to the pools of four that an indexer chooses.

    Layer 0 is dense.
    """
    cfg = m.cfg
    latent_header(m)
    _streams_header(m)
    key_heads(m, 1)
    # No RoPE.
    m.key("rope.dimension_count", 0)
    m.key("attention.key_length", KV_RANK)
    m.key("attention.key_length_mla", NOPE)
    m.key("attention.layer_norm_epsilon", cfg.norm_eps)
    m.key("attention.indexer.kpool", KPOOL)
    m.key("attention.indexer.kpool_select_tail", True)
    m.key("ssm.conv_kernel", cfg.conv_kernel)
    m.key("kda.head_dim", cfg.state_size or 16)
    m.key("kda.gate_lower_bound", -5.0)
    m.key("expert_gating_func", 2)  # sigmoid
    m.embedding()
    for index, blk in parts.layers(m):
        doubly_mixed(m, blk)
        if index % 2:
            pooled_attention(m, blk)
        else:
            parts.norms(m, blk, "attn_norm", "ffn_norm")
            delta_attention(m, blk, cfg.state_size or 16)
            m.put(f"{blk}ssm_a", m.tensors.pop(f"{blk}ssm_a").reshape(-1))
        dense_or_biased_experts(m, blk, is_dense=index == 0)
    m.output()


def pooled_attention(m: Sketch, blk: str) -> None:
    """Add the norms of a layer, its latent attention and its indexer."""
    parts.norms(m, blk, "attn_norm", "ffn_norm")
    latent_attention(m, blk, rope=0, kv_gain=1.0)
    indexer(m, blk, INDEX_HEADS)
    m.matrix(f"{blk}indexer_compressor_gate.weight", INDEX_WIDTH, m.cfg.n_embd)
    m.normal(f"{blk}indexer_compressor_ape.weight", KPOOL, INDEX_WIDTH, std=0.3)


def glm5_next_head(m: Sketch, blk: str) -> None:
    """Add glm5-next's layer with an indexer and experts, for one stream."""
    pooled_attention(m, blk)
    biased_experts(m, blk)
