"""Recurrent and hybrid decoders."""

from __future__ import annotations

import numpy as np

from . import parts
from .sketch import Sketch


def ssm_header(m: Sketch, *, inner: int, state: int, rank: int, groups: int | None) -> None:
    m.key("ssm.conv_kernel", m.cfg.conv_kernel)
    m.key("ssm.inner_size", inner)
    m.key("ssm.state_size", state)
    m.key("ssm.time_step_rank", rank)
    if groups is not None:
        m.key("ssm.group_count", groups)


def qwen35(m: Sketch) -> None:
    """Gated delta net, gated attention in the last layer of each interval, dense feed-forward."""
    cfg = m.cfg
    head, k_heads, v_heads = cfg.state_size or 16, 2, cfg.state_heads or 4
    if cfg.n_embd >= 512:  # a size for timings: heads as in published models
        head, k_heads, v_heads = 128, cfg.n_embd // 64, cfg.n_embd // 64
    parts.header(m)
    ssm_header(m, inner=head * v_heads, state=head, rank=v_heads, groups=k_heads)
    m.key("full_attention_interval", cfg.attention_interval)
    parts.head_sizes(m)
    m.key("rope.dimension_count", cfg.head_dim // 2)
    m.key("rope.dimension_sections", [2, 1, 1, 0])
    m.embedding()
    for index, blk in parts.layers(m):
        parts.norms(m, blk, "attn_norm", "post_attention_norm")
        if (index + 1) % cfg.attention_interval == 0:
            gated_attention(m, blk)
        else:
            delta_net(m, blk, head, k_heads, v_heads)
        parts.gated_ffn(m, blk)
    m.output()


def gated_attention(m: Sketch, blk: str) -> None:
    """Add attention in which each head's query is followed by its gate."""
    cfg = m.cfg
    m.matrix(f"{blk}attn_q.weight", 2 * cfg.n_embd, cfg.n_embd)
    for part in "kv":
        m.matrix(f"{blk}attn_{part}.weight", cfg.n_embd_kv, cfg.n_embd)
    m.matrix(f"{blk}attn_output.weight", cfg.n_embd, cfg.n_embd, gain=3.0)
    parts.head_norms(m, blk)


def delta_net(
    m: Sketch, blk: str, head: int, k_heads: int, v_heads: int, *, joined: bool = False
) -> None:
    """Add a gated delta net; `joined`: beta and alpha are one projection."""
    n_embd, inner = m.cfg.n_embd, head * v_heads
    width = 2 * head * k_heads + inner
    m.matrix(f"{blk}attn_qkv.weight", width, n_embd)
    m.matrix(f"{blk}attn_gate.weight", inner, n_embd)
    m.normal(f"{blk}ssm_conv1d.weight", width, m.cfg.conv_kernel, std=0.7)
    m.normal(f"{blk}ssm_dt.bias", v_heads, std=0.5)
    # small decay rates: a token must still affect the logits dozens of tokens later
    m.uniform(f"{blk}ssm_a", v_heads, low=-0.2, high=-0.02)
    if joined:
        m.matrix(f"{blk}ssm_ba.weight", 2 * v_heads, n_embd)
    else:
        m.matrix(f"{blk}ssm_beta.weight", v_heads, n_embd)
        m.matrix(f"{blk}ssm_alpha.weight", v_heads, n_embd)
    m.norm(f"{blk}ssm_norm", head)
    m.matrix(f"{blk}ssm_out.weight", n_embd, inner, gain=2.0)


def lfm2(m: Sketch) -> None:
    """Gated short convolution on even layers, attention on odd ones."""
    cfg = m.cfg
    kernel = cfg.conv_kernel - 1
    parts.header(m)
    m.key("attention.head_count_kv", [cfg.n_head_kv if i % 2 else 0 for i in range(cfg.n_layer)])
    m.key("shortconv.l_cache", kernel)
    m.embedding()
    for index, blk in parts.layers(m):
        parts.norms(m, blk, "attn_norm", "ffn_norm")
        if index % 2:
            parts.attention(m, blk)
            parts.head_norms(m, blk)
        else:
            m.normal(f"{blk}shortconv.conv.weight", cfg.n_embd, kernel, std=0.6)
            m.matrix(f"{blk}shortconv.in_proj.weight", 3 * cfg.n_embd, cfg.n_embd)
            m.matrix(f"{blk}shortconv.out_proj.weight", cfg.n_embd, cfg.n_embd)
        parts.gated_ffn(m, blk)
    m.output(norm="token_embd_norm")  # the file format's name for lfm2's final norm


def mamba_mixer(m: Sketch, blk: str, *, inner: int, state: int, rank: int) -> None:
    """Add a selective state space with a decay per component of the state."""
    cfg = m.cfg
    m.matrix(f"{blk}ssm_in.weight", 2 * inner, cfg.n_embd)
    m.normal(f"{blk}ssm_conv1d.weight", inner, m.cfg.conv_kernel, std=0.7)
    m.normal(f"{blk}ssm_conv1d.bias", inner, std=0.1)
    m.matrix(f"{blk}ssm_x.weight", rank + 2 * state, inner, gain=1.5)
    m.matrix(f"{blk}ssm_dt.weight", inner, rank)
    m.normal(f"{blk}ssm_dt.bias", inner, mean=-2.0, std=0.5)
    rates = np.tile(np.linspace(0.05, 2.0, state), (inner, 1))
    m.put(f"{blk}ssm_a", -rates)
    m.put(f"{blk}ssm_d", np.ones(inner, np.float32))
    m.matrix(f"{blk}ssm_out.weight", cfg.n_embd, inner, gain=2.0)


def mamba(m: Sketch) -> None:
    cfg = m.cfg
    inner, state, rank = 2 * cfg.n_embd, cfg.state_size or 16, 4
    parts.header(m, attention=False)
    ssm_header(m, inner=inner, state=state, rank=rank, groups=None)
    m.embedding()
    for _, blk in parts.layers(m):
        parts.norms(m, blk, "attn_norm")
        mamba_mixer(m, blk, inner=inner, state=state, rank=rank)
    m.output()


def mamba2_mixer(m: Sketch, blk: str, *, inner: int, state: int, heads: int, groups: int) -> None:
    """Add a selective state space with a decay per head."""
    cfg = m.cfg
    conv = inner + 2 * groups * state
    m.matrix(f"{blk}ssm_in.weight", inner + conv + heads, cfg.n_embd)
    m.normal(f"{blk}ssm_conv1d.weight", conv, m.cfg.conv_kernel, std=0.7)
    m.normal(f"{blk}ssm_conv1d.bias", conv, std=0.1)
    m.normal(f"{blk}ssm_dt.bias", heads, mean=-2.0, std=0.5)
    m.uniform(f"{blk}ssm_a", heads, 1, low=-1.0, high=-0.1)
    m.put(f"{blk}ssm_d", np.ones((heads, 1), np.float32))
    m.normal(f"{blk}ssm_norm.weight", groups, inner // groups, mean=1.0, std=0.1)
    m.matrix(f"{blk}ssm_out.weight", cfg.n_embd, inner, gain=1.5)


def mamba2(m: Sketch) -> None:
    cfg = m.cfg
    # state 128 and heads of 32: the sizes for which GPU kernels exist
    inner, state, heads, groups = 2 * cfg.n_embd, cfg.state_size or 128, cfg.state_heads or 4, 1
    parts.header(m, attention=False)
    ssm_header(m, inner=inner, state=state, rank=heads, groups=groups)
    m.embedding()
    for _, blk in parts.layers(m):
        parts.norms(m, blk, "attn_norm")
        mamba2_mixer(m, blk, inner=inner, state=state, heads=heads, groups=groups)
    m.output()
