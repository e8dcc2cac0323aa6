"""The reference with the engine's roundings, so that exact differences expose a mistake.

RoPE's angles are float32 in every published implementation: at position 40,000 the last bit of an
angle is 0.004 rad. Weights in BF16 meet activations that the engine rounds to BF16 first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.parity.eagle3_reference import Reference
from tests.parity.tensor_file import Array


def to_bf16(x: Array) -> Array:
    """Rounds to BF16, to the nearest and at a tie to the even one."""
    bits = x.astype(np.float32).view(np.uint32)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    rounded: Array = bits.view(np.float32).astype(np.float64)
    return rounded


class Float32Angles(Reference):
    """Angles as the engine's kernels make them: each pair's from the one before, in float32."""

    fused = True
    """Whether the compiler made one instruction of a product and a sum, as CPUs with FMA allow."""

    def _turn(self, x: Array, position: int) -> Array:
        n_pairs = len(self.frequencies)
        base = self.freq_base
        step = np.power(np.float32(base), np.float32(-1.0 / n_pairs))
        # What stretches each pair: 1 where there is no scaling.
        stretch = base ** (-np.arange(n_pairs) / n_pairs) / self.frequencies
        angles, theta = np.empty(n_pairs, np.float32), np.float32(position)
        for i in range(n_pairs):
            angles[i] = self._stretched(theta, float(stretch[i]))
            theta = np.float32(theta * step)
        pairs = (x[:, 0::2] + 1j * x[:, 1::2]) * self.rope_scale
        pairs = pairs * np.exp(1j * angles.astype(np.float64))
        out: NDArray[np.float64] = np.empty_like(x)
        out[:, 0::2], out[:, 1::2] = pairs.real, pairs.imag
        return out

    def _stretched(self, theta: np.float32, stretch: float) -> Any:
        factor = self.rope_factor
        if factor == 1.0 or stretch in (1.0, factor):
            return np.float32(theta / np.float32(stretch))
        # Between: YaRN mixes the stretched angle with the other.
        ramp = np.float32((1.0 - 1.0 / stretch) / (1.0 - 1.0 / factor))
        mix = np.float32(np.float32(1.0) - ramp)
        rest = np.float32(np.float32(1.0) - mix)
        stretched, product = np.float32(theta / np.float32(factor)), np.float32(theta * mix)
        if self.fused:
            return np.float32(float(stretched) * float(rest) + float(product))
        return np.float32(np.float32(stretched * rest) + product)


class UnfusedAngles(Float32Angles):
    """The same without FMA."""

    fused = False


class BF16Activations(Float32Angles):
    """For files whose matrices are BF16."""

    def _linear(self, name: str, x: Array) -> Array:
        return super()._linear(name, to_bf16(x))

    def _logits(self, y: Array) -> Array:
        return super()._logits(to_bf16(y))
