"""The texts of numbers within bounds, and of multiples, as an automaton over digits.

A bounded number is written without an exponent, and has at most MAX_DIGITS digits where it has a
fraction: with more, two of them are one float, and one below a bound may be read as the bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from pyllama_spec.schema.charsets import CharSet, of
from pyllama_spec.schema.languages import Table, explored
from pyllama_spec.schema.limits import WORK, TooLargeError

MAX_DIGITS = 15
MAX_WHOLE_DIGITS = 16
# Integers of 64 bits have 19; a bound beyond is compared by its length.
MOST_WHOLE_DIGITS = 19


@dataclass(frozen=True)
class Compare:
    """A comparison with a value: the allowed results, -1 below, 0 equal, 1 above."""

    value: Fraction
    allowed: frozenset[int]


@dataclass(frozen=True)
class Multiple:
    """A number is a multiple of a value."""

    value: Fraction


@dataclass(frozen=True)
class Whole:
    """A number is an integer."""


NumberRule = Compare | Multiple | Whole


def exact(value: int | float | Decimal) -> Fraction:
    """The exact value of a JSON number: 0.1 is a tenth."""
    return Fraction(Decimal(repr(value)) if isinstance(value, float) else value)


def fits(value: Fraction, rules: Iterable[NumberRule]) -> bool:
    """Whether a number satisfies all rules."""
    for rule in rules:
        if isinstance(rule, Compare):
            kept = (value > rule.value) - (value < rule.value) in rule.allowed
        elif isinstance(rule, Multiple):
            kept = (value / rule.value).denominator == 1
        else:
            kept = value.denominator == 1
        if not kept:
            return False
    return True


class _Bound(NamedTuple):
    """A bound's digits, and the allowed results of the comparison with it."""

    whole: str
    fraction: str
    is_negative: bool
    allowed: frozenset[int]


class _State(NamedTuple):
    """What matters of the digits so far.

    The phase is "" at the beginning, "-", "0", "w" in whole digits, "." after the point, "f" behind
    it; `sides` compare with each bound, -1, 0 or 1; `rests` are the remainders by each multiple.
    """

    phase: str
    is_negative: bool
    n_whole: int
    n_fraction: int
    sides: tuple[int, ...]
    rests: tuple[int, ...]
    has_value: bool


def _decimals(value: Fraction) -> int:
    """The number of decimals of a value, at most some hundred."""
    n = 0
    while (value * 10**n).denominator != 1:
        n += 1
        if n > 400:
            raise TooLargeError("its value has too many digits")
    return n


