"""Estimates whether drafting pays: the gain of rounds with a drafter, against its current cost."""

from __future__ import annotations

from dataclasses import dataclass

from pyllama_spec.speculative.controller.prices import Prices

# The weight of the drafter's other texts, in rounds of the current text.
_LONG_WEIGHT = 4.0
# The prior before any text: a small gain.
_FIRST_GAIN, _FIRST_WEIGHT = 0.05, 2.0


@dataclass(slots=True)
class GainEstimate:
    """Exponentially weighted sums over the rounds that asked a drafter.

    What asking costs is not in the gain but taken at today's price: one slow call, or a price that
    another program left behind, would be held against a drafter long after it is known better.

    Attributes:
        gain: the tokens beyond those of plain decoding in the same time, without the time of
            drafting, in plain rounds.
        weight: the number of rounds.
        n_drafts: the number of rounds in which a model drafted; in the others copies were looked
            up.
        n_steps: the number of tokens that it drafted.

    """

    gain: float = 0.0
    weight: float = 0.0
    n_drafts: float = 0.0
    n_steps: float = 0.0

    def add(self, gain: float, n_steps: int, keep: float) -> None:
        """Adds a round; n_steps is 0 for a lookup.

        Args:
            gain: see GainEstimate.gain.
            n_steps: the number of tokens that a model drafted.
            keep: the factor on the weight of earlier rounds.

        """
        self.gain = self.gain * keep + gain
        self.weight = self.weight * keep + 1.0
        self.n_drafts = self.n_drafts * keep + (n_steps > 0)
        self.n_steps = self.n_steps * keep + n_steps

    def with_long(self, long: GainEstimate) -> GainEstimate:
        """Combines a text's estimate with that of all texts."""
        share = _LONG_WEIGHT / long.weight
        return GainEstimate(
            self.gain + share * long.gain, self.weight + _LONG_WEIGHT,
            self.n_drafts + share * long.n_drafts, self.n_steps + share * long.n_steps,
        )  # fmt: skip

    def per_round(self, prices: Prices) -> float:
        """The gain of a round with the drafter at these prices, in plain rounds."""
        plain = prices.plain_s
        if plain <= 0.0:
            return self.gain / self.weight
        cost = (self.weight - self.n_drafts) * prices.lookup_s
        if self.n_drafts > 0.0:
            cost += self.n_drafts * prices.drafting_s(self.n_steps / self.n_drafts)
        return (self.gain - cost / plain) / self.weight


def prior_gain() -> GainEstimate:
    """The estimate for a drafter that was never asked."""
    return GainEstimate(_FIRST_GAIN * _FIRST_WEIGHT, _FIRST_WEIGHT)
