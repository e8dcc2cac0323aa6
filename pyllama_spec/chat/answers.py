"""Parses answers: the text for the user, the thought before it, and tool calls.

Nothing of an answer is lost: text that no parser takes is for the user. While an answer is being
generated its reader emits only what later tokens cannot change; so a stream's output is a
beginning of the whole answer.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from pyllama_spec.chat.template import is_json
from pyllama_spec.constraints import schema_grammar
from pyllama_spec.engine import ChatSession, Vocab
from pyllama_spec.engine.chat import ends_in_thought
from pyllama_spec.errors import ArgumentError, UnsupportedError

# The engine's own grammar of several calls, of templates in the way of Hermes and Qwen: it repeats
# what may be empty, which is left recursion, and which the engine's own sampler refuses.
_NULLABLE_LOOP = re.compile(r"\((\S+)\? space\)\+")
# The text that the engine allows before a forced call. A small model would generate it to
# the end of the answer; OpenAI's answers have none, and llama-cpp-python's neither.
_TEXT_BEFORE_CALL = re.compile(
    r"^(root ::= .*?)\buntil-\d+\?? (?:space )?(?=tool-call)", re.MULTILINE
)
# White space inside of a call's JSON, which a small model would repeat without end: a blank after
# commas and colons, as in schema/. What lies between the tags of a call stays the template's.
_BLANK_AFTER = re.compile(r'(?<="[:,]" )space\b')
_NO_BLANK = re.compile(r'(?<="[{\[]" )space\b|\bspace(?= "[}\]:,]")')
# The engine's grammars of calls in tags of their own take several, also where one was asked for.
_REPEATED_CALLS = re.compile(
    r"^((?:tool-calls|tools) ::= )\((\S+?)(?: space)?\)[+*]$", re.MULTILINE
)
# A text by a schema, which the engine lets stand in a fence, that its parsers of calls do not know.
_FENCED = re.compile(r'\("```json" space (\S+) space "```" \| space \1 space\)')
# A text in quotes, a class of characters, a comment, or the name of a rule.
_PART = re.compile(r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|#[^\n]*|([a-zA-Z][a-zA-Z0-9_-]*)')


def calls_grammar(rules: str, *, single: bool, at_once: bool) -> str:
    """The engine's rules of calls, in the form that a sampler takes.

    `single`: the answer has at most one call. `at_once`: nothing comes before the call, and its
    JSON is on one line.
    """
    rules = _NULLABLE_LOOP.sub(r"(\1 space)*", rules)
    rules = _REPEATED_CALLS.sub(r"\1\2", rules) if single else rules
    if not at_once:
        return rules
    rules = _BLANK_AFTER.sub('" "', _TEXT_BEFORE_CALL.sub(r"\1", rules))
    return _NO_BLANK.sub("", rules)


def renamed(rules: str, prefix: str) -> str:
    """The rules with a prefix before each name."""

    def part(match: re.Match[str]) -> str:
        return f"{prefix}{match[1]}" if match[1] else match[0]

    return _PART.sub(part, rules)


def either(alternatives: Sequence[str]) -> str:
    """Rules for a text of any of several grammars, each with its rule `root`."""
    names = [f"either-{i}-" for i in range(len(alternatives))]
    root = " | ".join(f"{name}root" for name in names)
    parts = [renamed(rules, name) for name, rules in zip(names, alternatives, strict=True)]
    return "\n".join([f"root ::= {root}", *parts])


def unfenced(rules: str) -> str:
    """The engine's rules of a text by a schema, without the code fence around it."""
    return _FENCED.sub(r"\1", rules)


def after(text: str, rules: str) -> str:
    """The rules for a text that continues a given beginning."""
    return f"root ::= {json.dumps(text, ensure_ascii=False)} after-root\n{renamed(rules, 'after-')}"


def named_calls(arguments: Mapping[str, str]) -> str:
    """Rules for {"name": ..., "arguments": ...}."""
    names = {name: f"call-{i}-" for i, name in enumerate(arguments)}
    lines = [f"root ::= {' | '.join(f'{one}call' for one in names.values())}"]
    for name, prefix in names.items():
        # The name as JSON has it, and that as a text of the grammar.
        begun = f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": '
        text = json.dumps(begun, ensure_ascii=False)
        lines += [f'{prefix}call ::= {text} {prefix}root "}}"', renamed(arguments[name], prefix)]
    return "\n".join(lines)


# How far after the parsed part an unfinished call is searched, in characters: the end of the
# call before it is shorter.
_MAX_CLOSING = 64
# What is before the arguments of a call in the form of named_calls().
_CALL_HEAD = re.compile(r'\{ ?"name": ("(?:[^"\\]|\\.)*") ?, ?"arguments": ?(?=[^ ])')


class Call(NamedTuple):
    """A call of a function. `arguments` are JSON text, incomplete if the answer was cut."""

    name: str
    arguments: str
    id: str = ""
    is_open: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether the arguments are complete JSON."""
        return is_json(self.arguments)


@dataclass(slots=True)
class Answer:
    """A parsed answer: the text for the user, the thought before it, and the calls."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)


