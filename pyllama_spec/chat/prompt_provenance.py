"""Finds the caller's characters in a rendered chat, and tokenizes them as text.

A template is a program: it may trim, cut, measure, repeat, lower-case or JSON-encode what it is
given, and look for words in it. So the chat is rendered once more with stand-ins: each character
of the caller is exchanged for a private-use one that neither the caller nor the template nor the
text contains. The lengths stay, and whatever the template does, a stand-in in its output came from
the caller. If the output, with the characters put back, is the chat as it was, every one of them is
located. A template that treats some characters specially gives other output; then fewer
are exchanged (SUBSTITUTIONS), and in the end `located` is "nothing".

Names of control tokens have signs in them ("<|im_end|>", "[INST]"): to exchange the signs alone is
enough to tell a forged name from one that the template wrote.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from pyllama_spec.engine import Vocab
from pyllama_spec.errors import warn

# What is known of the caller's text in a rendered chat: every stretch of it; signs, or all but what
# the template looks for in texts; nothing.
Located = Literal["all", "signs", "nothing"]
# What renders a chat: the template alone, or the engine's code for tools, which gives the template
# the arguments of past calls as values or as the text that they are.
Form = Literal["plain", "values", "text"]
Span = tuple[int, int]

# The private-use planes 15 and 16: no text of people has them, no template looks for them, and no
# case, width or trimming changes them.
_STAND_INS = (range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
# Words that templates put between signs of their own, as in '<|' + message.role + '|>'.
_ROLES = frozenset(
    ("system", "developer", "user", "assistant", "model", "tool", "function", "ipython",
     "observation")
)  # fmt: skip


class Substitution(NamedTuple):
    """What one rendering replaces by stand-ins, and what is `located` if it gives the same text.

    Letters, digits and white space may stay; so may strings that the template looks for in texts,
    such as "</think>".
    """

    located: Located
    signs_only: bool
    keeps_lookups: bool


# From the one that locates most to the one that changes least.
SUBSTITUTIONS = (
    Substitution("all", signs_only=False, keeps_lookups=False),
    Substitution("signs", signs_only=False, keeps_lookups=True),
    Substitution("signs", signs_only=True, keeps_lookups=False),
    Substitution("signs", signs_only=True, keeps_lookups=True),
)


class NotTrackedError(Exception):
    """The caller's values cannot be replaced by placeholders."""


@dataclass(frozen=True, slots=True)
class PromptProvenance:
    """The caller's text in a rendered chat, as far as it is known.

    Attributes:
        located: how much of the caller's text is located.
        spans: [start, end) of the characters that are known to be the caller's, ascending.
        lookups: [start, end) of strings that the template looks for in texts and that the caller's
            text has too: either may have written them.
        caller_strings: all strings from the caller.
    """

    located: Located
    spans: tuple[Span, ...] = ()
    lookups: tuple[Span, ...] = ()
    caller_strings: tuple[str, ...] = field(default=(), repr=False)


def is_sign(char: str) -> bool:
    """Whether a character is neither a letter, a digit, an underscore nor white space."""
    return not (char.isalnum() or char == "_" or char.isspace())


class _Alphabet(dict[int, int]):
    """The stand-in of each character, for str.translate(); created on demand."""

    def __init__(
        self, stand_in_of: Callable[[str], str], *, signs_only: bool, keeps_escaped: bool
    ) -> None:
        super().__init__()
        self._stand_in_of, self._signs_only = stand_in_of, signs_only
        self._keeps_escaped = keeps_escaped

    def __missing__(self, code: int) -> int:
        char = chr(code)
        is_kept = self._signs_only and not is_sign(char)
        if self._keeps_escaped:
            is_kept = is_kept or char in '"\\' or char < " "
        self[code] = ord(char if is_kept else self._stand_in_of(char))
        return self[code]


class _Mask(dict[int, int]):
    """Turns stand-ins into 1 and all else into 0, for str.translate()."""

    def __missing__(self, code: int) -> int:
        self[code] = ord("0")
        return ord("0")


