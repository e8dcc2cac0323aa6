"""Recurrent and hybrid decoders.

Even layers have the recurrent state and odd ones the attention, unless stated otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from . import parts
from .moe import latent_attention, latent_sizes
from .parts import (
    Block,
    Keys,
    alternating,
    attention,
    decoder,
    dense_until,
    gated_experts,
    gated_ffn,
    head_norms,
    norms,
)
from .sketch import Sketch

_POST = ("attn_norm", "post_attention_norm")


def ssm_sizes(m: Sketch, *, inner: int, state: int, rank: int, groups: int | None) -> Keys:
    keys = {
        "ssm.conv_kernel": m.cfg.conv_kernel, "ssm.inner_size": inner, "ssm.state_size": state,
        "ssm.time_step_rank": rank,
    }  # fmt: skip
    return keys if groups is None else {**keys, "ssm.group_count": groups}


def key_heads(m: Sketch, n: int | None = None) -> Keys:
    n = m.cfg.n_head_kv if n is None else n
    return {"attention.head_count_kv": [n if i % 2 else 0 for i in range(m.cfg.n_layer)]}


# ---- gated delta nets


def _delta_sizes(m: Sketch) -> tuple[int, int, int]:
    """The width of a head, and the numbers of key and of value heads."""
    if m.cfg.n_embd >= 512:  # a size for timings: heads as in published models
        return 128, m.cfg.n_embd // 64, m.cfg.n_embd // 64
    return m.cfg.state_size or 16, 2, m.cfg.state_heads or 4


def delta_keys(m: Sketch) -> Keys:
    head, k_heads, v_heads = _delta_sizes(m)
    sizes = ssm_sizes(m, inner=head * v_heads, state=head, rank=v_heads, groups=k_heads)
    return {
        **sizes, **parts.head_sizes(m), "full_attention_interval": m.cfg.attention_interval,
        "rope.dimension_count": m.cfg.head_dim // 2,
    }  # fmt: skip


def delta_expert_keys(m: Sketch) -> Keys:
    width = {"expert_shared_feed_forward_length": m.cfg.n_ff_exp}
    return {**delta_keys(m), **parts.expert_sizes(m), **width}


def on_interval(full: Block, other: Block) -> Block:
    """One block in the last layer of each interval and in heads, another one in the others."""

    def add(m: Sketch, blk: str) -> None:
        is_full = (parts.layer_of(blk) + 1) % m.cfg.attention_interval == 0
        (full if is_full else other)(m, blk)

    return add


def qwen35(m: Sketch) -> None:
    """Gated delta net, gated attention in the last layer of each interval, dense feed-forward."""
    keys = {**delta_keys(m), "rope.dimension_sections": [2, 1, 1, 0]}
    decoder(m, on_interval(gated_attention, delta_net), gated_ffn, names=_POST, keys=keys)


def qwen35moe(m: Sketch) -> None:
    """Gated delta net and gated attention, mixture of experts."""
    keys = {**delta_expert_keys(m), "rope.dimension_sections": [2, 1, 1, 0]}
    decoder(m, on_interval(gated_attention, delta_net), gated_experts, names=_POST, keys=keys)


def qwen3next(m: Sketch) -> None:
    """qwen35moe with beta and alpha in one projection, and RoPE without sections."""
    mixer = on_interval(gated_attention, partial(delta_net, joined=True))
    decoder(m, mixer, gated_experts, names=_POST, keys=delta_expert_keys(m))


def gated_attention(m: Sketch, blk: str) -> None:
    """Add attention in which each head's query is followed by its gate."""
    cfg = m.cfg
    m.matrix(f"{blk}attn_q.weight", 2 * cfg.n_embd, cfg.n_embd)
    for part in "kv":
        m.matrix(f"{blk}attn_{part}.weight", cfg.n_embd_kv, cfg.n_embd)
    m.matrix(f"{blk}attn_output.weight", cfg.n_embd, cfg.n_embd, gain=3.0)
    head_norms(m, blk)


