"""Pieces that several architectures have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from .sketch import MetaValue, Sketch

Block = Callable[[Sketch, str], None]

# Random Q and K with gain 1 give attention that is close to an average over the context;
# this makes it pick out single tokens, so that a wrong context is seen in the logits.
_QK_GAIN = 1.5
# silu(gate) * up of unit normals has RMS about 0.4; this brings the block's output to about 1.
_DOWN_GAIN = 2.5


def header(m: Sketch, *, layer_norm: bool = False, attention: bool = True) -> None:
    cfg = m.cfg
    m.key("context_length", cfg.n_ctx_train)
    m.key("embedding_length", cfg.n_embd)
    m.key("block_count", cfg.n_layer)
    m.key("vocab_size", cfg.n_vocab)
    kind = "layer_norm_epsilon" if layer_norm else "layer_norm_rms_epsilon"
    m.key(f"attention.{kind}", cfg.norm_eps)
    if attention:
        m.key("feed_forward_length", cfg.n_ff)
        m.key("attention.head_count", cfg.n_head)
        m.key("attention.head_count_kv", cfg.n_head_kv)
        m.key("rope.freq_base", cfg.rope_freq_base)
        m.key("rope.dimension_count", cfg.head_dim)


def head_sizes(m: Sketch) -> None:
    m.key("attention.key_length", m.cfg.head_dim)
    m.key("attention.value_length", m.cfg.head_dim)


def decoder(
    m: Sketch,
    *blocks: Block,
    names: tuple[str, ...] = ("attn_norm", "ffn_norm"),
    keys: Mapping[str, MetaValue] | None = None,
    has_biased_layer_norms: bool = False,
    std: float = 1.0,
    gain: float = 1.0,
) -> None:
    """Add a whole model of layers that are alike: norms of these names, then these blocks."""
    header(m, layer_norm=has_biased_layer_norms)
    for name, value in (keys or {}).items():
        m.key(name, value)
    m.embedding(std)
    stack(m, *blocks, names=names, bias=has_biased_layer_norms)
    m.output(gain, bias=has_biased_layer_norms)


def stack(m: Sketch, *blocks: Block, names: tuple[str, ...], bias: bool = False) -> None:
    for _, blk in layers(m):
        norms(m, blk, *names, bias=bias)
        for add in blocks:
            add(m, blk)


def moe_header(m: Sketch) -> None:
    m.key("expert_count", m.cfg.n_expert)
    m.key("expert_used_count", m.cfg.n_expert_used)
    m.key("expert_feed_forward_length", m.cfg.n_ff_exp)


def layers(m: Sketch) -> Iterator[tuple[int, str]]:
    """Yield each layer's number and its tensors' prefix (`blk.3.`)."""
    for index in range(m.cfg.n_layer):
        yield index, f"blk.{index}."


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


def plain_ffn(m: Sketch, blk: str) -> None:
    cfg = m.cfg
    m.matrix(f"{blk}ffn_up.weight", cfg.n_ff, cfg.n_embd)
    m.normal(f"{blk}ffn_up.bias", cfg.n_ff, std=0.1)
    m.matrix(f"{blk}ffn_down.weight", cfg.n_embd, cfg.n_ff, gain=1.5)
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
        m.normal(f"{blk}ffn_gate_exps.bias", cfg.n_expert, cfg.n_ff_exp, std=0.1)
        m.normal(f"{blk}ffn_up_exps.bias", cfg.n_expert, cfg.n_ff_exp, std=0.1)
        m.normal(f"{blk}ffn_down_exps.bias", cfg.n_expert, cfg.n_embd, std=0.1)


def norms(m: Sketch, blk: str, *names: str, bias: bool = False) -> None:
    for name in names:
        m.norm(f"{blk}{name}", m.cfg.n_embd, bias=bias)
