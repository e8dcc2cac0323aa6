"""MTP heads in the files of their targets: each is one more block after the layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from . import parts
from .hybrid import gated_experts, gated_latent_attention, squared_experts
from .hyper import deepseek4_layer, glm5_next_head
from .moe import biased_experts, cohere2moe_layer, glm4moe_layer, indexed_layer, latent_layer
from .recurrent import gated_attention
from .sketch import Sketch
from .streams import KPOOL, N_STREAMS, mixer, qwen4exp_attention
from .windowed_moe import hy_v3_layer, mimo2_layer, step35_layer


def add_heads(m: Sketch) -> None:
    """Add the configured number of heads to a complete model."""
    cfg = m.cfg
    if not cfg.n_heads:
        return
    m.key("block_count", cfg.n_layer + cfg.n_heads)
    m.key("nextn_predict_layers", cfg.n_heads)
    # Lists with a value for each layer. Of several heads the even ones have a window.
    of_heads: dict[str, Callable[[int], int | bool | float]] = {
        "attention.head_count_kv": lambda _: 1 if cfg.arch in _LATENT else cfg.n_head_kv,
        "feed_forward_length": lambda _: cfg.n_ff,
        "attention.sliding_window_pattern": lambda k: cfg.arch in SEVERAL and k % 2 == 0,
        "attention.compress_ratios": lambda _: KPOOL if cfg.arch in MIXED else 0,
        "swiglu_clamp_exp": lambda k: 1.0 + 0.5 * (k % 2),
        "swiglu_clamp_shexp": lambda k: 1.5 - 0.5 * (k % 2),
    }
    for key, value in of_heads.items():
        listed = m.meta.get(f"{cfg.arch}.{key}")
        if isinstance(listed, list):
            m.meta[f"{cfg.arch}.{key}"] = [*listed, *map(value, range(cfg.n_heads))]
    for index in range(cfg.n_layer, cfg.n_layer + cfg.n_heads):
        blk = f"blk.{index}."
        m.matrix(f"{blk}nextn.eh_proj.weight", cfg.n_embd, 2 * cfg.n_embd)
        parts.norms(m, blk, "nextn.enorm")
        if cfg.arch in MIXED:
            m.norm(f"{blk}nextn.hnorm", N_STREAMS * cfg.n_embd)
            mixer(m, f"{blk}nextn.hc_head_", has_inject=False)
        else:
            parts.norms(m, blk, "nextn.hnorm", LAST_NORMS.get(cfg.arch, LAST_NORM))
        HEADS[cfg.arch](m, blk)


def _qwen35(m: Sketch, blk: str) -> None:
    """Gated attention and a dense feed-forward block, as in the layers with attention."""
    parts.norms(m, blk, "attn_norm", "post_attention_norm")
    gated_attention(m, blk)
    parts.gated_ffn(m, blk)


def _qwen35moe(m: Sketch, blk: str) -> None:
    """_qwen35 with experts; qwen3next's is the same."""
    parts.norms(m, blk, "attn_norm", "post_attention_norm")
    gated_attention(m, blk)
    gated_experts(m, blk)


def _nemotron(m: Sketch, blk: str) -> None:
    """Attention without RoPE, then squared experts."""
    parts.norms(m, blk, "attn_norm", "post_attention_norm")
    parts.attention(m, blk)
    squared_experts(m, blk)


def _mimo2(m: Sketch, blk: str) -> None:
    """A dense layer with attention sinks."""
    mimo2_layer(m, blk, n_kv=m.cfg.n_head_kv, is_dense=True, has_sinks=True)


def _bailingmoe3(m: Sketch, blk: str) -> None:
    """Latent attention with gates, and experts."""
    parts.norms(m, blk, "attn_norm", "ffn_norm")
    gated_latent_attention(m, blk)
    biased_experts(m, blk)


_LATENT = frozenset({"bailingmoe3", "glm5-next"})
"""Architectures with a list of key head counts in which all heads attend to one latent row."""

HEADS: dict[str, Callable[[Sketch, str], None]] = {
    "qwen35": _qwen35,
    "qwen35moe": _qwen35moe,
    "qwen3next": _qwen35moe,
    "deepseek2": partial(latent_layer, is_dense=False),
    "glm4moe": partial(glm4moe_layer, is_dense=False),
    "cohere2moe": partial(cohere2moe_layer, is_dense=False),
    "nemotron_h_moe": _nemotron,
    "deepseek32": partial(indexed_layer, is_dense=False),
    "glm-dsa": partial(indexed_layer, is_dense=False),
    "bailingmoe3": _bailingmoe3,
    "qwen4exp": qwen4exp_attention,
    "deepseek4": deepseek4_layer,
    "glm5-next": glm5_next_head,
    "step35": partial(step35_layer, is_dense=False),
    "mimo2": _mimo2,
    "hy_v3": partial(hy_v3_layer, is_dense=False),
}
"""The builder of a head's block, by the engine's name of its architecture."""


SEVERAL = ("step35", "mimo2", "hy_v3")
"""The architectures whose files may have several heads, each for a further token."""

STREAMS = frozenset({"qwen4exp", "deepseek4"})
"""The architectures whose rows consist of several residual streams."""

MIXED = frozenset({"qwen4exp"})
"""Those of STREAMS whose heads end with their own mixer, which is the last norm."""

LAST_NORM = "nextn.shared_head_norm"
LAST_NORMS = {"mimo2": "layer_output_norm", "bailingmoe3": "layer_output_norm"}
"""The name of the norm before the output, if it is not LAST_NORM."""

MEANS_OF_STREAMS = frozenset({"glm5-next"})
"""The architectures whose head reads the mean of streams: no layer's input is that row."""

READS_NORMED = frozenset(HEADS) - {"step35", "mimo2"} - STREAMS
"""The architectures whose head reads the row after the final norm, not the one before."""
