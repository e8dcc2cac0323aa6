"""The costs of a round's parts: verifying, drafting, the rest, and a change of batch width."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from pyllama_spec.speculative.controller.base import ControllerLimits, KnownCosts, Span, Spent

# Samples of a median: odd, and enough that two outliers in a row do not move it.
_N_SAMPLES = 9
# Samples from which on a size is known; drafts from which on a slow one does not count.
_N_OFTEN = 3
# Clocks may stand still, or be set back.
_LEAST_S = 1e-9
# A median that moves by so much, and not while it has few samples, means that the costs are others
# now; sizes that were not seen since so many samples say nothing then.
_JUMP, _N_SETTLED, _N_STALE = 2.0, 5, 6
# The shortest context that has costs of its own: below it attention is a small part of a row.
_MIN_BUCKET = 8  # 2 ** 8 positions


# Two lines each: the module that has them takes longer to import than all of this folder.
def median_low(values: Collection[float]) -> float:
    """The median; of an even number of values the lower middle one."""
    return sorted(values)[(len(values) - 1) // 2]


def median(values: Collection[float]) -> float:
    """The median; of an even number of values the mean of the middle two."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2


class Curve:
    """Seconds by size as running medians, interpolated linearly between measured sizes.

    The curve never falls: where the samples of a larger size are faster, both sizes share the
    median of their joint samples (isotonic regression by pooling adjacent violators, with medians
    in place of means). So one slow sample of a size counts little beside a size with many samples.
    Of two samples the lower counts, since disturbances only make a measurement slower.

    Args:
        is_proportional: whether the cost beyond the largest size grows in proportion to the size;
            else it is constant.
        is_line: whether the cost is linear in the size: a size with few samples then costs at most
            what the line through frequent sizes gives. A draft's first call is slow; without this,
            a length with one slow sample would never be requested again.
        start: an initial curve, each of whose points counts as one sample.
    """

    def __init__(
        self, *, is_proportional: bool, is_line: bool = False, start: Curve | None = None
    ) -> None:
        self._is_proportional, self._is_line = is_proportional, is_line
        self._seen: dict[int, deque[float]] = {}
        self._medians: dict[int, float] = {}
        # The same, never falling; made when it is asked for.
        self._rising: dict[int, float] = {}
        self._sizes: list[int] = []
        self._n_added = 0
        self._last: dict[int, int] = {}
        self._guesses: dict[int, float] = {}
        if start is not None:
            for size, value in start._made().items():
                self.add(size, value)

    def __bool__(self) -> bool:
        return bool(self._medians)

    def add(self, size: int, seconds: float) -> None:
        """Adds a sample."""
        self._check_guess(size, seconds)
        samples = self._seen.get(size)
        if samples is None:
            samples = self._seen[size] = deque(maxlen=_N_SAMPLES)
            self._sizes = sorted(self._seen)
        samples.append(seconds)
        before, now = self._medians.get(size), median_low(samples)
        self._medians[size] = now
        self._n_added += 1
        self._last[size] = self._n_added
        is_settled = before is not None and len(samples) >= _N_SETTLED
        if is_settled and not now / _JUMP <= (before or 0.0) <= now * _JUMP:
            self._forget([s for s in self._sizes if self._last[s] <= self._n_added - _N_STALE])
        if self._rising:
            self._rising = {}

    def guess(self, size: int, seconds: float) -> None:
        """Sets a guess until there is a sample; rejects all guesses if one was far too high."""
        self.add(size, seconds)
        self._guesses[size] = seconds

    def _check_guess(self, size: int, seconds: float) -> None:
        guess = self._guesses.pop(size, None)
        if guess is None:
            return
        self._seen[size].clear()
        if seconds * _JUMP < guess:  # what disturbs a clock makes it show more, never less
            self._forget(list(self._guesses))

    def _forget(self, sizes: list[int]) -> None:
        for size in sizes:
            del self._seen[size], self._medians[size], self._last[size]
            self._guesses.pop(size, None)
        self._sizes = sorted(self._seen)

    def _made(self) -> dict[int, float]:
        if not self._rising and self._medians:
            lots: list[tuple[float, list[float], list[int]]] = []
            line = self._line() if self._is_line else None
            for size in self._sizes:
                samples = list(self._seen[size])
                if line is not None and len(samples) < _N_OFTEN:
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
        """The line through the smallest and largest sizes with many samples."""
        often = [size for size in self._sizes if len(self._seen[size]) >= _N_OFTEN]
        if not often:
            return None
        first, last, m = often[0], often[-1], self._medians
        if first == last:
            return lambda size: m[first] * size / first
        slope = (m[last] - m[first]) / (last - first)
        return lambda size: max(m[first] + slope * (size - first), 0.0)

    def seen(self, size: int) -> float | None:
        """The median of a size; None for a guess."""
        return self._medians.get(size)

    def is_known(self, size: int) -> bool:
        """Whether a size has so many samples that one slow one counts little."""
        return len(self._seen.get(size, ())) >= _N_OFTEN

    def at(self, size: int) -> float:
        """The seconds of a size; 0 without samples."""
        m = self._made()
        exact = m.get(size)
        if exact is not None:
            return exact
        sizes = self._sizes
        if not sizes:
            return 0.0
        above = next((s for s in sizes if s > size), None)
        below = next((s for s in reversed(sizes) if s < size), None)
        if above is None or below is None:
            edge = sizes[0] if below is None else sizes[-1]
            if not self._is_proportional:
                return m[edge]
            if below is not None and len(sizes) > 1:  # on with the last slope
                before = sizes[-2]
                slope = max((m[edge] - m[before]) / (edge - before), 0.0)
                return m[edge] + slope * (size - edge)
            return m[edge] * size / edge
        share = (size - below) / (above - below)
        return m[below] + share * (m[above] - m[below])

    def points(self) -> dict[int, float]:
        """The median of each measured size."""
        return dict(self._made())


