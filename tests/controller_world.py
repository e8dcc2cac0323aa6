"""A world of costs and texts in which controllers are simulated, with a clock of its own.

Texts are traces: at each place a draft of some length with its probabilities, and the number of its
right tokens. Every policy gets the same drafts at the same places. Costs are functions of rows,
positions and drafted tokens, with noise.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyllama_spec.drafters import Draft
from pyllama_spec.speculative.controller import (
    Controller,
    DraftDecision,
    Limits,
    Span,
    Spent,
)

_TRACES = Path(__file__).parent / "traces"


@dataclass(frozen=True, slots=True)
class Place:
    """The draft at a place of a text.

    Attributes:
        n_right: how many of its tokens are right.
        p: the draft's probabilities, [n].
        true_p: the probabilities that its tokens are right, each given those before; () if unknown.
        match_length: for a copy, the length of its match.
        is_silent: whether the drafter gives no probabilities, and calls no stop.

    """

    n_right: int
    p: Sequence[float]
    true_p: Sequence[float] = ()
    match_length: int = 0
    is_silent: bool = False


Text = Sequence[Place]


@dataclass(frozen=True, slots=True)
class Costs:
    """Milliseconds.

    Attributes:
        verify: the time for rows and the mean number of positions.
        draft: the time for drafted tokens, from 1 on, for all sequences together.
        rest: the rest of a round.
        read: the time per token that the draft has to read first.
        noise: the relative spread of a sample.
        hiccups: how often a sample takes three times as long.

    """

    verify: Callable[[int, int], float]
    draft: Callable[[int], float]
    rest: float = 0.02
    noise: float = 0.04
    hiccups: float = 0.01
    read: float = 0.0
    bad: Collection[int] = ()


@dataclass(slots=True)
class Outcome:
    """The result of a policy.

    Attributes:
        seconds: the time by the costs, without noise.
        n_tokens: the committed tokens.
        saved_s, saved_error_s: what the controller says that drafts saved, and its error.
        lengths: for each round, the requested and the verified tokens of the first sequence.
        at: for each round, its start in the first text.

    """

    seconds: float = 0.0
    n_tokens: int = 0
    saved_s: float = 0.0
    saved_error_s: float = 0.0
    lengths: list[tuple[int, int]] = field(default_factory=list)
    at: list[int] = field(default_factory=list)

    def add_saved(self, spans: Sequence[Span]) -> None:
        self.saved_s += sum(span.saved_s or 0.0 for span in spans)
        self.saved_error_s += sum(span.saved_error_s for span in spans)


class Fixed(Controller):
    """n tokens in every round; of a chain those up to a probability."""

    def __init__(self, n: int, p_min: float = 0.0) -> None:
        self.n, self.p_min = n, p_min

    def decide(self, spans: Sequence[Span]) -> Sequence[DraftDecision]:
        return [DraftDecision(min(self.n, span.max_draft)) for span in spans]

    def verify_lengths(self, spans: Sequence[Span]) -> Sequence[int]:
        return [self._n_sure(span) for span in spans]

    def _n_sure(self, span: Span) -> int:
        p = span.draft.probabilities
        if p is None or not self.p_min:
            return len(span.draft.ids)
        return next((i for i, one in enumerate(p) if one < self.p_min), len(p))


def simulate(
    controller: Controller,
    texts: Sequence[Text],
    costs: Costs,
    *,
    max_draft: int = 8,
    is_stepwise: bool = True,
    seed: int = 1,
    n_prompt: int = 100,
    n_together: int = 1,
    step_share: float = 0.0,
) -> Outcome:
    """Decodes texts, n_together at a time, and says how long it took.

    The controller learns of a text only what a round would tell it. step_share is the one of
    Limits, which may be wrong.
    """
    rng, out = random.Random(seed), Outcome()
    has_lookup = any(place.match_length for text in texts for place in text)
    width = n_together * (1 + max_draft)
    limits = Limits(
        max_draft, "", is_stepwise, has_lookup, step_share, max_rows=width,
        has_streams=n_together > 1,
    )  # fmt: skip
    controller.attach(limits)

    def noisy(ms: float) -> float:
        ms *= rng.lognormvariate(0.0, costs.noise)
        return 3.0 * ms if rng.random() < costs.hiccups else ms

    if controller.wants_costs:
        rows = range(1, max_draft + 2)
        controller.learn_costs({n: noisy(costs.verify(n, 0)) / 1e3 for n in rows})
    waiting, places = list(texts), dict[int, tuple[Text, int]]()
    unread: dict[int, int] = {}
    is_first = True
    while waiting or places:
        for seq in range(n_together):
            if seq not in places and waiting:
                places[seq] = (waiting.pop(0), 0)
                controller.begin(seq)
                if costs.read:
                    unread[seq] = n_prompt
                    controller.catch_up(seq, n_prompt)
        _round(controller, places, costs, noisy, out, is_stepwise, n_prompt, is_first, unread)
        is_first = False
    return out


def _round(
    controller: Controller,
    places: dict[int, tuple[Text, int]],
    costs: Costs,
    noisy: Callable[[float], float],
    out: Outcome,
    is_stepwise: bool,
    n_prompt: int,
    is_first: bool,
    unread: dict[int, int],
) -> None:
    spans = []
    for seq, (text, at) in places.items():
        left = len(text) - at - 1
        spans.append(Span(seq, n_prompt + at, max(min(len(text[at].p) or 8, left), 0)))
    for span, decision in zip(spans, controller.decide(spans), strict=True):
        span.decide(decision)
    n_steps = n_read = 0
    for span in spans:
        text, at = places[span.seq]
        if not span.n_requested:
            continue
        place = text[at]
        if not span.asks_model and not place.match_length:
            continue
        span.draft = _drafted(controller, span, place, at, is_stepwise)
        if place.p and not place.match_length:  # where there is nothing to copy, it cost nothing
            n_steps = max(n_steps, len(span.draft.ids) if is_stepwise else span.n_requested)
            n_read += unread.pop(span.seq, 0)
    for span, n in zip(spans, controller.verify_lengths(spans), strict=True):
        span.verify(n)
    n_longest = max(span.n_verified for span in spans)
    rows = len(spans) * (1 + n_longest)
    n_past = sum(span.n_past for span in spans) // len(spans)
    draft_ms = costs.draft(n_steps) + n_read * costs.read if n_steps else 0.0
    verify_ms = costs.verify(rows, n_past)
    out.seconds += (draft_ms + verify_ms + costs.rest) / 1e3
    first = spans[0]
    if first.seq == 0:
        out.lengths.append((first.n_requested, first.n_verified))
        out.at.append(places[0][1])
    for span in spans:
        text, at = places[span.seq]
        n = min(span.n_verified, text[at].n_right) + 1
        span.tokens = [at + i for i in range(n)]
        out.n_tokens += n
        if not span.draft.ids:
            unread[span.seq] = unread.get(span.seq, 0) + n
        if at + n >= len(text):
            del places[span.seq]
        else:
            places[span.seq] = (text, at + n)
    # In ms, as a clock shows it: the seconds that count are without what disturbs it.
    scale = 5e-3 if len(out.lengths) - 1 in costs.bad else 1e-3
    spent = Spent(noisy(draft_ms) * scale, noisy(verify_ms) * scale, costs.rest * scale)
    controller.weigh(spans, spent)
    out.add_saved(spans)
    controller.learn(spans, spent)


def _drafted(controller: Controller, span: Span, place: Place, at: int, is_stepwise: bool) -> Draft:
    is_lookup = place.match_length > 0
    stop = None if is_lookup or not is_stepwise else controller.stop_of(span)
    if place.is_silent:
        stop = None
    n = span.n_requested
    if is_lookup and span.decision is not None:
        n = max(n, span.decision.n_lookup)
    p: list[float] = []
    for one in place.p[:n]:
        p.append(one)
        if stop is not None and stop(one):
            break
    # What comes true are the ids of the places; what does not is -1.
    ids = [at + i if i < place.n_right else -1 for i in range(len(p))]
    return Draft(ids, None if is_lookup or place.is_silent else p, match_length=place.match_length)


def made_up(
    n: int,
    rate: Callable[[int], float],
    seed: int = 1,
    *,
    exponent: float = 1.0,
) -> list[Place]:
    """A text whose drafts are right at certain rates, and say so more or less well."""
    rng = random.Random(seed)
    chances, coins = [], []
    max_draft, k = 8, 1.0 / 0.35**2
    for at in range(n + max_draft + 1):
        chance = rate(at)
        if 0.0 < chance < 1.0:
            chance = rng.betavariate(chance * k, (1.0 - chance) * k)
        chances.append(chance)
        coins.append(rng.random())
    out = []
    for at in range(n):
        true_p = [chances[at + i] * 0.98**i for i in range(max_draft)]
        n_right = 0
        while n_right < max_draft and coins[at + n_right] < true_p[n_right]:
            n_right += 1
        p = [min(max(c**exponent, 0.001), 0.999) for c in true_p]
        out.append(Place(n_right, p, true_p))
    return out


def recorded(name: str) -> dict[str, list[Place]]:
    """The texts of a file that records drafts of a real model."""
    with gzip.open(_TRACES / f"{name}.json.gz", "rt") as file:
        found: dict[str, list[list[Any]]] = json.load(file)
    return {
        key: [Place(n, p if isinstance(p, list) else [0.5] * p, (), same) for same, n, p in text]
        for key, text in found.items()
    }


def oracle(
    texts: Sequence[Text], costs: Costs, *, is_stepwise: bool = True, n_prompt: int = 100
) -> float:
    """The time of an oracle that knows all costs and probabilities, but not the coins.

    It chooses each round's length by the final ratio of tokens to seconds (Dinkelbach), which it
    finds by iteration from the previous ratio.
    """
    token_s = costs.verify(1, n_prompt) + costs.rest
    total = 0.0
    for _ in range(6):
        total, n_tokens = 0.0, 0
        for text in texts:
            at = 0
            while at < len(text):
                n = _best(text[at], at, len(text), costs, token_s, is_stepwise, n_prompt)
                ms = costs.verify(1 + n, n_prompt + at) + costs.rest
                total += ms + (costs.draft(n) if n and not text[at].match_length else 0.0)
                n_committed = min(n, text[at].n_right) + 1
                at, n_tokens = at + n_committed, n_tokens + n_committed
        token_s = total / n_tokens
    return total / 1e3


def _best(
    place: Place, at: int, end: int, costs: Costs, token_s: float, is_stepwise: bool, n_prompt: int
) -> int:
    best, most, survival, sum_ = 0, -costs.verify(1, n_prompt + at), 1.0, 0.0
    for n in range(1, min(len(place.true_p), end - at - 1) + 1):
        survival *= place.true_p[n - 1]
        sum_ += survival
        gain = token_s * sum_ - costs.verify(1 + n, n_prompt + at) - costs.draft(n)
        if gain > most:
            best, most = n, gain
    return best


def plain(texts: Sequence[Text], costs: Costs, *, n_prompt: int = 100) -> float:
    return (
        sum(
            costs.verify(1, n_prompt + at) + costs.rest for text in texts for at in range(len(text))
        )
        / 1e3
    )
