"""What a controller is: it says how many tokens a round drafts and verifies.

The round calls it four times: ask() before anything is drafted, stop_of() for drafts that are made
a token at a time, cut() once drafts are there, learn() when the round is over. It sees counts,
probabilities and seconds and answers with counts, so that nothing of what it does reaches the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyllama_spec.drafters.base import NO_DRAFT, Draft, DraftStop


@dataclass(frozen=True, slots=True)
class ControllerLimits:
    """What a controller decides in.

    Attributes:
        max_draft: the most tokens that a sequence drafts in a round.
        is_stepwise: whether each drafted token has a cost of its own (Drafter.is_stepwise).
        has_lookup: whether the drafter can be asked for copies alone (Drafter.has_lookup).
        is_padded: whether sequences of a batch are padded to equal length, so that it is the
            longest draft that costs.
        max_rows: the most rows of a decode that verifies.

    """

    max_draft: int
    is_stepwise: bool = False
    has_lookup: bool = False
    is_padded: bool = False
    max_rows: int = 32


@dataclass(slots=True, eq=False)
class Turn:
    """The part of one sequence in a round.

    Attributes:
        seq: the sequence.
        n_past: tokens of it in the target's memory.
        n_max: the most tokens that may be drafted.
        n_asked: how many the drafter is asked for; set by ask(), 0 for not at all.
        n_lookup: how many it is asked for where that can be copied; 0 for n_asked.
        lookup_only: ask() sets it where only what costs no call of a model is wanted.
        draft: all that was proposed.
        n_verified: how many of them are verified; set by cut().
        tokens: what the round committed; () where it failed.
        n_expected: how many of the verified were expected to be accepted, for the statistics.
        is_probe: whether the drafter was off and is tried again.
        gain_expected, gain: in plain rounds, what asking for a draft was expected to save once it
            was there, and what it saved by the clock; set by learn() where a draft was asked for.

    """

    seq: int
    n_past: int
    n_max: int
    n_asked: int = 0
    n_lookup: int = 0
    lookup_only: bool = False
    draft: Draft = NO_DRAFT
    n_verified: int = 0
    tokens: Sequence[int] = ()
    n_expected: float = 0.0
    is_probe: bool = False
    gain_expected: float = 0.0
    gain: float = 0.0


@dataclass(frozen=True, slots=True)
class Spent:
    """The seconds of a round.

    Attributes:
        draft_s: in propose().
        verify_s: in decodes of the target that verify.
        rest_s: in all else: sampling, bookkeeping, commit().
        is_pure: whether nothing but these turns was computed: no prompt was read beside them.

    """

    draft_s: float
    verify_s: float
    rest_s: float = 0.0
    is_pure: bool = True

    @property
    def total_s(self) -> float:
        """All of it."""
        return self.draft_s + self.verify_s + self.rest_s


@dataclass(frozen=True, slots=True)
class KnownCosts:
    """Seconds of one sequence in a short context, for a controller to begin with.

    Attributes:
        verify: of a verify batch, by its rows.
        draft: of a draft, by its tokens.
        rest: of all else, by the number of sequences.

    """

    verify: dict[int, float]
    draft: dict[int, float]
    rest: dict[int, float]


class Controller:
    """Asks for as many tokens as may be drafted, and verifies all. Others override what they do.

    One controller belongs to one Round. Its answers may depend on clocks: the text does not.

    Attributes:
        name: what the statistics call it.
        wants_costs: whether learn_costs() is to be told what verify batches cost when a target is
            opened.

    """

    name: str = "custom"
    wants_costs: bool = False

    def attach(self, room: ControllerLimits) -> None:
        """Called by the round before anything else."""

    def learn_costs(self, seconds: dict[int, float]) -> None:
        """Takes the seconds of verify batches by their rows, measured when a target is opened."""

    def known_costs(self) -> KnownCosts | None:
        """What it has learnt of costs, for begin_with() of a later program; None for nothing."""
        return None

    def begin_with(self, known: KnownCosts) -> None:
        """Takes what an earlier program has learnt here, before anything is measured."""

    def begin(self, seq: int) -> None:
        """A request begins on a sequence."""

    def ask(self, turns: Sequence[Turn]) -> None:
        """Sets n_asked, and lookup_only, of each."""
        for turn in turns:
            turn.n_asked = turn.n_max

    def stop_of(self, turn: Turn) -> DraftStop | None:
        """What ends the draft of a sequence; None for n_asked tokens."""
        return None

    def cut(self, turns: Sequence[Turn]) -> None:
        """Sets n_verified of each, at most as many as its draft has."""
        for turn in turns:
            turn.n_verified = len(turn.draft.ids)

    def learn(self, turns: Sequence[Turn], spent: Spent) -> None:
        """Takes what a round committed and what it took."""

    def reason_off(self, seq: int) -> str | None:
        """Why a sequence is decoded plainly now; None where it is not."""
        return None

    def describe(self) -> dict[str, Any]:
        """What it knows, for `doctor` and `bench`; {} where there is nothing to say."""
        return {}


class FixedLength(Controller):
    """As many tokens as the drafter gives, in every round."""

    name = "fixed"


class Off(Controller):
    """Plain decoding with whatever drafter."""

    name = "off"

    def ask(self, turns: Sequence[Turn]) -> None:
        """Nothing."""

    def reason_off(self, seq: int) -> str | None:
        """It was switched off."""
        return "the controller is off"
