"""Encoders: models that cannot generate, but give vectors or scores."""

from __future__ import annotations

from pathlib import Path

from . import parts
from .config import TinyConfig
from .sketch import Sketch

_MAX_POSITIONS = 512


def bert(m: Sketch) -> None:
    """Bidirectional encoder with learned positions; it has no output matrix."""
    cfg = m.cfg
    parts.header(m, layer_norm=True)
    positions = min(cfg.n_ctx_train, _MAX_POSITIONS)  # there is a table row for each
    m.key("context_length", positions)
    m.key("attention.head_count_kv", cfg.n_head)
    m.key("attention.causal", False)
    m.key("pooling_type", 1)  # mean
    m.meta["tokenizer.ggml.token_type_count"] = 2
    m.embedding()
    m.normal("token_types.weight", 2, cfg.n_embd, std=0.1)
    m.normal("position_embd.weight", positions, cfg.n_embd, std=0.3)
    m.norm("token_embd_norm", cfg.n_embd, bias=True)
    for _, blk in parts.layers(m):
        for part in ("q", "k", "v", "output"):
            m.matrix(f"{blk}attn_{part}.weight", cfg.n_embd, cfg.n_embd)
            m.normal(f"{blk}attn_{part}.bias", cfg.n_embd, std=0.1)
        parts.norms(m, blk, "attn_output_norm", "layer_output_norm", bias=True)
        parts.plain_ffn(m, blk)


def build_reranker(path: Path, *, template: str | None = None, seed: int = 0) -> Path:
    """Write an encoder with a classifier over a text's first token: one score for a pair.

    `template` becomes the file's template "rerank"; {query} and {document} are its placeholders.
    """
    cfg = TinyConfig("bert", seed=seed, n_layer=2)
    m = Sketch(cfg)
    bert(m)
    m.key("pooling_type", 4)  # rank
    m.matrix("cls.weight", cfg.n_embd, cfg.n_embd)
    m.normal("cls.bias", cfg.n_embd, std=0.1)
    m.matrix("cls.output.weight", 1, cfg.n_embd)
    m.normal("cls.output.bias", 1, std=0.1)
    if template is not None:
        m.meta["tokenizer.chat_template.rerank"] = template
    return m.write(path)
