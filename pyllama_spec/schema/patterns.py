"""Reads regular expressions of JSON Schema (ECMA-262) by code points.

A pattern is searched for: without ^ and $ any text may surround it. A construct that is not a set
of texts, such as a reference back to a group, is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from string import hexdigits

from pyllama_spec.schema.charsets import (
    DIGIT,
    DOT,
    SPACE,
    WORD,
    CharSet,
    category,
    charset,
    complement,
    scalars,
    union,
)
from pyllama_spec.schema.languages import (
    ALL,
    Both,
    Either,
    Lang,
    Mark,
    Repeat,
    Seq,
    both,
    chars,
    either,
    negated,
    repeat,
    seq,
)

MAX_DEPTH = 50
MAX_TIMES = 5000
MAX_LENGTH = 10_000


class PatternError(Exception):
    """The part of a pattern that cannot be parsed or enforced."""


@dataclass(frozen=True, slots=True)
class Look(Lang):
    """A lookahead, until resolve() knows the rest of the pattern."""

    part: Lang
    is_negative: bool


_CLASSES = {"d": DIGIT, "w": WORD, "s": SPACE}
_CONTROLS = {"t": 0x09, "n": 0x0A, "v": 0x0B, "f": 0x0C, "r": 0x0D}
_SYNTAX = "^$\\.*+?()[]{}|/"


def pattern_language(pattern: str) -> Lang:
    """The texts that contain a match of a pattern."""
    if len(pattern) > MAX_LENGTH:
        raise PatternError(f"it has {len(pattern):,} characters, and may have {MAX_LENGTH:,}")
    reader = _Reader(pattern)
    tree = reader.alternatives(0)
    if reader.at < len(pattern):
        raise PatternError("it has a ) without a (")
    lang = _resolved(tree, ALL)
    begins = isinstance(tree, Seq) and tree.parts[:1] == (Mark("^"),)
    return lang if begins else seq(ALL, lang)


def _has_look(tree: Lang) -> bool:
    if isinstance(tree, Look):
        return True
    if isinstance(tree, (Seq, Either, Both)):
        return any(_has_look(part) for part in tree.parts)
    return isinstance(tree, Repeat) and _has_look(tree.part)


def _resolved(tree: Lang, rest: Lang) -> Lang:
    """The tree with lookaheads resolved against the rest of the pattern."""
    if not _has_look(tree):
        return seq(tree, rest)
    if isinstance(tree, Look):
        seen = _resolved(tree.part, ALL)
        return both([negated(seen) if tree.is_negative else seen, rest])
    if isinstance(tree, Seq):
        for part in reversed(tree.parts):
            rest = _resolved(part, rest)
        return rest
    if isinstance(tree, Either):
        return either(_resolved(part, rest) for part in tree.parts)
    if isinstance(tree, Repeat) and (tree.low, tree.high) == (0, 1):
        return either([_resolved(tree.part, rest), rest])
    raise PatternError("a lookahead is repeated")


class _Reader:
    """Parses a pattern from left to right."""

    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self.at = 0

    def _next_is(self, text: str) -> bool:
        return self._text.startswith(text, self.at)

    def _take(self, n: int = 1) -> str:
        taken = self._text[self.at : self.at + n]
        if len(taken) < n:
            raise PatternError("it ends in the middle")
        self.at += n
        return taken

    def alternatives(self, depth: int) -> Lang:
        """Parses alternatives up to the end of the pattern or the ) of a group."""
        if depth > MAX_DEPTH:
            raise PatternError(f"its groups are nested more than {MAX_DEPTH} deep")
        branches = [self._sequence(depth)]
        while self._next_is("|"):
            self.at += 1
            branches.append(self._sequence(depth))
        return either(branches)

    def _sequence(self, depth: int) -> Lang:
        parts: list[Lang] = []
        while self.at < len(self._text) and self._text[self.at] not in "|)":
            begin = self.at
            part = self._one(depth)
            parts.append(self._repeated(part, self._text[begin : self.at]))
        return seq(*parts)

    def _one(self, depth: int) -> Lang:
        char = self._take()
        if char == "(":
            return self._group(depth)
        if char == "[":
            return chars(self._bracket())
        if char == ".":
            return chars(DOT)
        if char in "^$":
            return Mark(char)
        if char in "*+?":
            raise PatternError(f"there is nothing before the {char} to repeat")
        if char == "\\":
            return chars(self._escape())
        return chars(scalars([(ord(char), ord(char))]))

    def _group(self, depth: int) -> Lang:
        look = None
        if self._next_is("?"):
            for sign in ("?:", "?=", "?!"):
                if self._next_is(sign):
                    self.at += 2
                    look = sign[1]
                    break
            else:
                self._name_of_group()
        inner = self.alternatives(depth + 1)
        if not self._next_is(")"):
            raise PatternError("it has a ( without a )")
        self.at += 1
        return inner if look in (None, ":") else Look(inner, is_negative=look == "!")

    def _name_of_group(self) -> None:
        end = self._text.find(">", self.at)
        head = self._text[self.at : self.at + 3]
        named = (head[:2] == "?<" and head not in ("?<=", "?<!")) or head == "?P<"
        if not named or end < 0:
            raise PatternError(f"a group ({self._text[self.at : self.at + 3]} is not supported")
        self.at = end + 1

    def _times(self) -> tuple[int, int | None] | None:
        end = self._text.find("}", self.at)
        inner = self._text[self.at + 1 : end] if end > 0 else ""
        low, comma, high = inner.partition(",")
        if not (low or high) or not (low + high).isdecimal() or not (low + high).isascii():
            return None  # a brace without numbers means itself
        if not low:
            raise PatternError(f"{{{inner}}} is plain text in ECMA-262; write {{0,{high}}}")
        if (comma and high and int(high) < int(low)) or len(low + high) > 12:
            raise PatternError(f"{{{inner}}} is not a range")
        self.at = end + 1
        times = int(low), int(high) if high else None if comma else int(low)
        if max(times[0], times[1] or 0) > MAX_TIMES:
            raise PatternError(f"{{{inner}}} is more than {MAX_TIMES:,} times")
        return times

    def _repeated(self, part: Lang, source: str) -> Lang:
        times: tuple[int, int | None] | None = None
        if self._next_is("*"):
            times = (0, None)
        elif self._next_is("+"):
            times = (1, None)
        elif self._next_is("?"):
            times = (0, 1)
        if times is not None:
            self.at += 1
        elif self._next_is("{"):
            times = self._times()
        if times is None:
            return part
        if source in ("^", "$"):
            raise PatternError(f"{source} is repeated")
        if self._next_is("?"):  # lazy: the same texts
            self.at += 1
        elif self._text[self.at : self.at + 1] in ("+", "*"):
            raise PatternError("a repetition cannot be repeated")
        return repeat(part, *times)

    def _escape(self, *, in_bracket: bool = False) -> CharSet:
        """Parses an escape after the backslash."""
        char = self._take()
        if char.lower() in _CLASSES:
            char_class = _CLASSES[char.lower()]
            return char_class if char.islower() else complement(char_class)
        if char in _CONTROLS:
            return ((_CONTROLS[char], _CONTROLS[char]),)
        if char in "pP":
            return self._category(char == "P")
        code = self._code(char, in_bracket)
        if code is None:
            raise PatternError(f"\\{char} is not supported")
        return scalars([(code, code)])

    def _code(self, char: str, in_bracket: bool) -> int | None:
        if char == "x":
            return self._hex(2)
        if char == "u":
            return self._unicode()
        if char == "c" and self._text[self.at : self.at + 1].isalpha():
            return ord(self._take()) % 32
        if char == "0" and not self._text[self.at : self.at + 1].isdigit():
            return 0
        if in_bracket and char == "b":
            return 8
        is_itself = char in _SYNTAX or (not char.isalnum() and char != "_")
        return ord(char) if is_itself else None

    def _hex(self, n: int) -> int:
        digits = self._take(n)
        if not set(hexdigits).issuperset(digits):
            raise PatternError(f"{digits} are not hexadecimal digits")
        return int(digits, 16)

    def _unicode(self) -> int:
        if self._next_is("{"):
            end = self._text.find("}", self.at)
            digits = self._text[self.at + 1 : end]
            if end < 0 or not 0 < len(digits) < 9:
                raise PatternError("\\u{ has no end")
            self.at += 1
            code = self._hex(len(digits))
            self.at = end + 1
        else:
            code = self._hex(4)
            if 0xD800 <= code < 0xDC00 and self._next_is("\\u"):
                self.at += 2
                low = self._hex(4)
                if not 0xDC00 <= low < 0xE000:
                    raise PatternError("it has an unpaired surrogate")
                code = 0x10000 + ((code - 0xD800) << 10) + low - 0xDC00
        if 0xD800 <= code < 0xE000 or code > 0x10FFFF:
            raise PatternError(f"{code:X} is not a character")
        return code

    def _category(self, is_negative: bool) -> CharSet:
        end = self._text.find("}", self.at)
        if not self._next_is("{") or end < 0:
            raise PatternError("\\p has no name in braces")
        name = self._text[self.at + 1 : end]
        chars = category(name)
        if chars is None:
            raise PatternError(f"\\p{{{name}}} is not a general category")
        self.at = end + 1
        return complement(chars) if is_negative else chars

    def _bracket(self) -> CharSet:
        is_negative = self._next_is("^")
        self.at += is_negative
        sets: list[CharSet] = []
        while not self._next_is("]"):
            low = self._member()
            if self._next_is("-") and not self._next_is("-]"):
                self.at += 1
                high = self._member()
                if len(low) != 1 or len(high) != 1 or low[0][0] != low[0][1]:
                    raise PatternError("a range in brackets has a class as its end")
                if high[0][0] != high[0][1] or high[0][0] < low[0][0]:
                    raise PatternError("a range in brackets ends before it begins")
                low = scalars([(low[0][0], high[0][0])])
            sets.append(low)
        self.at += 1
        ranges = union(*sets)
        return complement(ranges) if is_negative else ranges

    def _member(self) -> CharSet:
        char = self._take()
        if char == "\\":
            return self._escape(in_bracket=True)
        return charset([(ord(char), ord(char))])


_DATE = (
    "(?!0000)[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|"
    "(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))|"
    "([0-9][0-9](0[48]|[2468][048]|[13579][26])|"
    "(0[48]|[2468][048]|[13579][26])00)-02-29"
)
_TIME = (
    r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?"
    r"(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)
_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = rf"({_OCTET}\.){{3}}{_OCTET}"
_H16 = "[0-9a-fA-F]{1,4}"
_LS32 = f"({_H16}:{_H16}|{_IPV4})"
_IPV6 = "|".join(
    [
        f"({_H16}:){{6}}{_LS32}",
        f"::({_H16}:){{5}}{_LS32}",
        f"({_H16})?::({_H16}:){{4}}{_LS32}",
        f"(({_H16}:){{0,1}}{_H16})?::({_H16}:){{3}}{_LS32}",
        f"(({_H16}:){{0,2}}{_H16})?::({_H16}:){{2}}{_LS32}",
        f"(({_H16}:){{0,3}}{_H16})?::{_H16}:{_LS32}",
        f"(({_H16}:){{0,4}}{_H16})?::{_LS32}",
        f"(({_H16}:){{0,5}}{_H16})?::{_H16}",
        f"(({_H16}:){{0,6}}{_H16})?::",
    ]
)
# At most 61 characters per label and four labels: a host name has at most 63 and 253.
_LABEL = "[a-zA-Z0-9](-?[a-zA-Z0-9]){0,30}"
_HOST = rf"{_LABEL}(\.{_LABEL}){{0,3}}"
_UUID = "[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
_PART = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+"
_EMAIL = (
    rf"(?=[^@]{{1,64}}@){_PART}(\.{_PART})*@"
    rf"([a-zA-Z0-9]([a-zA-Z0-9-]{{0,20}}[a-zA-Z0-9])?\.){{1,4}}[a-zA-Z]{{2,20}}"
)
# The same without the lengths of their parts: none of at most 63 characters has one too long. Their
# automata are so small that the characters of a whole text can be counted.
_SHORT = {
    "hostname": r"[a-zA-Z0-9](-?[a-zA-Z0-9])*(\.[a-zA-Z0-9](-?[a-zA-Z0-9])*)*",
    "email": rf"{_PART}(\.{_PART})*@([a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?\.)+[a-zA-Z]{{2,}}",
}
SHORT_LENGTH = 63
_N = "[0-9]{1,4}"
_CLOCK = f"T({_N}H({_N}M({_N}S)?)?|{_N}M({_N}S)?|{_N}S)"
_DURATION = f"P(({_N}D|{_N}M({_N}D)?|{_N}Y({_N}M({_N}D)?)?)({_CLOCK})?|{_CLOCK}|{_N}W)"
_CHAR = "([a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})"
_PORT = "(:[0-9]{1,5})?"
_SERVER = rf"([a-zA-Z0-9._~!$&'()*+,;=:-]+@)?[a-zA-Z0-9][a-zA-Z0-9.-]*{_PORT}"
_TAIL = rf"(\?({_CHAR}|[/?])*)?(#({_CHAR}|[/?])*)?"
_PATHS = rf"(//{_SERVER}(/{_CHAR}*)*|/?({_CHAR}+(/{_CHAR}*)*)?)"
_URI = rf"[a-zA-Z][a-zA-Z0-9+.-]*:{_PATHS}{_TAIL}"
_SEGMENT = "([a-zA-Z0-9._~!$&'()*+,;=@-]|%[0-9a-fA-F]{2})"
_RELATIVE = rf"(//{_SERVER}(/{_CHAR}*)*|/({_CHAR}+(/{_CHAR}*)*)?|{_SEGMENT}+(/{_CHAR}*)*)?{_TAIL}"
_STEP = "(/([^~/]|~[01])*)"

_PATTERNS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"({_DATE})T{_TIME}",
    "duration": _DURATION,
    "uuid": _UUID,
    **{f"uuid{n}": f"[0-9a-fA-F]{{8}}-[0-9a-fA-F]{{4}}-{n}[0-9a-fA-F]{{3}}-[89abAB]"
       "[0-9a-fA-F]{3}-[0-9a-fA-F]{12}" for n in (1, 3, 4, 5, 6, 7, 8)},
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "ipvanyaddress": f"{_IPV4}|{_IPV6}",
    "hostname": _HOST,
    "idn-hostname": _HOST,
    "email": _EMAIL,
    "idn-email": _EMAIL,
    "uri": _URI,
    "iri": _URI,
    "uri-reference": f"{_URI}|{_RELATIVE}",
    "iri-reference": f"{_URI}|{_RELATIVE}",
    "json-pointer": f"{_STEP}*",
    "base64": "([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?",
    "byte": "([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?",
    "base64url": "([A-Za-z0-9_-]{4})*([A-Za-z0-9_-]{2}==|[A-Za-z0-9_-]{3}=)?",
}  # fmt: skip

KEPT_FORMATS = tuple(_PATTERNS)
# They say how to show or to store a text, and restrict none.
FREE_FORMATS = ("binary", "password", "path", "multi-line", "text", "markdown", "html")
# The bounds of the number formats.
NUMBER_FORMATS: dict[str, tuple[int, int] | None] = {
    "int8": (-(2**7), 2**7 - 1), "int16": (-(2**15), 2**15 - 1), "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1), "uint8": (0, 2**8 - 1), "uint16": (0, 2**16 - 1),
    "uint32": (0, 2**32 - 1), "uint64": (0, 2**64 - 1), "float": None, "double": None,
}  # fmt: skip


@lru_cache(maxsize=64)
def format_language(name: str) -> Lang | None:
    """The set of a format's texts; None if the format is unknown."""
    pattern = _PATTERNS.get(name)
    return None if pattern is None else pattern_language(f"^({pattern})$")


@lru_cache(maxsize=64)
def short_language(lang: Lang) -> Lang | None:
    """A format by a small automaton, right for at most SHORT_LENGTH characters; None if unknown."""
    for name, pattern in _SHORT.items():
        if lang == format_language(name):
            return pattern_language(f"^({pattern})$")
    return None
