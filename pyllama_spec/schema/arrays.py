"""Grammar rules for arrays: the first items by position, then any number of others."""

from __future__ import annotations

from collections.abc import Callable

from pyllama_spec.schema.expansion import Case, Expansion, Node, bounds, listed_values, those
from pyllama_spec.schema.formulas import Items, Unique
from pyllama_spec.schema.grammar import Alternative, Grammar, Item, Literal, Rule
from pyllama_spec.schema.limits import TooLargeError, cannot
from pyllama_spec.schema.texts import Texts

_MAX_PLACES = 2000
_MAX_LISTED = 300
_END = Literal("]")


class Arrays:
    """Makes the grammar rules of arrays."""

    def __init__(
        self, expansion: Expansion, grammar: Grammar, texts: Texts, rule_of: Callable[[Node], str]
    ) -> None:
        self._expansion, self._grammar, self._texts = expansion, grammar, texts
        self._rule_of = rule_of

    def alternatives(self, case: Case) -> list[Alternative]:
        """The rules of a case's arrays."""
        if not case:
            return [(Rule("array"),)]
        low, high = bounds(case)
        n_first = max((len(one.first) for one in those(case, Items)), default=0)
        if high is None and any(one.first and one.rest is None for one in those(case, Items)):
            # Places without a subschema stay empty, unless more items are required.
            high = n_first if low <= n_first else None
        if n_first > _MAX_PLACES:
            raise TooLargeError(f"it has more than {_MAX_PLACES:,} places")
        if high is not None and low > high:
            return []
        unique = those(case, Unique)
        if unique and (high is None or high > 1):
            first = self._unique(case, unique[0], low, high, n_first)
        else:
            first = self._plain(case, low, high, n_first)
        return [(Literal("["), Rule(first))]

    def _start(self, n: int) -> list[Item]:
        return [self._texts.comma] if n else []

    def _item(self, case: Case, place: int) -> Rule:
        return Rule(self._rule_of(self._expansion.item_node(case, place)))

    def _plain(self, case: Case, low: int, high: int | None, n_first: int) -> str:
        grammar = self._grammar
        end = n_first if high is None else min(n_first, high)
        ways: list[list[Item]] = []
        if high is None or high > n_first:
            item = self._item(case, n_first)
            more = grammar.add("more", [[self._texts.comma, item]])
            least, most = max(low - n_first, 0), None if high is None else high - n_first
            if n_first:
                ways = [[*grammar.times(more, least, most), _END]]
            else:
                rest = grammar.times(more, max(least - 1, 0), None if most is None else most - 1)
                ways = [[item, *rest, _END]]
                if low == 0:
                    ways.append([_END])
        elif end >= low:
            ways = [[_END]]
        later = grammar.add("items", ways)
        for place in reversed(range(end)):
            ways = [[*self._start(place), self._item(case, place), Rule(later)]]
            if place >= low:
                ways.append([_END])
            later = grammar.add("items", ways)
        return later

    def _unique(self, case: Case, unique: Unique, low: int, high: int | None, n_first: int) -> str:
        """Rules for arrays without equal items, in one order, if all values can be listed."""
        remedy = "give items an enum, or leave it out, and take out what comes twice afterwards"
        if n_first:
            raise cannot("uniqueItems", unique.path, "beside items by place", remedy)
        values = listed_values(self._expansion, self._expansion.item_node(case, 0))
        if values is None:
            raise cannot("uniqueItems", unique.path, "a grammar cannot compare items", remedy)
        if len(values) > _MAX_LISTED:
            raise TooLargeError(f"there are more than {_MAX_LISTED} values")
        most = len(values) if high is None else min(high, len(values))
        grammar = self._grammar
        counts = low > 1 or (high is not None and high < len(values))
        top = most if counts else 1
        later = [
            grammar.add("items", [[_END]] if n >= low or (not counts and n) else [])
            for n in range(top + 1)
        ]
        for value in reversed(values):
            now = []
            for n in range(top + 1):
                ways: list[list[Item]] = [[Rule(later[n])]]
                if n < most or not counts:
                    taken = Rule(later[min(n + 1, top)])
                    ways.append([*self._start(n), Literal(self._texts.written(value)), taken])
                now.append(grammar.add("items", ways))
            later = now
        return later[0]
