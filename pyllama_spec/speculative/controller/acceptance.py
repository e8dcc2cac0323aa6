"""The acceptance model: the chance that a drafted token is accepted, as outcomes have shown.

Every drafted token that is reached (all before it were right) is evidence, verified or not: what
was drafted and cut is compared with the tokens that the round committed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from pyllama_spec.drafters.base import Draft

# Steps of probability, and their middles: most of a draft's own are near 0 or near 1.
_EDGES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97)
_MIDDLES = (0.01, 0.035, 0.07, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.935, 0.985)
# Depths of a draft with rates of their own; deeper tokens share the last. Here and below, the worst
# group of worlds with half and the double, as in profit.py.
_N_DEPTHS = 4  # +0.5%, +1.0%
# Steps of the chance of a token, by which the next one's is told apart.
_NEXT_EDGES = (0.2, 0.4, 0.6, 0.8, 0.9)
_NEXT_MIDDLES = (0.1, 0.3, 0.5, 0.7, 0.85, 0.95)
# Lengths of a copy's match.
_MATCH_EDGES = (2, 3, 4, 5, 6, 7, 9, 13, 21)
# An observation's weight halves after 64 others of its rate; a prior weighs as much as 4.
_KEEP, _PRIOR = 0.5 ** (1 / 64), 4.0  # +0.5%, +0.2%; +1.0%, +1.3%
# The same for the ratio of one text, which is soon known: after 8 others, and 3.
_KEEP_TEXT, _PRIOR_TEXT = 0.5 ** (1 / 8), 3.0  # +0.6%, +0.3%; +0.6%, +0.3%
# No chance is taken for impossible, or for certain.
_LOW, _HIGH = 0.002, 0.995  # 0, 0; with 0.99 and 0.9975 +0.4%, +0.1%


def clipped(p: float) -> float:
    """A probability, clipped away from 0 and 1."""
    return _LOW if p < _LOW else _HIGH if p > _HIGH else p


def next_kind(rate: float) -> int:
    """The step of a token's chance: a draft that was sure mostly stays sure."""
    return bisect_right(_NEXT_EDGES, rate)


class Rate:
    """An exponentially weighted ratio of right tokens to expected ones."""

    __slots__ = ("_keep", "_weight", "expected", "right")

    def __init__(self, keep: float = _KEEP, weight: float = _PRIOR) -> None:
        self._keep, self._weight = keep, weight
        self.expected = self.right = 0.0

    def add(self, was_right: bool, expected: float = 1.0) -> None:
        """Adds an observation."""
        self.expected = self.expected * self._keep + expected
        self.right = self.right * self._keep + was_right

    def after(self, prior: float) -> float:
        """The ratio, weighted with its prior."""
        weight = self._weight
        return (self.right + weight * prior) / (self.expected + weight)


def _rates(n: int) -> list[Rate]:
    return [Rate() for _ in range(n)]


@dataclass(slots=True)
class TextRatios:
    """How often a text's tokens are right, relative to what is expected of them in all texts."""

    model: Rate = field(default_factory=lambda: Rate(_KEEP_TEXT, _PRIOR_TEXT))
    copies: Rate = field(default_factory=lambda: Rate(_KEEP_TEXT, _PRIOR_TEXT))

    def of(self, draft: Draft) -> float:
        """The factor on the chance of each of a draft's tokens.

        Where copies go wrong less often than expected, the next are not taken for better: nearly
        every token of a copy is right, and a row of right ones hardly predicts where it ends.
        """
        if draft.match_length:
            return min(self.copies.after(1.0), 1.0)
        return self.model.after(1.0)


