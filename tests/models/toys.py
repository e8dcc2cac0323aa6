"""Models whose behaviour is known in closed form: PERM, CONSTANT and MARKOV."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import parts
from .config import TinyConfig
from .sketch import Sketch
from .vocab import SPECIAL_IDS, shuffled

CONSTANT_TOKENS = tuple(range(ord("a"), ord("q")))
"""The 16 tokens that a CONSTANT model emits: the letters a to p."""
CONSTANT_REST_LOGIT = -50.0


def perm_next(n_vocab: int = 320, *, seed: int = 0, n_cycles: int = 1) -> NDArray[np.int64]:
    """The PERM model's successor of each token, int64 `[n_vocab]`, a permutation.

    The non-special tokens form `n_cycles` cycles of nearly equal length (one by default).
    Each special token is its own successor: no ordinary prompt ever reaches EOS, and a prompt
    that ends in EOS is followed by EOS.
    """
    successor = np.arange(n_vocab, dtype=np.int64)
    ordinary = np.setdiff1d(successor, np.array(SPECIAL_IDS))
    order = np.random.default_rng(seed).permutation(ordinary)
    for cycle in np.array_split(order, n_cycles):
        successor[cycle] = np.roll(cycle, -1)
    return successor


def perm_continuation(last_token: int, n_tokens: int, successor: NDArray[np.int64]) -> list[int]:
    """The `n_tokens` tokens that greedy PERM emits after a prompt ending in `last_token`."""
    out: list[int] = []
    for _ in range(n_tokens):
        last_token = int(successor[last_token])
        out.append(last_token)
    return out


def _inert_llama(m: Sketch) -> None:
    """Add llama layers that leave the residual stream as it is.

    Q, K, V, gate and up are random, so that caches hold real values; the two projections back
    into the residual are zero.
    """
    cfg = m.cfg
    parts.header(m)
    for _, blk in parts.layers(m):
        parts.norms(m, blk, "attn_norm", "ffn_norm")
        parts.attention(m, blk)
        parts.gated_ffn(m, blk)
        m.tensors[f"{blk}attn_output.weight"] = np.zeros((cfg.n_embd, cfg.n_embd), np.float32)
        m.tensors[f"{blk}ffn_down.weight"] = np.zeros((cfg.n_embd, cfg.n_ff), np.float32)


def build_perm(
    path: Path,
    *,
    n_vocab: int = 320,
    seed: int = 0,
    n_layer: int = 4,
    n_cycles: int = 1,
    output_scale: float = 16.0,
    stepping: bool = False,
    **extra: Any,
) -> Path:
    """Write the PERM target: a llama whose next token is `perm_next(...)[current token]`.

    `n_embd == n_vocab`, a multiple of 8. The residual at every layer is the one-hot row of the
    current token. The successor's logit is `output_scale`, every other logit is 0.

    With `stepping` each layer takes a step: the input of layer k is the one-hot row of the token
    k steps ahead, except for rounding. So the rows of no two layers are equal.
    """
    if stepping:
        extra["n_ff"] = n_vocab
    cfg = TinyConfig("llama", seed, n_layer, n_vocab, n_embd=n_vocab, **extra)
    m = Sketch(cfg)
    _inert_llama(m)
    m.put("token_embd.weight", np.eye(n_vocab, dtype=np.float32))
    m.put("output_norm.weight", np.ones(n_vocab, np.float32))
    successor = perm_next(n_vocab, seed=seed, n_cycles=n_cycles)
    if cfg.shuffle:
        ids = shuffled(n_vocab, cfg.shuffle)
        successor = ids[successor[np.argsort(ids)]]
    output = np.zeros((n_vocab, n_vocab))
    # RMSNorm divides a one-hot row of width n by sqrt(1 / n + eps)
    rms = np.sqrt(1.0 / n_vocab + cfg.norm_eps)
    entering_output = np.arange(n_vocab)
    if stepping:
        _step_each_layer(m, successor, float(rms))
        for _ in range(n_layer):
            entering_output = successor[entering_output]
    output[successor, entering_output] = output_scale * rms
    m.put("output.weight", output)
    return m.write(path)


def _step_each_layer(m: Sketch, successor: NDArray[np.int64], rms: float) -> None:
    """Make feed-forward unit y, which only e_y activates, add e_successor(y) - e_y."""
    eye = np.eye(len(successor), dtype=np.float32)
    one = 1.0 / rms
    activation = one / (1.0 + np.exp(-one)) * one
    for _, blk in parts.layers(m):
        m.tensors[f"{blk}ffn_norm.weight"][:] = 1.0
        m.tensors[f"{blk}ffn_gate.weight"][:] = m.tensors[f"{blk}ffn_up.weight"][:] = eye
        m.tensors[f"{blk}ffn_down.weight"][:] = (eye[:, successor] - eye) / activation


def build_markov(
    path: Path,
    chances: Sequence[Sequence[float]],
    *,
    n_vocab: int = 320,
    seed: int = 0,
    n_layer: int = 1,
    **extra: Any,
) -> Path:
    """Write a llama whose next-token distribution depends on the current token alone.

    `chances[i][j]` (`[k][k]`, positive, k at most 16, rows sum to 1) is the probability that
    `CONSTANT_TOKENS[j]` follows `CONSTANT_TOKENS[i]`. After any other token it is `chances[0]`.
    Every other logit is `CONSTANT_REST_LOGIT`.
    """
    p = np.asarray(chances, dtype=np.float64)
    k = len(p)
    cfg = TinyConfig("llama", seed, n_layer, n_vocab, n_embd=n_vocab, **extra)
    m = Sketch(cfg)
    _inert_llama(m)
    m.put("token_embd.weight", np.eye(n_vocab, dtype=np.float32))
    m.put("output_norm.weight", np.ones(n_vocab, np.float32))
    letters = list(CONSTANT_TOKENS[:k])
    if cfg.shuffle:
        letters = shuffled(n_vocab, cfg.shuffle)[letters].tolist()
    logits = np.full((n_vocab, n_vocab), CONSTANT_REST_LOGIT)
    logits[letters] = np.log(p[0])[:, None]
    logits[np.ix_(letters, letters)] = np.log(p).T
    m.put("output.weight", logits * np.sqrt(1.0 / n_vocab + cfg.norm_eps))
    return m.write(path)


def default_probabilities() -> NDArray[np.float64]:
    """The CONSTANT model's default distribution, float64 `[16]`: uneven, none below 0.7 %."""
    weights = 0.8 ** np.arange(len(CONSTANT_TOKENS), dtype=np.float64)
    result: NDArray[np.float64] = weights / weights.sum()
    return result


