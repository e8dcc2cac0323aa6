"""A decoder with residual streams: each layer mixes them before it and adds to each after it."""

from __future__ import annotations

from . import parts
from .hybrid import gated_delta_header, gated_experts
from .recurrent import delta_net, gated_attention
from .sketch import Sketch

N_STREAMS, RANK = 4, 8
KPOOL, TOP_K, INDEX_HEADS, INDEX_WIDTH = 4, 16, 2, 64


def qwen4exp(m: Sketch) -> None:
    """Gated delta net, or gated attention to the blocks of four that an indexer chooses."""
    cfg = m.cfg
    head, k_heads, v_heads = gated_delta_header(m)
    # The indexer's queries and keys are rotated too.
    m.key("rope.dimension_count", min(cfg.head_dim // 2, INDEX_WIDTH))
    m.key("rope.dimension_sections", [2, 1, 1, 0])
    m.key("hyper_connection.count", N_STREAMS)
    m.key("hyper_connection.low_rank", RANK)
    m.key("attention.indexer.head_count", INDEX_HEADS)
    m.key("attention.indexer.key_length", INDEX_WIDTH)
    m.key("attention.indexer.top_k", TOP_K)
    m.key(
        "attention.compress_ratios",
        [KPOOL * ((i + 1) % cfg.attention_interval == 0) for i in range(cfg.n_layer)],
    )
    m.embedding()
    for index, blk in parts.layers(m):
        if (index + 1) % cfg.attention_interval == 0:
            qwen4exp_attention(m, blk)
        else:
            mixers(m, blk)
            delta_net(m, blk, head, k_heads, v_heads)
            gated_experts(m, blk)
    m.output()
    del m.tensors["output_norm.weight"]
    mixer(m, "output_hc_", has_inject=False)


def qwen4exp_attention(m: Sketch, blk: str) -> None:
    n_embd = m.cfg.n_embd
    mixers(m, blk)
    gated_attention(m, blk)
    m.matrix(f"{blk}indexer.q_proj.weight", INDEX_HEADS * INDEX_WIDTH, n_embd)
    m.matrix(f"{blk}indexer.k_proj.weight", INDEX_WIDTH, n_embd)
    m.norm(f"{blk}indexer.q_norm", INDEX_WIDTH)
    m.norm(f"{blk}indexer.k_norm", INDEX_WIDTH)
    gated_experts(m, blk)


def mixers(m: Sketch, blk: str) -> None:
    """Add the stream mixers before each half of a layer."""
    for part in ("attn", "ffn"):
        mixer(m, f"{blk}hc_{part}_", has_inject=True)


def mixer(m: Sketch, name: str, *, has_inject: bool) -> None:
    """Add a norm of each stream, a low-rank gate and, if asked, the weights that add to each."""
    width = N_STREAMS * m.cfg.n_embd
    m.norm(f"{name}norm", width)
    m.matrix(f"{name}down.weight", RANK, width, gain=4.0)
    m.matrix(f"{name}up.weight", width, RANK)
    if has_inject:
        m.matrix(f"{name}inject.weight", N_STREAMS, width, gain=4.0)
