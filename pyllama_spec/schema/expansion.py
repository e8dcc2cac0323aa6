"""Expands a schema's conditions for one type into cases, each a list of conditions.

References, allOf, anyOf and oneOf are gone then. What is left looks at the value, or at
its parts by the numbers of their subschemas. A node is a set of subschemas that a value fits, all
of them at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from pyllama_spec.schema import numbers
from pyllama_spec.schema.document import Document
from pyllama_spec.schema.keywords import (
    KEPT,
    TYPES,
    And,
    Condition,
    Count,
    Fits,
    Formula,
    Items,
    Listed,
    Meaning,
    Names,
    Number,
    Or,
    Present,
    Properties,
    Text,
    Truth,
    types_meant,
)
from pyllama_spec.schema.languages import Lang, Never, either, matches, meet, table
from pyllama_spec.schema.limits import Budget, TooLargeError, malformed

Node = frozenset[Fits]
Case = tuple[Condition, ...]

# All values.
ANYTHING: Node = frozenset()
_MAX_CASES = 400
# How far down two alternatives are looked at, to see that no value fits both.
_APART_DEPTH = 2
_MEANT_DEPTH = 5

C = TypeVar("C", bound=Condition)


def those(case: Case, kind: type[C]) -> list[C]:
    """The conditions of one kind."""
    return [one for one in case if isinstance(one, kind)]


def bounds(case: Case) -> tuple[int, int | None]:
    """The minimum and maximum number of items or properties."""
    conditions = those(case, Count)
    highs = [one.high for one in conditions if one.high is not None]
    return max((one.low for one in conditions), default=0), min(highs, default=None)


_Pending = tuple[Formula, frozenset[Fits]]


@dataclass
class _Branch:
    """A case under construction; of each pending formula also the subschemas that it stands in."""

    pending: list[_Pending]
    case: Case = ()
    seen: frozenset[Fits] = frozenset()


class Expansion:
    """The cases of the subschemas of a document."""

    def __init__(self, document: Document, budget: Budget) -> None:
        self.document = document
        self.meaning = Meaning(document, self._are_apart, budget.spend)
        self._budget = budget
        self._made: dict[tuple[Node, str], tuple[Case, ...]] = {}
        self._empty: dict[tuple[Node, int], bool] = {}
        self._depth = 0

    def node(self, fits: Iterable[Fits]) -> Node:
        """The set of subschemas, without those that accept all values."""
        asked_for = set()
        for one in fits:
            number = self.meaning.behind_references(one.number)
            schema = self.document.nodes[number].schema
            if schema is False or (isinstance(schema, dict) and (KEPT | {"not"}) & set(schema)):
                asked_for.add(Fits(number))
            elif isinstance(schema, dict):
                self.meaning.of(number, "null")  # for the names that are not keywords
        return frozenset(asked_for)

    def kinds(self, node: Node) -> tuple[str, ...]:
        """The possible types of a value; if all are, those that the keywords are about.

        A schema with properties and without a type means an object.
        """
        possible = tuple(kind for kind in TYPES if self.cases(node, kind))
        if len(possible) < len(TYPES):
            return possible
        meant: set[str] = set()
        for fits in node:
            meant |= self._meant(fits.number, 0) or set()
        return tuple(kind for kind in TYPES if kind in meant) or possible

    def _meant(self, number: int, depth: int) -> set[str] | None:
        """The types that a subschema is about; None if an alternative leaves them open."""
        self._budget.spend()
        node = self.document.nodes[number]
        if not isinstance(node.schema, dict) or depth > _MEANT_DEPTH:
            return None
        types = types_meant(node.schema)
        if "$ref" in node.schema:
            types |= self._meant(self.document.target(node), depth + 1) or set()
        for key in ("allOf", "anyOf", "oneOf"):
            parts = [
                self._meant(self.document.child(node, one, key, i), depth + 1)
                for i, one in enumerate(node.schema.get(key, ()))
            ]
            if parts and (key == "allOf" or all(parts)):
                types |= set().union(*(part or set() for part in parts))
        return types or None

    def cases(self, node: Node, kind: str) -> tuple[Case, ...]:
        """The cases of a value of one type that matches all subschemas."""
        cases = self._made.get((node, kind))
        if cases is None:
            cases = self._made[node, kind] = tuple(self._worked_out(node, kind))
        return cases

    def _worked_out(self, node: Node, kind: str) -> list[Case]:
        done: dict[frozenset[Condition], Case] = {}
        ordered = sorted(node, key=lambda fits: fits.number)
        branches = [_Branch([(fits, frozenset()) for fits in reversed(ordered)])]
        while branches:
            branch = branches.pop()
            branches += self._followed(branch, kind)
            if not branch.pending:
                done.setdefault(frozenset(branch.case), branch.case)
                if len(done) > _MAX_CASES:
                    raise TooLargeError(f"it has more than {_MAX_CASES} cases")
        # What a looser case allows need not be said again.
        return [()] if frozenset() in done else list(done.values())

    def _followed(self, branch: _Branch, kind: str) -> list[_Branch]:
        """Follows a branch to its end, or to where it divides, and gives its ways from there."""
        while branch.pending:
            self._budget.spend()
            formula, above = branch.pending.pop()
            if isinstance(formula, And):
                branch.pending.extend((part, above) for part in reversed(formula.parts))
            elif isinstance(formula, Or):
                rest, branch.pending = branch.pending, [(formula, above)]
                return [
                    _Branch([*rest, (one, above)], branch.case, branch.seen)
                    for one in reversed(formula.parts)
                ]
            elif isinstance(formula, Fits):
                if formula in above:
                    path = self.document.nodes[formula.number].path
                    raise malformed("$ref", path, "refers to itself")
                if formula not in branch.seen:
                    branch.seen |= {formula}
                    asked = self.meaning.of(formula.number, kind)
                    branch.pending.append((asked, above | {formula}))
            elif isinstance(formula, Condition) and formula not in branch.case:
                branch.case = (*branch.case, formula)
        return []

    def text_language(self, node: Node) -> Lang:
        """The set of matching texts."""
        return either(meet(one.lang for one in case if isinstance(one, Text))
                      for case in self.cases(node, "string"))  # fmt: skip

    def property_node(self, case: Case, name: str) -> Node:
        """The subschemas for the value of a property."""
        fits: list[Fits] = []
        for one in those(case, Properties):
            own = [Fits(one.numbers[name])] if name in one.numbers else []
            own += [Fits(number) for lang, number in one.patterns if matches(lang, name)]
            if not own and one.rest is not None:
                own = [Fits(one.rest)]
            fits += own
        return self.node(fits)

    def allows_name(self, case: Case, name: str) -> bool:
        """Whether a property may have this name."""
        return all(
            matches(self.text_language(self.node([one.fits])), name) for one in those(case, Names)
        )

    def item_node(self, case: Case, place: int) -> Node:
        """The subschemas for the item at a position."""
        fits: list[Fits] = []
        for one in those(case, Items):
            if place < len(one.first):
                fits.append(Fits(one.first[place]))
            elif one.rest is not None:
                fits.append(Fits(one.rest))
        return self.node(fits)

    def _are_apart(self, a: int, b: int, kind: str) -> bool:
        if self._say_apart(a, b, kind):
            return True
        if self._depth >= _APART_DEPTH:
            return False
        self._depth += 1
        try:
            node = self.node([Fits(a), Fits(b)])
            return all(self._is_barren(case, kind, _APART_DEPTH) for case in self.cases(node, kind))
        finally:
            self._depth -= 1

    def _say_apart(self, a: int, b: int, kind: str) -> bool:
        """Whether one of two subschemas names another type: most pairs of a large union do."""
        numbers = [self.meaning.behind_references(n) for n in (a, b)]
        schemas = [self.document.nodes[n].schema for n in numbers]
        types = {"integer", "number"} if kind == "number" else {kind}
        named = [one.get("type") for one in schemas if isinstance(one, dict)]
        return any(isinstance(one, str) and one not in types for one in named)

    def is_barren(self, node: Node, depth: int) -> bool:
        """Whether no value can match, by a shallow check."""
        key = (node, depth)
        if key not in self._empty:
            self._empty[key] = False
            self._empty[key] = all(
                self._is_barren(case, kind, depth)
                for kind in TYPES
                for case in self.cases(node, kind)
            )
        return self._empty[key]

    def _is_barren(self, case: Case, kind: str, depth: int) -> bool:
        self._budget.spend(len(case))
        if kind == "string":
            lang = meet(one.lang for one in case if isinstance(one, Text))
            return isinstance(lang, Never) or (len(case) > 1 and _has_no_text(lang))
        if kind == "number":
            return not _has_number(case)
        if kind == "boolean":
            return not truths(case)
        if kind == "array":
            low, high = bounds(case)
            if high is not None and low > high:
                return True
            n_seen = min(low, 8) if depth else 0
            return any(self.is_barren(self.item_node(case, i), depth - 1) for i in range(n_seen))
        if kind == "object":
            low, high = bounds(case)
            needed = [one.name for one in those(case, Present)]
            if high is not None and max(low, len(set(needed))) > high:
                return True
            return depth > 0 and any(
                self.is_barren(self.property_node(case, name), depth - 1) for name in needed
            )
        return False


def _has_no_text(lang: Lang) -> bool:
    try:
        return table(lang).is_empty
    except TooLargeError:
        return False


def truths(case: Case) -> frozenset[bool]:
    """The booleans that a case allows."""
    return frozenset({True, False}).intersection(*(one.values for one in those(case, Truth)))


def listed_numbers(case: Case) -> list[str] | None:
    """The texts of the numbers, if they are listed."""
    lists = those(case, Listed)
    if not lists:
        return None
    rules = [one.rule for one in those(case, Number)]
    common = set.intersection(*({value for value, _ in one.values} for one in lists))
    return [
        text for value, text in lists[0].values if value in common and numbers.fits(value, rules)
    ]


def _has_number(case: Case) -> bool:
    texts = listed_numbers(case)
    if texts is not None:
        return bool(texts)
    rules = [one.rule for one in those(case, Number)]
    try:
        return len(rules) < 2 or not numbers.number_table(rules).is_empty
    except TooLargeError:
        return True