def build_constant(
    path: Path,
    probabilities: NDArray[np.floating] | None = None,
    *,
    n_vocab: int = 320,
    seed: int = 0,
    n_layer: int = 2,
    **extra: Any,
) -> Path:
    """Write a llama whose next-token distribution never changes.

    `probabilities[i]` (`[16]`, positive, summing to 1) belongs to `CONSTANT_TOKENS[i]`: that
    token's logit is the probability's logarithm. Every other logit is `CONSTANT_REST_LOGIT`.
    """
    given = default_probabilities() if probabilities is None else probabilities
    p = np.asarray(given, dtype=np.float64)
    cfg = TinyConfig("llama", seed, n_layer, n_vocab, **extra)
    m = Sketch(cfg)
    _inert_llama(m)
    m.put("token_embd.weight", np.ones((n_vocab, cfg.n_embd), np.float32))
    m.put("output_norm.weight", np.ones(cfg.n_embd, np.float32))
    logits = np.full(n_vocab, CONSTANT_REST_LOGIT)
    logits[list(CONSTANT_TOKENS)] = np.log(p)
    output = np.zeros((n_vocab, cfg.n_embd))
    # one column carries the logits, so that no sum rounds them; RMSNorm of ones is a bit below 1
    output[:, 0] = logits * np.sqrt(1.0 + cfg.norm_eps)
    m.put("output.weight", output)
    return m.write(path)
