"""A DFlash draft with predictable tokens, for the PERM target of toys.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .dflash import DFlashConfig, dflash_tensors, write_dflash
from .eagle3 import Tensors
from .toys import perm_next

Read = Literal["newest", "spread"]
Array = NDArray[np.float64]

# a neighbour of the attended position has a weight of exp(-CONTRAST)
_CONTRAST = 24.0
_MAX_FREQUENCIES = 30


class _Code:
    """Token vectors in which a step of the permutation is a rotation.

    A token at place t of a cycle of length L has the pairs (cos, sin)(2 pi f t / L) for some f,
    divided by the square root of their number. A token that is its own successor has its own
    component. So k steps are one orthogonal matrix for all tokens, and dot products of different
    tokens are far below 1.
    """

    def __init__(self, successor: NDArray[np.int64], room: int, seed: int) -> None:
        """Find codes of at most `room` components."""
        cycles = _cycles(successor)
        n_single = sum(len(cycle) == 1 for cycle in cycles)
        n_long = len(cycles) - n_single
        n_frequencies = min((room - n_single) // (2 * max(n_long, 1)), _MAX_FREQUENCIES)
        self.size = n_single + 2 * n_frequencies * n_long
        self.rows: Array = np.zeros((len(successor), self.size))
        self._pairs: list[tuple[int, float]] = []
        rng, at = np.random.default_rng([seed, 1]), 0
        for cycle in cycles:
            if len(cycle) == 1:
                self.rows[cycle, at] = 1.0
                at += 1
                continue
            n = min(n_frequencies, (len(cycle) - 1) // 2)
            for f in rng.choice(np.arange(1, (len(cycle) + 1) // 2), n, replace=False):
                angle = 2 * np.pi * f / len(cycle)
                turns = angle * np.arange(len(cycle))
                self.rows[cycle, at] = np.cos(turns) / np.sqrt(n)
                self.rows[cycle, at + 1] = np.sin(turns) / np.sqrt(n)
                self._pairs.append((at, float(angle)))
                at += 2

    def step(self, n: int) -> Array:
        """The matrix `[size, size]` from a token's code to that of the token n steps ahead."""
        matrix: Array = np.eye(self.size)
        for at, angle in self._pairs:
            cos, sin = np.cos(n * angle), np.sin(n * angle)
            matrix[at : at + 2, at : at + 2] = [[cos, -sin], [sin, cos]]
        return matrix


def _cycles(successor: NDArray[np.int64]) -> list[list[int]]:
    cycles, left = [], set(range(len(successor)))
    while left:
        token = min(left)
        cycle = []
        while token in left:
            left.remove(token)
            cycle.append(token)
            token = int(successor[token])
        cycles.append(cycle)
    return cycles


def build_perm_dflash(
    path: Path,
    *,
    n_vocab: int = 320,
    seed: int = 0,
    n_cycles: int = 1,
    target_layers: tuple[int, ...] = (1,),
    stepping: bool = False,
    read: Read = "newest",
    read_layer: int | None = None,
    reduced: bool = False,
    n_draft_vocab: int | None = None,
    block_size: int = 8,
    **extra: Any,
) -> Path:
    """Write a draft that predicts the text of the PERM target (`build_perm`, same arguments).

    By default every slot reads only the newest injected row, that of position P - 1. The token
    in the block's first slot only has to differ from the mask. If that row is stale, shifted,
    permuted, NaN or of another text, the whole block is wrong; earlier rows do not matter. With
    `read="spread"` draft d (0, 1, ...) reads the row of P - 1 - d, so that a block tests
    `block_size` rows. Then the text, prompts included, must follow the permutation that far back.

    Features are the mean over `target_layers`, or `target_layers[read_layer]` alone. They depend
    on the layer: with a `stepping` target, the features of any other layer are wrong.

    `reduced` writes a `d2t` with `n_draft_vocab` ids (all by default) in random order. `extra`
    are further fields of `DFlashConfig`, `variant` among them: DFlash2's convolution and selector
    and DSpark's Markov head change nothing, its confidence is 0.88. A window must be wider than
    the furthest row read: `block_size`, or twice that for `spread`.
    """
    successor = perm_next(n_vocab, seed=seed, n_cycles=n_cycles)
    code = _Code(successor, n_vocab - 3 - block_size, seed)
    cfg = DFlashConfig(
        seed=seed,
        n_vocab=n_vocab,
        n_draft_vocab=(n_draft_vocab or n_vocab) if reduced else None,
        sorted_d2t=False,
        target_layers=target_layers,
        n_embd=n_vocab,
        n_head=block_size,
        n_head_kv=1,
        head_dim=max(64, code.size + code.size % 2),
        n_ff=32,
        block_size=block_size,
        **{"rope_freq_base": 500.0, **extra},
    )
    layout = _Layout(cfg, code, read)
    tensors = dflash_tensors(cfg)
    _inert(tensors)
    layout.rows_to_codes(tensors, stepping, read_layer)
    layout.find_slots(tensors)
    layout.read_codes(tensors)
    layout.name_tokens(tensors)
    return write_dflash(path, cfg, tensors)


