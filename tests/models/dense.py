"""Attention-only decoders with a dense feed-forward block."""

from __future__ import annotations

from functools import partial

from .parts import (
    Keys,
    attention,
    decoder,
    fused_attention,
    fused_gated_ffn,
    gated_ffn,
    head_norms,
    head_sizes,
    plain_ffn,
)
from .sketch import Sketch

_AROUND = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
_BIASED = partial(attention, bias=True)


def llama(m: Sketch) -> None:
    decoder(m, attention, gated_ffn)


def qwen2(m: Sketch) -> None:
    """Adds half-split RoPE and biases on Q, K and V to llama."""
    decoder(m, _BIASED, gated_ffn)


def qwen3(m: Sketch) -> None:
    """Adds half-split RoPE and per-head Q and K norms to llama."""
    decoder(m, attention, head_norms, gated_ffn, keys=head_sizes(m))


def phi3(m: Sketch) -> None:
    """Fused QKV and fused gate/up projections."""
    decoder(m, fused_attention, fused_gated_ffn)


def granite(m: Sketch) -> None:
    """Adds scales on the embedding, the residual, the attention and the logits to llama."""
    keys = {
        "embedding_scale": 6.0,
        "residual_scale": 0.6,
        "attention.scale": 0.4,  # 1 / sqrt(head_dim) is 0.25
        "logit_scale": 4.0,  # the engine divides by it
    }
    decoder(m, attention, gated_ffn, keys=keys, std=1.0 / 6.0, gain=4.0)


def glm4(m: Sketch) -> None:
    """Partial RoPE, norms around both blocks, fused gate/up projection, QKV biases."""
    keys = {"rope.dimension_count": m.cfg.head_dim // 2}
    decoder(m, _BIASED, fused_gated_ffn, names=_AROUND, keys=keys)


def olmo2(m: Sketch) -> None:
    """No norm before the blocks, only after; Q and K norms over the full width."""
    names = ("post_attention_norm", "post_ffw_norm")
    decoder(m, attention, _wide_norms, gated_ffn, names=names)


def _wide_norms(m: Sketch, blk: str) -> None:
    for part, width in (("q", m.cfg.n_embd), ("k", m.cfg.n_embd_kv)):
        m.normal(f"{blk}attn_{part}_norm.weight", width, mean=1.5, std=0.1)


def stablelm(m: Sketch) -> None:
    """LayerNorm with biases and partial RoPE."""
    keys = {"rope.dimension_count": m.cfg.head_dim // 4}
    decoder(m, attention, gated_ffn, keys=keys, bias=True)


def starcoder2(m: Sketch) -> None:
    """LayerNorm and biases everywhere, feed-forward without a gate."""
    decoder(m, partial(_BIASED, out_bias=True), plain_ffn, bias=True)


def _gemma_keys(m: Sketch) -> Keys:
    return {
        **head_sizes(m),
        "attention.sliding_window": m.cfg.sliding_window,
        "attention.sliding_window_pattern": 2,  # layers 0, 2, ... slide; 1, 3, ... do not
    }


def gemma2(m: Sketch) -> None:
    """A norm around each block, sliding windows, tied output, soft caps."""
    keys = {
        **_gemma_keys(m),
        "attn_logit_softcapping": 50.0,
        # so high that the cap does not squeeze the top logits together
        "final_logit_softcapping": 4.0 * m.cfg.output_scale,
    }
    # the engine multiplies embeddings by sqrt(n_embd); unit rows give a unit-RMS residual
    std = m.cfg.n_embd**-0.5
    decoder(m, attention, gated_ffn, names=_AROUND, keys=keys, std=std, has_output=False)
    m.tied_output(row_norm=1.0)


def gemma3(m: Sketch) -> None:
    """gemma2's norms and windows, their own RoPE base, per-head Q and K norms."""
    keys, std = {**_gemma_keys(m), "rope.freq_base_swa": 1000.0}, m.cfg.n_embd**-0.5
    decoder(m, attention, head_norms, gated_ffn, names=_AROUND, keys=keys, std=std)


def command_r(m: Sketch) -> None:
    """LayerNorm, attention and feed-forward in parallel, tied output, scaled logits."""
    keys, names = {"logit_scale": 0.25}, ("attn_norm",)
    decoder(
        m, attention, gated_ffn, names=names, keys=keys, layer_norm=True, has_output=False
    )  # fmt: skip
    m.tied_output(row_norm=float(m.cfg.n_embd) ** 0.5, gain=4.0)
