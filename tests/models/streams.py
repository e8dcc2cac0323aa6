"""Decoders with several residual streams, which each layer mixes before it and adds to after it."""

from __future__ import annotations

from . import parts
from .hybrid import (
    delta_attention,
    delta_expert_keys,
    delta_net,
    gated_attention,
    key_heads,
    on_interval,
)
from .moe import KV_RANK, NOPE, Q_RANK, ROPE, indexer, latent_attention, latent_sizes
from .parts import Keys, biased_experts, decoder, gated_experts, norms
from .sketch import Sketch

N_STREAMS, KPOOL, TOP_K, INDEX_WIDTH = 4, 4, 16, 64

# ---- Qwen 4: a gate of low rank mixes the streams

_RANK, _QWEN_INDEX_HEADS = 8, 2


def qwen4exp(m: Sketch) -> None:
    """Gated delta net, or gated attention to the blocks of four that an indexer chooses."""
    interval = m.cfg.attention_interval
    keys = {
        **delta_expert_keys(m),
        # The indexer's queries and keys are rotated too.
        "rope.dimension_count": min(m.cfg.head_dim // 2, INDEX_WIDTH),
        "rope.dimension_sections": [2, 1, 1, 0],
        "hyper_connection.count": N_STREAMS,
        "hyper_connection.low_rank": _RANK,
        "attention.indexer.head_count": _QWEN_INDEX_HEADS,
        "attention.indexer.key_length": INDEX_WIDTH,
        "attention.indexer.top_k": TOP_K,
        "attention.compress_ratios": [
            KPOOL * ((i + 1) % interval == 0) for i in range(m.cfg.n_layer)
        ],
    }
    decoder(m, on_interval(qwen4exp_attention, _qwen4exp_delta), names=(), keys=keys)
    del m.tensors["output_norm.weight"]
    mixer(m, "output_hc_", has_inject=False)


def _qwen4exp_delta(m: Sketch, blk: str) -> None:
    _mixers(m, blk)
    delta_net(m, blk)
    gated_experts(m, blk)


def qwen4exp_attention(m: Sketch, blk: str) -> None:
    n_embd = m.cfg.n_embd
    _mixers(m, blk)
    gated_attention(m, blk)
    m.matrix(f"{blk}indexer.q_proj.weight", _QWEN_INDEX_HEADS * INDEX_WIDTH, n_embd)
    m.matrix(f"{blk}indexer.k_proj.weight", INDEX_WIDTH, n_embd)
    m.norm(f"{blk}indexer.q_norm", INDEX_WIDTH)
    m.norm(f"{blk}indexer.k_norm", INDEX_WIDTH)
    gated_experts(m, blk)


def _mixers(m: Sketch, blk: str) -> None:
    """Add the stream mixers before each half of a layer."""
    for part in ("attn", "ffn"):
        mixer(m, f"{blk}hc_{part}_", has_inject=True)


def mixer(m: Sketch, name: str, *, has_inject: bool) -> None:
    """Add a norm of each stream, a low-rank gate and, if asked, the weights that add to each."""
    width = N_STREAMS * m.cfg.n_embd
    m.norm(f"{name}norm", width)
    m.matrix(f"{name}down.weight", _RANK, width, gain=4.0)
    m.matrix(f"{name}up.weight", width, _RANK)
    if has_inject:
        m.matrix(f"{name}inject.weight", N_STREAMS, width, gain=4.0)


# ---- DeepSeek V4 and GLM 5.3: a doubly stochastic matrix mixes them

_INDEX_HEADS, _N_GROUPS, _OUT_RANK = 8, 2, 16
_RATIOS = (0, 4, 128, 4)
"""The number of tokens that a compressed key covers, by layer; 0: only a window."""


def _stream_keys(m: Sketch) -> Keys:
    """The keys of experts, of an indexer and of the streams."""
    return {
        **parts.expert_sizes(m),
        "expert_shared_count": 1,
        "expert_weights_scale": 1.5,
        "expert_weights_norm": True,
        "swiglu_clamp_exp": [2.0] * m.cfg.n_layer,
        "swiglu_clamp_shexp": [2.0] * m.cfg.n_layer,
        "attention.indexer.head_count": _INDEX_HEADS,
        "attention.indexer.key_length": INDEX_WIDTH,
        "attention.indexer.top_k": TOP_K,
        "hyper_connection.count": N_STREAMS,
        "hyper_connection.sinkhorn_iterations": 4,
        "hyper_connection.epsilon": 1e-6,
    }


def _ratio(m: Sketch, index: int) -> int:
    """MTP heads compress nothing."""
    return _RATIOS[index % len(_RATIOS)] if index < m.cfg.n_layer else 0


def deepseek4(m: Sketch) -> None:
    """One key head, which serves as values too: a window, and compressed keys of older tokens."""
    cfg = m.cfg
    keys = {
        **_stream_keys(m),
        "attention.head_count_kv": 1,
        "attention.key_length": NOPE + ROPE,
        "attention.value_length": NOPE + ROPE,
        "attention.q_lora_rank": Q_RANK,
        "attention.output_group_count": _N_GROUPS,
        "attention.output_lora_rank": _OUT_RANK,
        "attention.sliding_window": cfg.sliding_window,
        "attention.compress_ratios": [_ratio(m, i) for i in range(cfg.n_layer)],
        "attention.compress_rope_freq_base": 4.0 * cfg.rope_freq_base,
        "rope.dimension_count": ROPE,
        "hash_layer_count": 0,
        "expert_gating_func": 4,  # the square root of softplus
    }
    decoder(m, deepseek4_layer, names=(), keys=keys)
    m.matrix("output_hc_fn.weight", N_STREAMS, N_STREAMS * cfg.n_embd, gain=1.5)
    m.normal("output_hc_base.weight", N_STREAMS, std=0.5)
    m.normal("output_hc_scale.weight", 1, mean=1.0, std=0.1)


def deepseek4_layer(m: Sketch, blk: str) -> None:
    cfg, width = m.cfg, NOPE + ROPE
    doubly_mixed(m, blk)
    norms(m, blk, "attn_norm", "ffn_norm")
    parts.sinks(m, blk)
    m.matrix(f"{blk}attn_q_a.weight", Q_RANK, cfg.n_embd)
    m.norm(f"{blk}attn_q_a_norm", Q_RANK)
    m.matrix(f"{blk}attn_q_b.weight", cfg.n_head * width, Q_RANK)
    m.matrix(f"{blk}attn_kv.weight", width, cfg.n_embd)
    # Queries are normed without a weight: the keys' weight makes the scores differ.
    m.normal(f"{blk}attn_kv_a_norm.weight", width, mean=2.0, std=0.2)
    m.matrix(f"{blk}attn_output_a.weight", _OUT_RANK * _N_GROUPS, cfg.n_head * width // _N_GROUPS)
    m.matrix(f"{blk}attn_output_b.weight", cfg.n_embd, _OUT_RANK * _N_GROUPS)
    biased_experts(m, blk)
    deepseek4_compressors(m, blk, _ratio(m, parts.layer_of(blk)))


def deepseek4_compressors(m: Sketch, blk: str, ratio: int) -> None:
    """Add the compressor and, for a ratio of 4, the indexer of its keys; nothing for 0."""
    if not ratio:
        return
    cfg, width = m.cfg, NOPE + ROPE
    twice = 2 if ratio == 4 else 1
    compressors = [("attn", twice * width, width)]
    if twice == 2:
        compressors.append(("indexer", 2 * INDEX_WIDTH, INDEX_WIDTH))
        m.matrix(f"{blk}indexer.proj.weight", _INDEX_HEADS, cfg.n_embd)
        m.matrix(f"{blk}indexer.attn_q_b.weight", _INDEX_HEADS * INDEX_WIDTH, Q_RANK)
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
    keys = {
        **latent_sizes(m),
        **_stream_keys(m),
        **key_heads(m, 1),
        "rope.dimension_count": 0,
        "attention.key_length": KV_RANK,
        "attention.key_length_mla": NOPE,
        "attention.layer_norm_epsilon": cfg.norm_eps,
        "attention.indexer.kpool": KPOOL,
        "attention.indexer.kpool_select_tail": True,
        "ssm.conv_kernel": cfg.conv_kernel,
        "kda.head_dim": cfg.state_size or 16,
        "kda.gate_lower_bound": -5.0,
        "expert_gating_func": 2,  # sigmoid
    }
    mixer = parts.alternating(_flat_delta_attention, _pooled_attention)
    feed_forward = parts.dense_until(1, biased_experts)
    decoder(m, doubly_mixed, mixer, feed_forward, keys=keys)


def _flat_delta_attention(m: Sketch, blk: str) -> None:
    delta_attention(m, blk)
    m.put(f"{blk}ssm_a", m.tensors.pop(f"{blk}ssm_a").reshape(-1))


def _pooled_attention(m: Sketch, blk: str) -> None:
    """Add latent attention and its indexer."""
    latent_attention(m, blk, rope=0, kv_gain=1.0)
    indexer(m, blk, _INDEX_HEADS)
    m.matrix(f"{blk}indexer_compressor_gate.weight", INDEX_WIDTH, m.cfg.n_embd)
    m.normal(f"{blk}indexer_compressor_ape.weight", KPOOL, INDEX_WIDTH, std=0.3)


def glm5_next_head(m: Sketch, blk: str) -> None:
    """Add glm5-next's layer with an indexer and experts, for one stream."""
    norms(m, blk, "attn_norm", "ffn_norm")
    _pooled_attention(m, blk)
    biased_experts(m, blk)
