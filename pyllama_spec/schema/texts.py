"""Grammar rules for JSON strings and numbers.

A character of a set is written as itself, or, if JSON forbids that, by its shortest escape. Where
any character may stand, other escapes are taken too, but for halves of UTF-16 pairs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pyllama_spec.errors import SchemaError, clipped
from pyllama_spec.schema.charsets import ANY, CharSet, charset, complement, intersect, of
from pyllama_spec.schema.grammar import Grammar, Item, Literal, OneOf, Rule
from pyllama_spec.schema.languages import (
    ALL,
    MAX_STATES,
    Chars,
    Lang,
    Never,
    Repeat,
    Table,
    Words,
    both,
    counted,
    either,
    listing,
    matches,
    meet,
    negated,
    repeat,
    seq,
    table,
)
from pyllama_spec.schema.limits import TooLargeError
from pyllama_spec.schema.patterns import SHORT_LENGTH, short_language

_ESCAPED: CharSet = charset([(0, 0x1F), *of('"\\')])
_PLAIN: CharSet = complement(_ESCAPED)
_HEX = charset([(0x30, 0x39), (0x41, 0x46), (0x61, 0x66)])
_DIGIT = ((0x30, 0x39),)
_SCALAR = either([
    listing(["true", "false", "null"]),
    seq(repeat(Chars(of("-")), 0, 1), Chars(_DIGIT), repeat(Chars(of("0123456789.eE+-")), 0, None)),
])  # fmt: skip
# Texts that a reader may take for a value of JSON.
JSON_LIKE = either([seq(Chars(of('{["')), ALL), _SCALAR])


class Quotes(NamedTuple):
    """How strings and names are written.

    `never` is what no string contains, since it is written without escapes; () for JSON's escapes.
    Blanks are fixed: so the model chooses no more than the value, and the rest is one drafted run.
    """

    around: str = '"'
    never: tuple[str, ...] = ()
    has_bare_names: bool = False
    comma: str = ", "
    colon: str = ": "


JSON_QUOTES = Quotes()
GEMMA_QUOTES = Quotes('<|"|>', ('<|"|>',), has_bare_names=True, comma=",", colon=":")
# A blank before it would not be part of it.
_BARE_NAME = seq(
    Chars(complement(of(":} \t\n\v\f\r"))), repeat(Chars(complement(of(":}"))), 0, None)
)


def usual_rules(grammar: Grammar, texts: Texts) -> None:
    """The rules of unconstrained values, by name."""
    hexa, digit = OneOf(_HEX), OneOf(_DIGIT)
    not_d = OneOf(charset([(0x30, 0x39), *of("abcefABCEF")]))
    low, up = OneOf(of("01234567")), OneOf(of("89abAB"))
    escape = Literal("\\u")
    put = grammar.put
    put("plain", [[OneOf(_PLAIN)]])
    put(
        "char",
        [
            [Rule("plain")],
            [Literal("\\"), OneOf(of('"\\/bfnrt'))],
            [escape, not_d, hexa, hexa, hexa],
            [escape, OneOf(of("dD")), low, hexa, hexa],
            [
                escape, OneOf(of("dD")), up, hexa, hexa,
                escape, OneOf(of("dD")), OneOf(of("cdefCDEF")), hexa, hexa,
            ],
        ],
    )  # fmt: skip
    if texts.quotes.never:
        put("string", [[Rule(texts.string(both(texts.limits(0))) or "")]])
    else:
        put("string", [[texts.mark, *grammar.times("char", 0, None), texts.mark]])
    put("digit", [[digit]])
    more = grammar.times
    put("whole", [[Literal("0")], [OneOf(((0x31, 0x39),)), *more("digit", 0, 15)]])
    put("minus", [[Literal("-")], []])
    put("sign", [[OneOf(of("+-"))], []])
    put("fraction", [[Literal("."), *more("digit", 1, 16)], []])
    put("exponent", [[OneOf(of("eE")), Rule("sign"), *more("digit", 1, 2)], []])
    put("integer", [[Rule("minus"), Rule("whole")]])
    put("number", [[Rule("integer"), Rule("fraction"), Rule("exponent")]])
    put("boolean", [[Literal("true")], [Literal("false")]])
    put("null", [[Literal("null")]])
    kinds = ("object", "array", "string", "number", "boolean", "null")
    put("value", [[Rule(kind)] for kind in kinds])
    put("pair", [[*(texts.names(ALL) or []), Rule("value")]])
    put("more-pairs", [[texts.comma, Rule("pair"), Rule("more-pairs")], [Literal("}")]])
    put("object", [[Literal("{"), Rule("pair"), Rule("more-pairs")], [Literal("{}")]])
    put("more-items", [[texts.comma, Rule("value"), Rule("more-items")], [Literal("]")]])
    put("array", [[Literal("["), Rule("value"), Rule("more-items")], [Literal("[]")]])


def _escapes(codes: set[int]) -> Iterator[list[Item]]:
    """The escapes of characters that JSON strings cannot contain, in few alternatives."""
    short = {ord(char): sign for char, sign in zip('"\\\b\f\n\r\t', '"\\bfnrt', strict=True)}
    signs = "".join(sign for code, sign in short.items() if code in codes)
    if signs:
        yield [Literal("\\"), OneOf(of(signs))]
    for digit in (0, 1):
        ends = "".join(f"{code:x}" for code in range(16) if code + 16 * digit in codes)
        if ends:
            yield [Literal(f"\\u00{digit}"), OneOf(of(ends + ends.upper()))]


def _with_fewer_states(lang: Lang, low: int, high: int | None) -> tuple[Lang, int]:
    """A set, a part of the given one, and a length up to which its characters can be counted."""
    most = 256
    short = short_language(lang)
    if short is not None:
        lang, most = short, min(SHORT_LENGTH, most if high is None else high)
    most = min(most, MAX_STATES // len(table(lang).ends))
    if most < max(low, 16 if high is None else min(16, high)):
        n = f"at least {low:,}" if high is None else f"{low:,} to {high:,}"
        raise TooLargeError(f"texts of {n} characters that fit a pattern take too many states")
    return lang, most


def _lengths(states: Table) -> tuple[int, int | None]:
    """The lengths of the shortest and of the longest text; None for texts of any length."""
    targets = [[to for _, to in steps] for steps in states.steps]
    shortest, reached = 0, {0}
    while not any(states.ends[state] for state in reached):
        reached = {to for state in reached for to in targets[state]}
        shortest += 1
    # Each state leads to the end: after more steps than states, a text went through one twice.
    longest, reached = 0, {0}
    while following := {to for state in reached for to in targets[state]}:
        longest, reached = longest + 1, following
        if longest > len(targets):
            return shortest, None
    return shortest, longest


def _common(a: str, b: str) -> str:
    """The common prefix."""
    n = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return a[:n]


class Texts:
    """The strings and numbers of one grammar; equal ones share rules."""

    def __init__(self, grammar: Grammar, quotes: Quotes = JSON_QUOTES) -> None:
        self._grammar, self.quotes = grammar, quotes
        self.mark, self.comma = Literal(quotes.around), Literal(quotes.comma)
        self._chars: dict[CharSet, Item] = {}
        self._strings: dict[Lang, str | None] = {}
        self._counted: dict[tuple[Lang, int, int | None], str | None] = {}

    def char(self, ranges: CharSet) -> Item:
        """A character of a set inside a JSON string."""
        rule = self._chars.get(ranges)
        if rule is None:
            rule = self._chars[ranges] = self._made(ranges)
        return rule

    def _made(self, ranges: CharSet) -> Item:
        if self.quotes.never:
            return OneOf(ranges)
        if ranges == ANY:
            return Rule("char")
        if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
            return Literal(json.dumps(chr(ranges[0][0]), ensure_ascii=False)[1:-1])
        plain, escaped = intersect(ranges, _PLAIN), intersect(ranges, _ESCAPED)
        ways: list[list[Item]] = [[OneOf(plain)]] if plain else []
        ways.extend(_escapes({code for low, high in escaped for code in range(low, high + 1)}))
        if len(ways) == 1 and len(ways[0]) == 1 and len(ranges) <= 2:
            return ways[0][0]
        return Rule(self._grammar.add("chars", ways))

    def string(self, lang: Lang) -> str | None:
        """The rule of a set's strings; None if the set is empty."""
        if lang not in self._strings:
            self._strings[lang] = self._string(lang)
        return self._strings[lang]

    def name(self, name: str) -> list[Item]:
        """The name of a property, and what stands between it and the value."""
        if self.quotes.has_bare_names:
            if not matches(_BARE_NAME, name):
                raise SchemaError(f"the name {clipped(name)!r} needs quotes, which its form lacks")
            return [Literal(name + self.quotes.colon)]
        return [Literal(json.dumps(name, ensure_ascii=False) + self.quotes.colon)]

    def names(self, lang: Lang) -> list[Item] | None:
        """The same for any name of a set; None if the set is empty."""
        if not self.quotes.has_bare_names:
            rule = self.string(lang)
            return None if rule is None else [Rule(rule), Literal(self.quotes.colon)]
        states = table(both([lang, _BARE_NAME]))
        if states.is_empty:
            return None
        return [Rule(self.of_table(states, "name")), Literal(self.quotes.colon)]

    def written(self, value: str) -> str:
        """A scalar, given as JSON, in the form of this grammar."""
        if not (self.quotes.never and value.startswith('"')):
            return value
        text = json.loads(value)
        if any(mark in text for mark in self.quotes.never):
            raise SchemaError(f"the text {clipped(text)!r} has a mark of its form")
        return f"{self.mark.text}{text}{self.mark.text}"

    def _string(self, lang: Lang) -> str | None:
        if lang == ALL:
            return "string"
        if isinstance(lang, Repeat) and isinstance(lang.part, Chars):
            char = self.char(lang.part.chars)
            one = char.name if isinstance(char, Rule) else self._grammar.add("char", [[char]])
            inside = self._grammar.times(one, lang.low, lang.high)
            return self._grammar.add("string", [[self.mark, *inside, self.mark]])
        if isinstance(lang, Words):
            words = (json.dumps(word, ensure_ascii=False) for word in lang.words)
            return self.listed(map(self.written, words))
        automaton = table(lang)
        return None if automaton.is_empty else self.of_table(automaton, "string", quoted=True)

    def case(self, parts: list[Lang]) -> Lang | str | None:
        """The strings in all sets: the set if it is alone, else a rule.

        A length beside a pattern is counted by the states. Where these are too many, the strings
        are shorter than they might be.
        """
        lengths = [one for one in parts if isinstance(one, Repeat) and one.part == Chars(ANY)]
        low = max((one.low for one in lengths), default=0)
        high = min((one.high for one in lengths if one.high is not None), default=None)
        parts = [*parts, *self.limits(high or low)]
        others = [one for one in parts if one not in lengths]
        whole = meet(parts)
        if not lengths or not others or isinstance(whole, (Words, Never)):
            return whole
        lang = meet(others)
        if isinstance(lang, Repeat) and isinstance(lang.part, Chars) and lang.high is None:
            return repeat(lang.part, max(low, lang.low), high)
        states = table(lang)
        if states.is_empty:
            return None
        shortest, longest = _lengths(states)
        low = low if low > shortest else 0
        high = None if high is not None and longest is not None and high >= longest else high
        if not low and high is None:  # no length to count
            return lang
        if (low if high is None else high) >= MAX_STATES // len(states.ends):
            lang, high = _with_fewer_states(lang, low, high)
            states = table(lang)
        key = (lang, low, high)
        if key not in self._counted:
            automaton = counted(states, low, high)
            rule = None if automaton.is_empty else self.of_table(automaton, "string", quoted=True)
            self._counted[key] = rule
        return self._counted[key]

    def limits(self, length: int) -> Iterator[Lang]:
        """The sets that keep the marks out of strings written without escapes.

        Long strings are counted by states: they contain no beginning of a mark, which takes fewer.
        """
        for mark in self.quotes.never:
            most = MAX_STATES // (length + 1)
            text = mark if len(mark) < most else mark.strip()[: max(most - 1, 1)]
            if len(text) == 1:
                yield repeat(Chars(complement(of(text))), 0, None)
                continue
            yield negated(seq(ALL, listing([text]), ALL))
            # Nor may a mark begin in the string and end in the mark after it.
            for n in range(1, len(mark)):
                if (mark[:n] + mark).startswith(mark):
                    yield negated(seq(ALL, listing([mark[:n]])))

    def listed(self, texts: Iterable[str]) -> str:
        """The rule of listed JSON texts, with common prefixes shared."""
        first = self._grammar.name("listed")
        todo = [(first, sorted(set(texts)))]
        while todo:
            name, group = todo.pop()
            ways: list[list[Item]] = []
            begin = 0
            while begin < len(group):
                end = begin + 1
                while end < len(group) and group[end][:1] == group[begin][:1]:
                    end += 1
                common = _common(group[begin], group[end - 1])
                way: list[Item] = [Literal(common)] if common else []
                if end - begin > 1:
                    rest = self._grammar.name("listed")
                    way.append(Rule(rest))
                    todo.append((rest, [text[len(common) :] for text in group[begin:end]]))
                ways.append(way)
                begin = end
            self._grammar.put(name, ways)
        return first

    def of_table(self, table: Table, kind: str, *, quoted: bool = False) -> str:
        """The rule of an automaton's texts."""
        grammar = self._grammar
        names = [grammar.name(kind) for _ in table.ends]
        for name, steps, may_end in zip(names, table.steps, table.ends, strict=True):
            ways: list[list[Item]] = [
                [self.char(ranges) if quoted else OneOf(ranges), Rule(names[to])]
                for ranges, to in steps
            ]
            if may_end:
                ways.append([self.mark] if quoted else [])
            grammar.put(name, ways)
        return grammar.add(kind, [[self.mark, Rule(names[0])]]) if quoted else names[0]
