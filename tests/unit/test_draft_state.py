"""One state of the drafter for each request, whatever the controller thought as the text ended."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pyllama_spec.drafters import Draft
from pyllama_spec.speculative import SpeculationStats
from pyllama_spec.speculative.controller.base import Span

WHY = "it does not pay here"


def _span(n_drafted: int) -> Span:
    """A round's part of a sequence, with so many drafted tokens that are all verified."""
    span = Span(0, 0, draft=Draft([1] * n_drafted))
    span.verify(n_drafted)
    return span


def _stats(
    rounds: Sequence[tuple[int, str | None]], *, before: str | None = None, asked: int = 0
) -> SpeculationStats:
    """Of rounds with so many drafted tokens, all accepted, and why the drafter was off behind."""
    stats = SpeculationStats(drafter="some", asked=asked)
    stats.note_off(before, is_plain=False)
    for n_drafted, reason in rounds:
        stats.count_round(_span(n_drafted), n_drafted)
        stats.note_off(reason, is_plain=not n_drafted)
    return stats


@pytest.mark.parametrize(
    ("stats", "state", "since"),
    [
        (SpeculationStats(), "none", None),
        (_stats([(3, None)] * 10, asked=10), "used", None),
        # On for most of a text, which it made faster, and off as it ended.
        (_stats([(3, None)] * 9 + [(0, WHY)], asked=10), "used", None),
        (_stats([(3, None)] * 12 + [(0, WHY)] * 8, asked=13), "used", None),
        (_stats([(1, None)] * 5 + [(0, WHY)] * 15, asked=6), "disabled", 6),
        # Off and on again, and off.
        (_stats([(1, WHY), (0, None), (1, WHY)] + [(0, WHY)] * 9, asked=3), "disabled", 3),
        # The model is off, and its copies go on.
        (_stats([(3, None)] * 2 + [(3, WHY)] * 14, asked=16), "used", None),
        (_stats([(3, WHY)] * 10 + [(0, WHY)] * 4, before=WHY, asked=10), "used", None),
        # In the fewer rounds, that gave the most tokens.
        (_stats([(8, WHY)] * 20 + [(0, WHY)] * 50, asked=20), "used", None),
        (_stats([(1, WHY)] * 20 + [(0, WHY)] * 50, asked=20), "disabled", 1),
        # A lookup where nothing came again: on or off, it was asked and found nothing.
        (_stats([(0, None)] * 10, asked=10), "idle", None),
        (_stats([(0, WHY)] * 10, asked=2), "idle", None),
        (_stats([(0, WHY)] * 10, before=WHY, asked=1), "idle", None),
        # What earlier texts taught: it was not even asked.
        (_stats([(0, WHY)] * 10, before=WHY), "disabled", 0),
        (_stats([], before=WHY), "disabled", 0),
        (_stats([]), "idle", None),
    ],
)  # fmt: skip
def test_states(stats: SpeculationStats, state: str, since: int | None) -> None:
    said = stats.as_dict()
    assert (said["state"], said["disabled_since"]) == (state, since)
    assert said["reason_off"] == (WHY if state == "disabled" else None)


@pytest.mark.parametrize("n_before", [0, 1, 7])
def test_a_failure_disables_whatever_was_won_before(n_before: int) -> None:
    stats = _stats([(3, None)] * n_before, asked=n_before)
    stats.note_failure("it raised ValueError", ValueError())
    stats.count_round(_span(0), 0)
    stats.note_failure("it raised ValueError", ValueError())  # each round says so again
    said = stats.as_dict()
    assert (said["state"], said["disabled_since"]) == ("disabled", n_before)
    assert said["reason_off"] == "it raised ValueError"


def test_a_sum_has_the_state_of_its_rounds() -> None:
    used, idle = _stats([(3, None)] * 10, asked=10), _stats([(0, None)] * 10, asked=10)
    off = _stats([(0, WHY)] * 40, before=WHY)
    for parts, state in (
        ([used, idle], "used"), ([idle, idle], "idle"), ([off], "disabled"),
        ([used, off], "used"), ([used, off, off], "disabled"),
    ):  # fmt: skip
        total = SpeculationStats()
        for part in parts:
            total.add(part)
        assert total.state == state
        assert total.as_dict()["disabled_since"] == (0 if parts == [off] else None)
