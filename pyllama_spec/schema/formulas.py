"""The conditions of a schema on a value of one JSON type, combined by "and" and "or".

A condition looks at the value itself (`Text`, `Count`, ...), or names another subschema (`Fits`).
None has an opposite: what asks for one, such as "not", is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from pyllama_spec.schema import numbers
from pyllama_spec.schema.languages import Lang

TYPES = ("object", "array", "string", "number", "boolean", "null")


class Formula:
    """A condition, or a combination of conditions."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class And(Formula):
    """A conjunction; without formulas it is true."""

    parts: tuple[Formula, ...]


@dataclass(frozen=True, slots=True)
class Or(Formula):
    """A disjunction; without formulas it is false."""

    parts: tuple[Formula, ...]


TRUE, FALSE = And(()), Or(())


@dataclass(frozen=True, slots=True)
class Fits(Formula):
    """The value matches a numbered subschema."""

    number: int


@dataclass(frozen=True)
class Condition(Formula):
    """The condition of one keyword."""


@dataclass(frozen=True)
class Truth(Condition):
    """A boolean with one of these values."""

    values: frozenset[bool]


@dataclass(frozen=True)
class Number(Condition):
    """A number that satisfies a rule."""

    rule: numbers.NumberRule


@dataclass(frozen=True)
class Listed(Condition):
    """A number of a list, each with its text."""

    values: tuple[tuple[Fraction, str], ...]


@dataclass(frozen=True)
class Text(Condition):
    """A text of a set."""

    lang: Lang


@dataclass(frozen=True)
class Items(Condition):
    """The subschemas of the first items, and of all others; None for any value."""

    first: tuple[int, ...]
    rest: int | None


@dataclass(frozen=True)
class Count(Condition):
    """The number of items or properties; `path` locates it for an error message."""

    low: int
    high: int | None
    path: str = "#"


@dataclass(frozen=True)
class Unique(Condition):
    """No two items are equal; `path` locates it for an error message."""

    path: str


@dataclass(frozen=True)
class Properties(Condition):
    """The subschemas of properties: by name, by pattern, and of all others; None for any value.

    `is_open` if the schema says itself that there may be others.
    """

    named: tuple[tuple[str, int], ...]
    patterns: tuple[tuple[Lang, int], ...]
    rest: int | None
    is_open: bool = False

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The named subschemas by property name."""
        return dict(self.named)


@dataclass(frozen=True)
class Present(Condition):
    """A property is present."""

    name: str


@dataclass(frozen=True)
class Names(Condition):
    """The subschema of all property names."""

    fits: Fits
