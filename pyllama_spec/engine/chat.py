"""Chat templates, and chats in the formats of the engine's server: tools and reasoning."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyllama_spec.engine.binding import Handle, Owner, check, ffi, lib
from pyllama_spec.engine.model import Model
from pyllama_spec.errors import ArgumentError, UnsupportedError


class TemplateProgram:
    """A Jinja text, compiled.

    Attributes:
        words: the strings in it.
        lookups: those that it compares, looks for or cuts at, and does not only print.
    """

    def __init__(self, source: str) -> None:
        out, strings = ffi.new("llama_spec_template **"), ffi.new("char **")
        code = lib.llama_spec_template_new(_encoded(source), out, strings)
        try:
            check(code, "cannot read the chat template")
        except (ArgumentError, UnsupportedError) as error:
            problem = " ".join(error.problem.split())
            raise UnsupportedError(
                f"{problem:.400}", setup="give another as `chat_template`"
            ) from None
        self._pointer = ffi.gc(out[0], lib.llama_spec_template_free)
        found = json.loads(_taken(strings))
        self.words, self.lookups = frozenset[str](found["all"]), tuple[str, ...](found["compared"])

    def run(self, variables: Mapping[str, Any], time: int) -> str:
        """The text that the template writes of the variables, at a time in seconds since 1970."""
        text = ffi.new("char **")
        # What is no plain data is shown as its str(), as Python's own engine does.
        data = _json(variables, "the chat", default=str)
        code = lib.llama_spec_template_run(self._pointer, data, time, text)
        check(code, "cannot render the chat")
        rendered: str = json.loads(_taken(text))
        return rendered


class ChatParser(Owner):
    """The engine's parse of a model's chat template, with its tool format."""

    def __init__(self, model: Model, source: str | None = None) -> None:
        text = ffi.NULL if source is None else ffi.new("char[]", source.encode())
        out = ffi.new("llama_spec_chat **")
        check(lib.llama_spec_chat_new(model.handle, text, out), "cannot read the chat template")
        self._handle = Handle(out[0], lib.llama_spec_chat_free, "the chat parser is closed")

    def begin(self, request: Mapping[str, Any]) -> ChatSession:
        """Renders a chat, and prepares to parse the model's answer."""
        out, answer = ffi.new("llama_spec_chat_session **"), ffi.new("char **")
        code = lib.llama_spec_chat_begin(
            self._handle.pointer, _json(request, "the chat"), out, answer
        )
        check(code, "cannot render the chat")
        return ChatSession(out[0], json.loads(_taken(answer)))


class ChatSession:
    """One chat: its prompt, and a parser of the answer. Made by ChatParser.begin().

    Attributes:
        prompt: the rendered chat.
        grammar: GBNF rules for the answer; "" for no restriction.
        is_lazy: whether the grammar waits for a trigger.
        trigger_patterns, trigger_tokens: the triggers of a lazy grammar.
        prefill: ids of the answer that the template wrote already; a grammar that is not lazy must
            accept them first.
        generation_prompt: the end of the prompt, as text, which begins the answer.
        stops: texts that end the answer.
        format: the engine's name for the format of calls.
        thinking_start, thinking_ends: the text that begins a thought, and those that may end it; ""
            and () if the template has no thoughts.
        preserved_tokens: control tokens whose names the parser needs in the text.
        object_arguments: whether the template gets the arguments of past calls as values instead of
            text.
        has_call_ids: whether calls have an id.
        unmade: the rules that the grammar lacks, "argument-0" and so on, for arguments that the
            template writes outside JSON: each a tool, a parameter, a form, and texts that the value
            is without.
    """

    def __init__(self, pointer: Any, answer: Mapping[str, Any]) -> None:
        self._handle = Handle(pointer, lib.llama_spec_chat_session_free, "the chat is closed")
        self.prompt: str = answer["prompt"]
        self.grammar: str = answer["grammar"]
        self.is_lazy: bool = answer["grammar_lazy"]
        self.trigger_patterns: tuple[str, ...] = tuple(answer["trigger_patterns"])
        self.trigger_tokens: tuple[int, ...] = tuple(answer["trigger_tokens"])
        self.prefill: tuple[int, ...] = tuple(answer["prefill"])
        self.generation_prompt: str = answer["generation_prompt"]
        self.stops: tuple[str, ...] = tuple(answer["stops"])
        self.format: str = answer["format"]
        self.thinking_start: str = answer["thinking_start"]
        self.thinking_ends: tuple[str, ...] = tuple(answer["thinking_ends"])
        self.preserved_tokens = frozenset[int](answer["preserved_tokens"])
        self.object_arguments: bool = answer["object_arguments"]
        self.has_call_ids: bool = answer["has_call_ids"]
        self.unmade: list[dict[str, Any]] = answer["unmade"]

    @property
    def thought_tags(self) -> tuple[str, ...]:
        """The tags that start and may end a thought; () if the template has no thoughts."""
        start, ends = self.thinking_start, self.thinking_ends
        return (start, *ends) if start and ends else ()

    def parse(self, text: str) -> dict[str, Any]:
        """The parsed answer so far.

        Returns:
            content, reasoning_content, and tool_calls: a list of name, arguments (JSON text), id
            ("" for none). is_whole: whether the answer is complete, with no text left over. n_told:
            how many bytes of the text these fields cover.
        """
        out, data = ffi.new("char **"), text.encode("utf-8", errors="replace")
        code = lib.llama_spec_chat_parse(self._handle.pointer, data, len(data), out)
        check(code, "cannot read the answer")
        message: dict[str, Any] = json.loads(_taken(out))
        return message


def _json(value: Any, what: str, default: Callable[[Any], Any] | None = None) -> bytes:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=default)
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(what, expected=f"plain JSON: {error}") from None
    return _encoded(text)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", errors="replace")


def _taken(out: Any) -> str:
    try:
        return bytes(ffi.string(out[0])).decode("utf-8", errors="replace")
    finally:
        lib.llama_spec_text_free(out[0])


def ends_in_thought(text: str, tags: Sequence[str]) -> bool:
    """Whether a text ends within a thought, by the tags of ChatSession.thought_tags."""
    if not tags:
        return False
    start, *ends = tags
    return text.rfind(start) > max(map(text.rfind, ends))
