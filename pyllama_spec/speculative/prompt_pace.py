"""How many prompt tokens to prefill while other sequences wait for their next token.

A part of a prompt is a decode of its own, and whoever generates beside it pauses for as long. Large
parts are read faster, small ones are hardly noticed: a part is as large as keeps the pause within a
bound on this machine, by the clock. That changes no number where a row of a batch is, to the bit,
what it is alone, and nothing else than such contexts has a pace; elsewhere parts have one size.
"""

from __future__ import annotations

# How long generating requests may pause for another request's prompt.
MAX_PAUSE_S = 0.5
# Parts are multiples of it, which is what products are computed in.
_STEP = 32
# Before anything is known: 64 tokens take less than the bound on a slow machine too.
_FIRST = 64
# How much the newest part counts: other programs come and go.
_NEWEST = 0.5


class PromptPace:
    """Learns the seconds per prompt token.

    Args:
        max_part: the maximum number of tokens of a part.
        max_pause_s: the maximum seconds that a part should take.

    Attributes:
        token_s: the seconds per token of a prompt; None before the first part was read.

    """

    def __init__(self, max_part: int, max_pause_s: float = MAX_PAUSE_S) -> None:
        self._max_part, self._max_pause_s = max_part, max_pause_s
        self.token_s: float | None = None

    @property
    def n_part(self) -> int:
        """The number of prompt tokens per part while others wait; never too few."""
        if self.token_s is None:
            return min(_FIRST, self._max_part)
        n_most = self._max_pause_s / max(self.token_s, 1e-9)
        n = self._max_part if n_most >= self._max_part else int(n_most) // _STEP * _STEP
        return max(min(n, self._max_part), min(_STEP, self._max_part))

    def learn(self, n_tokens: int, seconds: float) -> None:
        """Learns the seconds of a part.

        Args:
            n_tokens: the number of tokens of the part. A few are no measure: a decode takes some
                time whatever it computes.
            seconds: its seconds, including the drafter's commit().

        """
        if n_tokens < min(_STEP, self._max_part):
            return
        token_s = seconds / n_tokens
        if self.token_s is not None:
            token_s = _NEWEST * token_s + (1 - _NEWEST) * self.token_s
        self.token_s = token_s
