"""Tokenizes a rendered chat so that the caller's text cannot form a control token.

Where the template alone wrote names of control tokens, the text is tokenized as a whole, as the
model saw it in training. Names that the caller wrote, wholly or in part, are tokenized by
themselves, as plain text. "Control tokens" are those that the engine reads only where it is asked
to; tokens that a vocabulary calls user-defined, such as "<tool_call>" in some, are read everywhere.
Those of gpt-oss, which the engine turns into such, count as control tokens here.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property

from pyllama_spec.chat.prompt_provenance import PromptProvenance, Span, is_sign, joined
from pyllama_spec.engine import Vocab
from pyllama_spec.errors import warn

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
        self._caller_text = "\0".join(caller.caller_strings).casefold()
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
        names, blank_names = self._control_names
        lost = Counter(names if blank_names is None else blank_names) - Counter(self._names(tokens))
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
        caller = self._caller
        if caller.located == "nothing":
            return self._may_be_forged(name, start, end)
        if self._touching(start, end):
            return True
        if caller.located == "all":
            return False
        if not any(map(is_sign, name)):
            return name.casefold() in self._caller_text
        return any(a <= start and end <= b for a, b in caller.lookups)

    def _may_be_forged(self, name: str, start: int, end: int) -> bool:
        """Whether the caller could have written this name, whatever the template did to the text.

        If a chat has as many control tokens as the same chat without the caller's special
        characters, they come from the template. So does a single one that is at the same place in
        both.
        """
        plain, blank = name.casefold(), self._caller.blank
        if blank is not None and len(blank) == len(self._text) and any(map(is_sign, name)):
            return blank[start:end] != name
        if plain in self._caller_text:
            return True
        names, blank_names = self._control_names
        if names == blank_names:
            return False
        if all(sign in self._caller_text for sign in plain if is_sign(sign)):
            return True
        if blank_names is None:  # a word may stand between the template's signs
            return any(word in self._caller_text.split("\0") for word in re.findall(r"\w+", plain))
        return names.count(name) != blank_names.count(name)

    @cached_property
    def _control_names(self) -> tuple[list[str], list[str] | None]:
        """The names of control tokens in the chat, with the caller's characters and without."""
        blank = self._caller.blank
        return self._names_in(self._text), None if blank is None else self._names_in(blank)

    def _names_in(self, text: str) -> list[str]:
        return self._names(self._vocab.tokenize(text, add_special=False, parse_special=True))

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
