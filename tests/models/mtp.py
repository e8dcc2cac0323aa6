"""MTP heads in the files of their targets: one more block, behind the layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from . import parts
from .hybrid import gated_experts, squared_experts
from .moe import cohere2moe_layer, glm4moe_layer, indexed_layer, latent_layer
from .recurrent import gated_attention
from .sketch import Sketch


def add_heads(m: Sketch) -> None:
    """Add the heads that the configuration wants to a model that is whole without.

    Raises:
        ValueError: no builder knows the head of its architecture.

    """
    cfg = m.cfg
    if not cfg.n_heads:
        return
    if cfg.arch not in HEADS:
        raise ValueError(f"no builder for the head of {cfg.arch!r}; known: {', '.join(HEADS)}")
    m.key("block_count", cfg.n_layer + cfg.n_heads)
    m.key("nextn_predict_layers", cfg.n_heads)
    # Lists that have a value for each layer.
    of_heads: dict[str, int | bool] = {
        "attention.head_count_kv": cfg.n_head_kv, "feed_forward_length": cfg.n_ff,
        "attention.sliding_window_pattern": False,
    }  # fmt: skip
    for key, value in of_heads.items():
        listed = m.meta.get(f"{cfg.arch}.{key}")
        if isinstance(listed, list):
            m.meta[f"{cfg.arch}.{key}"] = [*listed, *[value] * cfg.n_heads]
    for index in range(cfg.n_layer, cfg.n_layer + cfg.n_heads):
        blk = f"blk.{index}."
        m.matrix(f"{blk}nextn.eh_proj.weight", cfg.n_embd, 2 * cfg.n_embd)
        parts.norms(m, blk, "nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm")
        HEADS[cfg.arch](m, blk)


def _qwen35(m: Sketch, blk: str) -> None:
    """Gated attention and a dense feed-forward block, as in the layers with attention."""
    parts.norms(m, blk, "attn_norm", "post_attention_norm")
    gated_attention(m, blk)
    parts.gated_ffn(m, blk)


def _qwen35moe(m: Sketch, blk: str) -> None:
    """Likewise, with experts. qwen3next's is the same."""
    parts.norms(m, blk, "attn_norm", "post_attention_norm")
    gated_attention(m, blk)
    gated_experts(m, blk)


def _nemotron(m: Sketch, blk: str) -> None:
    """Attention without rotation, then squared experts."""
    parts.norms(m, blk, "attn_norm", "post_attention_norm")
    parts.attention(m, blk)
    squared_experts(m, blk)


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
}
"""The builder of a head's block, by the engine's name of its architecture."""


READS_NORMED = frozenset(HEADS)
"""Those whose head reads the row behind the final norm; of the others it is the one before."""
