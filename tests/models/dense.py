"""Attention-only decoders with a dense feed-forward block."""

from __future__ import annotations

from . import parts
from .sketch import Sketch


def llama(m: Sketch) -> None:
    """RMSNorm, interleaved RoPE, SwiGLU."""
    parts.header(m)
    m.embedding()
    for _, blk in parts.layers(m):
        parts.norms(m, blk, "attn_norm", "ffn_norm")
        parts.attention(m, blk)
        parts.gated_ffn(m, blk)
    m.output()


def qwen2(m: Sketch) -> None:
    """Adds half-split RoPE and biases on Q, K and V to llama."""
    parts.header(m)
    m.embedding()
    for _, blk in parts.layers(m):
        parts.norms(m, blk, "attn_norm", "ffn_norm")
        parts.attention(m, blk, bias=True)
        parts.gated_ffn(m, blk)
    m.output()


def qwen3(m: Sketch) -> None:
    """Adds half-split RoPE and per-head Q and K norms to llama."""
    parts.header(m)
    m.key("attention.key_length", m.cfg.head_dim)
    m.key("attention.value_length", m.cfg.head_dim)
    m.embedding()
    for _, blk in parts.layers(m):
        parts.norms(m, blk, "attn_norm", "ffn_norm")
        parts.attention(m, blk)
        parts.head_norms(m, blk)
        parts.gated_ffn(m, blk)
    m.output()


def _gemma(m: Sketch, *, head_norms: bool) -> None:
    """Shared gemma layers: a norm before and after each block, every other layer sliding."""
    parts.header(m)
    m.key("attention.key_length", m.cfg.head_dim)
    m.key("attention.value_length", m.cfg.head_dim)
    m.key("attention.sliding_window", m.cfg.sliding_window)
    m.key("attention.sliding_window_pattern", 2)  # layers 0, 2, ... slide; 1, 3, ... do not
    # the engine multiplies embeddings by sqrt(n_embd); unit rows give a unit-RMS residual
    m.embedding(std=m.cfg.n_embd**-0.5)
    for _, blk in parts.layers(m):
        parts.norms(m, blk, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
        parts.attention(m, blk)
        if head_norms:
            parts.head_norms(m, blk)
        parts.gated_ffn(m, blk)


def gemma2(m: Sketch) -> None:
    """Sliding windows, tied output, soft caps on attention and logits."""
    _gemma(m, head_norms=False)
    m.key("attn_logit_softcapping", 50.0)
    # so high that the cap does not squeeze the top logits together
    m.key("final_logit_softcapping", 4.0 * m.cfg.output_scale)
    m.tied_output(row_norm=1.0)


def gemma3(m: Sketch) -> None:
    """Sliding windows with their own RoPE base, per-head Q and K norms."""
    _gemma(m, head_norms=True)
    m.key("rope.freq_base_swa", 1000.0)
    m.output()


def phi3(m: Sketch) -> None:
    """Fused QKV and fused gate/up projections."""
    parts.header(m)
    m.embedding()
    for _, blk in parts.layers(m):
        parts.norms(m, blk, "attn_norm", "ffn_norm")
        parts.fused_attention(m, blk)
        parts.fused_gated_ffn(m, blk)
    m.output()


def granite(m: Sketch) -> None:
    """Adds scales on the embedding, the residual, the attention and the logits to llama."""
    embedding_scale, logit_scale = 6.0, 4.0
    parts.header(m)
    m.key("embedding_scale", embedding_scale)
    m.key("residual_scale", 0.6)
    m.key("attention.scale", 0.4)  # 1 / sqrt(head_dim) is 0.25
    m.key("logit_scale", logit_scale)  # the engine divides by it
    m.embedding(std=1.0 / embedding_scale)
    for _, blk in parts.layers(m):
        parts.norms(m, blk, "attn_norm", "ffn_norm")
        parts.attention(m, blk)
        parts.gated_ffn(m, blk)
    m.output(gain=logit_scale)


def glm4(m: Sketch) -> None:
    """Partial RoPE, norms around both blocks, fused gate/up projection, QKV biases."""
    parts.header(m)
    m.key("rope.dimension_count", m.cfg.head_dim // 2)
    m.embedding()
    for _, blk in parts.layers(m):
        parts.norms(m, blk, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
        parts.attention(m, blk, bias=True)
        parts.fused_gated_ffn(m, blk)
    m.output()


def olmo2(m: Sketch) -> None:
    """No norm before the blocks, only after; Q and K norms over the full width."""
    parts.header(m)
    m.embedding()
    for _, blk in parts.layers(m):
        parts.norms(m, blk, "post_attention_norm", "post_ffw_norm")
        parts.attention(m, blk)
        m.normal(f"{blk}attn_q_norm.weight", m.cfg.n_embd, mean=1.5, std=0.1)
        m.normal(f"{blk}attn_k_norm.weight", m.cfg.n_embd_kv, mean=1.5, std=0.1)
        parts.gated_ffn(m, blk)
    m.output()


def stablelm(m: Sketch) -> None:
    """LayerNorm with biases and partial RoPE."""
    parts.header(m, layer_norm=True)
    m.key("rope.dimension_count", m.cfg.head_dim // 4)
    m.embedding()
    for _, blk in parts.layers(m):
        parts.norms(m, blk, "attn_norm", "ffn_norm", bias=True)
        parts.attention(m, blk)
        parts.gated_ffn(m, blk)
    m.output(bias=True)


def command_r(m: Sketch) -> None:
    """LayerNorm, attention and feed-forward in parallel, tied output, scaled logits."""
    logit_scale = 0.25
    parts.header(m, layer_norm=True)
    m.key("logit_scale", logit_scale)
    m.embedding()
    for _, blk in parts.layers(m):
        parts.norms(m, blk, "attn_norm")
        parts.attention(m, blk)
        parts.gated_ffn(m, blk)
    m.tied_output(row_norm=float(m.cfg.n_embd) ** 0.5, gain=1.0 / logit_scale)


def starcoder2(m: Sketch) -> None:
    """LayerNorm and biases everywhere, feed-forward without a gate."""
    parts.header(m, layer_norm=True)
    m.embedding()
    for _, blk in parts.layers(m):
        parts.norms(m, blk, "attn_norm", "ffn_norm", bias=True)
        parts.attention(m, blk, bias=True, out_bias=True)
        parts.plain_ffn(m, blk)
    m.output(bias=True)
