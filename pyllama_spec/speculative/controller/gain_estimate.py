"""Estimates whether drafting pays: the gain of rounds with a drafter, against its current cost."""

from __future__ import annotations

from collections import deque
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
        """Adds a round; n_steps is 0 for a lookup."""
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


# The share of the most possible gain that is expected of an unknown draft, the rounds that weigh as
# much as that expectation, and the share that is expected of any draft.
_SHARE, _SHARE_ROUNDS, _LEAST_SHARE = 0.5, 80.0, 0.1
# The expected length of a text that begins, the number of known lengths, and how many of them weigh
# as much as the expectation without any.
_LEAST_LENGTH, _N_LENGTHS, _LENGTH_WEIGHT = 64, 32, 4.0


class ReadingHope:
    """What a draft is expected to gain in the rest of a text, from the texts before."""

    def __init__(self) -> None:
        self._lengths: deque[int] = deque(maxlen=_N_LENGTHS)

    def end_text(self, n_tokens: int) -> None:
        """Learns the length of a text; a text without a token is none."""
        if n_tokens:
            self._lengths.append(n_tokens)

    def further_tokens(self, n_tokens: int) -> float:
        """The expected number of tokens after the first n_tokens.

        A text of unknown kind is expected to double, and to get 64 tokens more. The last texts that
        became longer than n_tokens count beside that.
        """
        further = [n - n_tokens for n in self._lengths if n > n_tokens]
        prior = n_tokens + _LEAST_LENGTH
        return (_LENGTH_WEIGHT * prior + sum(further)) / (_LENGTH_WEIGHT + len(further))

    @staticmethod
    def gain_per_token(worth: GainEstimate, prices: Prices) -> float:
        """The expected gain per token, in plain rounds.

        It begins with half of what the draft would gain if all its tokens were accepted, and
        follows its gain in all texts. It stays above zero, so that long texts try the draft again.
        """
        most, gain = prices.most_gain, worth.per_round(prices)
        if gain > 0.0:
            gain /= 1.0 + gain  # of a round, which has more than one token
        total = _SHARE_ROUNDS + worth.weight
        expected = (_SHARE_ROUNDS * _SHARE * most + worth.weight * gain) / total
        return max(expected, _LEAST_SHARE * most)

    def seconds(self, n_tokens: int, worth: GainEstimate, prices: Prices) -> float:
        """The seconds that the draft is expected to save after the first n_tokens of a text."""
        gain = self.gain_per_token(worth, prices)
        return gain * self.further_tokens(n_tokens) * prices.plain_s
