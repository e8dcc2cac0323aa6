"""Parts of the DFlash reference: the file, norms, RoPE and attention, all in float64.

Nothing here is shared with the engine. RoPE and its scalings are written from their papers:
RoFormer (arXiv 2104.09864, in the half-split form of the Qwen3 model code), position
interpolation (2306.15595), YaRN (2309.00071) and Llama 3.1's model card.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tests.parity.tensor_file import Array, TensorFile

_YARN_BETA_FAST = 32.0
_YARN_BETA_SLOW = 1.0


def rms_norm(x: Array, weight: Array | float, eps: float) -> Array:
    """Root-mean-square norm over the last axis of `x` `[..., size]`."""
    result: Array = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight
    return result


def sigmoid(x: Array) -> Array:
    """The logistic function; by tanh, which does not overflow."""
    result: Array = 0.5 * (1.0 + np.tanh(0.5 * x))
    return result


def silu(x: Array) -> Array:
    """`x * sigmoid(x)`."""
    result: Array = x * sigmoid(x)
    return result


def gelu(x: Array) -> Array:
    """GELU in its tanh form, which checkpoints call `gelu_pytorch_tanh`.

    On the CPU, the engine's is a table of half floats: logits of 8 (std) differ by 0.01.
    """
    result: Array = 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))
    return result


def softmax(x: Array) -> Array:
    """Softmax over the last axis; -inf gives 0."""
    weights = np.exp(x - np.max(x, axis=-1, keepdims=True))
    result: Array = weights / weights.sum(axis=-1, keepdims=True)
    return result


class Rope:
    """Half-split RoPE over the first `n_turned` numbers of a head.

    Pair i is (i, i + n_turned / 2); at position p it turns by `p * frequencies[i]`, and `scale`
    multiplies cos and sin. With `rope.dimension_sections` all pairs belong to the temporal
    section: a draft of an M-RoPE target rotates like any other.
    """

    def __init__(self, draft: TensorFile, head_size: int) -> None:
        """Read the file's keys; ValueError for a scaling without reference."""
        self.n_turned = n = int(draft.own("rope.dimension_count", head_size))
        base = float(draft.own("rope.freq_base", 10000.0))
        sections = [int(size) for size in draft.own("rope.dimension_sections", [0])]
        if any(sections[1:]):
            raise ValueError(f"rope.dimension_sections {sections}: only the first may count")
        self.frequencies: Array = base ** (-np.arange(0, n, 2) / n)
        self.scale = 1.0
        factors = draft.tensors.get("rope_freqs.weight")
        if factors is not None and not any(sections):
            self.frequencies = self.frequencies / factors[: n // 2]
        kind = draft.own("rope.scaling.type", "none")
        if kind == "linear":
            self.frequencies = self.frequencies / float(draft.own("rope.scaling.factor"))
        elif kind == "yarn":
            factor = float(draft.own("rope.scaling.factor"))
            original = float(draft.own("rope.scaling.original_context_length"))
            self._interpolate_by_parts(base, factor, original)
        elif kind != "none":
            raise ValueError(f"no reference for RoPE scaling {kind!r}")

    def _interpolate_by_parts(self, base: float, factor: float, original: float) -> None:
        """YaRN: fast pairs keep their frequency, slow ones are interpolated."""
        n = self.n_turned

        def pair_of(rotations: float) -> float:
            """The pair that turns `rotations` times within the original context."""
            return float(n * np.log(original / (rotations * 2 * np.pi)) / (2 * np.log(base)))

        low = max(np.floor(pair_of(_YARN_BETA_FAST)), 0.0)
        high = min(np.ceil(pair_of(_YARN_BETA_SLOW)), n - 1.0)
        ramp = np.clip((np.arange(n // 2) - low) / max(high - low, 0.001), 0.0, 1.0)
        self.frequencies = self.frequencies * (1.0 - ramp + ramp / factor)
        self.scale = 0.1 * float(np.log(factor)) + 1.0

    def turn(self, x: Array, positions: NDArray[np.int64]) -> Array:
        """`x` `[n_tokens, n_heads, head_size]`, turned to its tokens' `positions` `[n_tokens]`."""
        half = self.n_turned // 2
        angles = positions[:, None, None] * self.frequencies
        pairs = x[..., :half] + 1j * x[..., half : self.n_turned]
        pairs = pairs * np.exp(1j * angles) * self.scale
        out: Array = x.copy()
        out[..., :half], out[..., half : self.n_turned] = pairs.real, pairs.imag
        return out


def attend(
    q: Array, k: Array, v: Array, seen: NDArray[np.bool_], scale: float, sinks: Array | None
) -> Array:
    """Grouped-query attention: `q` `[n, heads, d]`, `k` and `v` `[m, kv heads, d]` -> as `q`.

    `seen` `[n, m]` says which key a query may look at. `sinks` `[heads]` are logits that take
    their share of the softmax and give no value.
    """
    # each K/V head serves a run of neighbouring query heads
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k) * scale
    scores[:, ~seen] = -np.inf
    if sinks is not None:
        column = np.broadcast_to(sinks[:, None, None], (*scores.shape[:2], 1))
        scores = np.concatenate([scores, column], axis=-1)
    weights = softmax(scores)[..., : len(v)]
    result: Array = np.einsum("hqk,khd->qhd", weights, v)
    return result
