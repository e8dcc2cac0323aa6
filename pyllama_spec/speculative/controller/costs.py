"""The cost model: the seconds of a round's parts, as running medians of this machine's rounds.

Verifying is priced by rows, drafting by drafted tokens, the rest by sequences.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from pyllama_spec.speculative.controller.base import Limits, Span, Spent

# As in profit.py, the worst group of worlds with about half and the double stands behind each.
# Samples of a median: odd, and enough that a noisy clock moves it little.
_N_SAMPLES = 9  # +0.9%, +0.3%
# Samples with which a size is known, and with which two slow ones count for nothing.
_N_KNOWN, _N_SETTLED = 3, 5  # with 2 and 5 +3.6%, +0.2%; with 3 and 7 +1.0%, +0.1%
# A settled median that moves by this factor shows that the costs changed: sizes without a sample
# among the last _N_STALE of the curve are forgotten.
_JUMP, _N_STALE = 2.0, 6  # 0, 0; 0, 0; test_a_price_that_jumps_is_followed
# The least seconds of a sample: clocks may stand still, or be set back.
_LEAST_S = 1e-9
# Contexts of less than 2 ** 8 positions share a curve: attention is a small part of their rows.
_MIN_BUCKET = 8  # with 7 and 9 +0.7%, +0.1%
# While fewer drafts were timed, a token costs at most so many times what the drafter said of it.
_N_FEW, _MOST_SAID = 4, 2.0  # +1.7%, 0; +0.2%, +1.2%
# Lookups that take less than this share of a plain round are free.
_FREE_SHARE = 0.01  # 0, 0; test_copies_that_are_dear_have_to_pay


def median_low(values: Collection[float]) -> float:
    """The median; of an even number of values the lower middle one."""
    return sorted(values)[(len(values) - 1) // 2]  # importing statistics takes longer


class Curve:
    """Seconds by size as running medians, interpolated linearly between measured sizes.

    The curve never falls: where the samples of a larger size are faster, both sizes share the
    median of their joint samples (isotonic regression by pooling adjacent violators, with medians
    in place of means). So one slow sample of a size counts little beside a size with many samples.
    Of two samples the lower counts, since disturbances only make a measurement slower.

    Beyond the largest size the cost is constant, or grows in proportion to the size. On a line, a
    size with few samples costs at most what the line through known sizes gives: a draft's first
    call is slow, and a length with one slow sample would never be requested again. Each point of
    a curve to start with counts as one sample.
    """

    def __init__(
        self, *, is_proportional: bool, is_line: bool = False, start: Curve | None = None
    ) -> None:
        self._is_proportional, self._is_line = is_proportional, is_line
        self._samples: dict[int, deque[float]] = {}
        self._medians: dict[int, float] = {}
        # The same, never falling; {} until it is asked for.
        self._rising: dict[int, float] = {}
        self._sizes: list[int] = []
        self._n_added = 0
        self._last: dict[int, int] = {}
        if start is not None:
            for size, value in start.points().items():
                self.add(size, value)

    def add(self, size: int, seconds: float) -> None:
        """Adds a sample."""
        samples = self._samples.get(size)
        if samples is None:
            samples = self._samples[size] = deque(maxlen=_N_SAMPLES)
            self._sizes = sorted(self._samples)
        samples.append(seconds)
        before, now = self._medians.get(size, seconds), median_low(samples)
        self._medians[size] = now
        self._n_added += 1
        self._last[size] = self._n_added
        if len(samples) >= _N_SETTLED and not now / _JUMP <= before <= now * _JUMP:
            for old in [s for s in self._sizes if self._last[s] <= self._n_added - _N_STALE]:
                del self._samples[old], self._medians[old], self._last[old]
            self._sizes = sorted(self._samples)
        if self._rising:
            self._rising = {}

    def points(self) -> Mapping[int, float]:
        """The seconds of each measured size, never falling."""
        if not self._rising and self._medians:
            lots: list[tuple[float, list[float], list[int]]] = []
            line = self._line() if self._is_line else None
            for size in self._sizes:
                samples = list(self._samples[size])
                if line is not None and len(samples) < _N_KNOWN:
                    samples = [min(line(size), self._medians[size])]
                lot = median_low(samples), samples, [size]
                while lots and lots[-1][0] > lot[0]:
                    _, below, sizes = lots.pop()
                    together = below + lot[1]
                    lot = median_low(together), together, sizes + lot[2]
                lots.append(lot)
            self._rising = {size: value for value, _, sizes in lots for size in sizes}
        return self._rising

    def _line(self) -> Callable[[int], float] | None:
        """The line through the smallest and largest known sizes."""
        known = [size for size in self._sizes if self.is_known(size)]
        if not known:
            return None
        first, last, m = known[0], known[-1], self._medians
        if first == last:
            return lambda size: m[first] * size / first
        slope = (m[last] - m[first]) / (last - first)
        return lambda size: max(m[first] + slope * (size - first), 0.0)

    def median_of(self, size: int) -> float | None:
        """The median of a size's samples; None without samples."""
        return self._medians.get(size)

    def n_samples(self, size: int) -> int:
        """The number of a size's samples."""
        return len(self._samples.get(size, ()))

    def is_known(self, size: int) -> bool:
        """Whether a size has so many samples that one slow one counts little."""
        return self.n_samples(size) >= _N_KNOWN

    def at(self, size: int) -> float:
        """The seconds of a size; 0 without samples."""
        m, sizes = self.points(), self._sizes
        exact = m.get(size)
        if exact is not None or not sizes:
            return exact or 0.0
        i = bisect_left(sizes, size)
        if 0 < i < len(sizes):
            below, above = sizes[i - 1], sizes[i]
            share = (size - below) / (above - below)
            return m[below] + share * (m[above] - m[below])
        edge = sizes[i - 1] if i else sizes[0]
        if not self._is_proportional:
            return m[edge]
        if not i or len(sizes) == 1:
            return m[edge] * size / edge
        before = sizes[-2]  # on with the last slope, which never falls
        return m[edge] + (m[edge] - m[before]) / (edge - before) * (size - edge)


