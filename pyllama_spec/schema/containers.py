"""Grammar rules for arrays and objects: what is listed comes first, in order, then others."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import NamedTuple

from pyllama_spec.schema.expansion import Case, Expansion, Node, bounds, those
from pyllama_spec.schema.grammar import Alternative, Grammar, Item, Literal, Rule
from pyllama_spec.schema.keywords import Count, Fits, Items, Names, Present, Properties
from pyllama_spec.schema.languages import Lang, listing, meet, negated
from pyllama_spec.schema.limits import TooLargeError, cannot
from pyllama_spec.schema.texts import Texts

_MAX_PLACES = 2000
_END = Literal("]")
_MAX_PATTERNS = 5
# So many that may be left out are ways of one rule: as a chain they would be a call within a call.
_BLOCK = 32


class _Property(NamedTuple):
    """A property that the schema names."""

    name: str
    rule: str
    is_needed: bool


class Containers:
    """Makes the grammar rules of arrays and objects."""

    def __init__(
        self, expansion: Expansion, grammar: Grammar, texts: Texts, rule_of: Callable[[Node], str]
    ) -> None:
        self._expansion, self._grammar, self._texts = expansion, grammar, texts
        self._rule_of = rule_of

    def arrays(self, case: Case) -> list[Alternative]:
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
        return [(Literal("["), Rule(self._plain(case, low, high, n_first)))]

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

    def objects(self, case: Case) -> list[Alternative]:
        """The rules of a case's objects."""
        low, high = bounds(case)
        if not case:
            return [(Rule("object"),)]
        needed = {one.name for one in those(case, Present)}
        named = [name for one in those(case, Properties) for name, _ in one.named]
        names = list(dict.fromkeys([*named, *(one.name for one in those(case, Present))]))
        is_short = not names or low > len(names)
        others = self._others(case, set(names), is_short)
        properties = []
        for name in names:
            if not self._expansion.allows_name(case, name):
                if name in needed:
                    return []
                continue
            value = Rule(self._rule_of(self._expansion.property_node(case, name)))
            pair: list[Item] = [*self._texts.name(name), value]
            properties.append(_Property(name, self._grammar.add("pair", [pair]), name in needed))
        if others is not None and low > len(properties) + 1:
            keyword = those(case, Count)[0]
            raise cannot(
                "minProperties", keyword.path, "names that are not listed may be the same one",
                "list the names in properties",
            )  # fmt: skip
        return [(Literal("{"), Rule(self._chain(properties, others, low, high)))]

    def _chain(
        self, properties: list[_Property], others: str | None, low: int, high: int | None
    ) -> str:
        """Rules from the last property to the first, for each number of properties so far."""
        n_needed = sum(one.is_needed for one in properties)
        counts = low > n_needed or (high is not None and (others or high < len(properties)))
        most = max(low, 0 if high is None else high + 1, 1) if counts else 1
        most = min(most, len(properties) + 1)
        low, high = (low, high) if counts else (0, None)
        grammar = self._grammar
        tails = (grammar.add("tail", self._tail(n, others, low, high)) for n in range(most + 1))
        # What may follow n properties: the ways are few, and each is a rule.
        later: list[list[Rule]] = [[Rule(tail)] for tail in tails]
        for i, one in reversed(list(enumerate(properties))):
            if i % _BLOCK == _BLOCK - 1:
                later = [[Rule(grammar.add("rest", [[way] for way in ways]))] for ways in later]
            now: list[list[Rule]] = []
            for n in range(most + 1):
                ways = [] if one.is_needed else later[n]
                if high is None or n < high:
                    start: list[Item] = [self._texts.comma] if n else []
                    rest = grammar.add("rest", [[way] for way in later[min(n + 1, most)]])
                    ways = [
                        Rule(grammar.add("with", [[*start, Rule(one.rule), Rule(rest)]])),
                        *ways,
                    ]
                now.append(ways)
            later = now
        return grammar.add("rest", [[way] for way in later[0]])

    def _tail(self, n: int, others: str | None, low: int, high: int | None) -> list[list[Item]]:
        """The rest of an object after n listed properties."""
        end: list[Item] = [Literal("}")]
        if others is None:
            return [end] if n >= low and (high is None or n <= high) else []
        # Names that are not listed may be the same one: as many as there are count as one.
        least, most = low - n, None if high is None else high - n
        if least > 1 or (most is not None and most < 0):
            return []
        more = self._grammar.add("more", [[self._texts.comma, Rule(others)]])
        if n:
            return [[*self._grammar.times(more, max(least, 0), most), *end]]
        ways: list[list[Item]] = [] if least > 0 else [end]
        if most is None or most > 0:
            tail = self._grammar.times(more, 0, None if most is None else most - 1)
            ways.append([Rule(others), *tail, *end])
        return ways

    def _others(self, case: Case, names: set[str], is_short: bool) -> str | None:
        """The rule of properties that are not listed; None if there can be none."""
        conditions = those(case, Properties)
        patterns = list(dict.fromkeys(lang for one in conditions for lang, _ in one.patterns))
        is_open = any(one.rest is not None or one.is_open for one in conditions)
        is_short = is_short and not patterns
        if not (is_open or is_short or patterns):
            return None
        if len(patterns) > _MAX_PATTERNS:
            raise TooLargeError(f"it has more than {_MAX_PATTERNS} patternProperties")
        usual = [
            self._expansion.text_language(self._expansion.node([one.fits]))
            for one in those(case, Names)
        ]
        if names:
            usual.append(negated(listing(names)))
        pairs: list[list[Item]] = []
        for kept in product((True, False), repeat=len(patterns)):
            here = {lang for lang, one in zip(patterns, kept, strict=True) if one}
            if not here and patterns and not (is_open or is_short):
                continue
            key = meet([*usual, *(lang if lang in here else negated(lang) for lang in patterns)])
            name = self._texts.names(key)
            if name is not None:
                value = Rule(self._rule_of(self._value_node(conditions, here)))
                pairs.append([*name, value])
        return self._grammar.add("pair", pairs) if pairs else None

    def _value_node(self, conditions: list[Properties], here: set[Lang]) -> Node:
        fits = []
        for one in conditions:
            own = [Fits(number) for lang, number in one.patterns if lang in here]
            if not own and one.rest is not None:
                own = [Fits(one.rest)]
            fits += own
        return self._expansion.node(fits)
