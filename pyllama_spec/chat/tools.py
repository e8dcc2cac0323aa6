"""Chats with tools: what is offered, what may be answered, and the calls in the answer."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pyllama_spec.chat.messages import check_messages, render_messages
from pyllama_spec.chat.template import ChatTemplate, Message, RenderedChat
from pyllama_spec.constraints import schema_grammar
from pyllama_spec.engine import ChatParser, ChatSession, Model
from pyllama_spec.engine.checks import shown
from pyllama_spec.errors import ArgumentError, UnsupportedError

Tools = Sequence[Mapping[str, Any]]
# The engine's own grammar of several calls, of templates in the way of Hermes and Qwen: it repeats
# what may be empty, which is left recursion, and which the engine's own sampler refuses.
_NULLABLE_LOOP = re.compile(r"\((\S+)\? space\)\+")
# What the engine lets a model say before a call that it has to make. A small one would say it to
# the end of the answer; OpenAI's answers have none, and llama-cpp-python's neither.
_TEXT_BEFORE_CALL = re.compile(
    r"^(root ::= .*?)\buntil-\d+\?? (?:space )?(?=tool-call)", re.MULTILINE
)
# White space inside of a call's JSON, which a small model would go on with as well: a blank at
# most, as in constraints.py. What lies between the tags of a call stays the template's.
_JSON_SPACE = re.compile(r'(?<="[{\[:,]" )space\b|\bspace(?= "[}\]:,]")')
# The engine's grammars of calls in tags of their own take several, also where one was asked for.
_REPEATED_CALLS = re.compile(
    r"^((?:tool-calls|tools) ::= )\((\S+?)(?: space)?\)[+*]$", re.MULTILINE
)
# How reasoning comes out: apart, or as it stands in the text.
REASONING = ("auto", "deepseek", "none")


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """What a chat says of tools, of either age of OpenAI's API.

    Attributes:
        tools: descriptions; () for none.
        choice: "auto", "none", "required", or the name of a function behind "=".
        is_legacy: given as functions= and function_call=.
        parallel: whether several calls may be made at once; None for what the template can.
        reasoning: one of REASONING; None for apart where there are tools.

    """

    tools: Tools = ()
    choice: str = "auto"
    is_legacy: bool = False
    parallel: bool | None = None
    reasoning: str | None = None

    @classmethod
    def read(
        cls,
        tools: object,
        tool_choice: object,
        functions: object,
        function_call: object,
        parallel_tool_calls: bool | None = None,
        reasoning_format: str | None = None,
    ) -> ToolRequest:
        """Checks the arguments of a request.

        Raises:
            ArgumentError: they are malformed, or name a function that is not offered.

        """
        is_legacy = functions is not None
        if is_legacy:
            offered = [
                {"type": "function", "function": one} for one in _dicts(functions, "functions")
            ]
            tool_choice = tool_choice if function_call is None else function_call
        else:
            offered = [dict(one) for one in _dicts(tools, "tools")]
        names = [_name(tool) for tool in offered]
        if reasoning_format not in (None, *REASONING):
            raise ArgumentError(
                f"reasoning_format={reasoning_format!r} is none of {', '.join(REASONING)}"
            )
        if parallel_tool_calls not in (None, True, False):
            raise ArgumentError(f"parallel_tool_calls={parallel_tool_calls!r} is not True or False")
        choice = _choice(tool_choice, names)
        return cls(offered, choice, is_legacy, parallel_tool_calls, reasoning_format)

    @property
    def is_plain(self) -> bool:
        """Whether the template alone does it: no tools to call, and nothing to take apart."""
        calls = bool(self.tools) and self.choice != "none"
        return not calls and self.reasoning in (None, "none")

    @property
    def forced(self) -> str | None:
        """The name of the one function that is to be called."""
        return self.choice[1:] if self.choice.startswith("=") else None

    @property
    def offered(self) -> Tools:
        """The tools that the model is shown."""
        if self.forced is None:
            return self.tools
        return [tool for tool in self.tools if _name(tool) == self.forced]


def _dicts(value: object, name: str) -> list[Mapping[str, Any]]:
    if value is None:
        return []
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Sequence):
        raise ArgumentError(f"{name}={shown(value)} is not a list of dicts")
    if not all(isinstance(one, Mapping) for one in value):
        raise ArgumentError(f"{name}={shown(value)} is not a list of dicts")
    return list(value)


def _name(tool: Mapping[str, Any]) -> str:
    function = tool.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not name:
        raise ArgumentError(
            f'the tool {shown(tool)} is not {{"type": "function", "function": {{"name": ...}}}}'
        )
    return name


def _choice(choice: object, names: Sequence[str]) -> str:
    if choice is None:
        return "auto"
    if choice in ("auto", "none", "required"):
        if choice == "required" and not names:
            raise ArgumentError('tool_choice="required" needs tools')
        return str(choice)
    if choice == "any":  # Mistral's word, which LangChain passes on
        return "required"
    name = choice if isinstance(choice, str) else None
    if isinstance(choice, Mapping):
        inner = choice.get("function", choice)
        name = inner.get("name") if isinstance(inner, Mapping) else None
    if name not in names:
        raise ArgumentError(
            f"tool_choice={shown(choice)} names no function of tools ({', '.join(names) or 'none'})"
            '; there are "auto", "none", "required" and {"type": "function", "function": '
            '{"name": ...}}'
        )
    return f"={name}"


@dataclass(slots=True)
class Answer:
    """What an answer says, once it is taken apart.

    Attributes:
        content: the text for the user.
        reasoning: what the model thought before, where it comes apart.
        calls: (name, arguments as JSON text) of each call.

    """

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)


class AnswerReader(Protocol):
    """Takes answers apart. `options` are what the request has to ask for beside its own."""

    options: dict[str, Any]

    def read(self, tokens: Sequence[int], text: str, n_bytes_cut: int, *, partial: bool) -> Answer:
        """What the answer says so far: its tokens, its text, and what of the tokens is no text."""


class EngineReader:
    """Answers in the form of the model's own template, which the engine knows to read."""

    def __init__(self, session: ChatSession, *, begins_with_call: bool, single: bool) -> None:
        self._session = session
        self._last = Answer()
        self.options: dict[str, Any] = {"stop": session.stops}
        if session.grammar:
            rules = _NULLABLE_LOOP.sub(r"(\1 space)*", session.grammar)
            rules = _REPEATED_CALLS.sub(r"\1\2", rules) if single else rules
            self.options["grammar"] = _call_at_once(rules) if begins_with_call else rules
            if session.is_lazy:
                self.options["grammar_triggers"] = session.trigger_patterns
                self.options["grammar_trigger_tokens"] = session.trigger_tokens
            else:
                self.options["grammar_prefill"] = session.prefill

    def read(self, tokens: Sequence[int], text: str, n_bytes_cut: int, *, partial: bool) -> Answer:
        """See AnswerReader. What no parser takes is content: text is never lost."""
        try:
            parsed = self._session.parse(tokens, n_bytes_cut, partial=partial)
        except (UnsupportedError, ArgumentError):
            return self._last if partial else Answer(text)
        calls = [(call["name"], call["arguments"]) for call in parsed["tool_calls"]]
        self._last = Answer(parsed["content"], parsed["reasoning_content"], calls)
        if not partial and not (calls or parsed["content"] or parsed["reasoning_content"]):
            return Answer(text)  # an unfinished call, or none
        return self._last