def _free(taken: set[str]) -> Iterator[str]:
    """Characters that are not taken, from a random one on."""
    first, second = _STAND_INS
    n = len(first) + len(second)
    start = int.from_bytes(os.urandom(4), "little")
    for i in range(n):
        at = (start + i) % n
        char = chr(first[at] if at < len(first) else second[at - len(first)])
        if char not in taken:
            yield char
    raise NotTrackedError("the chat has every private-use character")


class _OneForEach:
    """Maps each requested character to a free stand-in."""

    def __init__(self, taken: set[str]) -> None:
        self._free = _free(taken)
        self.by_char: dict[str, str] = {}

    def __call__(self, char: str) -> str:
        if char not in self.by_char:
            self.by_char[char] = next(self._free)
        return self.by_char[char]


class StandIns:
    """The stand-ins of one rendering."""

    def __init__(
        self,
        substitution: Substitution,
        taken: set[str],
        words: frozenset[str],
        lookups: Sequence[str],
        form: Form = "plain",
        keeps_escaped: bool = False,
    ) -> None:
        self._words, self._form = words, form
        self._lookups = lookups if substitution.keeps_lookups else ()
        # A separate object: alphabets that called a method of this one would form a cycle with it.
        stand_ins = _OneForEach(taken)
        self._stand_ins_by_char = stand_ins.by_char
        self._signs = _Alphabet(stand_ins, signs_only=True, keeps_escaped=keeps_escaped)
        self._all = _Alphabet(stand_ins, signs_only=False, keeps_escaped=keeps_escaped)
        self._alphabet = self._signs if substitution.signs_only else self._all

    def value(self, value: Any, key: str = "") -> Any:
        """Replaces the characters of a caller's value, at all depths, by stand-ins."""
        if isinstance(value, str):
            return self._string(value, key)
        if value is None or isinstance(value, (bool, int, float)):
            return value
        if isinstance(value, Mapping):
            return {self._key(k): self.value(v, str(k)) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(item, key) for item in value]
        raise NotTrackedError(f"a {type(value).__name__}")

    def message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A message with stand-ins."""
        hidden: dict[str, Any] = self.value(message)
        if self._form == "values" and isinstance(message.get("tool_calls"), list):
            hidden["tool_calls"] = [self._call(call) for call in message["tool_calls"]]
        return hidden

    def _call(self, call: Any) -> Any:
        """A call with JSON arguments, of which only the values get stand-ins."""
        hidden = self.value(call)
        function = call.get("function") if isinstance(call, Mapping) else None
        arguments = function.get("arguments") if isinstance(function, Mapping) else None
        if isinstance(arguments, str):
            with suppress(ValueError, RecursionError):
                values = self.value(json.loads(arguments))
                hidden["function"]["arguments"] = json.dumps(values, ensure_ascii=False)
        return hidden

    def _key(self, key: Any) -> Any:
        # Templates ask for keys by their names: only what no name has is exchanged.
        if not isinstance(key, str) or _is_word(key):
            return key
        return key.translate(self._signs)

    def _string(self, text: str, key: str) -> str:
        is_role = key == "role"
        if key == "type" and text == "function":  # of a tool or a call: there is no other type
            return text
        if _is_word(text) and (text in self._words or (is_role and text.casefold() in _ROLES)):
            return text
        # Templates put roles between signs of their own: there a letter is enough to forge.
        alphabet = self._all if is_role else self._alphabet
        before, core, after = _split_space(text)
        out, at = [before], 0
        for start, end in joined(list(occurrences(core, self._lookups))):
            out += [core[at:start].translate(alphabet), core[start:end]]
            at = end
        return "".join([*out, core[at:].translate(alphabet), after])

    def read(self, rendered: str) -> tuple[str, list[Span]]:
        """The text with its characters restored, and the caller's spans."""
        chars = {ord(stand_in): char for char, stand_in in self._stand_ins_by_char.items()}
        mask = _Mask(dict.fromkeys(chars, ord("1")))
        spans = [match.span() for match in re.finditer("1+", rendered.translate(mask))]
        return rendered.translate(chars), spans


def _split_space(text: str) -> tuple[str, str, str]:
    """Splits a text into leading white space, text and trailing white space."""
    core = text.strip()
    at = text.index(core) if core else len(text)
    return text[:at], core, text[at + len(core) :]


