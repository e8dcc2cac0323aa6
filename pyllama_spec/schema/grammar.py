"""The rules of a grammar under construction, and their GBNF text.

A rule that matches nothing is removed, and so are the rules that need it. A rule that is used once
and has no alternatives is written where it is used.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pyllama_spec.schema.charsets import SURROGATES, CharSet, charset
from pyllama_spec.schema.limits import Budget, TooLargeError

# The engine takes a repetition of at most 2,000, and makes a longer one endless; it copies a part
# as often as it is asked for.
_MAX_TIMES = 300
# More is a rule of its own, which the next one that asks for it shares.
_FEW_TIMES = 8
_N_PASSES = 4
# Half a million characters of a text: beyond, a repetition is no bound but a mistake.
MAX_COUNT = 500_000


@dataclass(frozen=True, slots=True)
class Literal:
    """A literal text."""

    text: str


@dataclass(frozen=True, slots=True)
class OneOf:
    """A character of a set."""

    chars: CharSet


@dataclass(frozen=True, slots=True)
class Rule:
    """A reference to another rule."""

    name: str


@dataclass(frozen=True, slots=True)
class Times:
    """A rule repeated `low` to `high` times; None for `high` means no limit."""

    name: str
    low: int
    high: int | None


Item = Literal | OneOf | Rule | Times
Alternative = tuple[Item, ...]


def literal(text: str) -> str:
    """A text as a GBNF literal."""
    return (
        '"' + "".join(_SIGNS.get(c) or (c if c >= " " else f"\\x{ord(c):02X}") for c in text) + '"'
    )


# The names of control tokens begin with "<" or "[": a text of a schema is never one of them, and
# csrc/abi/sampler_chain.cpp looks for them as they are.
_SIGNS = {
    "<": "\\x3C", "[": "\\x5B", '"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t",
    "\x7f": "\\x7F",
}  # fmt: skip


def _char(code: int) -> str:
    if chr(code).isascii() and chr(code).isalnum():
        return chr(code)
    return f"\\x{code:02X}" if code < 0x100 else f"\\U{code:08X}"


def bracket(ranges: CharSet) -> str:
    """A set of characters as a GBNF bracket expression."""
    # Halves of UTF-16 pairs never come: with them, most sets have one range less.
    whole = ranges
    if any(high == SURROGATES[0] - 1 for _, high in ranges) and any(
        low == SURROGATES[1] + 1 for low, _ in ranges
    ):
        whole = charset([*ranges, SURROGATES])
    inner = (_char(a) if a == b else f"{_char(a)}-{_char(b)}" for a, b in whole)
    return f"[{''.join(inner)}]"


@dataclass
class Grammar:
    """The alternatives of each rule by its name."""

    budget: Budget = field(default_factory=Budget)
    rules: dict[str, list[Alternative]] = field(default_factory=dict)
    _n: int = 0
    _shared: dict[tuple[str, int, int | None], Rule] = field(default_factory=dict)

    def name(self, kind: str) -> str:
        """A new rule name."""
        self._n += 1
        return f"{kind}{self._n}"

    def add(self, kind: str, alternatives: Iterable[Iterable[Item]]) -> str:
        """Adds a rule; returns its name."""
        name = self.name(kind)
        self.put(name, alternatives)
        return name

    def put(self, name: str, alternatives: Iterable[Iterable[Item]]) -> None:
        """Sets the rule of a name."""
        made = list(dict.fromkeys(tuple(one) for one in alternatives))
        self.budget.spend(1 + sum(map(len, made)))
        self.rules[name] = made

    def times(self, name: str, low: int, high: int | None) -> list[Item]:
        """A rule that repeats a rule; large counts are built from blocks."""
        if max(low, high or 0) > MAX_COUNT:
            raise TooLargeError(f"more than {MAX_COUNT:,} times is too often")
        if high == 0:
            return []
        if max(low, high or 0) <= _FEW_TIMES:
            return [Times(name, low, high)]
        shared = self._shared.get((name, low, high))
        if shared is None:
            is_short = max(low, high or 0) <= _MAX_TIMES
            made = [Times(name, low, high)] if is_short else self._blocks(name, low, high)
            shared = self._shared[name, low, high] = Rule(self.add("times", [made]))
        return [shared]

    def _blocks(self, name: str, low: int, high: int | None) -> list[Item]:
        size = max(_MAX_TIMES, int(max(low, high or 0) ** 0.5))
        block = Rule(self.add("block", [self._exactly(name, size)]))
        n_blocks, left = divmod(low, size)
        items: list[Item] = [block] * n_blocks
        if left:
            items.extend(self._exactly(name, left))
        if high is None:
            return [*items, Times(name, 0, None)]
        return [*items, *self._up_to(name, high - low, block, size)]

    def _exactly(self, name: str, n: int) -> list[Item]:
        items: list[Item] = [Times(name, _MAX_TIMES, _MAX_TIMES)] * (n // _MAX_TIMES)
        return [*items, Times(name, n % _MAX_TIMES, n % _MAX_TIMES)] if n % _MAX_TIMES else items

    def _up_to(self, name: str, n: int, block: Rule, size: int) -> list[Item]:
        """A whole block and the rest, or less than a block: at most two alternatives."""
        if n == 0:
            return []
        n_blocks, left = divmod(n, size)
        part: list[Item] = self._short(name, left) if left else []
        if not n_blocks:
            return part
        less = self.add("part", [self._short(name, size - 1)])
        rest: list[Item] = part
        for _ in range(n_blocks):
            rest = [Rule(self.add("blocks", [[block, *rest], [Rule(less)]]))]
        return rest

    def _short(self, name: str, n: int) -> list[Item]:
        """At most n repetitions, nested."""
        rest: list[Item] = []
        while n > 0:
            taken = min(n, _MAX_TIMES)
            if not rest:
                rest = [Times(name, 0, taken)]
            else:
                whole: list[Item] = [Times(name, taken, taken), *rest]
                rest = [Rule(self.add("part", [whole, [Times(name, 0, taken - 1)]]))]
            n -= taken
        return rest

    def texts(self, roots: Iterable[str], prefix: str = "") -> list[str | None]:
        """Of each root the GBNF of the rules that it needs, root first; None if nothing matches.

        Each name gets the prefix.
        """
        self._drop_barren()
        return [self._text(root, prefix) if self.rules.get(root) else None for root in roots]

    def _text(self, root: str, prefix: str) -> str:
        self._inline(root)
        lines = [
            f"{prefix}{name} ::= {' | '.join(_written(one, prefix) for one in self.rules[name])}"
            for name in self._reachable(root)
        ]
        return "\n".join(lines) + "\n"

    def _drop_barren(self) -> None:
        users: dict[str, list[tuple[str, int]]] = {}
        missing: dict[tuple[str, int], int] = {}
        todo: list[str] = []
        alive: set[str] = set()
        for name, alternatives in self.rules.items():
            for i, one in enumerate(alternatives):
                needed = {
                    item.name for item in one
                    if isinstance(item, Rule) or (isinstance(item, Times) and item.low > 0)
                }  # fmt: skip
                missing[name, i] = len(needed)
                for other in needed:
                    users.setdefault(other, []).append((name, i))
                if not needed and name not in alive:
                    alive.add(name)
                    todo.append(name)
        while todo:
            for name, i in users.get(todo.pop(), ()):
                missing[name, i] -= 1
                if missing[name, i] == 0 and name not in alive:
                    alive.add(name)
                    todo.append(name)
        for name, alternatives in self.rules.items():
            kept = [one for i, one in enumerate(alternatives) if missing[name, i] == 0]
            self.rules[name] = [
                tuple(x for x in one if not isinstance(x, Times) or x.name in alive) for one in kept
            ]

    def _reachable(self, root: str) -> dict[str, int]:
        """The rules reachable from root in order, with their number of uses."""
        uses: dict[str, int] = {root: 2}
        todo = [root]
        while todo:
            alternatives = self.rules[todo.pop()]
            self.budget.spend(1 + len(alternatives) // 4)
            for item in (item for one in alternatives for item in one):
                if isinstance(item, (Rule, Times)):
                    if item.name not in uses:
                        todo.append(item.name)
                    times = 1 if isinstance(item, Rule) else 2
                    uses[item.name] = uses.get(item.name, 0) + times
        return uses

    def _inline(self, root: str) -> None:
        """Inlines rules with one alternative and one use."""
        for _ in range(_N_PASSES):
            uses = self._reachable(root)
            before = sum(uses.values())
            for name in reversed(uses):
                self.rules[name] = [self._spliced(name, one, uses) for one in self.rules[name]]
            if sum(self._reachable(root).values()) == before:
                return

    def _spliced(self, name: str, one: Alternative, uses: dict[str, int]) -> Alternative:
        items: list[Item] = []
        for item in one:
            inner = self.rules[item.name] if isinstance(item, Rule) else []
            is_small = len(inner) == 1 and (
                len(inner[0]) == 1 and not isinstance(inner[0][0], Rule)
            )
            if (
                isinstance(item, Rule)
                and item.name != name
                and len(inner) == 1
                and (uses[item.name] == 1 or (is_small and isinstance(inner[0][0], Literal)))
            ):
                items.extend(inner[0])
            else:
                items.append(item)
        return tuple(items)


def _written(one: Alternative, prefix: str) -> str:
    texts: list[str] = []
    text = ""
    for item in one:
        if isinstance(item, Literal):
            text += item.text
            continue
        if text:
            texts.append(literal(text))
            text = ""
        if isinstance(item, OneOf):
            texts.append(bracket(item.chars))
        elif isinstance(item, Rule):
            texts.append(prefix + item.name)
        else:
            texts.append(prefix + item.name + _suffix(item.low, item.high))
    if text or not texts:
        texts.append(literal(text))
    return " ".join(texts)


def _suffix(low: int, high: int | None) -> str:
    usual = {(0, None): "*", (1, None): "+", (0, 1): "?", (1, 1): ""}.get((low, high))
    if usual is not None:
        return usual
    return f"{{{low}}}" if low == high else f"{{{low},{'' if high is None else high}}}"
