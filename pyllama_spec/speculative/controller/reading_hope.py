"""Estimates what a draft may still gain in a text, before it reads the prompt to begin."""

from __future__ import annotations

from collections import deque

from pyllama_spec.speculative.controller.gain_estimate import GainEstimate
from pyllama_spec.speculative.controller.prices import Prices

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

        Args:
            worth: the gain of the draft's rounds in all texts, without reading.
            prices: today's prices.

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