class Acceptance:
    """The chances of a model's drafts and of copies, over all texts.

    Model: a rate for each depth and step of the draft's own probability, which begins with the rate
    of that step at all depths, which begins with the probability; and for drafts without
    probabilities a rate for each depth.

    Copies: a rate for each length of the match, which begins with Laplace's rule of succession
    (what held m times in a row holds the next time with (m + 1) / (m + 2)); a copy that reports
    probabilities is judged by those instead. The first token of a copy has rates of its own, which
    begin with that of all tokens: most copies that are wrong are so at once, and with one rate for
    all a copier that is often wrong would look profitable.
    """

    def __init__(self) -> None:
        n_steps, n_matches = len(_MIDDLES), len(_MATCH_EDGES) + 1
        self._steps, self._next = _rates(n_steps), _rates(len(_NEXT_MIDDLES))
        self._by_depth, self._depths = [_rates(n_steps) for _ in range(_N_DEPTHS)], _rates(0)
        self._by_match, self._first_by_match = _rates(n_matches), _rates(n_matches)
        self._by_step, self._first_by_step = _rates(n_steps), _rates(n_steps)

    def rate(self, depth: int, p: float | None) -> float:
        """The chance of a model's token at a depth from 0 on, given those before it."""
        if p is None:
            return clipped(self.mean(depth))
        i = bisect_right(_EDGES, p)
        of_depth = self._by_depth[depth if depth < _N_DEPTHS else _N_DEPTHS - 1]
        return clipped(of_depth[i].after(self._steps[i].after(_MIDDLES[i])))

    def mean(self, depth: int) -> float:
        """The chance at a depth before the token is drafted."""
        rate = 0.5
        for one in self._depths[: depth + 1]:
            rate = one.after(rate)  # a depth begins as the one before
        return rate

    def next_rate(self, kind: int) -> float:
        """The chance of the token after one of a kind of next_kind()."""
        return clipped(self._next[kind].after(_NEXT_MIDDLES[kind]))

    def _of_copy(self, match_length: int, p: float | None) -> tuple[float, Rate, Rate]:
        """The prior, the rate and the rate of first tokens of a copy's token."""
        if p is not None:
            i = bisect_right(_EDGES, p)
            return p, self._by_step[i], self._first_by_step[i]
        i = bisect_right(_MATCH_EDGES, match_length)
        prior = (match_length + 1.0) / (match_length + 2.0)
        return prior, self._by_match[i], self._first_by_match[i]

    def rates(self, draft: Draft) -> list[float]:
        """The chance of each token of a draft, given those before it, in an average text."""
        p: Sequence[float | None] = draft.probabilities or [None] * len(draft.ids)
        if not draft.match_length:
            return [self.rate(i, p[i]) for i in range(len(draft.ids))]
        out: list[float] = []
        for i in range(len(draft.ids)):
            prior, every, first = self._of_copy(draft.match_length + i, p[i])
            rate = every.after(prior)
            out.append(clipped(rate if i else first.after(rate)))
        return out

    def survivals(self, draft: Draft, rates: Sequence[float], text: TextRatios) -> list[float]:
        """For each token of a draft, the chance that it and all before it are accepted."""
        ratio, survival = text.of(draft), 1.0
        out: list[float] = []
        for rate in rates:
            survival *= clipped(rate * ratio)
            out.append(survival)
        return out

    def learn(
        self, draft: Draft, rates: Sequence[float], text: TextRatios, tokens: Sequence[int]
    ) -> None:
        """Compares a draft, whose tokens had these rates, with the tokens of its round."""
        p: Sequence[float | None] = draft.probabilities or [None] * len(draft.ids)
        is_copy = draft.match_length > 0
        for i, (token, drafted, rate) in enumerate(zip(tokens, draft.ids, rates, strict=False)):
            was_right = token == drafted
            if is_copy:
                _, every, first = self._of_copy(draft.match_length + i, p[i])
                every.add(was_right)
                if not i:
                    first.add(was_right)
                text.copies.add(was_right, rate)
            else:
                self.add(i, p[i], was_right)
                if i:
                    self._next[next_kind(rates[i - 1])].add(was_right)
                text.model.add(was_right, rate)
            if not was_right:
                return

    def add(self, depth: int, p: float | None, was_right: bool) -> None:
        """Learns the outcome of a model's token that was reached."""
        while len(self._depths) <= depth:
            self._depths.append(Rate())
        self._depths[depth].add(was_right)
        if p is not None:
            i = bisect_right(_EDGES, p)
            self._steps[i].add(was_right)
            self._by_depth[min(depth, _N_DEPTHS - 1)][i].add(was_right)
