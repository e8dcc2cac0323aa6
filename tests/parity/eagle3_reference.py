"""NumPy version of docs/eagle3.md: one EAGLE-3 draft step at a time.

It reads the GGUF file by itself and shares no code with the engine, so that agreement between
the two says something. All arithmetic is float64. RoPE and its scalings are written from their
papers: RoFormer (arXiv 2104.09864), position interpolation (2306.15595), YaRN (2309.00071),
Llama 3.1's and Phi-3's model cards.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.parity.tensor_file import Array, TensorFile

_YARN_BETA_FAST = 32.0
_YARN_BETA_SLOW = 1.0


def _rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """Root-mean-square norm over the last axis of `x` `[..., size]`."""
    result: Array = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight
    return result


def _sigmoid(x: Array) -> Array:
    """The logistic function; by tanh, which does not overflow."""
    result: Array = 0.5 * (1.0 + np.tanh(0.5 * x))
    return result


def _yarn_frequencies(frequencies: Array, base: float, factor: float, original: float) -> Array:
    """NTK-by-parts: fast pairs keep their frequency, slow ones are interpolated; `[d / 2]`."""
    d = 2 * len(frequencies)

    def pair_of(rotations: float) -> float:
        """The pair that turns `rotations` times within the original context."""
        return float(d * np.log(original / (rotations * 2 * np.pi)) / (2 * np.log(base)))

    low = max(np.floor(pair_of(_YARN_BETA_FAST)), 0.0)
    high = min(np.ceil(pair_of(_YARN_BETA_SLOW)), d - 1.0)
    ramp = np.clip((np.arange(d // 2) - low) / max(high - low, 0.001), 0.0, 1.0)
    result: Array = frequencies * (1.0 - ramp) + frequencies / factor * ramp
    return result


def _rope(draft: TensorFile, head_size: int, n_ctx: int) -> tuple[Array, float]:
    """Angle per position of each pair, `[head_size / 2]`, and the scale of cos and sin."""
    if draft.own("rope.dimension_count", head_size) != head_size:
        raise ValueError("the reference turns whole heads only")
    base = draft.own("rope.freq_base", 10000.0)
    frequencies: Array = base ** (-np.arange(0, head_size, 2) / head_size)
    if "rope_freqs.weight" in draft.tensors:
        frequencies = frequencies / draft.tensors["rope_freqs.weight"]
    kind = draft.own("rope.scaling.type", "none")
    if kind == "none":
        return frequencies, 1.0
    if kind == "linear":
        return frequencies / draft.own("rope.scaling.factor"), 1.0
    original = draft.own("rope.scaling.original_context_length")
    if kind == "yarn":
        factor = draft.own("rope.scaling.factor")
        scale = 0.1 * float(np.log(factor)) + 1.0
        return _yarn_frequencies(frequencies, base, factor, original), scale
    if kind == "longrope":
        part = "long" if n_ctx > original else "short"
        factors = draft.tensors[f"rope_factors_{part}.weight"]
        return frequencies / factors, draft.own("rope.scaling.attn_factor", 1.0)
    raise ValueError(f"no reference for RoPE scaling {kind!r}")


class Reference:
    """One draft head with its K/V cache, for one sequence.

    `n_embd` is the width of own rows, `n_features` that of feature rows: the inputs of
    `target_layers`, one after the other. `n_vocab` is the target's vocabulary, `n_draft_vocab`
    the head's, `d2t` int64 `[n_draft_vocab]` or None. RoPE turns pair i at position p by
    `p * frequencies[i]` (float64 `[head size / 2]`) and scales cos and sin by `rope_scale`.
    """

    def __init__(self, path: Path, target_path: Path | None = None, *, n_ctx: int = 512) -> None:
        """Read the head in `path`; `target_path` lends the token embedding and output it lacks.

        `n_ctx` is the draft context's length, which chooses longrope's factors.
        """
        draft = TensorFile(path)
        if draft.arch != "eagle3":
            raise ValueError(f"{path} has architecture {draft.arch!r}, not eagle3")
        self._tensors: Mapping[str, Array] = draft.tensors
        self._read_sizes(draft)
        self.frequencies, self.rope_scale = _rope(draft, self._head_size, n_ctx)
        self.freq_base = float(draft.own("rope.freq_base", 10000.0))
        self.rope_factor = float(draft.own("rope.scaling.factor", 1.0))
        self.d2t = draft.d2t
        lent = {} if target_path is None else TensorFile(target_path).tensors
        self._embedding = self._choose(draft.tensors, lent, "token_embd.weight")
        if "output.weight" in draft.tensors or "output.weight" in lent:
            self._output = self._choose(draft.tensors, lent, "output.weight")
        else:
            # the target's output may be tied to its embedding; a head's own never is
            self._output = self._choose({}, lent, "token_embd.weight")
        self.n_draft_vocab = self._output.shape[0]
        self.n_vocab = int(draft.own("vocab_size", self._embedding.shape[0]))
        # per layer: position -> K and V, each [n_head_kv, head_size]
        self._cache: list[dict[int, tuple[Array, Array]]] = [{} for _ in range(self._n_layer)]

    def _read_sizes(self, draft: TensorFile) -> None:
        self.target_layers = [int(layer) for layer in draft.own("target_layers")]
        self.n_embd = int(draft.own("embedding_length"))
        self._target_n_embd = int(draft.own("target_hidden_size"))
        self.n_features = len(self.target_layers) * self._target_n_embd
        self._n_layer = int(draft.own("block_count"))
        self._n_head = int(draft.own("attention.head_count"))
        self._n_head_kv = int(draft.own("attention.head_count_kv"))
        self._head_size = int(draft.own("attention.key_length", self.n_embd // self._n_head))
        if draft.own("attention.value_length", self._head_size) != self._head_size:
            raise ValueError("attention.key_length and attention.value_length differ")
        self._eps = float(draft.own("attention.layer_norm_rms_epsilon"))

        def flag(name: str) -> bool:
            return bool(draft.own(name, False))

        self._norm_before_residual = flag("norm_before_residual")
        self._norm_before_fc, self._fc_norm = flag("norm_before_fc"), flag("fc_norm")
        if self._norm_before_fc and self._fc_norm:
            raise ValueError("norm_before_fc and fc_norm exclude each other")
        self._norm_output = flag("norm_output")
        self._output_gate = flag("attention.output_gate")

    def _choose(self, own: Mapping[str, Array], lent: Mapping[str, Array], name: str) -> Array:
        tensor = own.get(name, lent.get(name))
        if tensor is None:
            raise ValueError(f"neither the draft nor a target has {name}")
        if tensor.shape[1] != self.n_embd:
            raise ValueError(f"{name} is {tensor.shape[1]} wide, the head {self.n_embd}")
        return tensor

    def _norm(self, name: str, x: Array) -> Array:
        return _rms_norm(x, self._tensors[f"{name}.weight"], self._eps)

    def _linear(self, name: str, x: Array) -> Array:
        """Apply projection `name` (`weight` `[out, in]`, `bias` `[out]` if there is one)."""
        out: Array = self._tensors[f"{name}.weight"] @ x
        bias = self._tensors.get(f"{name}.bias")
        return out if bias is None else out + bias

    def _encode(self, features: Array) -> Array:
        """The row `[n_embd]` that stands for `features` `[n_features]`."""
        if self._norm_before_fc:
            features = self._norm("enc.output_norm", features)
        if self._fc_norm:
            per_layer = features.reshape(len(self.target_layers), self._target_n_embd)
            normed = [self._norm(f"enc.output_norm.{i}", f) for i, f in enumerate(per_layer)]
            features = np.concatenate(normed)
        return self._linear("fc", features)

    def _turn(self, x: Array, position: int) -> Array:
        """Rotate the pairs (2i, 2i+1) of `x` `[n_heads, head_size]`."""
        angles = position * self.frequencies
        pairs = (x[:, 0::2] + 1j * x[:, 1::2]) * self.rope_scale * np.exp(1j * angles)
        out = np.empty_like(x)
        out[:, 0::2], out[:, 1::2] = pairs.real, pairs.imag
        return out

    def _attention(self, layer: int, a: Array, position: int) -> Array:
        """Attention's addition to the residual `[n_embd]`; stores this position's K and V."""
        blk, d = f"blk.{layer}.attn_", self._head_size
        q = self._linear(f"{blk}q", a).reshape(self._n_head, 2 * d if self._output_gate else d)
        q, gate = q[:, :d], q[:, d:]
        k = self._linear(f"{blk}k", a).reshape(self._n_head_kv, d)
        v = self._linear(f"{blk}v", a).reshape(self._n_head_kv, d)
        if f"{blk}q_norm.weight" in self._tensors:
            q, k = self._norm(f"{blk}q_norm", q), self._norm(f"{blk}k_norm", k)
        q, k = self._turn(q, position), self._turn(k, position)
        cache = self._cache[layer]
        cache[position] = (k, v)
        seen = [at for at in sorted(cache) if at <= position]
        mixed = np.empty((self._n_head, d))
        for head in range(self._n_head):
            # each K/V head serves a run of neighbouring query heads
            shared = head * self._n_head_kv // self._n_head
            keys = np.stack([cache[at][0][shared] for at in seen])
            values = np.stack([cache[at][1][shared] for at in seen])
            scores = keys @ q[head] / np.sqrt(d)
            weights = np.exp(scores - scores.max())
            mixed[head] = weights @ values / weights.sum()
        if self._output_gate:
            mixed = mixed * _sigmoid(gate)
        return self._linear(f"{blk}output", mixed.reshape(-1))

    def _feed_forward(self, layer: int, h: Array) -> Array:
        """The gated block's addition to the residual `[n_embd]`."""
        blk = f"blk.{layer}.ffn_"
        n = self._norm(f"{blk}norm", h)
        gate = self._linear(f"{blk}gate", n)
        return self._linear(f"{blk}down", gate * _sigmoid(gate) * self._linear(f"{blk}up", n))

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
        h = row_half if self._norm_before_residual else g
        for layer in range(self._n_layer):
            if layer:
                a = self._norm(f"blk.{layer}.attn_norm", h)
            h = h + self._attention(layer, a, position)
            h = h + self._feed_forward(layer, h)
        y = self._norm("output_norm", h)
        return self._logits(y), y if self._norm_output else h

    def _logits(self, y: Array) -> Array:
        out: Array = self._output @ y
        return out

    def truncate(self, n: int) -> None:
        for cache in self._cache:
            for position in [at for at in cache if at >= n]:
                del cache[position]

    def full_logits(self, draft_logits: NDArray[np.floating]) -> Array:
        """Logits over the target's vocabulary, float64 `[n_vocab]`, from `[n_draft_vocab]`.

        Tokens that `d2t` does not name get -inf.
        """
        if self.d2t is None:
            return np.array(draft_logits, dtype=np.float64)
        full = np.full(self.n_vocab, -np.inf)
        full[self.d2t] = draft_logits
        return full