def delta_net(
    m: Sketch, blk: str, *, joined: bool = False, sizes: tuple[int, int, int] | None = None
) -> None:
    """Add a gated delta net; `joined`: beta and alpha are one projection."""
    head, k_heads, v_heads = sizes or _delta_sizes(m)
    n_embd, inner = m.cfg.n_embd, head * v_heads
    width = 2 * head * k_heads + inner
    m.matrix(f"{blk}attn_qkv.weight", width, n_embd)
    m.matrix(f"{blk}attn_gate.weight", inner, n_embd)
    m.normal(f"{blk}ssm_conv1d.weight", width, m.cfg.conv_kernel, std=0.7)
    m.normal(f"{blk}ssm_dt.bias", v_heads, std=0.5)
    # small decay rates: a token must still affect the logits dozens of tokens later
    m.uniform(f"{blk}ssm_a", v_heads, low=-0.2, high=-0.02)
    for name in ("ba",) if joined else ("beta", "alpha"):
        m.matrix(f"{blk}ssm_{name}.weight", (1 + joined) * v_heads, n_embd)
    m.norm(f"{blk}ssm_norm", head)
    m.matrix(f"{blk}ssm_out.weight", n_embd, inner, gain=2.0)


# ---- Mamba and Mamba-2


_PLAIN_FFN = partial(parts.plain_ffn, bias=False)