class Speed:
    """The machine's current speed relative to the curves: shared cores vary by half.

    Curves hold seconds at speed 1. What all sizes have in common goes into the speed, at once; what
    a size has for itself goes into its median.

    It is 1 until some rounds were seen. Else one bad moment would be the speed by which the next
    samples are divided: they would look so quick that the speed stays wrong.
    """

    def __init__(self) -> None:
        self._ratios: deque[float] = deque(maxlen=_N_SAMPLES)
        self.now = 1.0

    def add(self, ratio: float) -> None:
        """Adds the ratio of measured seconds to the curve's."""
        self._ratios.append(ratio)
        if self.is_known:
            self.now = median(self._ratios)

    @property
    def is_known(self) -> bool:
        """Whether there are so many samples that two slow ones count for nothing."""
        return len(self._ratios) >= _N_SETTLED


class VerifyCosts:
    """Seconds of a round's decodes by rows, for each number of sequences and context length.

    A context of more than 256 positions has a curve of its own for each doubling, which begins
    with that of the one before.
    """

    def __init__(self) -> None:
        self._curves: dict[tuple[int, int], Curve] = {}
        self.speed = Speed()

    def start(self, seconds: Mapping[int, float]) -> None:
        """Sets the seconds measured when the target was opened."""
        curve = self.curve(1, 0)
        for rows, value in seconds.items():
            curve.add(rows, value)

    def curve(self, n_seqs: int, n_past: int) -> Curve:
        """The curve of a number of sequences and a context length."""
        key = (n_seqs, max(n_past.bit_length(), _MIN_BUCKET))
        curve = self._curves.get(key)
        if curve is None:
            start = self._nearest(key)
            curve = self._curves[key] = Curve(is_proportional=True, start=start)
        return curve

    def _nearest(self, key: tuple[int, int]) -> Curve | None:
        """The most similar curve: of as many sequences, else of one."""
        best = None
        for (n, bucket), curve in self._curves.items():
            distance = (abs(n - key[0]), abs(bucket - key[1]))
            if curve and (best is None or distance < best[0]):
                best = (distance, curve)
        return None if best is None else best[1]

    def add(self, n_seqs: int, n_past: int, rows: int, seconds: float) -> None:
        """Adds a round's decode."""
        curve = self.curve(n_seqs, n_past)
        expected = curve.seen(rows)
        # Before the speed is known, one that took twice as long says nothing of its size.
        if expected is None or self.speed.is_known or seconds < _JUMP * expected:
            curve.add(rows, max(seconds, _LEAST_S) / self.speed.now)
        if expected is not None:  # a guess tells nothing about the machine's speed
            self.speed.add(max(seconds, _LEAST_S) / max(expected, _LEAST_S))


