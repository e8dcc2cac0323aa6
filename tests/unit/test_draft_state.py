"""One drafter state for each request, whatever the controller chose last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import pytest

from pyllama_spec.drafters import Draft
from pyllama_spec.speculative import SpeculationStats
from pyllama_spec.speculative.controller.base import DraftDecision, Span

WHY = "it does not pay here"


class Part(NamedTuple):
    """The figures of one round: see _stats()."""

    n_verified: int = 0
    off: str | None = None
    asked_of: Literal["", "copies", "drafter"] = "drafter"
    n_proposed: int = 0
    is_copy: bool = False
    is_retry: bool = False


def _stats(rounds: Sequence[Part], *, before: str | None = None) -> SpeculationStats:
    """Rounds whose verified tokens were all accepted, and the reason why the drafter was off."""
    stats = SpeculationStats(drafter="some")
    stats.reason_off = before
    for part in rounds:
        n = max(part.n_proposed, part.n_verified)
        span = Span(0, 0, draft=Draft([1] * n, match_length=int(part.is_copy)))
        span.decision = DraftDecision(8, is_retry=part.is_retry)
        span.n_requested, span.asked_of = 8, part.asked_of
        span.verify(part.n_verified)
        span.tokens = [1] * (1 + span.n_verified)
        stats.count_round(span, span.n_verified)
        is_asked = part.asked_of == "drafter" and not part.is_retry
        stats.reason_off = None if is_asked else part.off
    return stats


THREE = Part(3)
NOTHING = Part()
# Off: nobody was asked; copies alone, which found nothing; a retry; a lookup, which costs so little
# that it is asked all the same.
OFF = Part(off=WHY, asked_of="")
LOOKED = Part(off=WHY, asked_of="copies")
COPIED = Part(3, WHY, "copies", is_copy=True)
RETRIED = Part(off=WHY, is_retry=True)
FREE = Part(off=WHY)


@pytest.mark.parametrize(
    ("stats", "state"),
    [
        (SpeculationStats(), "none"),
        (_stats([THREE] * 10), "used"),
        # On for most of a text, which it made faster, and off as it ended.
        (_stats([THREE] * 9 + [OFF]), "used"),
        (_stats([THREE] * 12 + [OFF] * 8), "used"),
        (_stats([Part(1)] * 5 + [FREE] + [OFF] * 14), "disabled"),
        # The model is off, and its copies go on.
        (_stats([THREE] * 2 + [COPIED] * 14), "used"),
        # In the fewer rounds, that gave the most tokens.
        (_stats([Part(8, WHY)] * 20 + [OFF] * 50), "used"),
        # Copies that gave less than one token for two plain rounds, the model off all along.
        (_stats([COPIED] * 2 + [LOOKED] * 28, before=WHY), "disabled"),
        # A lookup where nothing came again: on or off, it was asked and found nothing.
        (_stats([NOTHING] * 10), "idle"),
        (_stats([RETRIED] * 2 + [OFF] * 8), "idle"),
        # Asked in each round though it lost: it is not off.
        (_stats([FREE] * 10, before=WHY), "idle"),
        (_stats([Part(1, WHY)] * 4 + [FREE] * 16, before=WHY), "used"),
        # A model that was never asked, or in retries alone, beside copies that found nothing.
        (_stats([LOOKED] * 22, before=WHY), "disabled"),
        # What it proposed was not worth verifying: it costs as long as it is asked.
        (_stats([Part(n_proposed=4)] * 8), "idle"),
        (_stats([Part(0, WHY, n_proposed=4)] * 3 + [OFF] * 9), "disabled"),
        # What earlier texts taught: it was not even asked.
        (_stats([OFF] * 10, before=WHY), "disabled"),
        (_stats([]), "idle"),
    ],
)
def test_states(stats: SpeculationStats, state: str) -> None:
    said = stats.as_dict()
    assert said["state"] == state
    assert said["reason_off"] == (WHY if state == "disabled" else None)


@pytest.mark.parametrize("n_before", [0, 1, 7])
def test_a_failure_disables_whatever_was_won_before(n_before: int) -> None:
    stats = _stats([THREE] * n_before)
    stats.note_failure("it raised ValueError", ValueError())
    stats.count_round(Span(0, 0), 0)
    stats.note_failure("it raised ValueError", ValueError())  # each round says so again
    said = stats.as_dict()
    assert said["state"] == "disabled"
    assert said["reason_off"] == "it raised ValueError"


def test_a_sum_has_the_state_of_its_rounds() -> None:
    used, idle = _stats([THREE] * 10), _stats([NOTHING] * 10)
    off = _stats([OFF] * 40, before=WHY)
    for parts, state in (
        ([used, idle], "used"), ([idle, idle], "idle"), ([off], "disabled"),
        ([used, off], "used"), ([used, off, off], "disabled"),
    ):  # fmt: skip
        total = SpeculationStats()
        for part in parts:
            total.add(part)
        assert total.state == state


EARLY = "reading the text takes longer"


def _idle(*asked_of: Literal["", "copies", "drafter"]) -> SpeculationStats:
    """Rounds without a draft, in which the controller found the text too short for the model."""
    stats = _stats([])
    for who in asked_of:
        span = Span(0, 0, asked_of=who, tokens=[1])
        span.decision = DraftDecision(reason="" if who == "drafter" else EARLY)
        stats.count_round(span, 0)
    return stats


@pytest.mark.parametrize(
    ("stats", "reason"),
    [
        (_idle(), "its first token"), (_idle("", ""), EARLY), (_idle("copies"), EARLY),
        (_idle("drafter", ""), "proposed nothing"), (_stats([NOTHING]), "proposed nothing"),
    ],
)  # fmt: skip
def test_a_result_says_why_a_drafter_was_idle(stats: SpeculationStats, reason: str) -> None:
    assert stats.state == "idle" and reason in stats.idle_because
    assert stats.idle_because in str(stats.as_dict()["note"])
    total = SpeculationStats()
    total.add(stats)
    assert total.idle_because == stats.idle_because