def _is_word(text: str) -> bool:
    return all(not is_sign(char) and not char.isspace() for char in text.replace("-", ""))


def occurrences(text: str, words: Sequence[str]) -> Iterator[Span]:
    """The places of any of the words in the text; they may overlap."""
    for word in words:
        at = text.find(word)
        while at >= 0:
            yield at, at + len(word)
            at = text.find(word, at + 1)


def joined(spans: Sequence[Span]) -> list[Span]:
    """Merges spans into ascending spans that do not touch."""
    out: list[Span] = []
    for start, end in sorted(spans):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        elif start < end:
            out.append((start, end))
    return out


def _encodable(text: str) -> str:
    return text.encode("utf-8", errors="replace").decode("utf-8")


def strings_of(value: Any) -> list[str]:
    """All strings in a value, keys too; of another object its str()."""
    strings: list[str] = []
    left, seen = [value], set()
    while left:
        item = left.pop()
        if isinstance(item, str):
            strings.append(item)
        elif isinstance(item, (Mapping, list, tuple)):
            if id(item) in seen:
                continue
            seen.add(id(item))
            left += [*item.keys(), *item.values()] if isinstance(item, Mapping) else item
        elif item is not None and not isinstance(item, (bool, int, float)):
            strings.append(str(item))
    return strings


def locate(
    text: str,
    caller_strings: Sequence[str],
    *,
    source: str,
    words: frozenset[str],
    lookups: Sequence[str],
    render: Callable[[StandIns], str | None],
    form: Form = "plain",
) -> PromptProvenance:
    """Finds the caller's text in a rendered chat.

    `words` and `lookups` are the template's strings that are words, and those that it looks for in
    texts. `render` renders with stand-ins; it returns None if the template fails on them.
    """
    taken = set(text).union(source, *caller_strings)
    used = tuple(word for word in lookups if any(word in one for one in caller_strings))
    escapes = form != "plain" or "tojson" in source
    ways = [(substitution, escapes) for substitution in SUBSTITUTIONS]
    if escapes and form == "plain":  # most chats show no JSON, whatever the template can do
        ways.insert(0, (SUBSTITUTIONS[0], False))
    try:
        for substitution, keeps_escaped in ways:
            if substitution.keeps_lookups and not used:
                continue
            stand_ins = StandIns(
                substitution, taken, words, used, form=form, keeps_escaped=keeps_escaped
            )
            rendered = render(stand_ins)
            restored = None if rendered is None else stand_ins.read(rendered)
            # The engine writes "?" for half a character.
            if restored is not None and text in (restored[0], _encodable(restored[0])):
                either = joined(list(occurrences(text, used))) if substitution.keeps_lookups else []
                return PromptProvenance(
                    substitution.located, tuple(restored[1]), tuple(either), tuple(caller_strings)
                )
    except (NotTrackedError, RecursionError):
        pass
    return PromptProvenance("nothing", caller_strings=tuple(caller_strings))


# Control tokens of gpt-oss, whose names the engine shows and reads everywhere: by names alone.
_SHOWN_NAMES = ("<|start|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|end|>")
_SHOWN_PIECES = frozenset(name.encode() for name in _SHOWN_NAMES)
_SHOWN_NAME = re.compile("|".join(map(re.escape, _SHOWN_NAMES)))


def tokenize_chat(vocab: Vocab, text: str, caller: PromptProvenance) -> list[int]:
    """Token ids of a chat, without a BOS token that its text does not contain."""
    # What Vocab does with lone surrogates, done before names are looked for: "?" may be in one.
    clean = text.encode("utf-8", errors="replace").decode("utf-8")
    tokenizer = _Tokenizer(vocab, clean, caller)
    tokens = tokenizer.run(0, len(clean))
    tokenizer.warn_of_lost(tokens)
    return tokens


