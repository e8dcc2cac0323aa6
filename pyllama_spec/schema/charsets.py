"""Sets of characters as sorted ranges of code points.

A character is a Unicode scalar value; surrogates are not characters.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Iterable
from functools import lru_cache
from itertools import groupby

CharSet = tuple[tuple[int, int], ...]

LAST = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)


def charset(ranges: Iterable[tuple[int, int]]) -> CharSet:
    """The ranges, both ends included, in order and without overlap."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if low > high:
            continue
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def intersect(a: CharSet, b: CharSet) -> CharSet:
    """The intersection of two sets."""
    shared: list[tuple[int, int]] = []
    i = j = 0
    while i < len(a) and j < len(b):
        low, high = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if low <= high:
            shared.append((low, high))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return tuple(shared)


def _outside(ranges: CharSet) -> CharSet:
    gaps: list[tuple[int, int]] = []
    at = 0
    for low, high in ranges:
        if at < low:
            gaps.append((at, low - 1))
        at = high + 1
    if at <= LAST:
        gaps.append((at, LAST))
    return tuple(gaps)


ANY: CharSet = _outside((SURROGATES,))


def complement(ranges: CharSet) -> CharSet:
    """The complement of a set."""
    return intersect(_outside(ranges), ANY)


def scalars(ranges: Iterable[tuple[int, int]]) -> CharSet:
    """The ranges without surrogates."""
    return intersect(charset(ranges), ANY)


def union(*sets: CharSet) -> CharSet:
    """The union of sets."""
    return charset(one for ranges in sets for one in ranges)


def holds(ranges: CharSet, code: int) -> bool:
    """Whether a character is in the set."""
    at = bisect_right(ranges, (code, LAST + 1)) - 1
    return at >= 0 and code <= ranges[at][1]


def of(text: str) -> CharSet:
    """The set of a text's characters."""
    return charset((ord(c), ord(c)) for c in text)


# The classes of ECMA-262, which JSON Schema's patterns are written in: digits and words are ASCII.
DIGIT: CharSet = ((0x30, 0x39),)
WORD: CharSet = charset([(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)])
SPACE: CharSet = charset(
    [(0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A),
     (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)]
)  # fmt: skip
LINE_ENDS: CharSet = charset([(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)])
DOT: CharSet = complement(LINE_ENDS)

_CATEGORIES = frozenset([
    "L", "Ll", "Lu", "Lt", "Lm", "Lo", "M", "Mn", "Mc", "Me", "N", "Nd", "Nl", "No", "P", "Pc",
    "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S", "Sm", "Sc", "Sk", "So", "Z", "Zs", "Zl", "Zp", "Cc",
    "Cf",
])  # fmt: skip


# Characters have a category of these in two places. What lies between them is not assigned, and
# after them private.
_ASSIGNED = ((0, 0x3FFFF), (0xE0000, 0xE0FFF))


@lru_cache(maxsize=1)
def _by_category() -> dict[str, list[tuple[int, int]]]:
    """The characters of each two-letter category; slow, since it looks at all characters."""
    by_letters: dict[str, list[tuple[int, int]]] = {}
    for begin, end in _ASSIGNED:
        at = begin
        names = map(unicodedata.category, map(chr, range(begin, end + 1)))
        for name, group in groupby(names):
            n = sum(1 for _ in group)
            by_letters.setdefault(name, []).append((at, at + n - 1))
            at += n
    return by_letters


@lru_cache(maxsize=64)
def category(name: str) -> CharSet | None:
    r"""The characters of a category such as L or Lu, as in \p{...}; None if unknown."""
    if name not in _CATEGORIES:
        return None
    ranges = _by_category()
    return scalars(one for own in ranges if own.startswith(name) for one in ranges[own])
