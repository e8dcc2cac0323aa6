"""More recurrent and hybrid decoders: those whose snapshots our patches add, and related ones.

Even layers have the recurrent state and odd ones the attention, unless stated otherwise.
"""

from __future__ import annotations

import numpy as np

from . import parts
from .moe import dense_or_biased_experts, latent_attention, latent_header, shared_expert
from .recurrent import delta_net, gated_attention, mamba2_mixer, mamba_mixer, ssm_header
from .sketch import Sketch


def key_heads(m: Sketch, n_head_kv: int | None = None) -> None:
    n = m.cfg.n_head_kv if n_head_kv is None else n_head_kv
    m.key("attention.head_count_kv", [n if i % 2 else 0 for i in range(m.cfg.n_layer)])


def _gated_delta_moe(m: Sketch, *, joined: bool) -> None:
    """qwen35's layers, with routed experts and a shared one."""
    cfg = m.cfg
    head, k_heads, v_heads = gated_delta_header(m)
    if not joined:
        m.key("rope.dimension_sections", [2, 1, 1, 0])
    m.embedding()
    for index, blk in parts.layers(m):
        parts.norms(m, blk, "attn_norm", "post_attention_norm")
        if (index + 1) % cfg.attention_interval == 0:
            gated_attention(m, blk)
        else:
            delta_net(m, blk, head, k_heads, v_heads, joined=joined)
        gated_experts(m, blk)
    m.output()


