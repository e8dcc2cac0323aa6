"""Random texts of a GBNF grammar."""

from __future__ import annotations

import random
import re
from typing import Any

# ("text", str), ("chars", ranges), ("rule", name), ("all", parts), ("any", ways), ("times", part,
# low, high).
Node = tuple[Any, ...]
_TOKEN = re.compile(
    r'\s+|#[^\n]*|(?P<text>"(?:[^"\\]|\\.)*")|(?P<chars>\[(?:[^\]\\]|\\.)*\])'
    r"|(?P<rule>[a-zA-Z0-9_-]+)(?P<head>[ \t]*::=)?|(?P<times>[*+?]|\{\d*,?\d*\})|(?P<sign>[()|.])"
)
_ESCAPE = re.compile(r"\\(?:x(..)|u(....)|U(.{8})|(.))|(.)", re.DOTALL)
_SIGNS = {"n": "\n", "r": "\r", "t": "\t"}
_LAST = 0x10FFFF
# Signs of JSON, of tags and of blanks, and letters of one to four bytes.
_LIKED = [ord(c) for c in "abpx019 \n<>/|\"'\\{}[]:,.-=é日𝄞"]


def _codes(text: str) -> list[tuple[int, bool]]:
    """The code points of a text, and whether each stands there as itself."""
    codes = []
    for x, u, long, sign, plain in _ESCAPE.findall(text):
        code = int(x or u or long, 16) if x or u or long else ord(_SIGNS.get(sign, sign) or plain)
        codes.append((code, bool(plain)))
    return codes


def _chars(inner: str) -> Node:
    is_negated = inner.startswith("^")
    codes = _codes(inner[is_negated:])
    ranges, i = [], 0
    while i < len(codes):
        is_range = i + 2 < len(codes) and codes[i + 1] == (ord("-"), True)
        ranges.append((codes[i][0], codes[i + 2 if is_range else i][0]))
        i += 3 if is_range else 1
    if not is_negated:
        return ("chars", ranges)
    outside, at = [], 0
    for low, high in sorted(ranges):
        outside.append((at, low - 1))
        at = max(at, high + 1)
    return ("chars", [one for one in [*outside, (at, _LAST)] if one[0] <= one[1]])


def rules_of(grammar: str) -> dict[str, Node]:
    """The rules of a grammar by name."""
    tokens: list[tuple[str, str]] = []
    at = 0
    while at < len(grammar):
        found = _TOKEN.match(grammar, at)
        assert found, grammar[at : at + 80]
        at = found.end()
        if found["head"]:
            tokens.append(("head", found["rule"]))
        else:
            tokens += [(kind, text) for kind, text in found.groupdict().items() if text]
    return _Reader(tokens).rules()


class _Reader:
    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens, self._at = tokens, 0

    def _next(self) -> tuple[str, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("end", "")

    def rules(self) -> dict[str, Node]:
        rules = {}
        while self._next()[0] == "head":
            name = self._next()[1]
            self._at += 1
            rules[name] = self._any()
        assert self._next()[0] == "end", self._next()
        return rules

    def _any(self) -> Node:
        ways = [self._all()]
        while self._next() == ("sign", "|"):
            self._at += 1
            ways.append(self._all())
        return ways[0] if len(ways) == 1 else ("any", ways)

    def _all(self) -> Node:
        parts: list[Node] = []
        while True:
            kind, text = self._next()
            if kind in ("head", "end") or (text in ("|", ")") and kind == "sign"):
                return parts[0] if len(parts) == 1 else ("all", parts)
            self._at += 1
            if kind == "times":
                parts.append(("times", parts.pop(), *_bounds(text)))
            elif kind == "text":
                parts.append(("text", "".join(chr(code) for code, _ in _codes(text[1:-1]))))
            elif kind == "chars":
                parts.append(_chars(text[1:-1]))
            elif kind == "rule":
                parts.append(("rule", text))
            elif text == ".":
                parts.append(("chars", [(0, _LAST)]))
            else:
                parts.append(self._any())
                assert self._next() == ("sign", ")")
                self._at += 1


def _bounds(text: str) -> tuple[int, int | None]:
    usual = {"*": (0, None), "+": (1, None), "?": (0, 1)}
    if text in usual:
        return usual[text]
    low, comma, high = text[1:-1].partition(",")
    return int(low or 0), (int(high) if high else None) if comma else int(low)


class Texts:
    """Draws texts of a grammar; beyond `depth` rules it takes the shortest way out."""

    def __init__(self, grammar: str, seed: int = 0, depth: int = 60) -> None:
        self._rules, self._random, self._depth = rules_of(grammar), random.Random(seed), depth
        self._heights: dict[str, float] = dict.fromkeys(self._rules, float("inf"))
        is_new = True
        while is_new:
            is_new = False
            for name, node in self._rules.items():
                height = 1 + self._height(node)
                is_new |= height < self._heights[name]
                self._heights[name] = min(height, self._heights[name])

    def _height(self, node: Node) -> float:
        if node[0] == "rule":
            return self._heights.get(node[1], float("inf"))
        if node[0] == "all":
            return max(map(self._height, node[1]), default=0)
        if node[0] == "any":
            return min(map(self._height, node[1]))
        if node[0] == "times":
            return self._height(node[1]) if node[2] else 0
        return 0

    def draw(self, begun: str = "") -> str:
        """A text of the rule `root` that begins with `begun`."""
        text = ""
        todo: list[tuple[Node, int]] = [(("rule", "root"), 0)]
        # Ways not taken where the text is not yet as long as its given beginning.
        others: list[tuple[str, list[tuple[Node, int]]]] = []
        while todo:
            node, depth = todo.pop()
            kind, is_deep = node[0], depth > self._depth
            rest = begun[len(text) :]
            if kind in ("text", "chars"):
                made = node[1] if kind == "text" else self._char(node[1], rest)
                text += made
                if not (rest.startswith(made) or made.startswith(rest)):
                    text, todo = others.pop()
            elif kind == "rule":
                todo.append((self._rules[node[1]], depth + 1))
            elif kind == "all":
                todo += [(part, depth) for part in reversed(node[1])]
            elif kind == "any":
                ways = [way for way in node[1] if self._height(way) < float("inf")]
                if is_deep and not rest:
                    least = min(map(self._height, ways))
                    ways = [way for way in ways if self._height(way) == least]
                self._random.shuffle(ways)
                if rest:
                    others += [(text, [*todo, (way, depth)]) for way in ways[1:]]
                todo.append((ways[0], depth))
            else:
                _, part, low, high = node
                most = low if is_deep else low + self._random.choice((0, 1, 2, 7))
                n = most if high is None else min(most, high)
                if rest:
                    others += [
                        (text, [*todo, *[(part, depth)] * k]) for k in {low, high or 1} - {n}
                    ]
                todo += [(part, depth)] * n
        return text

    def _char(self, ranges: list[tuple[int, int]], rest: str) -> str:
        def has(code: int) -> bool:
            return any(low <= code <= high for low, high in ranges)

        if rest:
            return rest[0] if has(ord(rest[0])) else "\0"
        liked = [c for c in _LIKED if has(c)]
        if liked and self._random.random() < 0.95:
            return chr(self._random.choice(liked))
        code = self._random.randint(*self._random.choice(ranges))
        return chr(code if not 0xD800 <= code <= 0xDFFF else ranges[0][0])