class RoundCosts:
    """The costs of all parts of a round, in seconds at speed 1.

    The speed is that of the machine relative to the curves: shared cores vary by half. What all
    numbers of rows have in common goes into the speed, at once; what one has for itself goes into
    its median. The speed is 1 until some rounds were timed: else one bad moment would be the speed
    by which the next samples are divided, which would look so quick that the speed stays wrong.
    """

    def __init__(self) -> None:
        self.limits = Limits(0)
        self.speed = 1.0  # the current seconds per second of the curves
        self._ratios: deque[float] = deque(maxlen=_N_SAMPLES)
        # By the number of sequences and the context length: seconds by rows.
        self._verify: dict[tuple[int, int], Curve] = {}
        # By the number of sequences that draft together: seconds by drafted tokens.
        self._draft: dict[int, Curve] = {}
        self._n_drafts = 0
        self._lookup = Curve(is_proportional=False)
        self._rest = Curve(is_proportional=False)

    def start(self, seconds: Mapping[int, float]) -> None:
        """Sets the seconds of verify batches measured when the target was opened."""
        curve = self.curve(1, 0)
        for rows, value in seconds.items():
            curve.add(rows, value)

    # ---- verifying

    def curve(self, n_seqs: int, n_past: int) -> Curve:
        """Seconds by rows, for a number of sequences and a context length.

        A context of more than 256 positions has a curve of its own for each doubling. A new curve
        begins with the most similar one: of as many sequences, else of one.
        """
        key = (n_seqs, max(n_past.bit_length(), _MIN_BUCKET))
        curve = self._verify.get(key)
        if curve is None:
            timed = [k for k, one in self._verify.items() if one.points()]
            nearest = min(
                timed, key=lambda k: (abs(k[0] - key[0]), abs(k[1] - key[1])), default=key
            )
            curve = Curve(is_proportional=True, start=self._verify.get(nearest))
            self._verify[key] = curve
        return curve

    def verify(self, n_seqs: int, n_past: int, max_draft: int) -> list[float]:
        """[0 .. max_draft] a sequence's share of a decode in which all have n drafted tokens."""
        curve = self.curve(n_seqs, n_past)
        return [curve.at(n_seqs * (1 + n)) / n_seqs for n in range(max_draft + 1)]

    def is_worth_timing(self, spans: Sequence[Span], lengths: Sequence[int]) -> bool:
        """Whether a batch width has too few samples for a price, and may be timed."""
        curve, rows = self._batch(spans, lengths)
        return rows <= self.limits.max_rows and not curve.is_known(rows)

    def _batch(self, spans: Sequence[Span], lengths: Sequence[int]) -> tuple[Curve, int]:
        """The curve and the rows of a decode."""
        n_seqs = len(spans)
        curve = self.curve(n_seqs, sum(span.n_past for span in spans) // n_seqs)
        if self.limits.is_padded:
            return curve, n_seqs * (1 + max(lengths))
        return curve, n_seqs + sum(lengths)

    def add_verify(self, curve: Curve, rows: int, seconds: float) -> None:
        """Adds a round's decode."""
        seconds, expected = max(seconds, _LEAST_S), curve.median_of(rows)
        # Before the speed is known, a round that took twice as long says nothing of its size.
        if expected is None or len(self._ratios) >= _N_SETTLED or seconds < _JUMP * expected:
            curve.add(rows, seconds / self.speed)
        if expected is not None:  # a guess says nothing about the machine's speed
            self._ratios.append(seconds / max(expected, _LEAST_S))
            if len(self._ratios) >= _N_SETTLED:
                self.speed = median_low(self._ratios)

    def plain_error(self, n_seqs: int, n_past: int) -> float:
        """The standard error of the ratio of a plain decode's seconds to a wider one's.

        Rounds of all widths show the clock's noise; a median of few samples has more of it.
        """
        ratios = self._ratios
        if not ratios:
            return 1.0
        noise = sum(abs(ratio / self.speed - 1.0) for ratio in ratios) / len(ratios)
        n_samples = self.curve(n_seqs, n_past).n_samples(n_seqs)
        return noise * math.sqrt(2.0 / max(n_samples, 1))

    # ---- drafting, and the rest

    def _draft_curve(self, n_seqs: int) -> Curve:
        curve = self._draft.get(n_seqs)
        if curve is None:
            curve = Curve(is_proportional=self.limits.is_stepwise, is_line=True)
            self._draft[n_seqs] = curve
        return curve

    def draft(self, n_seqs: int, max_draft: int) -> list[float]:
        """[0 .. max_draft] a sequence's share of drafting n tokens for n_seqs sequences."""
        nearest = min(self._draft, key=lambda n: (abs(n - n_seqs), n), default=None)
        step_s = self.limits.step_share * self.curve(1, 0).at(1) / n_seqs
        if nearest is None:  # nothing was drafted yet, or only after a prompt that was read first
            return [n * step_s for n in range(max_draft + 1)]
        curve = self._draft[nearest]
        seconds = [0.0, *(curve.at(n) / n_seqs for n in range(1, max_draft + 1))]
        if step_s and self._n_drafts < _N_FEW:
            seconds = [min(s, n * _MOST_SAID * step_s) for n, s in enumerate(seconds)]
        return seconds

    @property
    def lookup_s(self) -> float:
        """The seconds of a request for lookups alone."""
        return self._lookup.at(0)

    @property
    def knows_drafts(self) -> bool:
        """Whether so many drafts were timed that one slow call counts for nothing."""
        return self._n_drafts >= _N_KNOWN

    def rest(self, n_seqs: int) -> float:
        """A sequence's share of the other costs."""
        return self._rest.at(n_seqs) / n_seqs

    def learn(self, spans: Sequence[Span], spent: Spent, n_unread: Sequence[int]) -> None:
        """Learns the seconds of a round; n_unread: the tokens that each draft had to read."""
        n_seqs, speed = len(spans), self.speed
        curve, rows = self._batch(spans, [span.n_verified for span in spans])
        self.add_verify(curve, rows, spent.verify_s)
        self._rest.add(n_seqs, spent.rest_s / speed)
        self._learn_draft(spans, spent.draft_s / speed, n_unread)

    def _learn_draft(self, spans: Sequence[Span], seconds: float, n_unread: Sequence[int]) -> None:
        asked = [i for i, span in enumerate(spans) if span.asks_model]
        by_model = [i for i in asked if not spans[i].draft.match_length]
        if not by_model and any(span.n_requested for span in spans):
            self._lookup.add(0, seconds / sum(span.n_requested > 0 for span in spans))
        if not by_model or len(by_model) < len(asked):
            return
        if self.limits.is_stepwise:
            n = max(1, *(len(spans[i].draft.ids) for i in by_model))
        else:
            n = max(spans[i].n_requested for i in by_model)
        # A draft that first reads more tokens than a round leaves shows no price of drafting.
        is_late = max(n_unread[i] for i in by_model) > 2 * (1 + self.limits.max_draft)
        if is_late and len(by_model) not in self._draft:
            return
        self._n_drafts += 1
        if not is_late:
            self._draft_curve(len(by_model)).add(n, seconds)


@dataclass(slots=True)
class Prices:
    """The prices of a round, in seconds at speed 1, for each of n_seqs sequences alike."""

    verify: Sequence[float]  # [0 .. n] a decode with n drafted tokens
    draft: Sequence[float]  # [0 .. n] drafting them
    rest: float  # the rest of a round
    token_s: float  # the value of one more token: the seconds that it takes otherwise
    # The results of thresholds() so far, by the kind of the last token (acceptance.next_kind).
    ends: dict[int, Sequence[float]] = field(default_factory=dict)
    n_requested: int = 1  # the number of tokens of a block to ask for
    lookup_s: float = 0.0  # a lookup, whether it hits or not
    # Whether verify[0] was timed so often that one slow sample counts for little.
    knows_plain: bool = True
    plain_error: float = 0.0  # the standard error of verify[0], relative to it

    @property
    def plain_s(self) -> float:
        """The seconds of a plain round, which gives one token."""
        return self.verify[0] + self.rest

    @property
    def is_dear_lookup(self) -> bool:
        """Whether a request for lookups costs a notable time."""
        return self.lookup_s >= _FREE_SHARE * self.plain_s > 0.0

    def drafting_s(self, n: float) -> float:
        """The seconds to draft n tokens; n may be a mean."""
        draft = self.draft
        low = min(int(n), len(draft) - 1)
        if low + 1 >= len(draft):
            return draft[-1]
        return draft[low] + (n - low) * (draft[low + 1] - draft[low])

    @property
    def row_s(self) -> float:
        """The seconds of a further row."""
        return (self.verify[-1] - self.verify[0]) / max(len(self.verify) - 1, 1)

    @property
    def most_gain(self) -> float:
        """The gain per token in plain rounds if every drafted token is accepted, at most."""
        costs = enumerate(zip(self.verify, self.draft, strict=True))
        least_s = min((v + d + self.rest) / (n + 1) for n, (v, d) in costs)
        return 1.0 - least_s / self.plain_s if self.plain_s > 0.0 else 0.0
