"""An EAGLE-3 head with predictable drafts, for the PERM target of toys.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .eagle3 import Eagle3Config, Tensors, eagle3_tensors, write_eagle3
from .toys import perm_next


def build_perm_eagle3(
    path: Path,
    *,
    n_vocab: int = 320,
    seed: int = 0,
    n_cycles: int = 1,
    target_layers: tuple[int, ...] = (1,),
    read_layer: int = 0,
    read_token: bool = False,
    reduced: bool = False,
    n_draft_vocab: int | None = None,
    **extra: Any,
) -> Path:
    """Write a head that drafts the text of the PERM target (`build_perm`, same arguments).

    `n_embd == n_vocab`, a multiple of 8; e_x is the one-hot row of token x, P is `perm_next`,
    and s = 1 / sqrt(1 / n_vocab + eps) is the one's value after RMSNorm. The norms before
    attention, of the output and of features have weight 1 / s: they map each positive multiple
    of e_x to e_x.

    By default the head reads only the row that belongs to x[P], and attention adds nothing:

        fc      copies the features of `target_layers[read_layer]`: g = e_x = h before the FFN
        FFN     n = s e_x; unit y (gate and up rows: e_y) gives silu(s) s for y = x, else 0;
                down's column y is (P(e_y) - e_y) / (silu(s) s): h = e_P(x), the own row
        output  reads e_y for token P(y): the logit of P(P(x)) is `output_scale`, others are 0

    The next step starts from e_P(x) and drafts P(P(P(x))), and so on. The FFN's output does not
    depend on the size of h, so that rounding does not grow along a chain.

    With `read_token` the head reads only the token x[P+1] instead and drafts its successor,
    whatever the row holds. Q and K are the same for all tokens, so that RoPE makes each position
    attend to itself alone; V is e_x[P+1] minus the row's one-hot, which takes g out of the
    residual: h = e_x[P+1]. The row must be one-hot; the FFN adds nothing.

    `reduced` writes a `d2t` with `n_draft_vocab` ids (all by default) in random order. `extra`
    are further fields of `Eagle3Config`; layers beyond the first change nothing.
    """
    cfg = Eagle3Config(
        seed=seed,
        n_vocab=n_vocab,
        n_draft_vocab=(n_draft_vocab or n_vocab) if reduced else None,
        sorted_d2t=False,
        target_n_embd=n_vocab,
        target_layers=target_layers,
        n_embd=n_vocab,
        n_head_kv=4,
        n_ff=n_vocab,
        **extra,
    )
    successor = perm_next(n_vocab, seed=seed, n_cycles=n_cycles)
    tensors = eagle3_tensors(cfg)
    _inert(tensors)
    _rows_to_one_hot(cfg, tensors, read_layer)
    if read_token:
        _read_token(cfg, tensors)
    else:
        _advance_row(cfg, tensors, successor)
    _predict_successor(cfg, tensors, successor)
    return write_eagle3(path, cfg, tensors)


def _inert(tensors: Tensors) -> None:
    """Zero all biases, and all matrices that add to the residual stream."""
    for name, array in tensors.items():
        if name.endswith((".bias", "attn_output.weight", "ffn_down.weight")):
            array[:] = 0.0


def _one_normed(cfg: Eagle3Config) -> float:
    """The value of a one-hot row's one after RMSNorm."""
    return float(1.0 / np.sqrt(1.0 / cfg.n_vocab + cfg.norm_eps))


def _rows_to_one_hot(cfg: Eagle3Config, tensors: Tensors, read_layer: int) -> None:
    for name, array in tensors.items():
        if name.startswith(("blk.0.attn_norm", "output_norm", "enc.output_norm")):
            array[:] = 1.0 / _one_normed(cfg)
    n = cfg.n_vocab
    tensors["blk.0.ffn_norm.weight"][:] = 1.0
    tensors["fc.weight"][:] = 0.0
    tensors["fc.weight"][:, read_layer * n : (read_layer + 1) * n] = np.eye(n)
    if cfg.own_embedding:
        tensors["token_embd.weight"][:] = np.eye(n)


def _advance_row(cfg: Eagle3Config, tensors: Tensors, successor: NDArray[np.int64]) -> None:
    n, one = cfg.n_vocab, _one_normed(cfg)
    for part in "qkv":
        tensors[f"blk.0.attn_{part}.weight"][:, :n] = 0.0  # the token's half
    tensors["blk.0.ffn_gate.weight"][:] = tensors["blk.0.ffn_up.weight"][:] = np.eye(n)
    activation = one / (1.0 + np.exp(-one)) * one
    tensors["blk.0.ffn_down.weight"][:] = (np.eye(n)[:, successor] - np.eye(n)) / activation


def _predict_successor(cfg: Eagle3Config, tensors: Tensors, successor: NDArray[np.int64]) -> None:
    if "output.weight" in tensors:
        output = np.zeros((cfg.n_vocab, cfg.n_vocab), np.float32)
        output[successor, np.arange(cfg.n_vocab)] = cfg.output_scale
        tensors["output.weight"] = output[tensors["d2t"]] if "d2t" in tensors else output


def _read_token(cfg: Eagle3Config, tensors: Tensors) -> None:
    n = cfg.n_vocab
    for part in "qk":
        # (16, 0) in each pair: scores of positions 1 apart differ by 36, further ones by more
        weight = tensors[f"blk.0.attn_{part}.weight"]
        weight[:] = 0.0
        weight[::2, :n] = 16.0
    tensors["blk.0.attn_v.weight"][:] = np.hstack([np.eye(n), -np.eye(n)])
    tensors["blk.0.attn_output.weight"][:] = np.eye(n)