def _inert(tensors: Tensors) -> None:
    """Zero what layers and heads add, and let convolutions keep each row."""
    layers = ("attn_output.weight", "ffn_down.weight", "_conv_proj.weight")
    heads = ("selector_hidden.weight", "markov_w2.weight", "conf_proj.weight")
    for name, array in tensors.items():
        if name.endswith(layers + heads):
            array[:] = 0.0
        if name.endswith("_conv_base"):
            array[:] = 0.0
            array[:, 0] = 1.0
        if name == "conf_proj.bias":
            array[:] = 2.0


class _Layout:
    """The layout of the residual, which is `n_vocab` wide: code, flags, a marker per slot.

    With the same K for all rows and a Q rotated back by n positions, RoPE attends only to the row
    n positions back. In layer 0, head h looks h positions back for the block's first token. Only
    slot i finds it with head i, which writes marker i. In layer 1, the marker rotates the Q of head
    i to the wanted row. Other heads attend to their own slot, whose V is 0. V is the row's code.
    Head i's output matrix advances it by the steps from the row's position to the drafted one.
    """

    def __init__(self, cfg: DFlashConfig, code: _Code, read: Read) -> None:
        self._cfg, self._code, self._read = cfg, code, read
        self._code_end = code.size
        # row of a feature or filler / the block's first token / mask token
        self._one, self._first, self._mask = range(code.size, code.size + 3)
        self._marker = code.size + 3
        self._n_slot = cfg.n_head
        half = cfg.head_size // 2
        self._frequencies: Array = cfg.rope_freq_base ** (-np.arange(half) / half)
        # many low frequencies, as in the spectrum of exp(-|x|): each position back scores less
        w = self._frequencies
        amplitudes = w / (w**2 + self._n_slot**-2.0) * np.exp(-(w**2))
        # of squared length head_size, as the norm makes it
        self._amplitudes: Array = amplitudes * np.sqrt(cfg.head_size / (amplitudes**2).sum())
        self._ahead = int(cfg.variant == "dspark" and cfg.sample_from_anchor is not False)

    def _undo_norm(self, square: float) -> float:
        """The weight with which RMSNorm keeps a row of that squared length unchanged."""
        return float(np.sqrt(square / self._cfg.n_embd + self._cfg.norm_eps))

    def _look_back(self, n: int) -> Array:
        """The Q `[head_size]` that attends to the row `n` positions back."""
        angles = -self._frequencies * n
        return np.concatenate(
            [self._amplitudes * np.cos(angles), self._amplitudes * np.sin(angles)]
        )

    def _qk_weight(self) -> float:
        """The weight of both head norms that lowers scores by `_CONTRAST` or more per position."""
        lags = np.arange(2 * self._n_slot + 1)
        # the norm makes each pair of K sqrt(2) long
        scores = np.sqrt(2) * np.cos(np.outer(lags, self._frequencies)) @ self._amplitudes
        drop = float(np.min(scores[:-1] - scores[1:]))
        return float(np.sqrt(_CONTRAST * np.sqrt(self._cfg.head_size) / drop))

    def rows_to_codes(self, tensors: Tensors, stepping: bool, read_layer: int | None) -> None:
        """Make features, tokens and masks rows of squared length 2: a code or flag and a flag."""
        cfg, end, n = self._cfg, self._code_end, self._cfg.n_embd
        fc = np.zeros((n, len(cfg.target_layers), n))
        taps = range(len(cfg.target_layers)) if read_layer is None else [read_layer]
        for tap in taps:
            back = self._code.step(-cfg.target_layers[tap] if stepping else 0)
            fc[:end, tap] = back @ self._code.rows.T / len(taps)
            fc[self._one, tap] = 1.0 / len(taps)
        tensors["fc.weight"][:] = fc.reshape(n, -1)
        tensors["enc.output_norm.weight"][:] = self._undo_norm(2.0)
        embedding = np.zeros((cfg.n_vocab, n))
        embedding[:, self._first] = 1.0
        embedding[:, self._one] = 1.0
        if cfg.mask_token is not None:
            embedding[cfg.mask_token] = 0.0
            embedding[cfg.mask_token, [self._mask, self._one]] = 1.0
        tensors["token_embd.weight"][:] = embedding / (cfg.embedding_scale or 1.0)

    def _same_keys(self, tensors: Tensors, blk: str) -> None:
        """Give all rows the same K: 1 in each pair."""
        flags = [self._one, self._first, self._mask]
        half = self._cfg.head_size // 2
        for part in "qkv":
            if f"{blk}attn_{part}.weight" in tensors:
                tensors[f"{blk}attn_{part}.weight"][:] = 0.0
        for flag in flags:
            tensors[f"{blk}attn_k.weight"][:half, flag] = 1.0
        for part in "qk":
            tensors[f"{blk}attn_{part}_norm.weight"][:] = self._qk_weight()

    def find_slots(self, tensors: Tensors) -> None:
        """Layer 0: in slot i, head i finds the block's first token and writes marker i."""
        blk, d = "blk.0.", self._cfg.head_size
        self._same_keys(tensors, blk)
        tensors[f"{blk}attn_norm.weight"][:] = self._undo_norm(2.0)
        tensors[f"{blk}attn_v.weight"][0, self._first] = 1.0
        for head in range(self._n_slot):
            for flag in (self._first, self._mask):
                at = slice(head * d, (head + 1) * d)
                tensors[f"{blk}attn_q.weight"][at, flag] = self._look_back(head)
            tensors[f"{blk}attn_output.weight"][self._marker + head, head * d] = 1.0

    def _distance(self, slot: int) -> int:
        """The number of positions that a slot looks back."""
        draft = slot if self._ahead else max(slot - 1, 0)
        return slot + 1 + (draft if self._read == "spread" else 0)

    def read_codes(self, tensors: Tensors) -> None:
        """Layer 1: head i of slot i reads a code and adds that of the token it drafts."""
        blk, d, end = "blk.1.", self._cfg.head_size, self._code_end
        self._same_keys(tensors, blk)
        tensors[f"{blk}attn_norm.weight"][:] = self._undo_norm(3.0)
        tensors[f"{blk}attn_v.weight"][:end, :end] = np.eye(end)
        for head in range(self._n_slot):
            at, n = slice(head * d, (head + 1) * d), self._distance(head)
            for flag in (self._first, self._mask):
                tensors[f"{blk}attn_q.weight"][at, flag] = self._look_back(0)
            turned = self._look_back(n) - self._look_back(0)
            tensors[f"{blk}attn_q.weight"][at, self._marker + head] = turned
            step = self._code.step(n + self._ahead)
            tensors[f"{blk}attn_output.weight"][:end, head * d : head * d + end] = step

    def name_tokens(self, tensors: Tensors) -> None:
        """The output: each token's logit is `output_scale` times the product with its code."""
        cfg = self._cfg
        tensors["output_norm.weight"][:] = self._undo_norm(4.0)
        output = np.zeros((cfg.n_vocab, cfg.n_embd), np.float32)
        output[:, : self._code_end] = self._code.rows * cfg.output_scale
        tensors["output.weight"] = output[tensors["d2t"]] if "d2t" in tensors else output
