"""Answers in the format of OpenAI's responses API: whole and as events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from pyllama_spec.server.dialects.fields import Json, own_figures
from pyllama_spec.server.dialects.responses_request import offered_tools

# The name of an event, and its JSON.
Event = tuple[str, Json]


def response(answer: Json, body: Json) -> Json:
    """A chat completion as a response."""
    events = ResponseEvents(body)
    choice = answer["choices"][0]
    said = dict(choice["message"])
    said["tool_calls"] = [
        {"index": i, **call} for i, call in enumerate(said.get("tool_calls") or ())
    ]
    one = {**choice, "delta": said}
    for _ in events.of({**answer, "choices": [one]}):
        pass
    *_, (_, last) = events.end()
    whole: Json = last["response"]
    return whole


class ResponseEvents:
    """The events of a response, from the chunks of a chat completion."""

    def __init__(self, body: Json) -> None:
        self._body = body
        self._n_events = 0
        self._answer: Json = {}
        self._usage: Json | None = None
        self._figures: Json = {}
        self._finish: str | None = None
        self._items: list[Json] = []
        # What the last item is while it is open: "reasoning", "message", or the index of a call.
        self._open: str | int | None = None
        self._is_over = False

    def of(self, chunk: Json) -> Iterator[Event]:
        """The events of the next chunk."""
        if chunk.get("usage"):
            self._usage = chunk["usage"]
        self._figures.update(own_figures(chunk))
        if not self._answer:
            self._answer = {key: chunk[key] for key in ("id", "created", "model")}
            yield self._event("response.created", response=self._response("in_progress"))
            yield self._event("response.in_progress", response=self._response("in_progress"))
        for choice in chunk.get("choices", ())[:1]:
            logprobs = (choice.get("logprobs") or {}).get("content") or []
            yield from self._of_delta(choice.get("delta") or {}, logprobs)
            self._finish = choice.get("finish_reason") or self._finish

    def end(self) -> Iterator[Event]:
        """The events after the last chunk."""
        if self._is_over or not self._answer:
            return
        self._is_over = True
        if not self._items:  # an empty answer: an empty message
            yield from self._begin_message()
        status = "incomplete" if self._finish == "length" else "completed"
        yield from self._close(status)
        yield self._event(f"response.{status}", response=self._response(status))

    def failed(self, status: int, text: str) -> Iterator[Event]:
        """The event of an error after the answer began."""
        self._is_over = True
        code = "rate_limit_exceeded" if status == 429 else "server_error"
        failed = {**self._response("failed"), "error": {"code": code, "message": text}}
        yield self._event("response.failed", response=failed)

    # ---- items

    def _of_delta(self, delta: Json, logprobs: list[Json]) -> Iterator[Event]:
        thought, text = delta.get("reasoning_content"), delta.get("content")
        if thought:
            if self._open != "reasoning":
                yield from self._begin_reasoning()
            self._item["content"][0]["text"] += thought
            yield self._of_item("response.reasoning_text.delta", content_index=0, delta=thought)
        if text:
            if self._open != "message":
                yield from self._begin_message()
            part = self._item["content"][0]
            part["text"] += text
            part["logprobs"] += logprobs
            yield self._of_item(
                "response.output_text.delta", content_index=0, delta=text, logprobs=logprobs
            )
        for call in delta.get("tool_calls") or ():
            function = call.get("function") or {}
            if self._open != call["index"]:
                yield from self._begin_call(call, function.get("name", ""))
            if function.get("arguments"):
                self._item["arguments"] += function["arguments"]
                yield self._of_item(
                    "response.function_call_arguments.delta", delta=function["arguments"]
                )

    def _begin_reasoning(self) -> Iterator[Event]:
        item = {"type": "reasoning", "summary": [], "content": []}
        yield from self._begin("reasoning", "rs", item)
        yield from self._begin_part({"type": "reasoning_text", "text": ""})

    def _begin_message(self) -> Iterator[Event]:
        item = {"type": "message", "role": "assistant", "content": []}
        yield from self._begin("message", "msg", item)
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        yield from self._begin_part(part)

    def _begin_call(self, call: Json, name: str) -> Iterator[Event]:
        item = {"type": "function_call", "call_id": call.get("id", ""), "name": name}
        yield from self._begin(call["index"], "fc", {**item, "arguments": ""})

    def _begin(self, kind: str | int, prefix: str, item: Json) -> Iterator[Event]:
        yield from self._close("completed")
        self._open = kind
        item_id = f"{prefix}_{self._number}{len(self._items):02x}"
        self._items.append({"id": item_id, "status": "in_progress", **item})
        yield self._event(
            "response.output_item.added", output_index=len(self._items) - 1, item=_copy(self._item)
        )

    def _begin_part(self, part: Json) -> Iterator[Event]:
        self._item["content"].append(part)
        yield self._of_item("response.content_part.added", content_index=0, part=_copy(part))

    def _close(self, status: str) -> Iterator[Event]:
        if self._open is None:
            return
        item = self._item
        item["status"] = status
        if self._open == "reasoning":
            yield from self._close_part("response.reasoning_text.done")
        elif self._open == "message":
            logprobs = item["content"][0]["logprobs"]
            yield from self._close_part("response.output_text.done", logprobs=logprobs)
        else:
            yield self._of_item(
                "response.function_call_arguments.done",
                name=item["name"],
                arguments=item["arguments"],
            )
        self._open = None
        yield self._event(
            "response.output_item.done", output_index=len(self._items) - 1, item=_copy(item)
        )

    def _close_part(self, kind: str, **more: Any) -> Iterator[Event]:
        part = self._item["content"][0]
        yield self._of_item(kind, content_index=0, text=part["text"], **more)
        yield self._of_item("response.content_part.done", content_index=0, part=_copy(part))

    @property
    def _item(self) -> Json:
        return self._items[-1]

    @property
    def _number(self) -> str:
        return str(self._answer.get("id", "")).rpartition("-")[2]

    # ---- events

    def _event(self, kind: str, /, **fields: Any) -> Event:
        number, self._n_events = self._n_events, self._n_events + 1
        return kind, {"type": kind, "sequence_number": number, **fields}

    def _of_item(self, kind: str, /, **fields: Any) -> Event:
        place = {"item_id": self._item["id"], "output_index": len(self._items) - 1}
        return self._event(kind, **place, **fields)

    def _response(self, status: str) -> Json:
        is_over = status != "in_progress"
        whole = {
            "id": response_id(str(self._answer.get("id", ""))),
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


def response_id(answer_id: str) -> str:
    """The response id of a chat completion."""
    return f"resp_{answer_id.rpartition('-')[2]}"


def _echoed(body: Json) -> Json:
    """The fields of the request that a response repeats."""
    given: Callable[[str, Any], Any] = lambda name, default: (  # noqa: E731 - null is the default
        default if body.get(name) is None else body[name]
    )
    return {
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "max_tool_calls": body.get("max_tool_calls"),
        "metadata": given("metadata", {}),
        "parallel_tool_calls": given("parallel_tool_calls", True),
        "previous_response_id": None,
        "reasoning": given("reasoning", {"effort": None, "summary": None}),
        "background": False,
        "store": False,
        "temperature": body.get("temperature"),
        "text": given("text", {"format": {"type": "text"}}),
        "tool_choice": given("tool_choice", "auto"),
        "tools": [{"strict": None, "parameters": None, **tool} for tool in offered_tools(body)],
        "top_logprobs": body.get("top_logprobs"),
        "top_p": body.get("top_p"),
        "truncation": "disabled",
        "user": body.get("user"),
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
        "output_tokens_details": {**of_answer, "reasoning_tokens": _of(of_answer)},
        "total_tokens": n_prompt + n_written,
    }


def _of(details: Json) -> int:
    return details.get("reasoning_tokens") or 0


def _copy(value: Any) -> Any:
    """A copy of an item, so that later changes do not alter sent events."""
    if isinstance(value, dict):
        return {key: _copy(one) for key, one in value.items()}
    return [_copy(one) for one in value] if isinstance(value, list) else value
