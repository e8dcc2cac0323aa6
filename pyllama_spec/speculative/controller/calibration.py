"""Calibration: the acceptance rate of drafted tokens, by what is known before verifying.

Every drafted token that is reached (all before it were right) is evidence, verified or not: the
text comes out the same either way, so what was drafted and cut is compared with what came.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from pyllama_spec.drafters.base import Draft

# Probabilities are grouped in these steps: a draft's own are near 0 or near 1 most of the time.
_EDGES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97)
_MIDDLES = (0.01, 0.035, 0.07, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.935, 0.985)
# Depths with cells of their own; deeper ones share the last.
_N_DEPTHS = 4
# The weight of a cell's prior, in observations.
_PRIOR = 4.0
# An observation counts half after 64 others of its cell.
_KEEP = 0.5 ** (1 / 64)
# And after 8 others of the same text.
_KEEP_LOCAL = 0.5 ** (1 / 8)
_LOCAL_PRIOR = 3.0
_LOW, _HIGH = 0.002, 0.995
# What follows a token is told apart by how likely that one was.
_NEXT_EDGES = (0.2, 0.4, 0.6, 0.8, 0.9)
_NEXT_MIDDLES = (0.1, 0.3, 0.5, 0.7, 0.85, 0.95)


def clipped(p: float) -> float:
    """A probability, clipped away from 0 and 1."""
    return _LOW if p < _LOW else _HIGH if p > _HIGH else p


class Cell:
    """An exponentially weighted rate."""

    __slots__ = ("n", "right")

    def __init__(self) -> None:
        self.n = self.right = 0.0

    def add(self, was_right: bool) -> None:
        """Adds an observation."""
        self.n = self.n * _KEEP + 1.0
        self.right = self.right * _KEEP + was_right

    def rate(self, prior: float) -> float:
        """The rate, weighted with the prior."""
        return (self.right + _PRIOR * prior) / (self.n + _PRIOR)


class Local:
    """The ratio of the current text's acceptance to the expected one."""

    __slots__ = ("expected", "right")

    def __init__(self) -> None:
        self.expected = self.right = 0.0

    def add(self, expected: float, was_right: bool) -> None:
        """Adds an observation and its expected rate."""
        self.expected = self.expected * _KEEP_LOCAL + expected
        self.right = self.right * _KEEP_LOCAL + was_right

    @property
    def ratio(self) -> float:
        """The ratio; 1 if tokens are accepted as often as expected."""
        return (self.right + _LOCAL_PRIOR) / (self.expected + _LOCAL_PRIOR)


class Calibration:
    """Maps a draft's probability and depth to an acceptance rate, given that it is reached.

    A cell per depth and step of probability begins with the rate of that step over all depths,
    which begins with the probability. Where a draft says no probabilities, there are the depths.
    """

    def __init__(self) -> None:
        self._bins = [Cell() for _ in _MIDDLES]
        self._cells = [[Cell() for _ in _MIDDLES] for _ in range(_N_DEPTHS)]
        self._depths: list[Cell] = []
        self._next = [Cell() for _ in _NEXT_MIDDLES]

    def rate(self, depth: int, p: float | None) -> float:
        """The chance that the token at a depth, counted from 0, is accepted."""
        if p is None:
            return clipped(self.mean(depth))
        i = _bin(p)
        at = depth if depth < _N_DEPTHS else _N_DEPTHS - 1
        return clipped(self._cells[at][i].rate(self._bins[i].rate(_MIDDLES[i])))

    def mean(self, depth: int) -> float:
        """The chance by depth alone, before the token is drafted."""
        rate = 0.5
        for cell in self._depths[: depth + 1]:
            rate = cell.rate(rate)  # a depth begins as the one before
        return rate

    def next_rate(self, kind: int) -> float:
        """The chance of the next token, after a token of a kind of next_kind()."""
        return clipped(self._next[kind].rate(_NEXT_MIDDLES[kind]))

    def add_next(self, rate: float, was_right: bool) -> None:
        """Learns the outcome of a reached token, after a token with this rate."""
        self._next[next_kind(rate)].add(was_right)

    def add(self, depth: int, p: float | None, was_right: bool) -> None:
        """Learns the outcome of a reached token."""
        while len(self._depths) <= depth:
            self._depths.append(Cell())
        self._depths[depth].add(was_right)
        if p is not None:
            i = _bin(p)
            self._bins[i].add(was_right)
            self._cells[min(depth, _N_DEPTHS - 1)][i].add(was_right)

    def table(self) -> list[tuple[float, float, float]]:
        """For a plot: the centre of each probability bin, its rate, its weight."""
        return [
            (middle, cell.rate(middle), cell.n)
            for middle, cell in zip(_MIDDLES, self._bins, strict=True)
        ]


def next_kind(rate: float) -> int:
    """The bin of a rate: a draft that was sure mostly stays sure."""
    return bisect_right(_NEXT_EDGES, rate)


def _bin(p: float) -> int:
    return bisect_right(_EDGES, p)


