"""Attention-only decoders with a dense feed-forward block."""

from __future__ import annotations

from functools import partial

from . import parts
from .sketch import Sketch

_AROUND = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
_BIASED = partial(parts.attention, bias=True)


def llama(m: Sketch) -> None:
    parts.decoder(m, parts.attention, parts.gated_ffn)


def qwen2(m: Sketch) -> None:
    """Adds half-split RoPE and biases on Q, K and V to llama."""
    parts.decoder(m, _BIASED, parts.gated_ffn)


def qwen3(m: Sketch) -> None:
    """Adds half-split RoPE and per-head Q and K norms to llama."""
    parts.head_sizes(m)
    parts.decoder(m, parts.attention, parts.head_norms, parts.gated_ffn)


def _gemma(m: Sketch, *blocks: parts.Block) -> None:
    """Shared gemma layers: a norm before and after each block, every other layer sliding."""
    parts.header(m)
    parts.head_sizes(m)
    m.key("attention.sliding_window", m.cfg.sliding_window)
    m.key("attention.sliding_window_pattern", 2)  # layers 0, 2, ... slide; 1, 3, ... do not
    # the engine multiplies embeddings by sqrt(n_embd); unit rows give a unit-RMS residual
    m.embedding(std=m.cfg.n_embd**-0.5)
    parts.stack(m, *blocks, names=_AROUND)


def gemma2(m: Sketch) -> None:
    """Sliding windows, tied output, soft caps on attention and logits."""
    _gemma(m, parts.attention, parts.gated_ffn)
    m.key("attn_logit_softcapping", 50.0)
    # so high that the cap does not squeeze the top logits together
    m.key("final_logit_softcapping", 4.0 * m.cfg.output_scale)
    m.tied_output(row_norm=1.0)


def gemma3(m: Sketch) -> None:
    """Sliding windows with their own RoPE base, per-head Q and K norms."""
    _gemma(m, parts.attention, parts.head_norms, parts.gated_ffn)
    m.key("rope.freq_base_swa", 1000.0)
    m.output()


def phi3(m: Sketch) -> None:
    """Fused QKV and fused gate/up projections."""
    parts.decoder(m, parts.fused_attention, parts.fused_gated_ffn)


def granite(m: Sketch) -> None:
    """Adds scales on the embedding, the residual, the attention and the logits to llama."""
    embedding_scale, logit_scale = 6.0, 4.0
    keys = {
        "embedding_scale": embedding_scale,
        "residual_scale": 0.6,
        "attention.scale": 0.4,  # 1 / sqrt(head_dim) is 0.25
        "logit_scale": logit_scale,  # the engine divides by it
    }
    std = 1.0 / embedding_scale
    parts.decoder(m, parts.attention, parts.gated_ffn, keys=keys, std=std, gain=logit_scale)


def glm4(m: Sketch) -> None:
    """Partial RoPE, norms around both blocks, fused gate/up projection, QKV biases."""
    keys = {"rope.dimension_count": m.cfg.head_dim // 2}
    parts.decoder(m, _BIASED, parts.fused_gated_ffn, names=_AROUND, keys=keys)


def olmo2(m: Sketch) -> None:
    """No norm before the blocks, only after; Q and K norms over the full width."""
    names = ("post_attention_norm", "post_ffw_norm")
    parts.decoder(m, parts.attention, _wide_norms, parts.gated_ffn, names=names)


def _wide_norms(m: Sketch, blk: str) -> None:
    for part, width in (("q", m.cfg.n_embd), ("k", m.cfg.n_embd_kv)):
        m.normal(f"{blk}attn_{part}_norm.weight", width, mean=1.5, std=0.1)


def stablelm(m: Sketch) -> None:
    """LayerNorm with biases and partial RoPE."""
    keys = {"rope.dimension_count": m.cfg.head_dim // 4}
    parts.decoder(m, parts.attention, parts.gated_ffn, keys=keys, has_biased_layer_norms=True)


def command_r(m: Sketch) -> None:
    """LayerNorm, attention and feed-forward in parallel, tied output, scaled logits."""
    logit_scale = 0.25
    parts.header(m, layer_norm=True)
    m.key("logit_scale", logit_scale)
    m.embedding()
    parts.stack(m, parts.attention, parts.gated_ffn, names=("attn_norm",))
    m.tied_output(row_norm=float(m.cfg.n_embd) ** 0.5, gain=1.0 / logit_scale)


def starcoder2(m: Sketch) -> None:
    """LayerNorm and biases everywhere, feed-forward without a gate."""
    attention = partial(parts.attention, bias=True, out_bias=True)
    parts.decoder(m, attention, parts.plain_ffn, has_biased_layer_norms=True)
