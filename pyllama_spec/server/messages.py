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

from msgspec import Meta

from pyllama_spec.errors import ArgumentError, UnsupportedError
from pyllama_spec.server.api_errors import ApiError
from pyllama_spec.server.dialect import (
    BlockShape,
    DialectRequest,
    Kinds,
    Part,
    Turns,
    part_of,
    picture_part,
    text_part,
)
from pyllama_spec.server.exchange import Exchange, Route
from pyllama_spec.server.service import Event, Service, Thoughts, check_values
from pyllama_spec.server.shapes import ChatRequest, Json

# Fields that would change the answer and are not supported.
_REFUSED = {
    "container": "there are no containers; leave it out",
    "mcp_servers": "let the client call the servers, and offer their tools in `tools`",
}
_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "xhigh"}
# One coding agent stamps each of its requests in its system prompt: no two of them would begin
# with the same tokens, and nothing could be read from the prefix cache.
_STAMP = re.compile(r"(\Ax-anthropic-billing-header:[^\n]*?\bcch=)[0-9a-fA-F]+(?=;)")
# Where it differs from OpenAI's.
_ERRORS = {413: "request_too_large", 503: "overloaded_error"}
_STOPS = {"length": "max_tokens", "tool_calls": "tool_use", "function_call": "tool_use"}
# The fields that blocks of a message need, and other objects by their type.
_BLOCKS: Kinds = {
    "text": ("text",), "thinking": ("thinking",), "redacted_thinking": (),
    "tool_use": ("id", "name"), "tool_result": ("tool_use_id",),
    "image": ("source",),
}  # fmt: skip
_SOURCES: Kinds = {"base64": ("data",), "url": ("url",)}
_CHOICES: Kinds = {"auto": (), "none": (), "any": (), "tool": ("name",)}
_THINKING: Kinds = {
    "enabled": ("budget_tokens",), "disabled": (), "adaptive": (), "between_tools": ()
}  # fmt: skip


# ---- requests


class MessagesRequest(DialectRequest, kw_only=True):
    """The body of /v1/messages."""

    messages: list[Any]
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    system: str | list[Any] | None = None
    stop_sequences: Annotated[list[str], Meta(max_length=64)] | None = None
    metadata: Json | None = None
    tools: list[Any] | None = None
    tool_choice: Json | None = None
    thinking: Json | None = None
    output_config: Json | None = None
    container: Any = None
    mcp_servers: Any = None


