"""Chats whose answers are parsed: the offered tools, and the allowed answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyllama_spec.chat.answers import (
    AnswerReader,
    AnyReader,
    ContinuedReader,
    EngineReader,
    after,
    calls_grammar,
    either,
    unfenced,
)
from pyllama_spec.chat.prompt_provenance import Form
from pyllama_spec.chat.template import (
    ChatTemplate,
    Message,
    RenderedChat,
    check_messages,
    present,
    render_messages,
)
from pyllama_spec.constraints import argument_grammar, call_rules, schema_grammar
from pyllama_spec.engine import ChatParser, ChatSession, Model
from pyllama_spec.errors import ArgumentError, UnsupportedError, warn

Tools = Sequence[Mapping[str, Any]]
# The engine's prefix of the message of a template that refuses.
_BEFORE_REFUSAL = (
    "Unable to generate parser for this template. Automatic parser generation failed: "
)
# How a template is given the arguments of past calls, where it takes values and where it does not.
_FORMS: Mapping[bool, Form] = {True: "values", False: "text"}
# The variable by which the engine shows templates the schema of an answer.
_SCHEMA_VARIABLE = "response_format"
# How reasoning comes out: apart, or as it stands in the text.
REASONING = ("auto", "deepseek", "none")


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """A chat's tools, by either generation of OpenAI's API.

    `choice` is "auto", "none", "required", or the name of a function after "="; `parallel` None for
    the template's own choice; `reasoning` None to keep thoughts apart if there are tools.
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
        """Checks the arguments of a request."""
        is_legacy = functions is not None
        if is_legacy:
            given = _dicts(functions, "functions")
            offered = [{"type": "function", "function": present(one)} for one in given]
            tool_choice = tool_choice if function_call is None else function_call
        else:
            offered = [
                {**one, "function": present(one.get("function"))} for one in _dicts(tools, "tools")
            ]
        place = "functions[{}]" if is_legacy else "tools[{}].function"
        names = [_name(tool, place.format(i)) for i, tool in enumerate(offered)]
        for i, tool in enumerate(offered):
            parameters = tool["function"].get("parameters")
            if not isinstance(parameters, Mapping | None):
                param = f"{place.format(i)}.parameters"
                raise ArgumentError(param, parameters, "a JSON schema as an object")
            named = (parameters or {}).get("properties")
            for name in named if isinstance(named, Mapping) else ():
                if not _is_name(name):
                    param = f"{place.format(i)}.parameters.properties"
                    raise ArgumentError(param, name, "names that templates can write")
        if reasoning_format not in (None, *REASONING):
            raise ArgumentError(
                "reasoning_format", reasoning_format, f"one of {', '.join(REASONING)}"
            )
        if parallel_tool_calls not in (None, True, False):
            raise ArgumentError("parallel_tool_calls", parallel_tool_calls, bool)
        choice = _choice(tool_choice, names)
        return cls(offered, choice, is_legacy, parallel_tool_calls, reasoning_format)

    @property
    def is_plain(self) -> bool:
        """Whether the template alone is enough: no tools and nothing to parse."""
        return not self.may_call and self.reasoning in (None, "none")

    @property
    def may_call(self) -> bool:
        """Whether the answer may be a tool call."""
        return bool(self.tools) and self.choice != "none"

    @property
    def wants_call(self) -> bool:
        """Whether the answer has to be a tool call."""
        return self.may_call and self.choice != "auto"

    @property
    def forced(self) -> str | None:
        """The name of the one function to call."""
        return self.choice[1:] if self.choice.startswith("=") else None

    @property
    def offered(self) -> Tools:
        """The tools that the model gets."""
        if self.forced is None:
            return self.tools
        return [tool for tool in self.tools if _name(tool) == self.forced]


def _dicts(value: object, name: str) -> list[Mapping[str, Any]]:
    if value is None:
        return []
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Sequence):
        raise ArgumentError(name, value, "a list of objects")
    if not all(isinstance(one, Mapping) for one in value):
        raise ArgumentError(name, value, "a list of objects")
    return list(value)


def _name(tool: Mapping[str, Any], place: str = "") -> str:
    function = tool.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not _is_name(name):
        raise ArgumentError(place, function, 'an object with a "name"')
    return name


def _is_name(name: object) -> bool:
    """Whether templates can write a name: all of it shows, and it does not end a text of C."""
    text = str(name)
    return text != "" and text == text.strip() and "\0" not in text


