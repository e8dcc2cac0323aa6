"""Anthropic's messages: their requests as chat requests, and answers in their form.

Shapes: https://platform.claude.com/docs/en/api/messages. Fields without meaning here, such as
cache_control or service_tier, and unknown fields of newer clients have no effect. The usage counts
as in Anthropic's API: `input_tokens` are the computed ones, and `cache_read_input_tokens` those
from the prefix cache.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any

from msgspec import Meta, Struct

from pyllama_spec.errors import ArgumentError, UnsupportedError
from pyllama_spec.server.api_errors import ApiError
from pyllama_spec.server.dialect import (
    BlockShape,
    DialectRequest,
    Turns,
    kind_of,
    own_figures,
    text_part,
    typed,
    unsupported,
)
from pyllama_spec.server.exchange import REQUEST_ID, Exchange, Route
from pyllama_spec.server.keywords import check_values
from pyllama_spec.server.service import Event, Service, Thoughts
from pyllama_spec.server.shapes import ChatRequest, Json, Texts

# Fields that would change the answer and are not supported.
_REFUSED = {
    "container": "there are no containers; leave it out",
    "mcp_servers": "let the client call the servers, and offer their tools in `tools`",
}
_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "xhigh"}
# One coding agent stamps each of its requests in its system prompt: no two of them would begin
# with the same tokens, and nothing could be read from the prefix cache.
_STAMP = re.compile(r"(\Ax-anthropic-billing-header:[^\n]*?\bcch=)[0-9a-fA-F]+(?=;)")
_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_STOPS = {"length": "max_tokens", "tool_calls": "tool_use", "function_call": "tool_use"}


# ---- requests


class _Metadata(Struct):
    user_id: str | None = None


class _ToolChoice(Struct):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class _Thinking(Struct):
    type: str
    budget_tokens: Annotated[int, Meta(ge=1)] | None = None
    display: str | None = None


class _Format(Struct):
    type: str
    schema: Json | None = None


class _OutputConfig(Struct):
    effort: str | None = None
    format: _Format | None = None


class MessagesRequest(DialectRequest, kw_only=True):
    """The body of /v1/messages."""

    messages: list[Any]
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    system: str | list[Any] | None = None
    stop_sequences: Texts | None = None
    metadata: _Metadata | None = None
    tools: list[Any] | None = None
    tool_choice: _ToolChoice | None = None
    thinking: _Thinking | None = None
    output_config: _OutputConfig | None = None
    container: Any = None
    mcp_servers: Any = None


class _Message(Struct):
    role: str
    content: str | list[Any] | None = None


class _Text(Struct, tag="text"):
    text: str


class _Source(Struct):
    type: str
    data: str | None = None
    content: str | list[Any] | None = None


class _Document(Struct, tag="document"):
    source: _Source
    title: str | None = None
    context: str | None = None


class _SearchResult(Struct, tag="search_result"):
    title: str
    source: str
    content: str | list[Any] | None = None


class _Thought(Struct, tag="thinking"):
    thinking: str


class _HiddenThought(Struct, tag="redacted_thinking"):
    """Of another service, which alone can read it."""


class _Call(Struct, tag="tool_use"):
    id: str
    name: str
    input: Json | None = None


class _Result(Struct, tag="tool_result"):
    tool_use_id: str
    content: str | list[Any] | None = None


_Block = _Text | _Document | _SearchResult | _Thought | _HiddenThought | _Call | _Result
_BLOCKS = (
    "text", "document", "search_result", "thinking", "redacted_thinking", "tool_use", "tool_result",
)  # fmt: skip


class _Tool(Struct):
    name: str
    input_schema: Json
    description: str | None = None


def chat_request(body: MessagesRequest, thoughts: Thoughts) -> ChatRequest:
    """The equivalent chat request.

    A last message of the assistant begins the answer. The request's `thinking` applies if the
    model's template marks thoughts, and is ignored otherwise.
    """
    body.refuse(_REFUSED)
    chat = ChatRequest(messages=_messages(body), **body.options())
    if chat.messages[-1]["role"] == "assistant":
        if chat.messages[-1].get("tool_calls"):
            raise ArgumentError(
                "the last message calls tools: give their results in a message of the user"
            )
        chat.continue_final_message = True
    chat.stop = body.stop_sequences or None
    chat.user = body.metadata.user_id if body.metadata else None
    chat.tools = [_tool(t, f"tools[{i}]") for i, t in enumerate(body.tools or ())] or None
    if body.tool_choice is not None:
        chat.tool_choice = _choice(body.tool_choice)
        if body.tool_choice.disable_parallel_tool_use:
            chat.parallel_tool_calls = False
    if body.output_config is not None:
        _set_form(chat, body.output_config, thoughts)
    if body.thinking is not None:
        _set_thinking(chat, body.thinking, thoughts)
    return chat


def _messages(body: MessagesRequest) -> list[Json]:
    if not body.messages:
        raise ArgumentError("messages is empty: there is nothing to answer")
    turns = Turns()
    system = "".join(_STAMP.sub(r"\g<1>00000", text) for text in _texts(body.system, "system"))
    if system:
        turns.turn("system")["content"].append(text_part(system))
    for i, given in enumerate(body.messages):
        place = f"messages[{i}]"
        message = typed(given, _Message, place)
        blocks = _blocks(message.content, f"{place}.content")
        if message.role == "user":
            _add_user(blocks, turns)
        elif message.role == "assistant":
            _add_assistant(blocks, turns)
        elif message.role == "system":
            turns.turn("system")["content"] += [_part(*one) for one in blocks]
        else:
            raise ArgumentError(
                f"{place}.role is {message.role!r:.60}; expected user, assistant or system"
            )
    return turns.joined()


def _blocks(content: str | list[Any] | None, place: str) -> list[tuple[_Block, str]]:
    """The blocks of a content, each with its place; a text becomes one block."""
    if isinstance(content, str):
        return [(_Text(content), place)]
    return [(_block(one, f"{place}[{i}]"), f"{place}[{i}]") for i, one in enumerate(content or ())]


def _block(given: Any, place: str) -> _Block:
    kind = kind_of(given)
    if isinstance(kind, str) and kind not in _BLOCKS:
        raise unsupported(place, f"a block of type {kind!r:.60}", "give text")
    block: _Block = typed(given, _Block, place)  # type: ignore[arg-type]
    return block


def _texts(content: str | list[Any] | None, place: str) -> list[str]:
    return [_text(*one) for one in _blocks(content, place)]


def _part(block: _Block, place: str) -> Json:
    return text_part(_text(block, place))


def _text(block: _Block, place: str) -> str:
    """A block as text, if it can be written as text."""
    if isinstance(block, _Text):
        return block.text
    if isinstance(block, _SearchResult):
        text = "".join(_texts(block.content, f"{place}.content"))
        return f"{block.title}\n{block.source}\n{text}\n"
    if not isinstance(block, _Document):
        raise unsupported(place, "such a block here", "give text")
    source = block.source
    if source.type == "text" and source.data is not None:
        text = source.data
    elif source.type == "content":
        text = "".join(_texts(source.content, f"{place}.source.content"))
    else:
        raise unsupported(
            place, f"a document with a source of type {source.type!r:.60}",
            "give its text, as a text source",
        )  # fmt: skip
    return "".join(f"{head}\n" for head in (block.title, block.context) if head) + text


def _add_user(blocks: list[tuple[_Block, str]], turns: Turns) -> None:
    """Adds a user message; tool results come first, after the calls they answer."""
    others = []
    for block, place in blocks:
        if isinstance(block, _Result):
            text = "".join(_texts(block.content, f"{place}.content"))
            turns.add_result(block.tool_use_id, text)
        else:
            others.append(_part(block, place))
    if others or not blocks:
        turns.turn("user")["content"] += others


def _add_assistant(blocks: list[tuple[_Block, str]], turns: Turns) -> None:
    turn = turns.turn("assistant")
    for block, place in blocks:
        if isinstance(block, _Thought):
            turns.add_thought(turn, block.thinking)
        elif isinstance(block, _Call):
            arguments = json.dumps(block.input or {}, ensure_ascii=False)
            turns.add_call(turn, block.id, block.name, arguments)
        elif not isinstance(block, _HiddenThought):
            turn["content"].append(_part(block, place))


def _tool(given: Any, place: str) -> Json:
    kind = kind_of(given, "custom")
    if kind != "custom":
        raise UnsupportedError(
            f"{place}.type={kind!r:.60}: only tools with an input_schema of their own can be "
            "offered here; describe it as one, and let the client run it"
        )
    tool = typed(given, _Tool, place)
    function: Json = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    return {"type": "function", "function": function}


def _choice(choice: _ToolChoice) -> str | Json:
    if choice.type in ("auto", "none"):
        return choice.type
    if choice.type == "any":
        return "required"
    if choice.type != "tool":
        raise ArgumentError(
            f"tool_choice.type is {choice.type!r:.60}; expected auto, any, tool or none"
        )
    if choice.name is None:
        raise ArgumentError("tool_choice.name is missing: a text is expected")
    return {"type": "function", "function": {"name": choice.name}}


def _set_form(chat: ChatRequest, config: _OutputConfig, thoughts: Thoughts) -> None:
    form, effort = config.format, config.effort
    if form is not None:
        if form.type != "json_schema":
            raise unsupported("output_config.format", f"type {form.type!r:.60}", "json_schema is")
        if form.schema is None:
            raise ArgumentError("output_config.format.schema is missing: an object is expected")
        schema = {"name": "answer", "schema": form.schema, "strict": True}
        chat.response_format = {"type": "json_schema", "json_schema": schema}
    if effort is None:
        return
    if effort not in _EFFORTS:
        raise ArgumentError(
            f"output_config.effort is {effort!r:.60}; expected {', '.join(_EFFORTS)}"
        )
    if thoughts.take_effort:
        chat.reasoning_effort = _EFFORTS[effort]


def _set_thinking(chat: ChatRequest, thinking: _Thinking, thoughts: Thoughts) -> None:
    if thinking.type == "enabled":
        if thinking.budget_tokens is None:
            raise ArgumentError("thinking.budget_tokens is missing")
        if thoughts.are_marked:
            chat.thinking_token_budget = thinking.budget_tokens
    elif thinking.type == "disabled":
        chat.reasoning_effort = "none"
    elif thinking.type not in ("adaptive", "between_tools"):
        raise ArgumentError(
            f"thinking.type is {thinking.type!r:.60}; expected enabled, adaptive or disabled"
        )


# ---- answers


def error_form(error: ApiError) -> Json:
    """The body of an error."""
    other = "api_error" if error.status >= 500 else "invalid_request_error"
    return {
        "type": "error",
        "error": {"type": _ERRORS.get(error.status, other), "message": error.message},
        "request_id": error.request_id,
    }


class MessageShape(BlockShape):
    """A chat completion as a message, whole or in events."""

    prefix = "msg"

    def __init__(self, *, shows_thoughts: bool = True) -> None:
        super().__init__()
        self._shows_thoughts = shows_thoughts

    def whole(self, answer: Json) -> Json:
        """See Shape."""
        choice = answer["choices"][0]
        said = choice["message"]
        content: list[Json] = []
        thought = said.get("reasoning_content")
        if thought:
            thought = thought if self._shows_thoughts else ""
            content.append({"type": "thinking", "thinking": thought, "signature": ""})
        calls = said.get("tool_calls") or []
        if said.get("content") or not (content or calls):
            content.append(text_part(said.get("content") or ""))
        for call in calls:
            function = call["function"]
            arguments = _input(function["arguments"])
            content.append(_call_block(call["id"], function["name"], arguments))
        return {
            **self._head(answer),
            "content": content,
            **_stop(choice),
            "usage": _usage(answer.get("usage")),
            **own_figures(answer),
        }

    def failed(self, error: ApiError) -> Iterator[Event]:
        """See Shape."""
        self._is_over = True
        yield "error", error_form(error)

    def _begin(self) -> Iterator[Event]:
        usage = {**_usage(self._usage), "output_tokens": 0}
        head = {**self._head(self._answer), "content": [], "usage": usage}
        yield _event("message_start", message={**head, "stop_reason": None, "stop_sequence": None})

    def _opened(self, kind: str | int, call_id: str, name: str) -> Iterator[Event]:
        block = _call_block(call_id, name, {})
        if kind == "thought":
            block = {"type": "thinking", "thinking": "", "signature": ""}
        elif kind == "text":
            block = text_part("")
        yield _event("content_block_start", index=self._n_blocks - 1, content_block=block)

    def _thought(self, text: str) -> Iterator[Event]:
        if self._shows_thoughts:
            yield self._delta("thinking_delta", thinking=text)

    def _text(self, text: str, logprobs: list[Json]) -> Iterator[Event]:
        yield self._delta("text_delta", text=text)

    def _arguments(self, text: str) -> Iterator[Event]:
        yield self._delta("input_json_delta", partial_json=text)

    def _close(self) -> Iterator[Event]:
        if self._open is None:
            return
        if self._open == "thought":  # clients wait for it; no one checks it
            yield self._delta("signature_delta", signature="")
        self._open = None
        yield _event("content_block_stop", index=self._n_blocks - 1)

    def _finish(self) -> Iterator[Event]:
        yield from self._close()
        usage = _usage(self._usage)
        yield _event("message_delta", delta=_stop(self._end), usage=usage, **self._figures)
        yield _event("message_stop")

    def _delta(self, kind: str, **fields: str) -> Event:
        delta = {"type": kind, **fields}
        return _event("content_block_delta", index=self._n_blocks - 1, delta=delta)

    def _head(self, answer: Json) -> Json:
        shown, model = self.shown_id(str(answer["id"])), answer["model"]
        return {"id": shown, "type": "message", "role": "assistant", "model": model}


def _event(name: str, **fields: Any) -> Event:
    return name, {"type": name, **fields}


def _stop(choice: Json) -> Json:
    """The stop reason: names a stop string, and no end token."""
    reason, by = choice.get("finish_reason"), choice.get("stop_reason")
    if reason == "stop" and isinstance(by, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": by}
    return {"stop_reason": _STOPS.get(str(reason), "end_turn"), "stop_sequence": None}


def _usage(usage: Json | None) -> Json:
    usage = usage or {}
    details = usage.get("prompt_tokens_details") or {}
    n_cached = details.get("cached_tokens") or 0
    thought = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens")
    return {
        "input_tokens": max(0, (usage.get("prompt_tokens") or 0) - n_cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": n_cached,
        "output_tokens": usage.get("completion_tokens") or 0,
        **({} if thought is None else {"output_tokens_details": {"thinking_tokens": thought}}),
    }


def _call_block(call_id: str, name: str, arguments: Json) -> Json:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def _input(arguments: str) -> Json:
    """The arguments of a call as an object; empty if they were cut, as stop_reason then says."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


# ---- endpoints


def _to_chat(body: MessagesRequest, service: Service) -> ChatRequest:
    service.check_n_messages("messages", body.messages)
    check_values([body.messages, body.system, body.tools])
    return chat_request(body, service.thoughts)


async def messages(exchange: Exchange, body: MessagesRequest) -> Any:
    """POST /v1/messages."""
    shows = body.thinking is None or body.thinking.display != "omitted"
    return await exchange.generate(body, MessageShape(shows_thoughts=shows), _to_chat)


async def count_tokens(exchange: Exchange, body: MessagesRequest) -> Any:
    """POST /v1/messages/count_tokens."""
    return {"input_tokens": await exchange.count_tokens(body, _to_chat)}


_route = partial(
    Route, body=MessagesRequest, error_form=error_form, id_headers=(*REQUEST_ID, "Request-Id")
)
ROUTES = (
    _route("POST", "/v1/messages", messages),
    _route("POST", "/v1/messages/count_tokens", count_tokens),
)
