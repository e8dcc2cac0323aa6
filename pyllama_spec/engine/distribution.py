"""A distribution over ids: what a sampler draws from, after all its cuts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pyllama_spec.errors import ArgumentError


class Distribution:
    """Probabilities of ids. All other ids have probability 0.

    Args:
        ids: [n] the ids, without duplicates.
        weights: [n] numbers from 0 on, proportional to the probabilities.

    Attributes:
        ids: [n] int32, the ids with a probability above 0, in the given order.
        p: [n] float64, their probabilities, with the sum 1.
    """

    __slots__ = ("ids", "p")

    def __init__(self, ids: npt.ArrayLike, weights: npt.ArrayLike) -> None:
        all_ids, p = np.asarray(ids, np.int32), np.asarray(weights, np.float64)
        if all_ids.ndim != 1 or all_ids.shape != p.shape:
            raise ArgumentError(
                "p",
                problem=f"has the shape {p.shape}",
                expected=f"{all_ids.shape}: a weight for each id",
            )
        total = float(p.sum())
        # NaN fails each comparison.
        if not (0.0 < total < np.inf and p.min() >= 0.0 and all_ids.min() >= 0):
            raise ArgumentError(
                "p", problem=f"has the sum {total}", expected="weights from 0 on, and one above 0"
            )
        is_possible = p > 0.0
        if not is_possible.all():
            all_ids, p = all_ids[is_possible], p[is_possible]
        self.ids: npt.NDArray[np.int32] = all_ids
        self.p: npt.NDArray[np.float64] = p / total

    @classmethod
    def of_logits(cls, ids: npt.NDArray[np.int32], logits: npt.NDArray[np.float32]) -> Distribution:
        """The softmax of logits, with sums in float64.

        Args:
            ids: [n] the ids, without duplicates.
            logits: [n] their logits; minus infinity means probability 0.
        """
        wide = logits.astype(np.float64)
        peak = wide.max(initial=-np.inf)
        if not np.isfinite(peak):
            raise ArgumentError(
                "logits", problem=f"have the maximum {peak}", expected="a finite one"
            )
        return cls(ids, np.exp(wide - peak))

    @property
    def largest(self) -> float:
        """The probability of the likeliest id."""
        return float(self.p.max())

    def of(self, token: int) -> float:
        """The probability of an id."""
        at = np.flatnonzero(self.ids == token)
        return float(self.p[at[0]]) if len(at) else 0.0

    def draw(self, u: float) -> int:
        """The id that a random number from [0, 1) selects."""
        sums = np.cumsum(self.p)
        at = int(np.searchsorted(sums, u * sums[-1], side="right"))
        return int(self.ids[min(at, len(self.ids) - 1)])

    def beyond(self, other: Distribution) -> Distribution | None:
        """The remainder after subtracting another distribution: max(0, p - q), normalised."""
        most = int(max(self.ids.max(), other.ids.max()))
        q = np.zeros(most + 1)  # of a vocabulary: pages that nothing is written to cost nothing
        q[other.ids] = other.p
        rest = np.maximum(self.p - q[self.ids], 0.0)
        return Distribution(self.ids, rest) if rest.any() else None
