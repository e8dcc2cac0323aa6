"""OpenAI's responses: their requests as chat requests, and answers in their form.

Shapes: https://platform.openai.com/docs/api-reference/responses. Nothing is stored: a request
brings the whole conversation as `input`. The model is not offered tools that OpenAI's own servers
run; the response's `tools` lists the offered ones.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated, Any

from msgspec import Meta

from pyllama_spec.errors import ArgumentError
from pyllama_spec.server import openai
from pyllama_spec.server.api_errors import ApiError
from pyllama_spec.server.dialect import (
    BlockShape,
    DialectRequest,
    Kinds,
    Part,
    Turns,
    joined_texts,
    part_of,
    parts_of,
    text_part,
)
from pyllama_spec.server.exchange import Exchange, Route
from pyllama_spec.server.service import Event, Service, Thoughts, check_values
from pyllama_spec.server.shapes import ChatRequest, Json

_WHOLE_INPUT = "no response is stored: give the whole conversation as `input`"
# Fields that would change the answer and are not supported.
_REFUSED = {
    "previous_response_id": _WHOLE_INPUT,
    "conversation": _WHOLE_INPUT,
    "store": "no response is stored; leave it out, or set it to false",
    "background": "an answer lasts as long as its connection; leave it out, or stream",
    "top_logprobs": "/v1/chat/completions has them",
    "prompt": "there are no stored prompts; give their text as `instructions` and `input`",
}
# The fields that items of the input need, and other objects by their type.
_ITEMS: Kinds = {
    "message": ("role",), "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id",), "reasoning": (),
}  # fmt: skip
_PARTS: Kinds = {
    "input_text": ("text",), "output_text": ("text",), "text": ("text",), "refusal": ("refusal",),
    "input_image": ("image_url",),
}  # fmt: skip
_THOUGHTS: Kinds = {"reasoning_text": ("text",), "summary_text": ("text",), "text": ("text",)}
_FUNCTION: Kinds = {"function": ("name",)}
_FORMS: Kinds = {"text": (), "json_object": (), "json_schema": ("schema",)}


# ---- requests


class ResponsesRequest(DialectRequest, kw_only=True):
    """The body of /v1/responses."""

    input: Any
    instructions: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_tool_calls: int | None = None
    top_logprobs: Annotated[int, Meta(ge=0)] | None = None
    parallel_tool_calls: bool | None = None
    text: Json | None = None
    reasoning: Json | None = None
    tools: list[Any] | None = None
    tool_choice: str | Json | None = None
    metadata: Json | None = None
    safety_identifier: str | None = None
    previous_response_id: Any = None
    conversation: Any = None
    store: Any = None
    background: Any = None
    prompt: Any = None


def chat_request(body: ResponsesRequest, thoughts: Thoughts) -> ChatRequest:
    """The equivalent chat request."""
    body.refuse(_REFUSED)
    offered = offered_tools(body)
    chat: Json = {
        **body.options(),
        "messages": _messages(body),
        "max_tokens": body.max_output_tokens,
        "parallel_tool_calls": body.parallel_tool_calls,
        "user": body.user or body.safety_identifier,
        "response_format": _form(body),
        "tools": [_chat_tool(tool) for tool in offered] or None,
        "tool_choice": _choice(body.tool_choice),
    }
    effort = (body.reasoning or {}).get("effort")
    if isinstance(effort, str) and thoughts.take_effort:
        chat["reasoning_effort"] = effort
    return ChatRequest(**chat)


def offered_tools(body: ResponsesRequest) -> list[Json]:
    """The function tools of the request that the model gets."""
    offered = []
    for i, given in enumerate(body.tools or ()):
        if isinstance(given, dict) and given.get("type") == "function":
            part_of(given, f"tools[{i}]", _FUNCTION)
            offered.append(given)
    return offered


def _chat_tool(tool: Json) -> Json:
    names = ("name", "description", "parameters", "strict")
    function = {name: tool[name] for name in names if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _choice(given: str | Json | None) -> str | Json | None:
    if given is None or given in ("auto", "none", "required"):
        return given
    if isinstance(given, str):
        raise ArgumentError("tool_choice", given, "one of auto, none, required, or an object")
    choice = part_of(given, "tool_choice", _FUNCTION, remedy="name a function of `tools`")
    return {"type": "function", "function": {"name": choice.name}}


def _form(body: ResponsesRequest) -> Json | None:
    given = (body.text or {}).get("format")
    form = part_of({"type": "text"} if given is None else given, "text.format", _FORMS)
    if form.type == "text":
        return None
    if form.type == "json_object":
        return {"type": form.type}
    schema: Json = {"name": form.name or "answer", "schema": form.schema}
    if form.strict is not None:
        schema["strict"] = form.strict
    return {"type": form.type, "json_schema": schema}


def _messages(body: ResponsesRequest) -> list[Json]:
    turns = Turns()
    if body.instructions:
        turns.turn("system")["content"].append(text_part(body.instructions))
    if isinstance(body.input, str):
        turns.turn("user")["content"].append(text_part(body.input))
        return turns.joined()
    if not isinstance(body.input, list) or not body.input:
        raise ArgumentError("input", body.input, "a text, or a list of items that is not empty")
    for i, item in enumerate(body.input):
        _add(item, f"input[{i}]", turns)
    return turns.joined()


def _add(given: Any, place: str, turns: Turns) -> None:
    item = part_of(given, place, _ITEMS, "message")
    if item.type == "message":
        _add_message(item, place, turns)
    elif item.type == "function_call":
        assistant = turns.turn("assistant", is_apart=False)
        turns.add_call(assistant, item.call_id, item.name, item.arguments)
    elif item.type == "function_call_output":
        parts = parts_of(item.output, f"{place}.output", _PARTS, "input_text")
        turns.add_result(item.call_id, parts)
    else:
        name = "content" if item.content else "summary"
        parts = parts_of(item.content or item.summary, f"{place}.{name}", _THOUGHTS, "text")
        if parts:
            turns.add_thought(turns.turn("assistant", is_apart=False), joined_texts(parts))


def _add_message(message: Part, place: str, turns: Turns) -> None:
    # Most templates know no developer, and leave out what they do not know.
    role = "system" if message.role == "developer" else message.role
    if role not in ("user", "assistant", "system"):
        raise ArgumentError(f"{place}.role", role, "one of user, assistant, system, developer")
    parts = parts_of(message.content, f"{place}.content", _PARTS, "input_text")
    turns.turn(role, is_apart=role != "assistant")["content"] += parts


# ---- answers


class ResponseShape(BlockShape):
    """A chat completion as a response, whole or in events; its blocks are items."""

    prefix = "resp"

    def __init__(self, body: ResponsesRequest) -> None:
        super().__init__()
        self._body = body
        self._n_events = 0
        self._items: list[Json] = []

    def _whole(self, last: Json) -> Json:
        whole: Json = last["response"]
        return whole

    def failed(self, error: ApiError) -> Iterator[Event]:
        """See Shape."""
        self._is_over = True
        code = "rate_limit_exceeded" if error.status == 429 else "server_error"
        failed = {**self._response("failed"), "error": {"code": code, "message": error.message}}
        yield self._event("response.failed", response=failed)

    # ---- items

    def _begin(self) -> Iterator[Event]:
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, response=self._response("in_progress"))

    def _opened(self, kind: str | int, call_id: str, name: str) -> Iterator[Event]:
        prefix, part = "fc", Json()
        item: Json = {"type": "function_call", "call_id": call_id, "name": name, "arguments": ""}
        if kind == "thought":
            prefix, part = "rs", {"type": "reasoning_text", "text": ""}
            item = {"type": "reasoning", "summary": [], "content": []}
        elif kind == "text":
            prefix = "msg"
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            item = {"type": "message", "role": "assistant", "content": []}
        number = str(self._answer.get("id", "")).rpartition("-")[2]
        item_id = f"{prefix}_{number}{len(self._items):02x}"
        self._items.append({"id": item_id, "status": "in_progress", **item})
        yield self._of_output("response.output_item.added")
        if part:
            self._item["content"].append(part)
            kind = "response.content_part.added"
            yield self._of_item(kind, content_index=0, part=_copy(part))

    def _thought(self, text: str) -> Iterator[Event]:
        self._item["content"][0]["text"] += text
        yield self._of_item("response.reasoning_text.delta", content_index=0, delta=text)

    def _text(self, text: str) -> Iterator[Event]:
        self._item["content"][0]["text"] += text
        kind = "response.output_text.delta"
        yield self._of_item(kind, content_index=0, delta=text, logprobs=[])

    def _arguments(self, text: str) -> Iterator[Event]:
        self._item["arguments"] += text
        yield self._of_item("response.function_call_arguments.delta", delta=text)

    def _close(self, status: str = "completed") -> Iterator[Event]:
        if self._open is None:
            return
        item = self._item
        item["status"] = status
        if self._open == "thought":
            yield from self._close_part("response.reasoning_text.done")
        elif self._open == "text":
            yield from self._close_part("response.output_text.done", logprobs=[])
        else:
            whole = {name: item[name] for name in ("name", "arguments")}
            yield self._of_item("response.function_call_arguments.done", **whole)
        self._open = None
        yield self._of_output("response.output_item.done")

    def _close_part(self, kind: str, **more: Any) -> Iterator[Event]:
        part = self._item["content"][0]
        yield self._of_item(kind, content_index=0, text=part["text"], **more)
        yield self._of_item("response.content_part.done", content_index=0, part=_copy(part))

    def _finish(self) -> Iterator[Event]:
        status = "incomplete" if self._end.get("finish_reason") == "length" else "completed"
        yield from self._close(status)
        yield self._event(f"response.{status}", response=self._response(status))

    @property
    def _item(self) -> Json:
        return self._items[-1]

    # ---- events

    def _event(self, kind: str, /, **fields: Any) -> Event:
        number, self._n_events = self._n_events, self._n_events + 1
        return kind, {"type": kind, "sequence_number": number, **fields}

    def _of_item(self, kind: str, /, **fields: Any) -> Event:
        place = {"item_id": self._item["id"], "output_index": len(self._items) - 1}
        return self._event(kind, **place, **fields)

    def _of_output(self, kind: str) -> Event:
        return self._event(kind, output_index=len(self._items) - 1, item=_copy(self._item))

    def _response(self, status: str) -> Json:
        is_over = status != "in_progress"
        whole = {
            "id": self.shown_id(str(self._answer.get("id", ""))),
            "object": "response",
            "created_at": self._answer.get("created", int(time.time())),
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "error": None,
            "incomplete_details": (
                {"reason": "max_output_tokens"} if status == "incomplete" else None
            ),
            "model": self._answer.get("model", ""),
            "output": _copy(self._items) if is_over else [],
            "usage": _usage(self._usage) if is_over and self._usage else None,
            **_echoed(self._body),
        }
        return {**whole, **self._figures} if is_over else whole


def _echoed(body: ResponsesRequest) -> Json:
    """The fields of the request that a response repeats."""
    return {
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None, **(body.reasoning or {})},
        "background": False,
        "store": False,
        "temperature": body.temperature,
        "text": body.text or {"format": {"type": "text"}},
        "tool_choice": body.tool_choice or "auto",
        "tools": [{"strict": None, "parameters": None, **tool} for tool in offered_tools(body)],
        "top_logprobs": body.top_logprobs,
        "top_p": body.top_p,
        "truncation": "disabled",
        "user": body.user,
    }


def _usage(usage: Json) -> Json:
    n_prompt, n_written = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    of_prompt = usage.get("prompt_tokens_details") or {}
    of_answer = usage.get("completion_tokens_details") or {}
    return {
        "input_tokens": n_prompt,
        "input_tokens_details": {
            "cached_tokens": of_prompt.get("cached_tokens") or 0,
            "cache_write_tokens": 0,
        },
        "output_tokens": n_written,
        "output_tokens_details": {
            **of_answer,
            "reasoning_tokens": of_answer.get("reasoning_tokens") or 0,
        },
        "total_tokens": n_prompt + n_written,
    }


def _copy(value: Any) -> Any:
    """A copy of an item, so that later changes do not alter sent events."""
    if isinstance(value, dict):
        return {key: _copy(one) for key, one in value.items()}
    return [_copy(one) for one in value] if isinstance(value, list) else value


# ---- endpoints


def _to_chat(body: ResponsesRequest, service: Service) -> ChatRequest:
    check_values([body.input, body.tools, body.text])
    return chat_request(body, service.thoughts)


async def responses(exchange: Exchange, body: ResponsesRequest) -> Any:
    """POST /v1/responses."""
    return await exchange.generate(body, ResponseShape(body), _to_chat)


async def count_tokens(exchange: Exchange, body: ResponsesRequest) -> Any:
    """POST /v1/responses/input_tokens."""
    return await openai.count_tokens(exchange, body, _to_chat)


ROUTES = (
    Route("POST", "/v1/responses", responses, ResponsesRequest),
    Route("POST", "/responses", responses, ResponsesRequest),
    Route("POST", "/v1/responses/input_tokens", count_tokens, ResponsesRequest),
    Route("POST", "/responses/input_tokens", count_tokens, ResponsesRequest),
)