class AnswerReader(Protocol):
    """Parses answers; `options` are those that the request needs beside its own."""

    options: dict[str, Any]

    @property
    def shown(self) -> Collection[int]:
        """The control tokens whose names the reader needs in the text."""

    def read(self, text: str, *, has_ended: bool) -> Answer:
        """Parses the answer so far; the text has the names of the tokens that are `shown`."""


class AnswerText:
    """The text of an answer as its reader needs it, with the names of some control tokens."""

    def __init__(self, vocab: Vocab, shown: Collection[int]) -> None:
        self._vocab, self._shown = vocab, shown
        self._plain, self._names = "", dict[str, None]()
        self.text = ""

    def read(self, reader: AnswerReader, *, has_ended: bool) -> Answer:
        """The parsed answer, without names of control tokens."""
        answer = reader.read(self.text, has_ended=has_ended)
        for name in self._names:
            if name not in self._plain:  # else it may be the model's own text
                answer.content = answer.content.replace(name, "")
                answer.reasoning = answer.reasoning.replace(name, "")
        return answer

    def add(self, tokens: Sequence[int], text: str) -> None:
        """Appends tokens and their emitted text, which a stop string may have cut."""
        pieces = {token: self._vocab.piece(token) for token in tokens}
        # Only what has no text of its own has to be named; the rest is in the text already.
        named = {token for token in pieces if token in self._shown and not pieces[token]}
        self._plain += text
        if not named:
            self.text += text
            return
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        parts: list[str] = []
        at = 0
        for token in tokens:
            if token in named:
                name = self._vocab.piece(token, special=True).decode(errors="replace")
                self._names[name] = None
                parts.append(name)
                continue
            n = len(decoder.decode(pieces[token]))
            parts.append(text[at : at + n])
            at += n
        self.text += "".join([*parts, text[at:]])


class _Parsed(NamedTuple):
    answer: Answer
    is_whole: bool
    n_parsed: int  # characters


class EngineReader:
    """Parses answers in the format of the model's own template, with the engine's parser.

    `at_once` and `single` are those of calls_grammar(); `is_apart` keeps the thought out of the
    text; `grammar` stands in place of the session's.
    """

    def __init__(
        self,
        session: ChatSession,
        *,
        at_once: bool,
        single: bool,
        is_apart: bool = True,
        grammar: str | None = None,
    ) -> None:
        self._session = session
        # Where the thought is text, the parser takes the beginning that the prompt wrote for text.
        begun = session.generation_prompt.find(session.thinking_start or "\0")
        self._begun = "" if is_apart or begun < 0 else session.generation_prompt[begun:]
        self.shown: Collection[int] = session.preserved_tokens
        self.options: dict[str, Any] = {"stop": session.stops}
        if grammar is not None:
            self.options |= {"grammar": grammar, "grammar_prefill": session.prefill}
        elif session.grammar:
            self.options["grammar"] = calls_grammar(session.grammar, single=single, at_once=at_once)
            if session.is_lazy:
                self.options |= {
                    "grammar_triggers": session.trigger_patterns,
                    "grammar_trigger_tokens": session.trigger_tokens,
                    **_thoughts(session),
                }
            else:
                self.options["grammar_prefill"] = session.prefill

    def read(self, text: str, *, has_ended: bool) -> Answer:
        """See AnswerReader."""
        if has_ended:
            answer = self._whole(text)
            return replace(answer, calls=[call._replace(is_open=False) for call in answer.calls])
        parsed = self._parse(text)
        return Answer() if parsed is None else parsed.answer

    def _parse(self, text: str) -> _Parsed | None:
        """The engine's parse of a text; None where the text is not in the template's format."""
        try:
            parsed = self._session.parse(text)
        except (UnsupportedError, ArgumentError):
            return None
        written = parsed["tool_calls"]
        is_whole = bool(parsed["is_whole"])
        has_ids = self._session.has_call_ids
        calls = [
            Call(
                one["name"], one["arguments"], one["id"],
                is_open=has_ids and not one["id"] and not is_whole and i == len(written) - 1,
            )
            for i, one in enumerate(written)
        ]  # fmt: skip
        content = parsed["content"].removeprefix(self._begun)
        answer = Answer(content, parsed["reasoning_content"], calls)
        n_parsed = len(text.encode(errors="replace")[: parsed["n_told"]].decode(errors="replace"))
        # White space before a text is not part of any form: the engine's parsers skip it.
        blank = text[: len(text) - len(text.lstrip())]
        has_text = bool(answer.content) and not answer.reasoning
        if has_text and text.startswith(blank + answer.content):
            answer.content = blank + answer.content
        return _Parsed(answer, is_whole, n_parsed)

    def _whole(self, text: str) -> Answer:
        parsed = self._parse(text)
        if parsed is not None:
            return self._completed(text, parsed)
        # A parser that has refused a text refuses all that begin with it.
        taken, refused = 0, len(text)
        while refused - taken > 1:
            middle = (taken + refused) // 2
            if self._parse(text[:middle]) is None:
                refused = middle
            else:
                taken = middle
        begun = self._parse(text[:taken])
        answer = Answer() if begun is None else self._completed(text[:taken], begun)
        return replace(answer, content=answer.content + text[taken:])

    def _completed(self, text: str, parsed: _Parsed) -> Answer:
        """The answer of a finished text, with what the engine's parser still holds back."""
        if parsed.is_whole:
            return self._with_rest(text, parsed)
        ended = self._with_sign(text)
        if ended is not None:
            return ended
        answer, n_parsed = parsed.answer, parsed.n_parsed
        # The beginning of a call at the end, which is not yet a call, is text.
        for at in range(min(n_parsed + _MAX_CLOSING, len(text)), n_parsed - 1, -1):
            clean = self._clean(text[:at])
            if clean is not None and clean.calls == answer.calls:
                rest = text[at:]
                is_blank = bool(clean.calls) and not rest.strip()
                return clean if is_blank else replace(clean, content=clean.content + rest)
        if answer.calls:  # the end of a call is missing, or something in it
            return answer
        return replace(answer, content=answer.content + text[n_parsed:])

    def _clean(self, text: str) -> Answer | None:
        """The answer of a text that parses completely, else None."""
        parsed = self._parse(text)
        if parsed is None:
            return None
        return self._with_rest(text, parsed) if parsed.is_whole else self._with_sign(text)

    def _with_sign(self, text: str) -> Answer | None:
        """The answer with the end of the text that the parser holds back as a possible tag.

        With a character after it that no tag has it is not held back. None where no text may
        stand at that place, such as in a call.
        """
        sign = next(char for char in ("\U0010fffd", "\U0010fffc", "\U0010fffb") if char not in text)
        parsed = self._parse(text + sign)
        if parsed is None:
            return None
        answer = parsed.answer
        for name in ("content", "reasoning"):
            said = getattr(answer, name)
            if said.endswith(sign):
                kept = replace(answer, **{name: said[:-1]})
                if not kept.reasoning.strip():
                    kept.reasoning = ""
                is_empty = not (kept.content or kept.reasoning or kept.calls)
                return self._bare(text) if is_empty and text.strip() else kept
        return None

    def _with_rest(self, text: str, parsed: _Parsed) -> Answer:
        """A finished answer; if the parser finds neither text nor calls, the whole text."""
        answer = parsed.answer
        if answer.content or answer.calls:
            return answer
        if answer.reasoning:
            return replace(answer, content=self._untagged(text[parsed.n_parsed :]))
        return self._bare(text)

    def _bare(self, text: str) -> Answer:
        """The answer of a text in which the parser finds nothing."""
        return Answer(self._untagged(text) if text.strip() else text)

    def _untagged(self, text: str) -> str:
        """The text without thought tags at its ends; "" if nothing else is left."""
        session, rest = self._session, text.strip()
        for tag in (session.thinking_start, *session.thinking_ends):
            rest = rest.removeprefix(tag.strip()).strip() if tag else rest
        return text if rest and rest == text.strip() else rest


