"""The conditions of a schema on a value of one JSON type, combined by "and" and "or".

A condition looks at the value itself (`Text`, `Count`, ...), or names another subschema (`Fits`).
Each knows its negation, or refuses: then a schema cannot stand under "not", "if" or "oneOf".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

from pyllama_spec.errors import SchemaError
from pyllama_spec.schema import numbers
from pyllama_spec.schema.languages import Lang, negated
from pyllama_spec.schema.limits import cannot

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
    """The value matches a numbered subschema, or does not match it."""

    number: int
    is_one: bool = True


@dataclass(frozen=True)
class Condition(Formula):
    """The condition of one keyword. `keyword` and `path` locate it for an error message."""

    keyword: str = field(default="", kw_only=True, compare=False)
    path: str = field(default="#", kw_only=True, compare=False)

    def negation(self) -> Formula:
        """The negated condition."""
        raise self.refusal()

    def refusal(self) -> SchemaError:
        """The error for a condition without a negation."""
        return cannot(
            self.keyword, self.path, 'a grammar cannot hold the opposite, which "not", "if" or '
            '"oneOf" around it ask for', "say what is allowed, or anyOf for oneOf",
        )  # fmt: skip


@dataclass(frozen=True)
class Truth(Condition):
    """A boolean with one of these values."""

    values: frozenset[bool]

    def negation(self) -> Formula:
        """See Condition.negation."""
        return Truth(frozenset({True, False}) - self.values)


@dataclass(frozen=True)
class Number(Condition):
    """A number that satisfies a rule."""

    rule: numbers.NumberRule

    def negation(self) -> Formula:
        """See Condition.negation."""
        rule = self.rule
        if isinstance(rule, numbers.Compare):
            others = frozenset({-1, 0, 1}) - rule.allowed
            return Number(numbers.Compare(rule.value, others))
        if isinstance(rule, numbers.Multiple):
            return Number(numbers.Multiple(rule.value, not rule.is_one))
        return Number(numbers.Whole(not rule.is_one))


@dataclass(frozen=True)
class Listed(Condition):
    """A number of a list, each with its text."""

    values: tuple[tuple[Fraction, str], ...]

    def negation(self) -> Formula:
        """See Condition.negation."""
        apart = frozenset({-1, 1})
        return And(tuple(Number(numbers.Compare(value, apart)) for value, _ in self.values))


@dataclass(frozen=True)
class Text(Condition):
    """A text of a set; `is_narrow` if the keyword allows further texts."""

    lang: Lang
    is_narrow: bool = False

    def negation(self) -> Formula:
        """See Condition.negation."""
        if self.is_narrow:
            raise self.refusal()
        return Text(negated(self.lang))


@dataclass(frozen=True)
class Items(Condition):
    """The subschemas of the first items, and of all others; None for any value."""

    first: tuple[int, ...]
    rest: int | None

    def negation(self) -> Formula:
        """See Condition.negation."""
        ways = [PartFits(i, Fits(number)).negation() for i, number in enumerate(self.first)]
        if self.rest is not None:
            if self.first:
                raise self.refusal()
            ways.append(Contains(Fits(self.rest, is_one=False), 1, None))
        return Or(tuple(ways))


@dataclass(frozen=True)
class PartFits(Condition):
    """The subschema of one item, by its position, or property, by its name, if it exists."""

    part: int | str
    fits: Fits

    def negation(self) -> Formula:
        """See Condition.negation."""
        part = self.part
        exists = Count(part + 1, None) if isinstance(part, int) else Present(part)
        return And((exists, PartFits(part, Fits(self.fits.number, not self.fits.is_one))))


@dataclass(frozen=True)
class Count(Condition):
    """The number of items or properties."""

    low: int
    high: int | None

    def negation(self) -> Formula:
        """See Condition.negation."""
        ways: list[Formula] = [Count(0, self.low - 1)] if self.low > 0 else []
        return Or((*ways, Count(self.high + 1, None)) if self.high is not None else tuple(ways))


@dataclass(frozen=True)
class Contains(Condition):
    """The number of items that match a subschema."""

    fits: Fits
    low: int
    high: int | None

    def negation(self) -> Formula:
        """See Condition.negation."""
        ways: list[Formula] = []
        if self.low > 0:
            ways.append(Contains(self.fits, 0, self.low - 1))
        if self.high is not None:
            ways.append(Contains(self.fits, self.high + 1, None))
        return Or(tuple(ways))


@dataclass(frozen=True)
class Unique(Condition):
    """No two items are equal."""


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

    def negation(self) -> Formula:
        """See Condition.negation."""
        if self.patterns or self.rest is not None:
            raise self.refusal()
        return Or(tuple(PartFits(name, Fits(number)).negation() for name, number in self.named))


@dataclass(frozen=True)
class Present(Condition):
    """A property is present, or is absent."""

    name: str
    is_one: bool = True

    def negation(self) -> Formula:
        """See Condition.negation."""
        return Present(self.name, not self.is_one)


@dataclass(frozen=True)
class Names(Condition):
    """The subschema of all property names."""

    fits: Fits


@dataclass(frozen=True)
class Older(Condition):
    """The condition of a keyword from older drafts: enforced, never negated."""

    formula: Formula


def opposite(formula: Formula) -> Formula:
    """The negated formula."""
    if isinstance(formula, And):
        return Or(tuple(opposite(part) for part in formula.parts))
    if isinstance(formula, Or):
        return And(tuple(opposite(part) for part in formula.parts))
    if isinstance(formula, Fits):
        return Fits(formula.number, not formula.is_one)
    assert isinstance(formula, Condition)
    return formula.negation()
