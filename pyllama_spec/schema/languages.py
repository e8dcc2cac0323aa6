"""Sets of texts by union, intersection and complement, read one character at a time.

A `Lang` is a regular expression with intersection and complement. What is left of it after a
character is its derivative (Brzozowski, 1964), which is a `Lang` again: so a table of states comes
out without an automaton for each operation. Marks of the beginning and the end take no character;
whether one holds depends on the place where it is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypeVar

from pyllama_spec.schema.charsets import ANY, CharSet, holds, intersect, union
from pyllama_spec.schema.limits import WORK, TooLargeError

# A pattern beside a maxLength of 1,000 has some thousand states; beyond this a grammar is slow.
MAX_STATES = 6000


@dataclass(frozen=True)
class Place:
    """A position in a text."""

    is_begin: bool
    is_end: bool


class Lang:
    """A set of texts."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Never(Lang):
    """The empty set."""


@dataclass(frozen=True)
class Chars(Lang):
    """Texts of one character."""

    chars: CharSet

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self.chars)  # of hundreds of ranges, such as the letters


@dataclass(frozen=True, slots=True)
class Words(Lang):
    """A finite list of texts."""

    words: frozenset[str]


@dataclass(frozen=True, slots=True)
class Seq(Lang):
    """A concatenation; of no parts, the empty text."""

    parts: tuple[Lang, ...]


@dataclass(frozen=True, slots=True)
class Either(Lang):
    """A union."""

    parts: frozenset[Lang]


@dataclass(frozen=True, slots=True)
class Both(Lang):
    """An intersection."""

    parts: frozenset[Lang]


@dataclass(frozen=True, slots=True)
class Not(Lang):
    """A complement."""

    part: Lang


@dataclass(frozen=True, slots=True)
class Repeat(Lang):
    """A repetition, `low` to `high` times; None for `high` means no limit."""

    part: Lang
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Mark(Lang):
    """An empty match: "^" or "$"."""

    sign: str


NEVER = Never()
EMPTY = Seq(())
ALL = Repeat(Chars(ANY), 0, None)


def seq(*parts: Lang) -> Lang:
    """The concatenation of sets."""
    flat: list[Lang] = []
    for part in parts:
        if isinstance(part, Never):
            return NEVER
        flat.extend(part.parts if isinstance(part, Seq) else (part,))
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def either(parts: Iterable[Lang]) -> Lang:
    """The union of sets."""
    flat: set[Lang] = set()
    chars: list[CharSet] = []
    words: list[frozenset[str]] = []
    for part in parts:
        for one in part.parts if isinstance(part, Either) else (part,):
            if isinstance(one, Chars):
                chars.append(one.chars)
            elif isinstance(one, Words):
                words.append(one.words)
            elif not isinstance(one, Never):
                flat.add(one)
    if ALL in flat:
        return ALL
    if chars:
        flat.add(Chars(union(*chars)))
    if words:
        flat.add(Words(frozenset().union(*words)))
    if not flat:
        return NEVER
    return flat.pop() if len(flat) == 1 else Either(frozenset(flat))


def both(parts: Iterable[Lang]) -> Lang:
    """The intersection of sets."""
    flat: set[Lang] = set()
    for part in parts:
        flat.update(part.parts if isinstance(part, Both) else (part,))
    flat.discard(ALL)
    if NEVER in flat:
        return NEVER
    if not flat:
        return ALL
    return flat.pop() if len(flat) == 1 else Both(frozenset(flat))


def meet(parts: Iterable[Lang]) -> Lang:
    """The intersection of sets of whole texts, by counting or listing where possible."""
    low, high = 0, None
    listed: list[frozenset[str]] = []
    others: list[Lang] = []
    for part in parts:
        if isinstance(part, Repeat) and part.part == Chars(ANY):
            low = max(low, part.low)
            high = (
                part.high if high is None else min(high, high if part.high is None else part.high)
            )
        elif isinstance(part, Words):
            listed.append(part.words)
        else:
            others.append(part)
    if high is not None and low > high:
        return NEVER
    if (low, high) != (0, None):
        others.append(length(low, high))
    if listed:
        words = frozenset.intersection(*listed)
        return listing(word for word in words if all(matches(one, word) for one in others))
    return both(others)


def negated(part: Lang) -> Lang:
    """The complement of a set."""
    if isinstance(part, Not):
        return part.part
    if isinstance(part, Never):
        return ALL
    return NEVER if part == ALL else Not(part)


def repeat(part: Lang, low: int, high: int | None) -> Lang:
    """A repetition of a set, `low` to `high` times."""
    if high == 0 or part == EMPTY or (isinstance(part, Never) and low == 0):
        return EMPTY
    if isinstance(part, Never):
        return NEVER
    return part if (low, high) == (1, 1) else Repeat(part, low, high)


def chars(ranges: CharSet) -> Lang:
    """Texts of one character."""
    return Chars(ranges) if ranges else NEVER


def listing(words: Iterable[str]) -> Lang:
    """The set of the listed texts."""
    texts = frozenset(words)
    return Words(texts) if texts else NEVER