class _Tokenizer:
    def __init__(self, vocab: Vocab, text: str, caller: PromptProvenance) -> None:
        self._vocab, self._text, self._caller = vocab, text, caller
        strings = [one.casefold() for one in caller.caller_strings]
        self._caller_text = "\0".join(strings)
        self._caller_chars, self._caller_words = set(self._caller_text), set(strings) - _ROLES
        self._starts = [a for a, _ in caller.spans]
        self._ends = [b for _, b in caller.spans]

    def run(self, start: int, end: int) -> list[int]:
        """Tokenizes a part of the text."""
        text = self._text[start:end]
        unsplit = self._vocab.tokenize(text, add_special=False, parse_special=True)
        matches = _find_names(text, set(self._names(unsplit)))
        forged = [
            self._widened(start + a, start + b, start, end)
            for name, a, b in matches
            if self._is_forged(name, start + a, start + b)
        ]
        if not forged:
            return unsplit
        # Only then: text that is split can give other tokens at each place where it is.
        tokens, at = [], start
        for a, b in joined(forged):
            # A name that was hidden by a longer one can come out now.
            tokens += self.run(at, a) if a > at else []
            tokens += self._plain(self._text[a:b])
            at = b
        return tokens + (self.run(at, end) if end > at else [])

    def warn_of_lost(self, tokens: Sequence[int]) -> None:
        """Warns where control tokens that the template may have written itself are read as text."""
        if self._caller.located != "nothing":
            return
        names = self._names(self._vocab.tokenize(self._text, parse_special=True))
        lost = Counter(names) - Counter(self._names(tokens))
        if lost:
            warn(
                "the caller's text contains names of control tokens, and cannot be located in the "
                f"output of this chat template: {', '.join(sorted(lost))} become text, the "
                "template's own too. Remove these names from messages, or give another "
                "chat_template",
            )

    def _plain(self, text: str) -> list[int]:
        """Tokenizes a text without any control token."""
        tokens = self._vocab.tokenize(text, add_special=False)
        if not any(self._vocab.piece(token) in _SHOWN_PIECES for token in tokens):
            return tokens
        cuts = [0, *(match.start() + 1 for match in _SHOWN_NAME.finditer(text)), len(text)]
        parts = (text[a:b] for a, b in itertools.pairwise(cuts))
        return [t for part in parts for t in self._vocab.tokenize(part, add_special=False)]

    def _names(self, tokens: Iterable[int]) -> list[str]:
        """The names of the control tokens among the ids, with repetitions."""
        vocab = self._vocab
        hidden = (t for t in tokens if not (piece := vocab.piece(t)) or piece in _SHOWN_PIECES)
        return [n for t in hidden if (n := vocab.piece(t, special=True).decode(errors="replace"))]

    def _is_forged(self, name: str, start: int, end: int) -> bool:
        caller, plain = self._caller, name.casefold()
        if caller.located == "nothing":  # of the caller's characters, or a word of it between signs
            words = re.findall(r"\w+", plain)
            return set(plain) <= self._caller_chars or not self._caller_words.isdisjoint(words)
        if self._touching(start, end):
            return True
        if caller.located == "all":
            return False
        if not any(map(is_sign, name)):
            return plain in self._caller_text
        return any(a <= start and end <= b for a, b in caller.lookups)

    def _widened(self, start: int, end: int, first: int, last: int) -> Span:
        """The span of a name, extended by the caller's spans that overlap it."""
        touching = self._touching(start, end)
        if touching:
            start, end = min(start, touching[0][0]), max(end, touching[-1][1])
        return max(start, first), min(end, last)

    def _touching(self, start: int, end: int) -> Sequence[Span]:
        """The caller's spans that overlap this one."""
        return self._caller.spans[bisect_right(self._ends, start) : bisect_left(self._starts, end)]


def _find_names(text: str, names: Iterable[str]) -> list[tuple[str, int, int]]:
    """The places of the names, found as the engine finds them: the longest name first."""
    matches: list[tuple[str, int, int]] = []
    free = [(0, len(text))]
    for name in sorted(names, key=lambda n: len(n.encode()), reverse=True):
        left: list[Span] = []
        for start, end in free:
            at = start
            while (i := text.find(name, at, end)) >= 0:
                matches.append((name, i, i + len(name)))
                left.append((at, i))
                at = i + len(name)
            left.append((at, end))
        free = left
    return matches
