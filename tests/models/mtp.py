"""MTP heads in the files of their targets: one more block, behind the layers."""

from __future__ import annotations

from collections.abc import Callable

from . import parts
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
    for index in range(cfg.n_layer, cfg.n_layer + cfg.n_heads):
        blk = f"blk.{index}."
        m.matrix(f"{blk}nextn.eh_proj.weight", cfg.n_embd, 2 * cfg.n_embd)
        parts.norms(m, blk, "nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm")
        HEADS[cfg.arch](m, blk)


def _qwen35(m: Sketch, blk: str) -> None:
    """Gated attention and a dense feed-forward block, as in the layers with attention."""
    cfg = m.cfg
    parts.norms(m, blk, "attn_norm", "post_attention_norm")
    m.matrix(f"{blk}attn_q.weight", 2 * cfg.n_embd, cfg.n_embd)
    for part in "kv":
        m.matrix(f"{blk}attn_{part}.weight", cfg.n_embd_kv, cfg.n_embd)
    m.matrix(f"{blk}attn_output.weight", cfg.n_embd, cfg.n_embd, gain=3.0)
    parts.head_norms(m, blk)
    parts.gated_ffn(m, blk)


HEADS: dict[str, Callable[[Sketch, str], None]] = {
    "qwen35": _qwen35,
}
"""The builder of a head's block, by the engine's name of its architecture."""


READS_NORMED = frozenset({"qwen35"})
"""Those whose head reads the row behind the final norm; of the others it is the one before."""
