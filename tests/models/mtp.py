"""MTP heads in the files of their targets: each is one more block after the layers."""

from __future__ import annotations

from collections.abc import Callable

from . import parts
from .hybrid import bailingmoe3_head, gated_attention
from .moe import (
    cohere2moe_layer,
    glm4moe_layer,
    hy_v3_layer,
    indexed_layer,
    latent_layer,
    mimo2_layer,
    step35_layer,
)
from .sketch import Sketch
from .streams import (
    KPOOL,
    N_STREAMS,
    deepseek4_layer,
    glm5_next_head,
    mixer,
    qwen4exp_attention,
)


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


def _head(*blocks: parts.Block) -> parts.Block:
    """A head of these blocks behind Qwen's two norms."""

    def add(m: Sketch, blk: str) -> None:
        parts.norms(m, blk, "attn_norm", "post_attention_norm")
        for block in blocks:
            block(m, blk)

    return add


_LATENT = frozenset({"bailingmoe3", "glm5-next"})
"""Architectures with a list of key head counts in which all heads attend to one latent row."""

HEADS: dict[str, parts.Block] = {
    "qwen35": _head(gated_attention, parts.gated_ffn),
    "qwen35moe": _head(gated_attention, parts.gated_experts),
    "qwen3next": _head(gated_attention, parts.gated_experts),
    "deepseek2": latent_layer,
    "glm4moe": glm4moe_layer,
    "cohere2moe": cohere2moe_layer,
    "nemotron_h_moe": _head(parts.attention, parts.squared_experts),
    "deepseek32": indexed_layer,
    "glm-dsa": indexed_layer,
    "bailingmoe3": bailingmoe3_head,
    "qwen4exp": qwen4exp_attention,
    "deepseek4": deepseek4_layer,
    "glm5-next": glm5_next_head,
    "step35": step35_layer,
    "mimo2": mimo2_layer,
    "hy_v3": hy_v3_layer,
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