def length(low: int, high: int | None) -> Lang:
    """The texts with a number of characters."""
    return repeat(Chars(ANY), low, high)


def takes_nothing(lang: Lang, place: Place) -> bool:
    """Whether the set has the empty text at this position."""
    if isinstance(lang, Seq):
        return all(takes_nothing(part, place) for part in lang.parts)
    if isinstance(lang, (Either, Both)):
        WORK.spend(1)
    if isinstance(lang, Either):
        return any(takes_nothing(part, place) for part in lang.parts)
    if isinstance(lang, Both):
        return all(takes_nothing(part, place) for part in lang.parts)
    if isinstance(lang, Not):
        return not takes_nothing(lang.part, place)
    if isinstance(lang, Repeat):
        return lang.low == 0 or takes_nothing(lang.part, place)
    if isinstance(lang, Words):
        return "" in lang.words
    at = place.is_begin if isinstance(lang, Mark) and lang.sign == "^" else place.is_end
    return isinstance(lang, Mark) and at


def after(lang: Lang, char: str, place: Place) -> Lang:
    """The derivative by a character at this position."""
    if isinstance(lang, Chars):
        return EMPTY if holds(lang.chars, ord(char)) else NEVER
    WORK.spend(1)
    if isinstance(lang, Seq):
        rests = []
        for i, part in enumerate(lang.parts):
            WORK.spend(len(lang.parts) - i)
            rests.append(seq(after(part, char, place), *lang.parts[i + 1 :]))
            if not takes_nothing(part, place):
                break
        return either(rests)
    if isinstance(lang, (Either, Both)):
        WORK.spend(len(lang.parts))
    if isinstance(lang, Either):
        return either(after(part, char, place) for part in lang.parts)
    if isinstance(lang, Both):
        return both([after(part, char, place) for part in lang.parts])
    if isinstance(lang, Not):
        return negated(after(lang.part, char, place))
    if isinstance(lang, Words):
        return listing(word[1:] for word in lang.words if word.startswith(char))
    if isinstance(lang, Repeat):
        high = None if lang.high is None else lang.high - 1
        # A part that may be empty fills what is asked for with nothing.
        low = 0 if takes_nothing(lang.part, place) else max(lang.low - 1, 0)
        rest = lang if (low, high) == (lang.low, lang.high) else repeat(lang.part, low, high)
        return seq(after(lang.part, char, place), rest)
    return NEVER


def _heads(lang: Lang, sets: set[CharSet]) -> bool:
    """Adds the character sets that decide a first character; False if no more may follow."""
    if isinstance(lang, Chars):
        sets.add(lang.chars)
        return False
    if isinstance(lang, Words):
        sets.update(((ord(c), ord(c)),) for c in {word[0] for word in lang.words if word})
        return "" in lang.words
    if isinstance(lang, Seq):
        return all(_heads(part, sets) for part in lang.parts)
    if isinstance(lang, (Either, Both)):
        WORK.spend(len(lang.parts))
        may_follow = [_heads(part, sets) for part in lang.parts]
        return any(may_follow)
    if isinstance(lang, Not):
        _heads(lang.part, sets)
        return True
    if isinstance(lang, Repeat):
        return _heads(lang.part, sets) or lang.low == 0
    return isinstance(lang, Mark)