# While fewer were timed, a step takes no more than so many times what was told of it beforehand.
_N_FEW, _MOST_TOLD = 4, 2.0
# Tokens that no text gains while a drafter is off for the first time: they are those of a prompt.
_N_LONG = 64


class RoundCosts:
    """Running medians of all parts of a round, in seconds at speed 1."""

    def __init__(self) -> None:
        self.limits = ControllerLimits(0)
        self._verify = VerifyCosts()
        # By the number of sequences that draft together: seconds by drafted tokens.
        self._draft: dict[int, Curve] = {}
        self._lookup = Curve(is_proportional=False)
        self._n_drafts = 0
        self._rest = Curve(is_proportional=False)
        self._switch = Curve(is_proportional=False)
        # Nothing is known to be slow. Else one change in a bad moment would look so dear that there
        # is no other one, and nothing else shows the price.
        for _ in range(_N_OFTEN - 1):
            self._switch.add(0, 0.0)
        self._catch_up = Curve(is_proportional=True)
        self._last_rows = 0

    def start(self, seconds: dict[int, float]) -> None:
        """Sets the seconds of verify batches measured when the target was opened."""
        self._verify.start(seconds)

    def known(self) -> KnownCosts:
        """The costs of one sequence in a short context."""
        draft = self._draft.get(1)
        verify = self._verify.curve(1, 0).points()
        return KnownCosts(verify, draft.points() if draft else {}, self._rest.points())

    def begin_with(self, known: KnownCosts) -> None:
        """Loads the costs of known() in another program."""
        self._verify.start(known.verify)
        for n, seconds in known.draft.items():
            self._draft_curve(1).guess(n, seconds)
        for n, seconds in known.rest.items():
            self._rest.add(n, seconds)

    def _draft_curve(self, n_seqs: int) -> Curve:
        curve = self._draft.get(n_seqs)
        if curve is None:
            curve = Curve(is_proportional=self.limits.is_stepwise, is_line=True)
            self._draft[n_seqs] = curve
        return curve

    def verify(self, n_seqs: int, n_past: int, max_draft: int) -> list[float]:
        """[0 .. max_draft] a sequence's share of a decode in which all have n drafted tokens."""
        curve = self._verify.curve(n_seqs, n_past)
        return [curve.at(n_seqs * (1 + n)) / n_seqs for n in range(max_draft + 1)]

    def is_known(self, n_seqs: int, n_past: int, rows: int) -> bool:
        """Whether a decode of so many rows was timed often enough to know its price."""
        return self._verify.curve(n_seqs, n_past).is_known(rows)

    def is_worth_timing(self, spans: Sequence[Span], lengths: Sequence[int]) -> bool:
        """Whether a batch width has too few samples for a price, and may be timed."""
        rows = self._n_rows(len(spans), lengths)
        curve = self._verify.curve(len(spans), _mean_past(spans))
        return rows <= self.limits.max_rows and not curve.is_known(rows)

    def _n_rows(self, n_seqs: int, lengths: Iterable[int]) -> int:
        if self.limits.is_padded:
            return n_seqs * (1 + max(lengths))
        return n_seqs + sum(lengths)

    def draft(self, n_seqs: int, max_draft: int) -> list[float]:
        """[0 .. max_draft] a sequence's share of drafting n tokens for n_seqs sequences."""
        timed = [n for n, curve in self._draft.items() if curve]
        nearest = min(timed, key=lambda n: (abs(n - n_seqs), n), default=None)
        told_s = self.limits.step_share * self._verify.curve(1, 0).at(1)
        if nearest is None:  # nothing was drafted yet, or only behind a prompt that was read first
            return [n * told_s / n_seqs for n in range(max_draft + 1)]
        curve = self._draft[nearest]
        seconds = [0.0, *(curve.at(n) / n_seqs for n in range(1, max_draft + 1))]
        if told_s and self._n_drafts < _N_FEW:
            seconds = [min(s, n * _MOST_TOLD * told_s / n_seqs) for n, s in enumerate(seconds)]
        return seconds

    @property
    def lookup_s(self) -> float:
        """The seconds of a request for lookups alone."""
        return self._lookup.at(0)

    @property
    def knows_drafts(self) -> bool:
        """Whether so many drafts were timed that one slow call counts for nothing."""
        return self._n_drafts >= _N_OFTEN

    def rest(self, n_seqs: int) -> float:
        """A sequence's share of the other costs."""
        return self._rest.at(n_seqs) / n_seqs

    @property
    def speed(self) -> float:
        """The current seconds per second at speed 1."""
        return self._verify.speed.now

    @property
    def switch_s(self) -> float:
        """The extra seconds of a batch whose width differs from the last one's."""
        return self._switch.at(0)

    def catch_up_s(self, n_tokens: int) -> float:
        """The extra seconds of a draft after n tokens without one."""
        return self._catch_up.at(n_tokens)

    def skip(self, rows: int) -> None:
        """Notes a batch of n rows whose time is not learned."""
        self._last_rows = rows

    def learn(self, spans: Sequence[Span], spent: Spent, n_waiting: Sequence[int]) -> None:
        """Learns the seconds of a round."""
        n_seqs = len(spans)
        n_past = _mean_past(spans)
        rows = self._n_rows(n_seqs, [span.n_verified for span in spans])
        speed = self._verify.speed.now
        if rows == self._last_rows:
            self._verify.add(n_seqs, n_past, rows, spent.verify_s)
        else:
            # The engine makes a graph for a width that the batch before did not have.
            known, switch = self._verify.curve(n_seqs, n_past).seen(rows), self.switch_s
            if known is not None:
                self._switch.add(0, max(spent.verify_s / speed - known, 0.0))
            self._verify.add(n_seqs, n_past, rows, max(spent.verify_s - switch * speed, 1e-9))
        self._last_rows = rows
        self._rest.add(n_seqs, spent.rest_s / speed)
        self._learn_draft(spans, spent.draft_s / speed, n_waiting)

    def _learn_draft(self, spans: Sequence[Span], seconds: float, n_waiting: Sequence[int]) -> None:
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
        n_tokens = max(n_waiting[i] for i in by_model)
        curve = self._draft_curve(len(by_model))
        is_late = n_tokens > 2 * (1 + self.limits.max_draft)
        if is_late and not curve and n_tokens > _N_LONG:
            return  # a whole text was read first, and what a draft costs by itself is not known
        self._n_drafts += 1
        if is_late and curve:
            # More rows than a round leaves were fed first: that is the cost of the pause.
            self._catch_up.add(n_tokens, max(seconds - curve.at(n), 0.0))
        else:
            curve.add(n, seconds)

    def describe(self) -> dict[str, Any]:
        """The milliseconds of one sequence in a short context."""
        draft = self._draft.get(1)
        return {
            "verify_ms": _ms(self._verify.curve(1, 0)),
            "draft_ms": _ms(draft) if draft else {},
            "switch_ms": 1e3 * self.switch_s,
            "rest_ms": 1e3 * self._rest.at(1),
        }


def _mean_past(spans: Sequence[Span]) -> int:
    return sum(span.n_past for span in spans) // len(spans)


def _ms(curve: Curve) -> dict[int, float]:
    return {n: round(1e3 * seconds, 4) for n, seconds in curve.points().items()}