class LookupCalibration:
    """Maps a match length to an acceptance rate; each accepted token extends the match by one.

    A length begins with Laplace's rule of succession: what held m times in a row holds the next
    time with (m + 1) / (m + 2). A copy that says how sure it is, by what else it knows of the
    places that it is from, is judged by that instead, as it turned out.

    The first token of a draft has cells of its own, which begin with the rate of all tokens. A
    later token is reached only where the first was right, and a copy that has begun right mostly
    goes on: with one rate for both, a copier that is often wrong at once would look profitable.
    """

    _EDGES = (2, 3, 4, 5, 6, 7, 9, 13, 21)

    def __init__(self) -> None:
        n_lengths = len(self._EDGES) + 1
        self._cells = [Cell() for _ in range(n_lengths)]
        self._sure = [Cell() for _ in _MIDDLES]
        self._first_cells = [Cell() for _ in range(n_lengths)]
        self._first_sure = [Cell() for _ in _MIDDLES]

    def rate(self, match_length: int, p: float | None = None, *, is_first: bool = False) -> float:
        """The chance that the token after match_length equal ones is accepted."""
        if p is not None:
            i = _bin(p)
            rate = self._sure[i].rate(p)
            return clipped(self._first_sure[i].rate(rate) if is_first else rate)
        prior = (match_length + 1.0) / (match_length + 2.0)
        i = self._index(match_length)
        rate = self._cells[i].rate(prior)
        return clipped(self._first_cells[i].rate(rate) if is_first else rate)

    def add(
        self, match_length: int, p: float | None, was_right: bool, *, is_first: bool = False
    ) -> None:
        """Learns the outcome of a token."""
        if p is None:
            i, cells, first = self._index(match_length), self._cells, self._first_cells
        else:
            i, cells, first = _bin(p), self._sure, self._first_sure
        cells[i].add(was_right)
        if is_first:
            first[i].add(was_right)

    def _index(self, match_length: int) -> int:
        return bisect_right(self._EDGES, match_length)


@dataclass(slots=True)
class Watched:
    """A draft whose tokens were not all compared with the text yet.

    Attributes:
        ids: the tokens.
        rates: the calibrated rate of each token, given those before it; without the text's ratio.
        probabilities: the draft's own probabilities, also those of a copy; None for none.
        match_length: the match length of a copy; 0 for a model's draft.
        n_met: the number of tokens that have been compared with the text and were right.
    """

    ids: Sequence[int]
    rates: Sequence[float]
    probabilities: Sequence[float] | None
    match_length: int
    n_met: int = 0


@dataclass(slots=True)
class TextState:
    """The statistics of one sequence's text."""

    watched: deque[Watched] = field(default_factory=lambda: deque(maxlen=4))
    model: Local = field(default_factory=Local)
    lookups: Local = field(default_factory=Local)


def survivals_in(rates: Sequence[float], text: TextState, draft: Draft) -> list[float]:
    """For each token of a draft, the chance in this text that it and all before are accepted.

    Where copies go wrong more often than expected, the next ones are taken for worse. Where they go
    wrong less often, they are not taken for better: nearly every token of a copy is right, and a
    row of right ones hardly predicts when the text will differ.
    """
    ratio = min(text.lookups.ratio, 1.0) if draft.match_length else text.model.ratio
    survival = 1.0
    out: list[float] = []
    for rate in rates:
        survival *= clipped(rate * ratio)
        out.append(survival)
    return out


class Acceptance:
    """Both calibrations, and each text's deviation from them."""

    def __init__(self) -> None:
        self.model = Calibration()
        self.lookups = LookupCalibration()

    def rates(self, draft: Draft) -> list[float]:
        """The chance of each token, given those before, in an average text."""
        n, p = len(draft.ids), draft.probabilities
        if draft.match_length:
            rate, length = self.lookups.rate, draft.match_length
            return [
                rate(length + i, None if p is None else p[i], is_first=i == 0) for i in range(n)
            ]
        return [self.model.rate(i, None if p is None else p[i]) for i in range(n)]

    def watch(self, text: TextState, draft: Draft, rates: Sequence[float]) -> None:
        """Notes a draft to compare with the text that follows."""
        text.watched.append(Watched(draft.ids, rates, draft.probabilities, draft.match_length))

    def meet(self, text: TextState, tokens: Sequence[int]) -> None:
        """Compares the watched draft with committed tokens, and learns from it."""
        watched = text.watched
        for _ in range(len(watched)):
            one = watched.popleft()
            if self._meet(text, one, tokens):
                watched.append(one)

    def _meet(self, text: TextState, one: Watched, tokens: Sequence[int]) -> bool:
        """Compares one token; returns whether the draft continues."""
        ids, at, n = one.ids, one.n_met, len(one.ids)
        for token in tokens:
            was_right = ids[at] == token
            p = None if one.probabilities is None else one.probabilities[at]
            if one.match_length:
                self.lookups.add(one.match_length + at, p, was_right, is_first=at == 0)
                text.lookups.add(one.rates[at], was_right)
            else:
                self.model.add(at, p, was_right)
                if at:
                    self.model.add_next(one.rates[at - 1], was_right)
                text.model.add(one.rates[at], was_right)
            at += 1
            if not was_right or at == n:
                return False
        one.n_met = at
        return True