def _classes(sets: set[CharSet]) -> list[CharSet]:
    """A partition of all characters: each set contains a part completely or not at all."""
    ends = sorted({end for ranges in sets for low, high in ranges for end in (low, high + 1)})
    if len(ends) * len(sets) > 2_000_000:
        raise TooLargeError("a pattern or enum has too many different characters")
    WORK.spend(len(ends) * len(sets) // 8)
    parts: dict[tuple[bool, ...], list[tuple[int, int]]] = {}
    for low, high in zip([0, *ends], [*ends, 0x110000], strict=True):
        if low < high:
            owners = tuple(holds(one, low) for one in sets)
            parts.setdefault(owners, []).append((low, high - 1))
    classes = [intersect(tuple(ranges), ANY) for ranges in parts.values()]
    return [one for one in classes if one]


def matches(lang: Lang, text: str) -> bool:
    """Whether the set has the whole text."""
    WORK.begin()
    for i, char in enumerate(text):
        lang = after(lang, char, Place(is_begin=i == 0, is_end=False))
        if isinstance(lang, Never):
            return False
    return takes_nothing(lang, Place(is_begin=not text, is_end=True))


@dataclass(frozen=True)
class Table:
    """A deterministic automaton without dead states, which begins in state 0.

    A state has steps, each of some characters to a state, and may be the end of a text.
    """

    steps: list[list[tuple[CharSet, int]]]
    ends: list[bool]

    @property
    def is_empty(self) -> bool:
        """Whether the automaton accepts no text."""
        return not self.ends


_State = tuple[Lang, bool]  # what is left, and whether it is the beginning


def _leaving(state: _State) -> Iterable[tuple[CharSet, _State]]:
    lang, is_begin = state
    heads: set[CharSet] = set()
    _heads(lang, heads)
    for ranges in _classes(heads):
        left = after(lang, chr(ranges[0][0]), Place(is_begin, is_end=False))
        if not isinstance(left, Never):
            yield ranges, (left, False)


_AnyState = TypeVar("_AnyState", bound=Hashable)


def table(lang: Lang) -> Table:
    """The automaton of a set."""
    before = WORK.n_spent
    made, n_steps = _made(lang)
    # One that was made before costs the same: no schema is taken because of another one.
    WORK.begin()
    WORK.spend(n_steps - (WORK.n_spent - before))
    if isinstance(made, str):
        raise TooLargeError(made)
    return made


@lru_cache(maxsize=64)
def _made(lang: Lang) -> tuple[Table | str, int]:
    """The automaton or the error about its size, and the number of steps."""
    WORK.begin()
    before, first = WORK.n_spent, (lang, True)
    made: Table | str
    try:
        made = explored(
            first, _leaving, lambda state: takes_nothing(state[0], Place(state[1], True))
        )
    except TooLargeError as error:
        made = str(error)
    return made, WORK.n_spent - before


def explored(
    first: _AnyState,
    leaving: Callable[[_AnyState], Iterable[tuple[CharSet, _AnyState]]],
    may_end: Callable[[_AnyState], bool],
    max_states: int = MAX_STATES,
) -> Table:
    """The automaton of all reachable states."""
    numbers, order = {first: 0}, [first]
    steps: list[dict[int, list[CharSet]]] = []
    for state in order:
        targets: dict[int, list[CharSet]] = {}
        for ranges, following in leaving(state):
            WORK.spend(1)
            number = numbers.get(following)
            if number is None:
                number = numbers[following] = len(order)
                order.append(following)
                if number >= max_states:
                    raise TooLargeError(f"it has more than {max_states:,} states")
            targets.setdefault(number, []).append(ranges)
        steps.append(targets)
    return _trimmed(steps, [may_end(state) for state in order])


def _trimmed(steps: list[dict[int, list[CharSet]]], ends: list[bool]) -> Table:
    """Removes states from which no text is accepted."""
    before: list[list[int]] = [[] for _ in steps]
    for state, targets in enumerate(steps):
        for target in targets:
            before[target].append(state)
    alive, todo = list(ends), [state for state, end in enumerate(ends) if end]
    while todo:
        for state in before[todo.pop()]:
            if not alive[state]:
                alive[state] = True
                todo.append(state)
    if not alive or not alive[0]:
        return Table([], [])
    kept = [state for state in range(len(steps)) if alive[state]]
    number = {state: i for i, state in enumerate(kept)}
    return _merged(
        [
            {
                number[to]: sets[0] if len(sets) == 1 else union(*sets)
                for to, sets in steps[state].items()
                if alive[to]
            }
            for state in kept
        ],
        [ends[state] for state in kept],
    )


# Merging goes round as often as the longest text has characters.
_MAX_MERGED = 250


def _merged(steps: list[dict[int, CharSet]], ends: list[bool]) -> Table:
    """Merges equivalent states, unless there are very many."""
    n = len(ends)
    group = [int(end) for end in ends] if n <= _MAX_MERGED else list(range(n))
    n_groups = 0
    while n <= _MAX_MERGED and n_groups != len(set(group)):
        n_groups = len(set(group))
        seen: dict[object, int] = {}
        following = []
        WORK.spend(n)
        for state in range(n):
            targets: dict[int, CharSet] = {}
            for to, ranges in steps[state].items():
                known = targets.get(group[to])
                targets[group[to]] = ranges if known is None else union(known, ranges)
            key = (group[state], frozenset(targets.items()))
            following.append(seen.setdefault(key, len(seen)))
        group = following
    first = {one: state for state, one in reversed(list(enumerate(group)))}
    order = sorted(first, key=lambda one: first[one])
    place = {one: i for i, one in enumerate(order)}
    rows: list[list[tuple[CharSet, int]]] = []
    for one in order:
        joined: dict[int, CharSet] = {}
        for to, ranges in steps[first[one]].items():
            known = joined.get(place[group[to]])
            joined[place[group[to]]] = ranges if known is None else union(known, ranges)
        rows.append([(ranges, to) for to, ranges in joined.items()])
    return Table(rows, [ends[first[one]] for one in order])


def counted(states: Table, low: int, high: int | None) -> Table:
    """Limits the automaton to texts of `low` to `high` characters."""
    last = low if high is None else high

    def leaving(counting: tuple[int, int]) -> Iterable[tuple[CharSet, tuple[int, int]]]:
        state, n = counting
        if high is not None and n == high:
            return
        for ranges, to in states.steps[state]:
            yield ranges, (to, min(n + 1, last))

    def may_end(counting: tuple[int, int]) -> bool:
        return states.ends[counting[0]] and counting[1] >= low

    # The caller has bounded their number.
    return explored((0, 0), leaving, may_end, len(states.ends) * (last + 1))