def gated_delta_header(m: Sketch) -> tuple[int, int, int]:
    """Add the keys of a gated delta net with experts; returns delta_net()'s sizes."""
    cfg = m.cfg
    head, k_heads, v_heads = cfg.state_size or 16, 2, cfg.state_heads or 4
    parts.header(m)
    parts.moe_header(m)
    ssm_header(m, inner=head * v_heads, state=head, rank=v_heads, groups=k_heads)
    m.key("expert_shared_feed_forward_length", cfg.n_ff_exp)
    m.key("full_attention_interval", cfg.attention_interval)
    parts.head_sizes(m)
    m.key("rope.dimension_count", cfg.head_dim // 2)
    return head, k_heads, v_heads


def gated_experts(m: Sketch, blk: str) -> None:
    """Add routed experts, and a shared one with a gate."""
    parts.experts(m, blk)
    m.matrix(f"{blk}ffn_gate_inp_shexp.weight", m.cfg.n_embd)
    shared_expert(m, blk)


def qwen35moe(m: Sketch) -> None:
    """Gated delta net and gated attention, mixture of experts."""
    _gated_delta_moe(m, joined=False)


def qwen3next(m: Sketch) -> None:
    """qwen35moe with beta and alpha in one projection, and RoPE without sections."""
    _gated_delta_moe(m, joined=True)


def _mamba2_header(m: Sketch, *, groups: int) -> dict[str, int]:
    inner, state, heads = 2 * m.cfg.n_embd, m.cfg.state_size or 32, m.cfg.state_heads or 4
    ssm_header(m, inner=inner, state=state, rank=heads, groups=groups)
    return {"inner": inner, "state": state, "heads": heads, "groups": groups}


def falcon_h1(m: Sketch) -> None:
    """Mamba-2 and attention in parallel in every layer."""
    cfg = m.cfg
    parts.header(m)
    sizes = _mamba2_header(m, groups=2)
    m.embedding()
    for _, blk in parts.layers(m):
        parts.norms(m, blk, "attn_norm")
        m.norm(f"{blk}ffn_norm", cfg.n_embd)
        m.tensors[f"{blk}ffn_norm"] = m.tensors.pop(f"{blk}ffn_norm.weight")
        mamba2_mixer(m, blk, **sizes)
        parts.attention(m, blk)
        parts.gated_ffn(m, blk)
    m.output()


def granite_hybrid(m: Sketch) -> None:
    """Mamba-2 or attention, each with a dense feed-forward block."""
    parts.header(m)
    key_heads(m)
    sizes = _mamba2_header(m, groups=1)
    for key in ("attention.scale", "embedding_scale", "residual_scale", "logit_scale"):
        m.key(key, 0.25 if key == "attention.scale" else 1.0)
    m.embedding()
    for index, blk in parts.layers(m):
        parts.norms(m, blk, "attn_norm", "ffn_norm")
        if index % 2:
            parts.attention(m, blk)
        else:
            mamba2_mixer(m, blk, **sizes)
        parts.gated_ffn(m, blk)
    m.output()


def nemotron_h(m: Sketch) -> None:
    """One block per layer: Mamba-2, attention, Mamba-2, feed-forward, and so on."""
    cfg = m.cfg
    kinds = [("mamba", "attention", "mamba", "ffn")[i % 4] for i in range(cfg.n_layer)]
    parts.header(m)
    m.key("attention.layer_norm_epsilon", cfg.norm_eps)
    m.key("attention.head_count_kv", [cfg.n_head_kv * (kind == "attention") for kind in kinds])
    m.key("feed_forward_length", [cfg.n_ff * (kind == "ffn") for kind in kinds])
    sizes = _mamba2_header(m, groups=2)
    m.embedding()
    for index, blk in parts.layers(m):
        parts.norms(m, blk, "attn_norm")
        if kinds[index] == "mamba":
            mamba2_mixer(m, blk, **sizes)
        elif kinds[index] == "attention":
            parts.attention(m, blk)
        else:
            m.matrix(f"{blk}ffn_up.weight", cfg.n_ff, cfg.n_embd)
            m.matrix(f"{blk}ffn_down.weight", cfg.n_embd, cfg.n_ff, gain=1.5)
    m.output()


def nemotron_h_moe(m: Sketch) -> None:
    """nemotron_h with squared experts in place of the dense feed-forward block."""
    cfg = m.cfg
    nemotron_h(m)
    parts.moe_header(m)
    m.key("expert_shared_count", 1)
    m.key("expert_shared_feed_forward_length", cfg.n_ff_exp)
    m.key("expert_weights_norm", True)
    m.key("expert_weights_scale", 1.5)
    m.key("expert_gating_func", 2)  # sigmoid, for other readers; the engine always uses it
    for _, blk in parts.layers(m):
        if m.tensors.pop(f"{blk}ffn_up.weight", None) is not None:
            del m.tensors[f"{blk}ffn_down.weight"]
            squared_experts(m, blk)


def squared_experts(m: Sketch, blk: str) -> None:
    """Add routed experts and a shared one, each of two matrices with relu(x)**2 between."""
    cfg = m.cfg
    m.matrix(f"{blk}ffn_gate_inp.weight", cfg.n_expert, cfg.n_embd, gain=2.0)
    m.normal(f"{blk}exp_probs_b.bias", cfg.n_expert, std=0.1)
    m.matrix(f"{blk}ffn_up_exps.weight", cfg.n_expert, cfg.n_ff_exp, cfg.n_embd)
    m.matrix(f"{blk}ffn_down_exps.weight", cfg.n_expert, cfg.n_embd, cfg.n_ff_exp)
    m.matrix(f"{blk}ffn_up_shexp.weight", cfg.n_ff_exp, cfg.n_embd)
    m.matrix(f"{blk}ffn_down_shexp.weight", cfg.n_embd, cfg.n_ff_exp)


def jamba(m: Sketch) -> None:
    """Mamba with norms of B, C and dt, or attention without RoPE."""
    cfg = m.cfg
    inner, state, rank = 2 * cfg.n_embd, cfg.state_size or 16, 4
    parts.header(m)
    key_heads(m)
    ssm_header(m, inner=inner, state=state, rank=rank, groups=None)
    m.embedding()
    for index, blk in parts.layers(m):
        parts.norms(m, blk, "attn_norm", "ffn_norm")
        if index % 2:
            parts.attention(m, blk)
        else:
            mamba_mixer(m, blk, inner=inner, state=state, rank=rank)
            m.norm(f"{blk}ssm_dt_norm", rank)
            m.norm(f"{blk}ssm_b_norm", state)
            m.norm(f"{blk}ssm_c_norm", state)
        parts.gated_ffn(m, blk)
    m.output()


def plamo2(m: Sketch) -> None:
    """Mamba with a decay per head, or attention with one norm per head."""
    cfg = m.cfg
    inner, state, heads, dt = 2 * cfg.n_embd, cfg.state_size or 16, cfg.state_heads or 4, 64
    parts.header(m)
    key_heads(m)
    ssm_header(m, inner=inner, state=state, rank=heads, groups=0)
    parts.head_sizes(m)
    m.embedding()
    for index, blk in parts.layers(m):
        parts.norms(m, blk, "attn_norm", "ffn_norm")
        for name in ("post_attention_norm", "post_ffw_norm"):
            m.normal(f"{blk}{name}", cfg.n_embd, mean=1.0, std=0.1)
        if index % 2:
            parts.fused_attention(m, blk)
            for part, n in (("q", cfg.n_head), ("k", cfg.n_head_kv)):
                m.normal(f"{blk}attn_{part}_norm.weight", n, cfg.head_dim, mean=1.5, std=0.1)
        else:
            m.matrix(f"{blk}ssm_in.weight", 2 * inner, cfg.n_embd)
            m.normal(f"{blk}ssm_conv1d.weight", inner, cfg.conv_kernel, std=0.7)
            m.matrix(f"{blk}ssm_x.weight", dt + 2 * state, inner, gain=1.5)
            m.matrix(f"{blk}ssm_dt.weight", heads, dt)
            m.normal(f"{blk}ssm_dt.bias", heads, mean=-2.0, std=0.5)
            m.uniform(f"{blk}ssm_a", heads, low=-1.0, high=-0.1)
            m.put(f"{blk}ssm_d", np.ones(heads, np.float32))
            for name, size in (("dt", dt), ("b", state), ("c", state)):
                m.normal(f"{blk}ssm_{name}_norm", size, mean=1.0, std=0.1)
            m.matrix(f"{blk}ssm_out.weight", cfg.n_embd, inner, gain=2.0)
        parts.fused_gated_ffn(m, blk)
    m.output()


def kimi_linear(m: Sketch) -> None:
    """Delta attention with a decay per channel, or latent attention without RoPE."""
    head = m.cfg.state_size or 16
    latent_header(m)
    m.meta.pop(f"{m.cfg.arch}.attention.q_lora_rank")
    key_heads(m, 1)
    m.key("ssm.conv_kernel", m.cfg.conv_kernel)
    m.key("kda.head_dim", head)
    m.key("leading_dense_block_count", 2)
    m.key("expert_gating_func", 2)  # sigmoid
    m.embedding()
    for index, blk in parts.layers(m):
        parts.norms(m, blk, "attn_norm", "ffn_norm")
        if index % 2:
            latent_attention(m, blk, q_rank=None)
        else:
            delta_attention(m, blk, head)
        dense_or_biased_experts(m, blk, is_dense=index < 2)
    m.output()


def bailingmoe3(m: Sketch) -> None:
    """Delta attention with a bounded decay, or latent attention with a gate for each head.

    Layer 0 is dense.
    """
    cfg = m.cfg
    latent_header(m)
    m.meta.pop(f"{cfg.arch}.attention.q_lora_rank")
    key_heads(m, 1)
    m.key("ssm.conv_kernel", cfg.conv_kernel)
    m.key("kda.head_dim", cfg.state_size or 16)
    m.key("kda.gate_lower_bound", -5.0)
    m.key("expert_weights_norm", True)
    m.key("expert_gating_func", 2)  # sigmoid
    m.embedding()
    for index, blk in parts.layers(m):
        parts.norms(m, blk, "attn_norm", "ffn_norm")
        if index % 2:
            gated_latent_attention(m, blk)
        else:
            delta_attention(m, blk, cfg.state_size or 16, is_low_rank=False)
        dense_or_biased_experts(m, blk, is_dense=index == 0)
    m.output()


def gated_latent_attention(m: Sketch, blk: str) -> None:
    latent_attention(m, blk, q_rank=None)
    m.matrix(f"{blk}attn_gate.weight", m.cfg.n_head, m.cfg.n_embd)


def delta_attention(m: Sketch, blk: str, head: int, *, is_low_rank: bool = True) -> None:
    cfg = m.cfg
    inner = head * cfg.n_head
    for part in "qkv":
        m.matrix(f"{blk}attn_{part}.weight", inner, cfg.n_embd)
        m.normal(f"{blk}ssm_conv1d_{part}.weight", inner, 1, cfg.conv_kernel, std=0.7)
    for part in "fg":
        m.matrix(f"{blk}ssm_{part}_a.weight", head if is_low_rank else inner, cfg.n_embd)
        if is_low_rank:
            m.matrix(f"{blk}ssm_{part}_b.weight", inner, head)
    m.matrix(f"{blk}ssm_beta.weight", cfg.n_head, cfg.n_embd)
    m.uniform(f"{blk}ssm_a", cfg.n_head, 1, low=-0.2, high=-0.02)
    m.normal(f"{blk}ssm_dt.bias", inner, std=0.5)
    m.norm(f"{blk}ssm_norm", head)
    m.matrix(f"{blk}attn_output.weight", cfg.n_embd, inner, gain=2.0)


def rwkv7(m: Sketch) -> None:
    """RWKV 7: no attention; each layer has a state per head and two token shifts."""
    cfg = m.cfg
    n, rank, head = cfg.n_embd, 8, 64  # the kernel reads whole vectors of a head
    parts.header(m, layer_norm=True, attention=False)
    m.key("feed_forward_length", cfg.n_ff)
    m.key("wkv.head_size", head)
    m.key("token_shift_count", 2)
    for name in ("decay", "iclr", "value_residual_mix", "gate"):
        m.key(f"attention.{name}_lora_rank", rank)
    m.embedding()
    m.norm("token_embd_norm", n, bias=True)
    for _, blk in parts.layers(m):
        parts.norms(m, blk, "attn_norm", "attn_norm_2", bias=True)
        mix = f"{blk}time_mix_"
        for name in "wav":
            m.normal(f"{mix}{name}0.weight", n, std=0.5)
            m.matrix(f"{mix}{name}1.weight", rank, n)
            m.matrix(f"{mix}{name}2.weight", n, rank)
        m.matrix(f"{mix}g1.weight", rank, n)
        m.matrix(f"{mix}g2.weight", n, rank, gain=2.0)
        m.uniform(f"{mix}lerp_fused.weight", 6, 1, 1, n, low=0.0, high=1.0)
        m.normal(f"{mix}k_k.weight", n, mean=1.0, std=0.1)
        m.normal(f"{mix}k_a.weight", n, mean=1.0, std=0.1)
        m.normal(f"{mix}r_k.weight", n, std=0.1)
        for name in ("key", "value", "receptance", "output"):
            m.matrix(f"{mix}{name}.weight", n, n, gain=1.5)
        m.norm(f"{mix}ln", n, bias=True)
        m.uniform(f"{blk}channel_mix_lerp_k.weight", 1, 1, n, low=0.0, high=1.0)
        m.matrix(f"{blk}channel_mix_key.weight", cfg.n_ff, n)
        m.matrix(f"{blk}channel_mix_value.weight", n, cfg.n_ff, gain=1.5)
    m.output(bias=True)
