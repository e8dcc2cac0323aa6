"""The parts of the profit controller."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from functools import cache

import pytest

from pyllama_spec.drafters import Draft
from pyllama_spec.errors import ArgumentError
from pyllama_spec.speculative.controller import (
    Controller,
    FixedLength,
    Limits,
    Off,
    ProfitController,
    Span,
    Spent,
    make_controller,
)
from pyllama_spec.speculative.controller.costs import Prices
from pyllama_spec.speculative.controller.profit import best_length, lengths_together, thresholds
from tests.controller_world import Costs, made_up, simulate


@pytest.mark.parametrize("says", [True, False])
def test_a_chain_that_asks_nobody_where_to_end_is_asked_for_what_pays(says: bool) -> None:
    """A drafter with a stop callback is asked for the maximum: the stop ends its chain."""
    controller = ProfitController()
    controller.attach(Limits(8, is_stepwise=True, step_share=0.3))
    controller.learn_costs({n: 1.0 + 0.1 * n for n in range(1, 10)})
    controller.begin(0)
    asked = []
    for _ in range(12):
        span = Span(0, 100, 8)
        span.decide(controller.decide([span])[0])
        p = [0.6] * span.n_requested
        if p:  # else it is a plain round, whose price has to be known
            asked.append(span.n_requested)
            stop = controller.stop_of(span)
            if says and stop is not None:
                p = p[: next((i + 1 for i, one in enumerate(p) if stop(one)), len(p))]
            span.draft = Draft([1, *[0] * (len(p) - 1)], p if says else None)
            span.verify(controller.verify_lengths([span])[0])
        span.tokens = (1, 2)[: 1 + min(span.n_verified, 1)]
        controller.learn([span], Spent(0.3 * len(p), 1.1 + 0.1 * span.n_verified))
    assert len(asked) >= 10
    assert asked[0] == 3  # no more than a row takes: how it drafts is not known yet
    if says:
        assert set(asked[1:]) == {8}
    else:
        assert 0 < min(asked[1:]) <= max(asked[1:]) <= 2


VERIFY, DRAFT = [4.0, 4.3, 5.8, 7.7], [0.0, 0.5, 1.0, 1.5]


def brute_force(survivals: Sequence[float], token_s: float) -> int:
    """The best n by trying all."""
    gains = [token_s * sum(survivals[:n]) - VERIFY[n] for n in range(len(survivals) + 1)]
    return max(range(len(gains)), key=lambda n: (gains[n], -n))


def test_the_best_length_is_that_of_all_lengths() -> None:
    rng = random.Random(4)
    chosen = set()
    for _ in range(500):
        survivals = sorted((rng.random() for _ in range(3)), reverse=True)
        prices = Prices(VERIFY, DRAFT, 0.0, rng.uniform(0.1, 4.0))
        n, gain = best_length(prices, survivals)
        assert n == brute_force(survivals, prices.token_s)
        assert gain >= 0.0
        chosen.add(n)
    assert chosen == {0, 1, 2, 3}


def test_a_chain_ends_where_no_continuation_pays() -> None:
    found = thresholds(Prices(VERIFY, DRAFT, 0.0, 4.0), 0.7)
    for i in range(3):
        for survival in (found[i] - 0.01, found[i] + 0.01):
            pays = False
            for m in range(i + 1, 4):
                product, worth = survival, 0.0
                for _ in range(i, m):
                    product *= 0.7
                    worth += 4.0 * product
                pays |= worth > VERIFY[m] - VERIFY[i] + DRAFT[m] - DRAFT[i]
            assert pays == (survival > found[i])
    assert found[3] > 1.0


@pytest.mark.parametrize("is_padded", [False, True])
def test_sequences_of_a_batch_are_chosen_for_together(is_padded: bool) -> None:
    """The choice equals the best of all ways to cut two drafts."""
    rng = random.Random(5)
    room = Limits(3, has_streams=is_padded)
    for _ in range(200):
        a, b = (sorted((rng.random() for _ in range(3)), reverse=True) for _ in range(2))
        prices = Prices(VERIFY, DRAFT, 0.0, rng.uniform(1.0, 4.0))
        n_a, n_b = lengths_together(prices, [a, b], 2, room)

        def gain(
            n: int, m: int, a: list[float] = a, b: list[float] = b, t: float = prices.token_s
        ) -> float:
            whole, part = divmod(n + m, 2)
            if is_padded:
                cost = 2 * VERIFY[max(n, m)]
            elif part:
                cost = VERIFY[whole] + VERIFY[whole + 1]
            else:
                cost = 2 * VERIFY[whole]
            return t * (sum(a[:n]) + sum(b[:m])) - cost

        best = max(gain(n, m) for n in range(4) for m in range(4))
        assert gain(n_a, n_b) == pytest.approx(best)


def test_which_controller_is_meant() -> None:
    assert isinstance(make_controller(None), ProfitController)
    # Who says where drafts end by hand is not overruled.
    assert isinstance(make_controller(None, 0.4), FixedLength)
    assert isinstance(make_controller(None, 0.0), FixedLength)
    assert isinstance(make_controller("profit", 0.4), ProfitController)
    assert isinstance(make_controller("fixed"), FixedLength)
    assert isinstance(make_controller("off"), Off)
    mine = Controller()
    assert make_controller(mine) is mine
    bad: object
    for bad in ("best", 3, object(), ProfitController):
        with pytest.raises(ArgumentError):
            make_controller(bad)  # type: ignore[arg-type]


def test_a_drafter_that_is_wrong_is_asked_seldom_and_says_so() -> None:
    controller = ProfitController()
    text = made_up(600, lambda at: 0.0)
    costs = Costs(lambda rows, n_past: 4.0 + 0.9 * (rows - 1), lambda n: 0.5 * n)
    out = simulate(controller, [text], costs)
    asked = sum(n_requested > 0 for n_requested, _ in out.lengths)
    assert 3 <= asked < 30
    assert sum(n for n, _ in out.lengths[-60:]) <= 2 * 8
    assert controller.reason_off(0) is not None


class Copies:
    """Rounds of some sequences whose copies are always right, at a price of their rows."""

    def __init__(
        self,
        row_s: float,
        n_seqs: int = 1,
        n_copies: int = 1,
        *,
        is_padded: bool = False,
        timed: Callable[[int], float] = lambda rows: 1.0,
    ) -> None:
        self.row_s, self.n_seqs, self.n_copies, self.is_padded = row_s, n_seqs, n_copies, is_padded
        self.controller = ProfitController()
        self.controller.attach(Limits(10, has_lookup=True, has_streams=is_padded))
        sizes = (1, 2, 3, 4, 6, 8, 11, 16, 22, 32)
        self.controller.learn_costs({n: self.seconds(n) * timed(n) for n in sizes})
        for seq in range(n_seqs):
            self.controller.begin(seq)

    def seconds(self, rows: int) -> float:
        """The seconds of a decode."""
        return 1e-2 + self.row_s * (rows - 1)

    def play(self, n_rounds: int) -> list[float]:
        """How many tokens of each copy the rounds verified, in the mean of the copies."""
        controller, out, at = self.controller, [], [0] * self.n_seqs
        for _ in range(n_rounds):
            spans = [Span(seq, 100, 10) for seq in range(self.n_seqs)]
            for span, decision in zip(spans, controller.decide(spans), strict=True):
                span.decide(decision)
                n, begin = max(decision.n_requested, decision.n_lookup), at[span.seq]
                if n and span.seq < self.n_copies:
                    span.draft = Draft(range(begin, begin + n), [0.95] * n, match_length=12)
            for span, n in zip(spans, controller.verify_lengths(spans), strict=True):
                span.verify(n)
                span.tokens = range(at[span.seq], at[span.seq] + n + 1)
                at[span.seq] += n + 1
            lengths = [span.n_verified for span in spans]
            rows = self.n_seqs * (1 + max(lengths)) if self.is_padded else sum(lengths, self.n_seqs)
            assert rows <= 32
            controller.learn(spans, Spent(1e-5, self.seconds(rows), 1e-4))
            out.append(statistics.mean(lengths[: self.n_copies]))
        return out


@cache
def verified_when_calm(n_seqs: int, n_copies: int, is_padded: bool) -> float:
    """How many tokens of a copy are verified where all rows were timed in a calm moment."""
    return statistics.mean(Copies(3e-3, n_seqs, n_copies, is_padded=is_padded).play(400)[-100:])


@pytest.mark.parametrize(
    ("n_seqs", "n_copies", "is_padded"),
    [(1, 1, False), (2, 2, False), (2, 1, False), (4, 4, False), (4, 1, False), (8, 8, False),
     (2, 2, True), (4, 4, True), (8, 8, True)],
)  # fmt: skip
@pytest.mark.parametrize("factor", [3.0, 10.0, 50.0])
@pytest.mark.parametrize("from_row", [2, 4])
def test_rows_that_were_timed_in_a_bad_moment_are_timed_again(
    n_seqs: int, n_copies: int, is_padded: bool, factor: float, from_row: int
) -> None:
    """Otherwise copies would stay cut while the model is open, as nothing else times the rows."""
    expected = verified_when_calm(n_seqs, n_copies, is_padded)
    assert expected > 2
    disturbed = Copies(
        3e-3, n_seqs, n_copies, is_padded=is_padded,
        timed=lambda rows: factor if rows >= from_row else 1.0,
    )  # fmt: skip
    # The widths of one copy beside plain sequences lie between those that prices are made of.
    least = 0.8 if n_copies == n_seqs else 0.5
    assert statistics.mean(disturbed.play(400)[-100:]) > least * expected


@pytest.mark.parametrize("n_seqs", [1, 2, 4])
@pytest.mark.parametrize("is_padded", [False, True])
def test_rows_that_are_dear_are_not_tried_for_ever(n_seqs: int, is_padded: bool) -> None:
    """After some timings the price is known, and copies that never pay cost almost nothing."""
    verified = Copies(1.5e-2, n_seqs, n_seqs, is_padded=is_padded).play(1000)
    assert sum(n > 0 for n in verified) < 10
    assert not any(verified[400:])