def _thoughts(session: ChatSession) -> dict[str, Any]:
    """The condition that keeps a lazy grammar inactive while the model thinks."""
    tags = session.thought_tags
    if not tags:
        return {}
    is_open = ends_in_thought(session.generation_prompt, tags)
    return {"thought_tags": tags, "thought_is_open": is_open}


class AnyReader:
    """A call of one of some functions, for templates that know no tools.

    Its form is that of named_calls().
    """

    shown: Collection[int] = ()

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        arguments = {tool["function"]["name"]: _rules_of(tool) for tool in tools}
        self.options: dict[str, Any] = {"grammar": named_calls(arguments)}

    def read(self, text: str, *, has_ended: bool) -> Answer:
        """See AnswerReader. Arguments are the model's own text, as far as it goes."""
        head = _CALL_HEAD.match(text)
        if head is None:
            return Answer(text) if has_ended else Answer()
        arguments = text[head.end() :]
        try:
            _, end = json.JSONDecoder().raw_decode(arguments)
        except (ValueError, RecursionError):
            end = len(arguments)  # they continue
        return Answer(calls=[Call(json.loads(head[1]), arguments[:end])])


def _rules_of(tool: Mapping[str, Any]) -> str:
    """The grammar rules for a function's arguments, from its schema."""
    schema = tool["function"].get("parameters")
    return schema_grammar(schema or {"type": "object", "properties": {}}, is_strict=False)


class ContinuedReader:
    """Parses answers that continue a message: only the part after it."""

    def __init__(self, reader: AnswerReader) -> None:
        self._reader, self.options, self.shown = reader, reader.options, reader.shown
        self._begun = reader.read("", has_ended=False)

    def read(self, text: str, *, has_ended: bool) -> Answer:
        """See AnswerReader."""
        whole, begun = self._reader.read(text, has_ended=has_ended), self._begun
        return Answer(
            whole.content.removeprefix(begun.content),
            whole.reasoning.removeprefix(begun.reasoning),
            whole.calls,
        )