def _call_at_once(rules: str) -> str:
    """The engine's rules, for a call that has to be: nothing before it, its JSON on one line."""
    rules = _JSON_SPACE.sub("blank", _TEXT_BEFORE_CALL.sub(r"\1", rules))
    return f'{rules.rstrip()}\nblank ::= " "?\n'


class ForcedReader:
    """Arguments of one function, for templates that know no tools: all of the answer is them."""

    def __init__(self, tool: Mapping[str, Any]) -> None:
        function = tool["function"]
        self._name = _name(tool)
        schema = function.get("parameters") or {"type": "object", "properties": {}}
        self.options: dict[str, Any] = {"grammar": schema_grammar(schema)}

    def read(self, tokens: Sequence[int], text: str, n_bytes_cut: int, *, partial: bool) -> Answer:
        """See AnswerReader."""
        return Answer(calls=[(self._name, text)])


class AnyReader:
    """A call of one of several functions, for templates that know no tools."""

    def __init__(self, tools: Tools) -> None:
        cases = [
            {
                "type": "object",
                "properties": {
                    "name": {"const": _name(tool)},
                    "arguments": tool["function"].get("parameters") or {"type": "object"},
                },
                "required": ["name", "arguments"],
            }
            for tool in tools
        ]
        self.options: dict[str, Any] = {"grammar": schema_grammar({"anyOf": cases})}

    def read(self, tokens: Sequence[int], text: str, n_bytes_cut: int, *, partial: bool) -> Answer:
        """See AnswerReader. Names come before arguments, so that a part can be read as well."""
        try:
            call = json.loads(text)
        except ValueError:
            return Answer() if partial else Answer(text)
        return Answer(calls=[(call["name"], json.dumps(call["arguments"]))])


class ToolChats:
    """The chats with tools of one model.

    Args:
        model: whose vocabulary reads them.
        template: how its chats look.

    """

    def __init__(self, model: Model, template: ChatTemplate) -> None:
        self._template = template
        self._parser = ChatParser(model, template.source)

    def begin(
        self,
        messages: Sequence[Message],
        request: ToolRequest,
        variables: Mapping[str, Any],
        schema: Any = None,
    ) -> tuple[RenderedChat, AnswerReader]:
        """The prompt of a chat, and who reads the answer.

        Args:
            messages: of the chat.
            request: its tools.
            variables: of the template.
            schema: what the content has to be, where no tool is called.

        Raises:
            ArgumentError: the template refuses the messages, or they are malformed.

        """
        checked = check_messages(messages)
        base: dict[str, Any] = {
            "tool_choice": "required" if request.forced else request.choice,
            "reasoning_format": request.reasoning or "auto",
        }
        if request.parallel is not None or request.forced:
            # A function that is named is called once: a small model would call it to the end.
            base["parallel_tool_calls"] = bool(request.parallel)
        if schema is not None:
            base["json_schema"] = json.dumps({"type": "object"} if schema is True else schema)

        def run(messages: Sequence[Mapping[str, Any]], values: Mapping[str, Any]) -> ChatSession:
            tools = values.get("tools") or []
            others = {name: value for name, value in values.items() if name != "tools"}
            return self._parser.begin(
                {**base, "messages": messages, "tools": tools, "variables": others}
            )

        caller_variables = {"tools": [dict(tool) for tool in request.offered], **variables}
        session, checked = render_messages(checked, lambda read: run(read, caller_variables))
        rendered = self._template.located(
            session.prompt, checked, caller_variables, lambda read, values: run(read, values).prompt
        )
        wants_call = request.choice not in ("auto", "none") and bool(request.tools)
        if wants_call and not session.grammar:
            reader: AnswerReader = (
                ForcedReader(request.offered[0]) if request.forced else AnyReader(request.tools)
            )
            return rendered, reader
        single = not base.get("parallel_tool_calls", True)
        return rendered, EngineReader(session, begins_with_call=wants_call, single=single)

    def close(self) -> None:
        """Lets go of the parser."""
        self._parser.close()
