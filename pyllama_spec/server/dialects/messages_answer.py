"""Answers in the format of Anthropic's messages API: whole, as events, as errors.

The usage counts as in Anthropic's API: `input_tokens` are the computed ones, and
`cache_read_input_tokens` those from the prefix cache.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pyllama_spec.server.dialects.fields import Json, own_figures

# The name of an event, and its JSON.
Event = tuple[str, Json]

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


def error(status: int, message: str, request_id: str | None = None) -> Json:
    """The body of an error."""
    other = "api_error" if status >= 500 else "invalid_request_error"
    return {
        "type": "error",
        "error": {"type": _ERRORS.get(status, other), "message": message},
        "request_id": request_id,
    }


def message(answer: Json, *, shows_thoughts: bool = True) -> Json:
    """A chat completion as a message."""
    choice = answer["choices"][0]
    said = choice["message"]
    content: list[Json] = []
    thought = said.get("reasoning_content")
    if thought:
        content.append(_thinking_block(thought if shows_thoughts else ""))
    calls = said.get("tool_calls") or []
    if said.get("content") or not (content or calls):
        content.append({"type": "text", "text": said.get("content") or ""})
    for call in calls:
        function = call["function"]
        content.append(_call_block(call["id"], function["name"], _input(function["arguments"])))
    return {
        **_head(answer),
        "content": content,
        **_stop(choice),
        "usage": _usage(answer.get("usage")),
        **own_figures(answer),
    }


class MessageEvents:
    """The events of a message, from the chunks of a chat completion."""

    def __init__(self, *, shows_thoughts: bool = True) -> None:
        self._shows_thoughts = shows_thoughts
        self._is_begun = self._is_over = False
        self._n_blocks = 0
        # What the open block is: "thinking", "text", or the index of a call; None for no block.
        self._open: str | int | None = None
        self._usage: Json = {}
        self._end: Json = {}
        self._figures: Json = {}

    def of(self, chunk: Json) -> Iterator[Event]:
        """The events of the next chunk."""
        if chunk.get("usage"):
            self._usage = chunk["usage"]
        self._figures.update(own_figures(chunk))
        if not self._is_begun:
            self._is_begun = True
            yield _event(
                "message_start",
                message={
                    **_head(chunk), "content": [], "stop_reason": None, "stop_sequence": None,
                    "usage": {**_usage(self._usage), "output_tokens": 0},
                },
            )  # fmt: skip
        for choice in chunk.get("choices", ())[:1]:
            yield from self._of_delta(choice.get("delta") or {})
            if choice.get("finish_reason") is not None:
                self._end = choice

    def end(self) -> Iterator[Event]:
        """The events after the last chunk."""
        if self._is_over or not self._is_begun:
            return
        self._is_over = True
        if not self._n_blocks:  # an empty answer; clients read the first block all the same
            yield from self._block("text", {"type": "text", "text": ""})
        yield from self._close()
        yield _event(
            "message_delta", delta=_stop(self._end), usage=_usage(self._usage), **self._figures
        )
        yield _event("message_stop")

    def failed(self, status: int, text: str, request_id: str | None = None) -> Iterator[Event]:
        """The event of an error after the answer began."""
        self._is_over = True
        yield "error", error(status, text, request_id)

    def _of_delta(self, delta: Json) -> Iterator[Event]:
        thought, text = delta.get("reasoning_content"), delta.get("content")
        if thought:
            if self._open != "thinking":
                yield from self._block("thinking", {"type": "thinking", "thinking": ""})
            if self._shows_thoughts:
                yield self._delta({"type": "thinking_delta", "thinking": thought})
        if text:
            if self._open != "text":
                yield from self._block("text", {"type": "text", "text": ""})
            yield self._delta({"type": "text_delta", "text": text})
        for call in delta.get("tool_calls") or ():
            function = call.get("function") or {}
            if self._open != call["index"]:
                block = _call_block(call.get("id", ""), function.get("name", ""), {})
                yield from self._block(call["index"], block)
            if function.get("arguments"):
                yield self._delta(
                    {"type": "input_json_delta", "partial_json": function["arguments"]}
                )

    def _block(self, kind: str | int, block: Json) -> Iterator[Event]:
        yield from self._close()
        self._open = kind
        self._n_blocks += 1
        signature = {"signature": ""} if kind == "thinking" else {}
        yield _event(
            "content_block_start", index=self._n_blocks - 1, content_block={**block, **signature}
        )

    def _close(self) -> Iterator[Event]:
        if self._open is None:
            return
        if self._open == "thinking":  # clients wait for it; no one checks it
            yield self._delta({"type": "signature_delta", "signature": ""})
        self._open = None
        yield _event("content_block_stop", index=self._n_blocks - 1)

    def _delta(self, delta: Json) -> Event:
        return _event("content_block_delta", index=self._n_blocks - 1, delta=delta)


def _event(name: str, **fields: Any) -> Event:
    return name, {"type": name, **fields}


def message_id(answer_id: str) -> str:
    """The message id of a chat completion."""
    return f"msg_{answer_id.rpartition('-')[2]}"


def _head(answer: Json) -> Json:
    shown, model = message_id(str(answer["id"])), answer["model"]
    return {"id": shown, "type": "message", "role": "assistant", "model": model}


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


def _thinking_block(thought: str) -> Json:
    return {"type": "thinking", "thinking": thought, "signature": ""}


def _call_block(call_id: str, name: str, arguments: Json) -> Json:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def _input(arguments: str) -> Json:
    """The arguments of a call as an object; empty if they were cut, as stop_reason then says."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
