"""NumPy version of docs/eagle3.md: one EAGLE-3 draft step at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.parity import numpy_model
from tests.parity.numpy_model import Array, attend, sigmoid


class Reference(numpy_model.Reference):
    """One draft head with its K/V cache, for one sequence.

    `n_embd` is the width of own rows, `n_features` that of feature rows: the inputs of
    `target_layers`, one after the other.
    """

    archs = ("eagle3",)
    is_interleaved = True

    def __init__(self, path: Path, target_path: Path | None = None, *, n_ctx: int = 512) -> None:
        super().__init__(path, target_path, n_ctx=n_ctx)
        self.n_layers_read = len(self._file.own("target_layers"))
        self.n_features = self.n_layers_read * int(self._file.own("target_hidden_size"))
        if self._is("norm_before_fc") and self._is("fc_norm"):
            raise ValueError("norm_before_fc and fc_norm exclude each other")

    def _is(self, flag: str) -> bool:
        return bool(self._file.own(flag, False))

    def _encode(self, features: Array) -> Array:
        """The row `[n_embd]` that stands for `features` `[n_features]`."""
        if self._is("norm_before_fc"):
            features = self._norm("enc.output_norm", features)
        if self._is("fc_norm"):
            per_layer = features.reshape(self.n_layers_read, -1)
            normed = [self._norm(f"enc.output_norm.{i}", f) for i, f in enumerate(per_layer)]
            features = np.concatenate(normed)
        return self._linear("fc", features)

    def _attention(self, layer: int, a: Array, position: int) -> Array:
        """Attention's addition to the residual `[n_embd]`; stores this position's K and V."""
        blk, d, is_gated = f"blk.{layer}.attn_", self._head_size, self._is("attention.output_gate")
        q = self._linear(f"{blk}q", a).reshape(1, self._n_head, -1)
        q, gate = q[..., :d], q[..., d:]
        if f"{blk}q_norm.weight" in self._tensors:
            q = self._norm(f"{blk}q_norm", q)
        k = self._heads(f"{blk}k", a[None], self._n_head_kv)
        v = self._heads(f"{blk}v", a[None], self._n_head_kv)
        q, k = self.rope.turn(q, [position]), self.rope.turn(k, [position])
        cache = self._cache[layer]
        cache[position] = (k[0], v[0])
        seen = [cache[at] for at in sorted(cache) if at <= position]
        keys, values = (np.stack(part) for part in zip(*seen, strict=True))
        mixed = attend(q, keys, values, 1.0 / np.sqrt(d))
        if is_gated:
            mixed = mixed * sigmoid(gate)
        return self._linear(f"{blk}output", mixed.reshape(-1))

    def step(
        self, token: int, row: NDArray[np.floating], position: int, *, own: bool
    ) -> tuple[Array, Array]:
        """Read x[position + 1] = `token` with x[position]'s `row`; predict x[position + 2].

        `row` is the head's own row `[n_embd]` if `own`, else the target's features: any shape
        of `n_features` numbers in the order of `target_layers`. K and V are stored under
        `position`, in place of what stood there, and all stored positions <= `position` are
        attended to. Returns the logits, float64 `[n_draft_vocab]`, and the own row that goes
        into the next step, float64 `[n_embd]`.
        """
        given: Array = np.asarray(row, dtype=np.float64).reshape(-1)
        expected = self.n_embd if own else self.n_features
        if len(given) != expected:
            raise ValueError(f"the row has {len(given)} numbers, not {expected}")
        g = given if own else self._encode(given)
        row_half = self._norm("blk.0.attn_norm_2", g)
        a = np.concatenate([self._norm("blk.0.attn_norm", self._embedding[token]), row_half])
        h = row_half if self._is("norm_before_residual") else g
        for layer in range(self._n_layer):
            if layer:
                a = self._norm(f"blk.{layer}.attn_norm", h)
            h = h + self._attention(layer, a, position)
            h = h + self._feed_forward(layer, self._norm(f"blk.{layer}.ffn_norm", h))
        y = self._norm("output_norm", h)
        return self._logits(y), y if self._is("norm_output") else h

    def full_logits(self, draft_logits: Array) -> Array:
        """Logits over the target's vocabulary, `[n_vocab]`; -inf for what `d2t` does not name."""
        return self._spread(draft_logits, -np.inf)