def _choice(choice: object, names: Sequence[str]) -> str:
    if choice is None:
        return "auto"
    if choice in ("auto", "none", "required"):
        if choice == "required" and not names:
            raise ArgumentError("tool_choice", choice, problem="needs `tools`")
        return str(choice)
    if choice == "any":  # Mistral's word, which LangChain passes on
        return "required"
    name = choice if isinstance(choice, str) else None
    if isinstance(choice, Mapping):
        inner = choice.get("function", choice)
        name = inner.get("name") if isinstance(inner, Mapping) else None
    if name not in names:
        raise ArgumentError(
            "tool_choice", choice, 'one of "auto", "none", "required", or {"type": "function", '
            f'"function": {{"name": ...}}}} with a name of {", ".join(names) or "tools"}',
        )  # fmt: skip
    return f"={name}"


class ToolChats:
    """Chats of one model whose answers are parsed."""

    def __init__(self, model: Model, template: ChatTemplate) -> None:
        self._template = template
        self._parser = ChatParser(model, template.source)

    def begin(
        self,
        messages: Sequence[Message],
        request: ToolRequest,
        variables: Mapping[str, Any],
        schema: Any = None,
        *,
        is_continued: bool = False,
    ) -> tuple[RenderedChat, AnswerReader]:
        """Renders the prompt of a chat, and makes the reader of its answer."""
        checked = check_messages(messages)
        offered = [dict(tool) for tool in request.offered]
        # Where a call has to be, no content is left that a schema could be for.
        wants_call = request.wants_call
        schema = None if wants_call else schema
        rules = call_rules(request.offered, schema)
        chat = _Chat(self._parser, request, schema, is_continued, rules)
        caller_variables = {"tools": offered, **variables}
        try:
            session, checked = render_messages(
                checked, lambda read: chat.begun(read, caller_variables)
            )
        except ArgumentError as error:
            raise self._refusal(error, checked, caller_variables) from None
        session.grammar += argument_grammar(offered, session.unmade)
        rendered = chat.located(self._template, session, checked, caller_variables)
        strict = [_name(tool) for tool in offered if tool["function"].get("strict") is True]
        if strict and request.may_call and not (wants_call or session.grammar or rendered.note):
            warn(
                f"`strict` of {', '.join(strict)} has no effect: the chat template does not mark "
                'where a call begins; `tool_choice="required"` keeps it'
            )
        if rendered.note:
            remedy = 'chat_format="chatml-function-calling" of Llama() writes them into the prompt'
            warn(f"{rendered.note}; {remedy}")
        if wants_call and not session.grammar:
            return rendered, AnyReader(offered)
        reader = chat.reader(session, checked, caller_variables)
        return rendered, ContinuedReader(reader) if is_continued else reader

    def _refusal(
        self,
        error: ArgumentError,
        messages: Sequence[dict[str, Any]],
        variables: Mapping[str, Any],
    ) -> ArgumentError:
        """The error of a refused chat, with the template's own message if it has one."""
        others = {name: value for name, value in variables.items() if name != "tools"}
        place = self._refused_part(messages, variables)
        try:
            self._template.render(messages, tools=variables["tools"], **others)
        except ArgumentError as refusal:
            error = refusal
        except UnsupportedError:
            pass
        return ArgumentError("messages", problem=place + error.problem.replace(_BEFORE_REFUSAL, ""))

    def _refused_part(
        self, messages: Sequence[dict[str, Any]], variables: Mapping[str, Any]
    ) -> str:
        """The tool that the template cannot render alone; "" if it is none."""

        def fails(*tools: Mapping[str, Any]) -> bool:
            chat = _Chat(self._parser, ToolRequest(tools), None)
            try:
                chat.begun(messages, {**variables, "tools": tools})
            except ArgumentError:
                return True
            return False

        if fails():
            return ""
        return next((f"tool {_name(one)}: " for one in variables["tools"] if fails(one)), "")

    def close(self) -> None:
        """Releases the parser."""
        self._parser.close()