def chat_request(body: MessagesRequest, thoughts: Thoughts) -> ChatRequest:
    """The equivalent chat request.

    A last message of the assistant begins the answer. The request's `thinking` applies if the
    model's template marks thoughts, and is ignored otherwise.
    """
    body.refuse(_REFUSED)
    messages = _messages(body)
    chat: Json = {**body.options(), "messages": messages, "stop": body.stop_sequences or None}
    if messages[-1]["role"] == "assistant":
        if messages[-1].get("tool_calls"):
            raise ArgumentError(
                "messages", problem="end with calls of tools",
                remedy="give their results in a message of the user",
            )  # fmt: skip
        chat["continue_final_message"] = True
    user = (body.metadata or {}).get("user_id")
    chat["user"] = user if isinstance(user, str) else None
    chat["tools"] = [_tool(t, f"tools[{i}]") for i, t in enumerate(body.tools or ())] or None
    if body.tool_choice is not None:
        choice = part_of(body.tool_choice, "tool_choice", _CHOICES)
        chat["tool_choice"] = "required" if choice.type == "any" else choice.type
        if choice.type == "tool":
            chat["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
        if choice.disable_parallel_tool_use:
            chat["parallel_tool_calls"] = False
    if body.output_config is not None:
        chat.update(_output(body.output_config, thoughts))
    if body.thinking is not None:
        thinking = part_of(body.thinking, "thinking", _THINKING)
        if thinking.type == "disabled":
            chat["reasoning_effort"] = "none"
        elif thoughts.are_marked:
            chat["thinking_token_budget"] = thinking.budget_tokens
    return ChatRequest(**chat)


def _messages(body: MessagesRequest) -> list[Json]:
    if not body.messages:
        raise ArgumentError("messages", problem="is empty: there is nothing to answer")
    turns = Turns()
    system = "".join(_STAMP.sub(r"\g<1>00000", text) for text in _texts(body.system, "system"))
    if system:
        turns.turn("system")["content"].append(text_part(system))
    for i, given in enumerate(body.messages):
        place = f"messages[{i}]"
        message = part_of(given, place, {"message": ("role",)}, "message")
        blocks = _blocks(message.content, f"{place}.content")
        if message.role == "user":
            _add_user(blocks, turns)
        elif message.role == "assistant":
            _add_assistant(blocks, turns)
        elif message.role == "system":
            turns.turn("system")["content"] += [text_part(_text(*one)) for one in blocks]
        else:
            raise ArgumentError(f"{place}.role", message.role, "one of user, assistant, system")
    return turns.joined()


def _blocks(content: str | list[Any] | None, place: str) -> list[tuple[Part, str]]:
    """The blocks of a content, each with its place; a text becomes one block."""
    if isinstance(content, str):
        return [(Part("text", text=content), place)]
    places = [f"{place}[{i}]" for i in range(len(content or ()))]
    return [
        (part_of(given, where, _BLOCKS, remedy="give text"), where)
        for given, where in zip(content or (), places, strict=True)
    ]


def _texts(content: str | list[Any] | None, place: str) -> list[str]:
    return [_text(*one) for one in _blocks(content, place)]


def _text(block: Part, place: str) -> str:
    """A block as text, if it is one."""
    if block.type != "text":
        raise UnsupportedError(
            f"type {block.type!r} is not supported here", param=place, remedy="give text"
        )
    return block.text or ""


def _part(block: Part, place: str) -> Json:
    """A block as a part of a chat's message, if it is a text or a picture."""
    if block.type != "image":
        return text_part(_text(block, place))
    source = part_of(block.source, f"{place}.source", _SOURCES)
    if source.type == "url":
        return picture_part(source.url or "")
    return picture_part(f"data:{source.media_type or 'image/any'};base64,{source.data}")


def _add_user(blocks: list[tuple[Part, str]], turns: Turns) -> None:
    """Adds a user message; tool results come first, after the calls they answer."""
    others = []
    for block, place in blocks:
        if block.type == "tool_result":
            parts = [_part(*one) for one in _blocks(block.content, f"{place}.content")]
            turns.add_result(block.tool_use_id, parts)
        else:
            others.append(_part(block, place))
    if others or not blocks:
        turns.turn("user")["content"] += others


def _add_assistant(blocks: list[tuple[Part, str]], turns: Turns) -> None:
    turn = turns.turn("assistant")
    for block, place in blocks:
        if block.type == "thinking":
            turns.add_thought(turn, block.thinking or "")
        elif block.type == "tool_use":
            arguments = json.dumps(block.input or {}, ensure_ascii=False)
            turns.add_call(turn, block.id, block.name, arguments)
        elif block.type != "redacted_thinking":  # of another service, which alone can read it
            turn["content"].append(text_part(_text(block, place)))


def _tool(given: Any, place: str) -> Json:
    remedy = "describe it as a tool with an input_schema, and let the client run it"
    tool = part_of(given, place, {"custom": ("name", "input_schema")}, "custom", remedy)
    function: Json = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    return {"type": "function", "function": function}


def _output(config: Json, thoughts: Thoughts) -> Json:
    chat: Json = {}
    if config.get("format") is not None:
        place = "output_config.format"
        form = part_of(config["format"], place, {"json_schema": ("schema",)})
        schema = {"name": "answer", "schema": form.schema, "strict": True}
        chat["response_format"] = {"type": "json_schema", "json_schema": schema}
    effort = config.get("effort")
    if effort is not None and (not isinstance(effort, str) or effort not in _EFFORTS):
        raise ArgumentError("output_config.effort", effort, f"one of {', '.join(_EFFORTS)}")
    if effort is not None and thoughts.take_effort:
        chat["reasoning_effort"] = _EFFORTS[effort]
    return chat


# ---- answers


def error_form(error: ApiError) -> Json:
    """The body of an error."""
    kind = "api_error" if error.status in (500, 501) else error.type
    if error.status == 400:  # whatever is wrong
        kind = "invalid_request_error"
    return {
        "type": "error",
        "error": {"type": _ERRORS.get(error.status, kind), "message": error.message},
        "request_id": error.request_id,
    }


class MessageShape(BlockShape):
    """A chat completion as a message, whole or in events."""

    prefix = "msg"

    def __init__(self) -> None:
        super().__init__()
        self._blocks: list[Json] = []
        self._input = ""

    def _whole(self, last: Json) -> Json:
        return {
            **self._head(), "content": self._blocks, **_stop(self._end),
            "usage": _usage(self._usage), **self._figures,
        }  # fmt: skip

    def failed(self, error: ApiError) -> Iterator[Event]:
        """See Shape."""
        self._is_over = True
        yield "error", error_form(error)

    def _begin(self) -> Iterator[Event]:
        usage = {**_usage(self._usage), "output_tokens": 0}
        head = {**self._head(), "content": [], "usage": usage}
        yield _event("message_start", message={**head, "stop_reason": None, "stop_sequence": None})

    def _opened(self, kind: str | int, call_id: str, name: str) -> Iterator[Event]:
        block: Json = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
        if kind == "thought":
            block = {"type": "thinking", "thinking": "", "signature": ""}
        elif kind == "text":
            block = text_part("")
        self._input = ""
        self._blocks.append(block)
        yield _event("content_block_start", index=self._n_blocks - 1, content_block={**block})

    def _thought(self, text: str) -> Iterator[Event]:
        self._blocks[-1]["thinking"] += text
        yield self._delta("thinking_delta", thinking=text)

    def _text(self, text: str) -> Iterator[Event]:
        self._blocks[-1]["text"] += text
        yield self._delta("text_delta", text=text)

    def _arguments(self, text: str) -> Iterator[Event]:
        self._input += text
        yield self._delta("input_json_delta", partial_json=text)

    def _close(self) -> Iterator[Event]:
        if self._open is None:
            return
        if self._open == "thought":  # clients wait for it; no one checks it
            yield self._delta("signature_delta", signature="")
        elif self._open != "text":
            self._blocks[-1]["input"] = _input(self._input)
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

    def _head(self) -> Json:
        shown, model = self.shown_id(str(self._answer["id"])), self._answer["model"]
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


def _input(arguments: str) -> Json:
    """The arguments of a call as an object; empty if they were cut, as stop_reason then says."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


# ---- endpoints


def _to_chat(body: MessagesRequest, service: Service) -> ChatRequest:
    check_values([body.messages, body.system, body.tools])
    return chat_request(body, service.thoughts)


async def messages(exchange: Exchange, body: MessagesRequest) -> Any:
    """POST /v1/messages."""
    return await exchange.generate(body, MessageShape(), _to_chat)


async def count_tokens(exchange: Exchange, body: MessagesRequest) -> Any:
    """POST /v1/messages/count_tokens."""
    return {"input_tokens": await exchange.count_tokens(body, _to_chat)}


_route = partial(Route, body=MessagesRequest, error_form=error_form)
ROUTES = (
    _route("POST", "/v1/messages", messages),
    _route("POST", "/v1/messages/count_tokens", count_tokens),
)
