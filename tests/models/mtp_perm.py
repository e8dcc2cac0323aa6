"""PERM in the architectures with MTP heads, with heads whose drafts are predictable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import mtp
from .build import ARCHITECTURES, WITH_HEADS
from .config import TinyConfig
from .sketch import Sketch
from .toys import perm_next

_INTO_THE_RESIDUAL = (
    "attn_output.weight", "attn_output_b.weight", "ffn_down.weight", "ffn_down_exps.weight",
    "ffn_down_shexp.weight", "ssm_out.weight", "shortconv.out_proj.weight",
)  # fmt: skip


def build_perm_mtp(
    path: Path,
    *,
    arch: str,
    n_vocab: int = 320,
    seed: int = 0,
    n_layer: int = 2,
    n_cycles: int = 1,
    output_scale: float = 16.0,
    mixing: float = 0.01,
    is_known: bool = True,
    **extra: Any,
) -> Path:
    """Write PERM with the layers of an architecture, and a head that drafts only from the row.

    The layers add random values that `mixing` scales down, small beside the one-hot row: the
    successor stays the likeliest by far. The head's block adds nothing.

    e_x is the one-hot row of token x, P the successor, s = 1 / sqrt(1 / n_vocab + eps). The final
    norm has the weights -1: the row of x is e_x before it and -s e_x after it. eh_proj ignores the
    token, and maps the row that the architecture's head reads to e_P(x). The head's own norm, also
    -1, turns that into the target's row of P(x). The output matrix then gives P(P(x)), the token
    after the one that is paired with the row. The other row, before or after the norm, has the
    other sign, and gives any token but that one. A row of another token gives another token.

    Each of several heads is right only at its own depth. Head k turns the row of x into that of
    P^(k + 2)(x), which its own output matrix takes into account. Head k + 1 treats it as the row of
    the token k + 1 steps before.

    Without heads a wrong state of the layers gives other rows, and the same text. With
    is_known=False the heads stay random, and can be trained to draft like this.
    """
    m = Sketch(TinyConfig(arch, seed, n_layer, n_vocab, n_embd=n_vocab, **{"n_heads": 1, **extra}))
    {**ARCHITECTURES, **WITH_HEADS}[arch](m)
    mtp.add_heads(m)
    sign = -1.0 if arch in mtp.READS_NORMED else 1.0
    heads = [f"blk.{n_layer + k}." for k in range(m.cfg.n_heads)]
    for name, array in m.tensors.items():
        if name.endswith(_INTO_THE_RESIDUAL):
            is_head = name.startswith(tuple(heads))
            array *= np.float32((1.0 - is_known) if is_head else mixing)
    m.tensors["token_embd.weight"][:] = np.eye(n_vocab, dtype=np.float32)
    # With all gates at one half, a stream mixer is a norm of each stream and their mean.
    is_mixed = arch in mtp.MIXED
    for name in ("output_hc_", *(f"{blk}nextn.hc_head_" for blk in heads)) if is_mixed else ():
        m.tensors[f"{name}norm.weight"][:] = -1.0
        m.tensors[f"{name}down.weight"][:] = 0.0
    if not is_mixed:
        norm = "token_embd_norm.weight" if arch == "lfm2" else "output_norm.weight"
        m.tensors[norm][:] = -1.0
    successor = perm_next(n_vocab, seed=seed, n_cycles=n_cycles)
    rms = np.sqrt(1.0 / n_vocab + m.cfg.norm_eps)
    output = m.tensors["output.weight"]
    output[:] = 0.0
    logit_scale = float(m.meta.get(f"{arch}.logit_scale", 1.0))  # type: ignore[arg-type]
    output[successor, np.arange(n_vocab)] = -output_scale * rms / logit_scale * (1 + is_mixed)
    if is_known:
        _set_heads(m, heads, successor, sign, -output_scale * float(rms))
    return m.write(path)


def _set_heads(
    m: Sketch, heads: list[str], successor: NDArray[np.int64], sign: float, peak: float
) -> None:
    """Make the heads draft by `successor`; `peak` is an output matrix's entry for a successor."""
    n_vocab, is_several = len(successor), len(heads) > 1
    next_row = successor[successor] if is_several else successor
    eh_proj = np.zeros((n_vocab, 2 * n_vocab))
    eh_proj[next_row, n_vocab + np.arange(n_vocab)] = sign
    row = successor  # the token whose row a head outputs at its depth, for each token's row
    for blk in heads:
        m.tensors[f"{blk}nextn.eh_proj.weight"][:] = eh_proj
        m.tensors[f"{blk}nextn.hnorm.weight"][:] = 1.0
        if m.cfg.arch in mtp.MIXED:
            continue
        m.tensors[f"{blk}{mtp.LAST_NORMS.get(m.cfg.arch, mtp.LAST_NORM)}.weight"][:] = -1.0
        if is_several:
            row = successor[row]
            own = np.zeros((n_vocab, n_vocab), np.float32)
            own[successor[successor], row] = peak
            m.put(f"{blk}nextn.shared_head_head.weight", own)