class _Digits:
    """The transitions over the texts of numbers that satisfy some rules."""

    def __init__(self, rules: Iterable[NumberRule]) -> None:
        distinct = list(dict.fromkeys(rules))
        self._bounds = [self._bound(rule) for rule in distinct if isinstance(rule, Compare)]
        multiples = [rule for rule in distinct if isinstance(rule, Multiple)]
        self._may_have_point = Whole() not in distinct
        self._n_decimals = [_decimals(rule.value) for rule in multiples]
        self._units = [
            int(abs(rule.value) * 10**n)
            for rule, n in zip(multiples, self._n_decimals, strict=True)
        ]
        longest = max((len(bound.whole) for bound in self._bounds), default=0)
        self._n_whole = max(MAX_WHOLE_DIGITS, min(longest, MOST_WHOLE_DIGITS))
        # Many remainders and many lengths are too many states together.
        self._n_distinct = (
            min(longest, MOST_WHOLE_DIGITS) + 1 if max(self._units, default=0) > 60 else None
        )

    @staticmethod
    def _bound(rule: Compare) -> _Bound:
        value = abs(rule.value)
        n = _decimals(value)
        digits = str(int(value * 10**n)).rjust(n + 1, "0")
        whole = digits[: len(digits) - n]
        return _Bound(whole, digits[len(digits) - n :], rule.value < 0, rule.allowed)

    def first(self) -> _State:
        sides, rests = (0,) * len(self._bounds), (0,) * len(self._units)
        return _State("", False, 0, 0, sides, rests, has_value=False)

    def leaving(self, state: _State) -> Iterator[tuple[CharSet, _State]]:
        """The possible next characters and their states."""
        if state.phase == "":
            yield of("-"), state._replace(phase="-", is_negative=True)
        if state.phase in ("", "-"):
            yield of("0"), self._whole_digit(state, "0", "0")
        may_be_longer = self._n_distinct or state.n_whole < self._n_whole
        if state.phase in ("", "-") or (state.phase == "w" and may_be_longer):
            others = [bound.whole[state.n_whole : state.n_whole + 1] for bound in self._bounds]
            for low, high in self._groups(state, others):
                yield ((ord(low), ord(high)),), self._whole_digit(state, low, "w")
        if state.phase in ("0", "w") and self._may_have_point and self._has_room(state):
            yield of("."), self._behind_whole(state)._replace(phase=".")
        if state.phase == "." or (state.phase == "f" and self._has_room(state)):
            at = state.n_fraction
            others = [bound.fraction[at : at + 1] or "0" for bound in self._bounds]
            for low, high in self._groups(state, others):
                yield ((ord(low), ord(high)),), self._fraction_digit(state, low)

    def _groups(self, state: _State, others: list[str]) -> Iterator[tuple[str, str]]:
        """Groups of digits that lead to the same state, beside each bound's digit here, or ""."""
        is_first = state.phase in ("", "-")
        if self._units:
            cuts = set(range(11))
        else:
            known = {int(x) for x, side in zip(others, state.sides, strict=True) if x and not side}
            cuts = {0, 10, *known, *(digit + 1 for digit in known)}
            if not state.has_value:
                cuts.add(1)
        ends = sorted((cuts | {1}) - {0} if is_first else cuts)
        for low, end in pairwise(ends):
            yield str(low), str(end - 1)

    def _has_room(self, state: _State) -> bool:
        left = min([MAX_DIGITS - state.n_whole, *self._n_decimals])
        return state.n_fraction < left

    def _whole_digit(self, state: _State, digit: str, phase: str) -> _State:
        at = state.n_whole
        sides = state.sides
        if 0 in sides:
            sides = tuple([
                side or ((digit > bound.whole[at]) - (digit < bound.whole[at]))
                if at < len(bound.whole) else side
                for side, bound in zip(sides, self._bounds, strict=True)
            ])  # fmt: skip
        if self._n_distinct is not None:
            at = min(at, self._n_distinct - 1)
        return _State(
            phase, state.is_negative, at + 1, 0, sides, self._rests(state, digit),
            state.has_value or digit != "0",
        )  # fmt: skip

    def _rests(self, state: _State, digit: str) -> tuple[int, ...]:
        if not self._units:
            return ()
        both = zip(state.rests, self._units, strict=True)
        return tuple((rest * 10 + int(digit)) % unit for rest, unit in both)

    def _behind_whole(self, state: _State) -> _State:
        """The comparison states once the number of integer digits is known."""
        sides = tuple(
            -1 if state.n_whole < len(bound.whole)
            else 1 if state.n_whole > len(bound.whole) else side
            for side, bound in zip(state.sides, self._bounds, strict=True)
        )  # fmt: skip
        return state._replace(sides=sides)

    def _fraction_digit(self, state: _State, digit: str) -> _State:
        at = state.n_fraction

        def side_of(side: int, bound: _Bound) -> int:
            other = bound.fraction[at] if at < len(bound.fraction) else "0"
            return side or ((digit > other) - (digit < other))

        sides = tuple(map(side_of, state.sides, self._bounds))
        return _State(
            "f", state.is_negative, state.n_whole, at + 1, sides, self._rests(state, digit),
            state.has_value or digit != "0",
        )  # fmt: skip

    def may_end(self, state: _State) -> bool:
        """Whether the text so far is a number that satisfies the rules."""
        if state.phase not in ("0", "w", "f") or (state.is_negative and not state.has_value):
            return False
        read = state if state.phase == "f" else self._behind_whole(state)
        for side, bound in zip(read.sides, self._bounds, strict=True):
            if not side and bound.fraction[state.n_fraction :].strip("0"):
                side = -1
            if state.is_negative != bound.is_negative:
                outcome = -1 if state.is_negative else 1
            else:
                outcome = -side if state.is_negative else side
            if outcome not in bound.allowed:
                return False
        multiples = zip(state.rests, self._n_decimals, self._units, strict=True)
        return all(rest * 10 ** (n - state.n_fraction) % unit == 0 for rest, n, unit in multiples)


def number_table(rules: Iterable[NumberRule]) -> Table:
    """The automaton of the numbers that satisfy all rules."""
    WORK.begin()
    digits = _Digits(rules)
    return explored(digits.first(), digits.leaving, digits.may_end)
