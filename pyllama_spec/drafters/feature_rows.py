"""Feature rows that a drafter keeps: the newest of a sequence, by position."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pyllama_spec.engine.layer_rows import LayerRows

Rows = npt.NDArray[np.float32]


class FeatureRows:
    """The feature rows of positions start .. end - 1, without a gap."""

    def __init__(self, n_features: int) -> None:
        self.n_features = n_features
        self.start = self.end = 0
        # shape: [capacity, n_features]
        self._buffer: Rows = np.empty((16, n_features), dtype=np.float32)

    def append(self, position: int, features: Sequence[Rows]) -> None:
        """Adds rows from a position on; if they leave a gap, the earlier rows are dropped.

        Args:
            position: the position of the first row.
            features: one array per target layer.  # [n_rows, n_embd] float32
        """
        if position != self.end:
            self.start = self.end = position
        first, column = self.end - self.start, 0
        if isinstance(features, LayerRows):  # straight from the target: one call for all layers
            n = features.n
            self._reserve(first + n)
            features.copy_to(self._buffer, first)
        else:
            n = len(features[0])
            self._reserve(first + n)
            for layer in features:
                width = layer.shape[1]
                self._buffer[first : first + n, column : column + width] = layer
                column += width
        self.end += n

    def _reserve(self, n: int) -> None:
        if n > len(self._buffer):
            held = self.end - self.start
            grown = np.empty((max(n, 2 * len(self._buffer)), self.n_features), dtype=np.float32)
            grown[:held] = self._buffer[:held]
            self._buffer = grown

    def view(self, first: int, end: int) -> Rows:
        """Rows first .. end - 1, [end - first, n_features], valid until a change."""
        if not self.start <= first <= end <= self.end:
            raise IndexError(f"rows {first} .. {end} asked for, {self.start} .. {self.end} held")
        return self._buffer[first - self.start : end - self.start]

    def holds(self, position: int) -> bool:
        """Whether it has the row of a position."""
        return self.start <= position < self.end

    def truncate(self, end: int) -> None:
        """Forgets the rows from position `end` on."""
        self.end = max(min(self.end, end), 0)
        self.start = min(self.start, self.end)

    def keep_last(self, n: int) -> None:
        """Forgets all but the newest n rows."""
        drop = self.end - self.start - n
        if drop > 0:
            held = self.end - self.start
            # The two ranges may overlap; NumPy copies as if they did not.
            self._buffer[:n] = self._buffer[drop:held].copy()
            self.start += drop
            if len(self._buffer) > 4 * max(n, 16):  # a long prompt's batch has gone through it
                self._buffer = self._buffer[: max(n, 16)].copy()

    def copy(self) -> FeatureRows:
        """An independent copy of the rows."""
        out = FeatureRows(self.n_features)
        if self.end > self.start:
            out.append(self.start, [self.view(self.start, self.end)])
        else:
            out.start = out.end = self.end
        return out
