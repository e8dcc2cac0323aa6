"""The reference with two roundings of the engine, which no exact number could be compared with.

RoPE's angles are float32 in every published implementation: at position 300 the last bit of an
angle is 0.00003 rad, and the scores of attention multiply it. GELU comes from a table for F16.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.parity.dflash_parts import Rope, gelu
from tests.parity.dflash_reference import Reference
from tests.parity.tensor_file import Array, TensorFile


class Float32Rope(Rope):
    """Angles as the engine's kernels make them: each pair's from the one before, in float32."""

    def __init__(self, draft: TensorFile, head_size: int) -> None:
        """Read the file's keys."""
        super().__init__(draft, head_size)
        self._base = np.float32(draft.own("rope.freq_base", 10000.0))
        self._factor = float(draft.own("rope.scaling.factor", 1.0))

    def turn(self, x: Array, positions: NDArray[np.int64]) -> Array:
        """Rotates as Rope does."""
        n_pairs = self.n_turned // 2
        step = np.power(self._base, np.float32(-2.0 / self.n_turned))
        # what stretches each pair: 1 where there is no scaling
        plain = float(self._base) ** (-np.arange(n_pairs) / n_pairs)
        stretch = plain / self.frequencies
        angles = np.empty((len(positions), n_pairs), np.float32)
        theta = positions.astype(np.float32)
        for i in range(n_pairs):
            angles[:, i] = self._stretched(theta, float(stretch[i]))
            theta = (theta * step).astype(np.float32)
        pairs = x[..., :n_pairs] + 1j * x[..., n_pairs : self.n_turned]
        pairs = pairs * np.exp(1j * angles.astype(np.float64))[:, None] * self.scale
        out: Array = x.copy()
        out[..., :n_pairs], out[..., n_pairs : self.n_turned] = pairs.real, pairs.imag
        return out

    def _stretched(self, theta: NDArray[np.float32], stretch: float) -> NDArray[np.float32]:
        if self._factor == 1.0 or stretch in (1.0, self._factor):
            same: NDArray[np.float32] = theta / np.float32(stretch)
            return same
        # between: YaRN mixes the stretched angle with the other
        mix = np.float32(1.0) - np.float32((1.0 - 1.0 / stretch) / (1.0 - 1.0 / self._factor))
        product = (theta * mix).astype(np.float64)  # one rounding, as CPUs with FMA do it
        stretched = (theta / np.float32(self._factor)).astype(np.float64)
        mixed = stretched * float(np.float32(1.0) - mix) + product
        out: NDArray[np.float32] = mixed.astype(np.float32)
        return out


def gelu_of_a_table(x: Array) -> Array:
    """GELU of F16 in F16, between -10 and 10."""
    with np.errstate(over="ignore"):
        rounded = gelu(x.astype(np.float16).astype(np.float64)).astype(np.float16)
    out: Array = np.where(np.abs(x) < 10.0, rounded.astype(np.float64), np.maximum(x, 0.0))
    return out


def rounding_reference(path: Path, target: Path | None = None) -> Reference:
    """A reference that rounds so."""
    reference = Reference(path, target)
    reference.rope = Float32Rope(TensorFile(path), reference._head_size)
    if reference._activation is gelu:
        reference._activation = gelu_of_a_table
    return reference
