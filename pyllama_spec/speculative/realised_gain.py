"""The measured gain of drafts, and whether the samples are enough to report it.

The seconds of one round are noisy: another program takes the core, a page is read from the disk.
The gain of a text is the sum of its rounds' gains, and is reported once its sign is certain: the
mean of n gains, over its standard error, has Student's distribution with n - 1 degrees of freedom
where the mean is truly 0. Beyond that distribution's quantile of 97.5%, a sign that is wrong has a
chance of 2.5% at most. The rule adapts to the noise: equal gains need two rounds, and one slow
round among few makes the sum unknown.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# The quantile of 97.5% of Student's distribution for 1, 2, 3 ... degrees of freedom. The last one
# holds for all further ones: they have smaller quantiles, down to 1.96.
_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


@dataclass(slots=True)
class RealisedGain:
    """The gain of some rounds, in rounds of plain decoding.

    Attributes:
        n_rounds: the number of measured rounds.
        total: the sum of their gains.
        squares: the sum of the gains' squares.

    """

    n_rounds: int = 0
    total: float = 0.0
    squares: float = 0.0

    def count(self, gain: float) -> None:
        """Counts a round."""
        self.n_rounds += 1
        self.total += gain
        self.squares += gain * gain

    def add(self, other: RealisedGain) -> None:
        """Adds the rounds of another text."""
        self.n_rounds += other.n_rounds
        self.total += other.total
        self.squares += other.squares

    @property
    def standard_error(self) -> float | None:
        """The standard error of a round's mean gain; None for fewer than two rounds."""
        n = self.n_rounds
        if n < 2:
            return None
        return math.sqrt(max(self.squares - self.total * self.total / n, 0.0) / (n - 1) / n)

    @property
    def known(self) -> float | None:
        """The total gain; None until its sign is certain, as the module's docstring says."""
        error = self.standard_error
        if error is None:
            return None
        quantile = _QUANTILES[min(self.n_rounds - 1, len(_QUANTILES)) - 1]
        return self.total if abs(self.total) / self.n_rounds > quantile * error else None