@dataclass(frozen=True)
class Mamba2:
    """A selective state space with a decay per head, as a block with its keys."""

    groups: int = 1
    state: int = 32

    def sizes(self, m: Sketch) -> tuple[int, int, int]:
        """The inner width, the width of the state and the number of heads."""
        return 2 * m.cfg.n_embd, m.cfg.state_size or self.state, m.cfg.state_heads or 4

    def keys(self, m: Sketch) -> Keys:
        inner, state, heads = self.sizes(m)
        return ssm_sizes(m, inner=inner, state=state, rank=heads, groups=self.groups)

    def __call__(self, m: Sketch, blk: str) -> None:
        cfg, (inner, state, heads) = m.cfg, self.sizes(m)
        conv = inner + 2 * self.groups * state
        m.matrix(f"{blk}ssm_in.weight", inner + conv + heads, cfg.n_embd)
        m.normal(f"{blk}ssm_conv1d.weight", conv, m.cfg.conv_kernel, std=0.7)
        m.normal(f"{blk}ssm_conv1d.bias", conv, std=0.1)
        m.normal(f"{blk}ssm_dt.bias", heads, mean=-2.0, std=0.5)
        m.uniform(f"{blk}ssm_a", heads, 1, low=-1.0, high=-0.1)
        m.put(f"{blk}ssm_d", np.ones((heads, 1), np.float32))
        shape = (self.groups, inner // self.groups)
        m.normal(f"{blk}ssm_norm.weight", *shape, mean=1.0, std=0.1)
        m.matrix(f"{blk}ssm_out.weight", cfg.n_embd, inner, gain=1.5)


def mamba2(m: Sketch) -> None:
    # state 128 and heads of 32: the sizes for which GPU kernels exist
    mixer = Mamba2(state=128)
    decoder(m, mixer, names=("attn_norm",), keys=mixer.keys(m), has_attention=False)


def falcon_h1(m: Sketch) -> None:
    """Mamba-2 and attention in parallel in every layer."""
    mixer = Mamba2(groups=2)
    decoder(m, mixer, attention, gated_ffn, keys=mixer.keys(m))
    for _, blk in parts.layers(m):
        m.tensors[f"{blk}ffn_norm"] = m.tensors.pop(f"{blk}ffn_norm.weight")


def granite_hybrid(m: Sketch) -> None:
    """Mamba-2 or attention, each with a dense feed-forward block."""
    mixer = Mamba2()
    scales = dict.fromkeys(("embedding_scale", "residual_scale", "logit_scale"), 1.0)
    keys = {**key_heads(m), **mixer.keys(m), **scales, "attention.scale": 0.25}
    decoder(m, alternating(mixer, attention), gated_ffn, keys=keys)


def nemotron_h(m: Sketch, feed_forward: Block = _PLAIN_FFN) -> None:
    """One block per layer: Mamba-2, attention, Mamba-2, feed-forward, and so on."""
    cfg, mixer = m.cfg, Mamba2(groups=2)
    kinds = [i % 4 for i in range(cfg.n_layer)]
    keys = {
        "attention.layer_norm_epsilon": cfg.norm_eps,
        "attention.head_count_kv": [cfg.n_head_kv * (kind == 1) for kind in kinds],
        "feed_forward_length": [cfg.n_ff * (kind == 3) for kind in kinds],
        **mixer.keys(m),
    }
    blocks = (mixer, attention, mixer, feed_forward)
    decoder(
        m, lambda m, blk: blocks[parts.layer_of(blk) % 4](m, blk), names=("attn_norm",), keys=keys
    )


def nemotron_h_moe(m: Sketch) -> None:
    """nemotron_h with squared experts in place of the dense feed-forward block."""
    nemotron_h(m, parts.squared_experts)
    m.add_keys({**parts.sigmoid_experts(m), "expert_shared_count": 1})


def _mamba(m: Sketch, blk: str, *, has_norms: bool = False) -> None:
    """Add a selective state space with a decay per component of the state."""
    cfg, inner, state, rank = m.cfg, 2 * m.cfg.n_embd, m.cfg.state_size or 16, 4
    m.matrix(f"{blk}ssm_in.weight", 2 * inner, cfg.n_embd)
    m.normal(f"{blk}ssm_conv1d.weight", inner, m.cfg.conv_kernel, std=0.7)
    m.normal(f"{blk}ssm_conv1d.bias", inner, std=0.1)
    m.matrix(f"{blk}ssm_x.weight", rank + 2 * state, inner, gain=1.5)
    m.matrix(f"{blk}ssm_dt.weight", inner, rank)
    m.normal(f"{blk}ssm_dt.bias", inner, mean=-2.0, std=0.5)
    m.put(f"{blk}ssm_a", -np.tile(np.linspace(0.05, 2.0, state), (inner, 1)))
    m.put(f"{blk}ssm_d", np.ones(inner, np.float32))
    m.matrix(f"{blk}ssm_out.weight", cfg.n_embd, inner, gain=2.0)
    for name, size in (("dt", rank), ("b", state), ("c", state)) if has_norms else ():
        m.norm(f"{blk}ssm_{name}_norm", size)


def _mamba_sizes(m: Sketch) -> Keys:
    return ssm_sizes(
        m, inner=2 * m.cfg.n_embd, state=m.cfg.state_size or 16, rank=4, groups=None
    )  # fmt: skip


def mamba(m: Sketch) -> None:
    decoder(m, _mamba, names=("attn_norm",), keys=_mamba_sizes(m), has_attention=False)


def jamba(m: Sketch) -> None:
    """Mamba with norms of B, C and dt, or attention without RoPE."""
    mixer = alternating(partial(_mamba, has_norms=True), attention)
    decoder(m, mixer, gated_ffn, keys={**key_heads(m), **_mamba_sizes(m)})


def plamo2(m: Sketch) -> None:
    """Mamba with a decay per head, or attention with one norm per head."""
    state, heads = m.cfg.state_size or 16, m.cfg.state_heads or 4
    sizes = ssm_sizes(m, inner=2 * m.cfg.n_embd, state=state, rank=heads, groups=0)
    keys = {**key_heads(m), **sizes, **parts.head_sizes(m)}
    mixer = alternating(_plamo2_mamba, _plamo2_attention)
    decoder(m, mixer, _post_norms, parts.fused_gated_ffn, keys=keys)


def _post_norms(m: Sketch, blk: str) -> None:
    for name in ("post_attention_norm", "post_ffw_norm"):
        m.normal(f"{blk}{name}", m.cfg.n_embd, mean=1.0, std=0.1)


def _plamo2_attention(m: Sketch, blk: str) -> None:
    parts.fused_attention(m, blk)
    for part, n in (("q", m.cfg.n_head), ("k", m.cfg.n_head_kv)):
        m.normal(f"{blk}attn_{part}_norm.weight", n, m.cfg.head_dim, mean=1.5, std=0.1)


def _plamo2_mamba(m: Sketch, blk: str) -> None:
    cfg, dt = m.cfg, 64
    inner, state, heads = 2 * cfg.n_embd, cfg.state_size or 16, cfg.state_heads or 4
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


# ---- delta attention beside latent attention


def kimi_linear(m: Sketch) -> None:
    """Delta attention with a decay per channel, or latent attention without RoPE."""
    mixer = alternating(delta_attention, partial(latent_attention, q_rank=None))
    keys = {**_delta_latent_keys(m), "leading_dense_block_count": 2}
    decoder(m, mixer, dense_until(2, parts.biased_experts), keys=keys)


def bailingmoe3(m: Sketch) -> None:
    """Delta attention with a bounded decay, or latent attention with a gate for each head.

    Layer 0 is dense.
    """
    mixer = alternating(partial(delta_attention, is_low_rank=False), _gated_latent_attention)
    keys = {**_delta_latent_keys(m), "kda.gate_lower_bound": -5.0, "expert_weights_norm": True}
    decoder(m, mixer, dense_until(1, parts.biased_experts), keys=keys)


def _delta_latent_keys(m: Sketch) -> Keys:
    keys = {
        **latent_sizes(m), **key_heads(m, 1), "ssm.conv_kernel": m.cfg.conv_kernel,
        "kda.head_dim": m.cfg.state_size or 16, "expert_gating_func": 2,
    }  # fmt: skip
    del keys["attention.q_lora_rank"]
    return keys


def bailingmoe3_head(m: Sketch, blk: str) -> None:
    """Latent attention with gates, and experts."""
    norms(m, blk, "attn_norm", "ffn_norm")
    _gated_latent_attention(m, blk)
    parts.biased_experts(m, blk)


def _gated_latent_attention(m: Sketch, blk: str) -> None:
    latent_attention(m, blk, q_rank=None)
    m.matrix(f"{blk}attn_gate.weight", m.cfg.n_head, m.cfg.n_embd)


def delta_attention(m: Sketch, blk: str, *, is_low_rank: bool = True) -> None:
    cfg, head = m.cfg, m.cfg.state_size or 16
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


# ---- others


def lfm2(m: Sketch) -> None:
    """Gated short convolution on even layers, attention on odd ones."""
    keys = {**key_heads(m), "shortconv.l_cache": m.cfg.conv_kernel - 1}
    decoder(m, alternating(_short_convolution, _normed_attention), gated_ffn, keys=keys)
    # the file format's name for lfm2's final norm
    del m.tensors["output_norm.weight"]
    m.norm("token_embd_norm", m.cfg.n_embd)


def _short_convolution(m: Sketch, blk: str) -> None:
    n = m.cfg.n_embd
    m.normal(f"{blk}shortconv.conv.weight", n, m.cfg.conv_kernel - 1, std=0.6)
    m.matrix(f"{blk}shortconv.in_proj.weight", 3 * n, n)
    m.matrix(f"{blk}shortconv.out_proj.weight", n, n)


def _normed_attention(m: Sketch, blk: str) -> None:
    attention(m, blk)
    head_norms(m, blk)


def rwkv7(m: Sketch) -> None:
    """RWKV 7: no attention; each layer has a state per head and two token shifts."""
    ranks = ("decay", "iclr", "value_residual_mix", "gate")
    keys = {
        "feed_forward_length": m.cfg.n_ff,
        "wkv.head_size": 64,  # the kernel reads whole vectors of a head
        "token_shift_count": 2,
        **{f"attention.{name}_lora_rank": _RWKV_RANK for name in ranks},
    }
    m.norm("token_embd_norm", m.cfg.n_embd, bias=True)
    names = ("attn_norm", "attn_norm_2")
    decoder(m, _rwkv7_layer, names=names, keys=keys, bias=True, has_attention=False)


_RWKV_RANK = 8


def _rwkv7_layer(m: Sketch, blk: str) -> None:
    n, rank, mix = m.cfg.n_embd, _RWKV_RANK, f"{blk}time_mix_"
    for name in "wavg":
        if name != "g":
            m.normal(f"{mix}{name}0.weight", n, std=0.5)
        m.matrix(f"{mix}{name}1.weight", rank, n)
        m.matrix(f"{mix}{name}2.weight", n, rank, gain=2.0 if name == "g" else 1.0)
    m.uniform(f"{mix}lerp_fused.weight", 6, 1, 1, n, low=0.0, high=1.0)
    m.normal(f"{mix}k_k.weight", n, mean=1.0, std=0.1)
    m.normal(f"{mix}k_a.weight", n, mean=1.0, std=0.1)
    m.normal(f"{mix}r_k.weight", n, std=0.1)
    for name in ("key", "value", "receptance", "output"):
        m.matrix(f"{mix}{name}.weight", n, n, gain=1.5)
    m.norm(f"{mix}ln", n, bias=True)
    m.uniform(f"{blk}channel_mix_lerp_k.weight", 1, 1, n, low=0.0, high=1.0)
    m.matrix(f"{blk}channel_mix_key.weight", m.cfg.n_ff, n)
    m.matrix(f"{blk}channel_mix_value.weight", n, m.cfg.n_ff, gain=1.5)