@dataclass(frozen=True, slots=True)
class _Chat:
    """One chat as a request to the engine.

    `schema` is that of the content if no tool is called; `is_continued` if the answer continues the
    last message. `rules` stand in place of the engine's for the schemas.
    """

    parser: ChatParser
    request: ToolRequest
    schema: Any
    is_continued: bool = False
    rules: Sequence[Mapping[str, Any]] = ()

    def session(
        self, messages: Sequence[Mapping[str, Any]], values: Mapping[str, Any], **more: Any
    ) -> ChatSession:
        """As begun(), with a whole grammar."""
        session = self.begun(messages, values, **more)
        session.grammar += argument_grammar(values["tools"], session.unmade)
        return session

    def begun(
        self,
        messages: Sequence[Mapping[str, Any]],
        values: Mapping[str, Any],
        *,
        choice: str | None = None,
        reasoning: str | None = None,
        is_plain: bool = False,
    ) -> ChatSession:
        """Renders the chat, and opens a parser of its answer."""
        request = self.request
        asked: dict[str, Any] = {
            "messages": messages,
            "tools": values.get("tools") or [],
            "variables": {name: value for name, value in values.items() if name != "tools"},
            "tool_choice": choice or ("required" if request.forced else request.choice),
            "reasoning_format": reasoning or request.reasoning or "auto",
        }
        if request.parallel is not None or request.forced:
            # A function that is named is called once: a small model would call it to the end.
            asked["parallel_tool_calls"] = bool(request.parallel)
        if self.is_continued:
            asked["continue_final_message"] = "content"
        if self.rules and not is_plain:
            asked["schema_rules"] = self.rules
        if is_plain:
            asked["tool_choice"] = "none"
        elif self.schema is not None and choice is None:
            schema = {"type": "object"} if self.schema is True else self.schema
            asked["json_schema"] = json.dumps(schema)
        return self.parser.begin(asked)

    def located(
        self,
        template: ChatTemplate,
        session: ChatSession,
        messages: Sequence[dict[str, Any]],
        values: Mapping[str, Any],
    ) -> RenderedChat:
        """The chat of a session, with the caller's text located in it.

        Schemas with stand-ins are not valid: the chat is rendered without reading them, if that
        gives the same text.
        """

        def plain(messages: Sequence[Mapping[str, Any]], values: Mapping[str, Any]) -> str:
            return self.begun(messages, values, is_plain=True).prompt

        def full(messages: Sequence[Mapping[str, Any]], values: Mapping[str, Any]) -> str:
            return self.begun(messages, values).prompt

        render, form = full, _FORMS[session.object_arguments]
        shown = values if self.schema is None else {_SCHEMA_VARIABLE: self.schema, **values}
        try:
            if plain(messages, shown) == session.prompt:
                render, values = plain, shown
        except ArgumentError:
            pass
        return template.located(session.prompt, messages, values, render, form=form)

    def schema_rules(
        self,
        session: ChatSession,
        messages: Sequence[Mapping[str, Any]],
        values: Mapping[str, Any],
    ) -> str:
        """Rules for a text by the schema, after a thought if the engine knows the thought tags.

        Of some templates the engine has no such rules, or none beside tools.
        """
        bare = self.session(messages, {**values, "tools": []}, reasoning="auto")
        is_ruled = bool(bare.grammar) and not bare.is_lazy
        if is_ruled and bare.generation_prompt == session.generation_prompt:
            return unfenced(bare.grammar)
        return after(session.generation_prompt, schema_grammar(self.schema))

    def reader(
        self,
        session: ChatSession,
        messages: Sequence[Mapping[str, Any]],
        values: Mapping[str, Any],
    ) -> EngineReader:
        """The reader of the answer to `session`."""
        request = self.request
        single = request.parallel is False or bool(request.forced and not request.parallel)
        at_once = request.wants_call
        grammar = None
        if self.schema is not None:
            grammar = self.schema_rules(session, messages, values)
            # A call, or a text by the schema: the engine has a grammar of one or of the other.
            calls = (
                self.session(messages, values, choice="required", reasoning="auto")
                if request.may_call
                else None
            )
            if calls is not None and calls.grammar:
                rules = calls_grammar(calls.grammar, single=single, at_once=True)
                grammar = either([rules, grammar])
                session = self.session(messages, values, choice="auto")
        elif session.grammar and not session.is_lazy:
            ruled = session
            if request.reasoning == "none" and session.thinking_start:
                # Without thoughts the engine's rules lack the one that a prompt may begin.
                ruled = self.session(messages, values, reasoning="auto")
            grammar = calls_grammar(ruled.grammar, single=single, at_once=at_once)
        is_apart = request.reasoning != "none"
        return EngineReader(
            session, at_once=at_once, single=single, is_apart=is_apart, grammar=grammar
        )
