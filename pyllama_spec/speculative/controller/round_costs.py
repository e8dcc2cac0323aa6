"""The costs of a round's parts: verifying, drafting, the rest, and a change of batch width."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pyllama_spec.speculative.controller.base import ControllerLimits, KnownCosts, Span, Spent
from pyllama_spec.speculative.controller.costs import Curve, VerifyCosts

# Drafts from which on a slow one among them does not count.
_N_OFTEN = 3
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
        """Whether a batch width has too few samples for a price, and may be timed.

        Args:
            spans: all spans of the round.
            lengths: for each span with a draft, the number of verified tokens.

        """
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
        """Learns the seconds of a round.

        Args:
            spans: all spans of the round.
            spent: the seconds of the round.
            n_waiting: for each span, the number of tokens since its model was asked.

        """
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
