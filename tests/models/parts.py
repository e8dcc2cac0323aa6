"""Pieces that several architectures have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .sketch import Sketch

Block = Callable[[Sketch, str], None]
Keys = dict[str, Any]

# Random Q and K with gain 1 give attention that is close to an average over the context;
# this makes it pick out single tokens, so that a wrong context is seen in the logits.
_QK_GAIN = 1.5
# silu(gate) * up of unit normals has RMS about 0.4; this brings the block's output to about 1.
_DOWN_GAIN = 2.5


def header(m: Sketch, *, layer_norm: bool = False, attention: bool = True) -> None:
    cfg = m.cfg
    kind = "layer_norm_epsilon" if layer_norm else "layer_norm_rms_epsilon"
    m.add_keys({
        "context_length": cfg.n_ctx_train, "embedding_length": cfg.n_embd,
        "block_count": cfg.n_layer, "vocab_size": cfg.n_vocab, f"attention.{kind}": cfg.norm_eps,
    })  # fmt: skip
    if attention:
        m.add_keys({
            "feed_forward_length": cfg.n_ff, "attention.head_count": cfg.n_head,
            "attention.head_count_kv": cfg.n_head_kv, "rope.freq_base": cfg.rope_freq_base,
            "rope.dimension_count": cfg.head_dim,
        })  # fmt: skip


def decoder(
    m: Sketch,
    *blocks: Block,
    names: tuple[str, ...] = ("attn_norm", "ffn_norm"),
    keys: Keys | None = None,
    bias: bool = False,
    layer_norm: bool = False,
    has_attention: bool = True,
    has_output: bool = True,
    std: float = 1.0,
    gain: float = 1.0,
) -> None:
    """Add a whole model: in each layer norms of these names, then these blocks.

    With `bias`, norms are layer norms with biases.
    """
    header(m, layer_norm=bias or layer_norm, attention=has_attention)
    m.add_keys(keys or {})
    m.embedding(std)
    for _, blk in layers(m):
        norms(m, blk, *names, bias=bias)
        for add in blocks:
            add(m, blk)
    if has_output:
        m.output(gain, bias=bias)


def layers(m: Sketch) -> Iterator[tuple[int, str]]:
    """Yield each layer's number and its tensors' prefix (`blk.3.`)."""
    for index in range(m.cfg.n_layer):
        yield index, f"blk.{index}."


def layer_of(blk: str) -> int:
    return int(blk.split(".")[1])


def alternating(even: Block, odd: Block) -> Block:
    """One block in the layers 0, 2, ..., and another one in 1, 3, ..."""
    return lambda m, blk: (odd if layer_of(blk) % 2 else even)(m, blk)


def dense_until(n_layer: int, experts: Block) -> Block:
    """Dense feed-forward blocks in the first layers, experts in the others and in MTP heads."""
    return lambda m, blk: (experts if layer_of(blk) >= n_layer else gated_ffn)(m, blk)


def head_sizes(m: Sketch) -> Keys:
    return dict.fromkeys(("attention.key_length", "attention.value_length"), m.cfg.head_dim)


def expert_sizes(m: Sketch) -> Keys:
    cfg = m.cfg
    return {
        "expert_count": cfg.n_expert, "expert_used_count": cfg.n_expert_used,
        "expert_feed_forward_length": cfg.n_ff_exp,
    }  # fmt: skip


def sigmoid_experts(m: Sketch) -> Keys:
    """Routed experts by normed and scaled sigmoids, beside a shared one."""
    return {
        **expert_sizes(m), "expert_shared_feed_forward_length": m.cfg.n_ff_exp,
        "expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 1.5,
    }  # fmt: skip


def windows_on_odd_layers(m: Sketch) -> Keys:
    return {
        "attention.sliding_window": m.cfg.sliding_window,
        "attention.sliding_window_pattern": [i % 2 == 1 for i in range(m.cfg.n_layer)],
    }


def attention(m: Sketch, blk: str, *, bias: bool = False, out_bias: bool = False) -> None:
    cfg = m.cfg
    for part, width, gain in (
        ("q", cfg.n_embd, _QK_GAIN),
        ("k", cfg.n_embd_kv, _QK_GAIN),
        ("v", cfg.n_embd_kv, 1.0),
    ):
        m.matrix(f"{blk}attn_{part}.weight", width, cfg.n_embd, gain=gain)
        if bias:
            m.normal(f"{blk}attn_{part}.bias", width, std=0.2)
    m.matrix(f"{blk}attn_output.weight", cfg.n_embd, cfg.n_embd, gain=1.5)
    if out_bias:
        m.normal(f"{blk}attn_output.bias", cfg.n_embd, std=0.1)


def fused_attention(m: Sketch, blk: str) -> None:
    cfg = m.cfg
    m.matrix(f"{blk}attn_qkv.weight", cfg.n_embd + 2 * cfg.n_embd_kv, cfg.n_embd, gain=_QK_GAIN)
    m.matrix(f"{blk}attn_output.weight", cfg.n_embd, cfg.n_embd)


def head_norms(m: Sketch, blk: str) -> None:
    """Add the per-head Q and K norms.

    Unit-norm Q and K leave attention logits of standard deviation 1; the weights raise that.
    """
    for part in "qk":
        m.normal(f"{blk}attn_{part}_norm.weight", m.cfg.head_dim, mean=_QK_GAIN, std=0.1)


def sinks(m: Sketch, blk: str) -> None:
    m.normal(f"{blk}attn_sinks.weight", m.cfg.n_head)


def gated_ffn(m: Sketch, blk: str) -> None:
    cfg = m.cfg
    m.matrix(f"{blk}ffn_gate.weight", cfg.n_ff, cfg.n_embd)
    m.matrix(f"{blk}ffn_up.weight", cfg.n_ff, cfg.n_embd)
    m.matrix(f"{blk}ffn_down.weight", cfg.n_embd, cfg.n_ff, gain=_DOWN_GAIN)


def fused_gated_ffn(m: Sketch, blk: str) -> None:
    """Add a gated feed-forward block whose gate and up projections are one tensor."""
    cfg = m.cfg
    m.matrix(f"{blk}ffn_up.weight", 2 * cfg.n_ff, cfg.n_embd)
    m.matrix(f"{blk}ffn_down.weight", cfg.n_embd, cfg.n_ff, gain=_DOWN_GAIN)


def plain_ffn(m: Sketch, blk: str, *, bias: bool = True) -> None:
    cfg = m.cfg
    m.matrix(f"{blk}ffn_up.weight", cfg.n_ff, cfg.n_embd)
    m.matrix(f"{blk}ffn_down.weight", cfg.n_embd, cfg.n_ff, gain=1.5)
    if bias:
        m.normal(f"{blk}ffn_up.bias", cfg.n_ff, std=0.1)
        m.normal(f"{blk}ffn_down.bias", cfg.n_embd, std=0.1)


def experts(m: Sketch, blk: str, *, bias: bool = False) -> None:
    """Add a router and gated experts.

    The router's gain keeps its choices apart by far more than rounding.
    """
    cfg = m.cfg
    m.matrix(f"{blk}ffn_gate_inp.weight", cfg.n_expert, cfg.n_embd, gain=2.0)
    for part in ("gate", "up"):
        m.matrix(f"{blk}ffn_{part}_exps.weight", cfg.n_expert, cfg.n_ff_exp, cfg.n_embd)
    shape = (cfg.n_expert, cfg.n_embd, cfg.n_ff_exp)
    m.matrix(f"{blk}ffn_down_exps.weight", *shape, gain=_DOWN_GAIN)
    if bias:
        m.normal(f"{blk}ffn_gate_inp.bias", cfg.n_expert, std=0.1)
        for part, width in (("gate", cfg.n_ff_exp), ("up", cfg.n_ff_exp), ("down", cfg.n_embd)):
            m.normal(f"{blk}ffn_{part}_exps.bias", cfg.n_expert, width, std=0.1)


def shared_expert(m: Sketch, blk: str) -> None:
    cfg = m.cfg
    for part in ("gate", "up"):
        m.matrix(f"{blk}ffn_{part}_shexp.weight", cfg.n_ff_exp, cfg.n_embd)
    m.matrix(f"{blk}ffn_down_shexp.weight", cfg.n_embd, cfg.n_ff_exp, gain=_DOWN_GAIN)


def all_experts(m: Sketch, blk: str) -> None:
    """Add routed experts and a shared one."""
    experts(m, blk)
    shared_expert(m, blk)


def biased_experts(m: Sketch, blk: str) -> None:
    """Add routed experts with a selection bias, and a shared expert."""
    all_experts(m, blk)
    m.normal(f"{blk}exp_probs_b.bias", m.cfg.n_expert, std=0.1)


def squared_experts(m: Sketch, blk: str) -> None:
    """Add routed experts and a shared one, each of two matrices with relu(x)**2 between."""
    n, width, n_embd = m.cfg.n_expert, m.cfg.n_ff_exp, m.cfg.n_embd
    m.matrix(f"{blk}ffn_gate_inp.weight", n, n_embd, gain=2.0)
    m.normal(f"{blk}exp_probs_b.bias", n, std=0.1)
    m.matrix(f"{blk}ffn_up_exps.weight", n, width, n_embd)
    m.matrix(f"{blk}ffn_down_exps.weight", n, n_embd, width)
    m.matrix(f"{blk}ffn_up_shexp.weight", width, n_embd)
    m.matrix(f"{blk}ffn_down_shexp.weight", n_embd, width)


def gated_experts(m: Sketch, blk: str) -> None:
    """Add routed experts, and a shared one with a gate."""
    all_experts(m, blk)
    m.matrix(f"{blk}ffn_gate_inp_shexp.weight", m.cfg.n_embd)


def norms(m: Sketch, blk: str, *names: str, bias: bool = False) -> None:
    for name in names:
        m.norm(f"{blk}{name}", m.cfg.n_embd, bias=bias)
