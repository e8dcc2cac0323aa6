"""The answers of both dialects parse with the types and readers of the published clients.

The clients get every event, and must assemble the whole answer.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from pyllama_spec.server.api_errors import ApiError
from pyllama_spec.server.messages import MessageShape, error_form
from pyllama_spec.server.responses import ResponseShape, ResponsesRequest

Json = dict[str, Any]
_HEAD = {"id": "chatcmpl-0123abcd", "created": 1_700_000_000, "model": "model.gguf"}
_USAGE = {
    "prompt_tokens": 20, "completion_tokens": 9, "total_tokens": 29,
    "prompt_tokens_details": {"cached_tokens": 8},
}  # fmt: skip
_SPECULATION = {"drafter": "prompt-lookup", "drafted": 4, "accepted": 3}
_MESSAGE_EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
_RESPONSE_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def _parts(text: str, cuts: list[int]) -> list[str]:
    """A text in parts; none of them is empty."""
    ends = sorted({cut % (len(text) + 1) for cut in cuts} | {0, len(text)})
    return [text[a:b] for a, b in pairwise(ends) if b > a]


_TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
_CALL = st.fixed_dictionaries(
    {"name": st.sampled_from(("look", "count")), "input": st.dictionaries(_TEXT, _TEXT, max_size=2)}
)
_ANSWER = st.fixed_dictionaries(
    {
        "thought": _TEXT,
        "text": _TEXT,
        "calls": st.lists(_CALL, max_size=3),
        "finish": st.sampled_from(("stop", "length", "tool_calls")),
        "stop": st.sampled_from((None, "END", 2)),
        "cuts": st.lists(st.integers(0, 40), max_size=4),
    }
)


def _ended(**more: Any) -> Json:
    """An answer of one word, as _ANSWER has it."""
    ended: Json = {"thought": "", "text": "x", "calls": [], "finish": "stop", "cuts": []}
    return {**ended, "stop": None, **more}


def _whole(answer: Json) -> Json:
    said: Json = {"role": "assistant", "content": answer["text"]}
    if answer["thought"]:
        said["reasoning_content"] = answer["thought"]
    if answer["calls"]:
        said["tool_calls"] = [
            {
                "id": f"call{i}", "type": "function",
                "function": {"name": call["name"], "arguments": json.dumps(call["input"])},
            }
            for i, call in enumerate(answer["calls"])
        ]  # fmt: skip
    choice = {
        "index": 0, "message": said, "logprobs": None, "finish_reason": answer["finish"],
        "stop_reason": answer["stop"],
    }  # fmt: skip
    return {
        **_HEAD, "object": "chat.completion", "choices": [choice], "usage": _USAGE,
        "speculation": _SPECULATION,
    }  # fmt: skip


def _chunks(answer: Json) -> list[Json]:
    deltas: list[Json] = [{"role": "assistant"}]
    deltas += [{"reasoning_content": one} for one in _parts(answer["thought"], answer["cuts"])]
    deltas += [{"content": one} for one in _parts(answer["text"], answer["cuts"])]
    for i, call in enumerate(answer["calls"]):
        first, *rest = _parts(json.dumps(call["input"]), answer["cuts"])
        head = {"id": f"call{i}", "type": "function"}
        function = {"name": call["name"], "arguments": first}
        deltas.append({"tool_calls": [{"index": i, **head, "function": function}]})
        deltas += [{"tool_calls": [{"index": i, "function": {"arguments": one}}]} for one in rest]
    chunks = [
        {**_HEAD, "choices": [{"index": 0, "delta": one, "finish_reason": None}], "usage": _USAGE}
        for one in deltas
    ]
    end = {"finish_reason": answer["finish"], "stop_reason": answer["stop"]}
    chunks.append({**_HEAD, "choices": [{"index": 0, "delta": {}, **end}], "usage": _USAGE})
    chunks.append({**_HEAD, "choices": [], "usage": _USAGE, "speculation": _SPECULATION})
    return chunks


@settings(max_examples=60, deadline=None)
@given(_ANSWER)
def test_the_anthropic_client_reads_the_events_as_the_whole_message(answer: Json) -> None:
    whole = MessageShape().whole(_whole(answer))
    Message.model_validate(whole, strict=True)
    events = MessageShape()
    made = [event for chunk in _chunks(answer) for event in events.of(chunk)]
    made += events.end()
    snapshot, buffers = None, dict[int, bytes]()
    for name, data in made:
        assert data["type"] == name
        event = _MESSAGE_EVENT.validate_python(data, strict=True)
        snapshot = accumulate_event(event=event, current_snapshot=snapshot, json_bufs=buffers)
    assert snapshot is not None
    read = snapshot.to_dict()
    read.pop("speculation", None)
    expected = {key: value for key, value in whole.items() if key != "speculation"}
    assert {key: read[key] for key in expected} == expected
    assert whole["speculation"] == _SPECULATION
    assert list(events.end()) == []


@settings(max_examples=60, deadline=None)
@given(_ANSWER)
def test_the_openai_client_reads_the_events_as_the_whole_response(answer: Json) -> None:
    tools = [{"type": "function", "name": "look", "strict": None}]
    body = ResponsesRequest(input="Hello", tools=tools)
    whole = ResponseShape(body).whole(_whole(answer))
    Response.model_validate_json(json.dumps(whole), strict=True)
    events = ResponseShape(body)
    made = [event for chunk in _chunks(answer) for event in events.of(chunk)]
    made += events.end()
    assert [data["sequence_number"] for _, data in made] == list(range(len(made)))
    state: Any = ResponseStreamState(input_tools=[], text_format=omit)
    texts: dict[str, str] = {}
    for name, data in made:
        assert data["type"] == name
        assert name is not None
        event = _RESPONSE_EVENT.validate_json(json.dumps(data), strict=True)
        state.handle_event(event)
        if name.endswith(".delta"):
            texts[data["item_id"]] = texts.get(data["item_id"], "") + data["delta"]
    _, last = made[-1]
    read = last["response"]
    for one in (read, whole):
        del one["completed_at"]
    assert read == whole
    assert read["speculation"] == _SPECULATION
    for item in read["output"]:
        text = item["arguments"] if "arguments" in item else item["content"][0]["text"]
        assert texts.get(item["id"], "") == text
    kinds = [item["type"] for item in read["output"]]
    assert kinds == sorted(kinds, key=("reasoning", "message", "function_call").index)


@pytest.mark.parametrize("finish, stop, expected", [
    ("stop", None, ("end_turn", None)),
    ("stop", 2, ("end_turn", None)),
    ("stop", "END", ("stop_sequence", "END")),
    ("length", None, ("max_tokens", None)),
    ("tool_calls", None, ("tool_use", None)),
])  # fmt: skip
def test_why_a_message_ended(finish: str, stop: Any, expected: tuple[Any, Any]) -> None:
    answer = _ended(finish=finish, stop=stop)
    whole = MessageShape().whole(_whole(answer))
    assert (whole["stop_reason"], whole["stop_sequence"]) == expected
    assert whole["usage"]["input_tokens"] == 12
    assert whole["usage"]["cache_read_input_tokens"] == 8


def test_a_length_that_was_reached_is_an_incomplete_response() -> None:
    answer = _ended(finish="length")
    whole = ResponseShape(ResponsesRequest(input="")).whole(_whole(answer))
    assert whole["status"] == whole["output"][-1]["status"] == "incomplete"
    assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
    assert whole["usage"]["input_tokens_details"]["cached_tokens"] == 8


@pytest.mark.parametrize("status", [400, 401, 403, 404, 408, 413, 429, 500, 503, 504])
def test_an_error_has_the_form_of_the_dialect(status: int) -> None:
    error = ApiError(status, "why")
    body = error_form(error)
    assert body["type"] == "error"
    assert body["error"]["message"] == "why"
    ((name, event),) = list(MessageShape().failed(error))
    assert (name, event) == ("error", body)
    events = ResponseShape(ResponsesRequest(input=""))
    list(events.of(_chunks(_ended())[0]))
    ((name, event),) = list(events.failed(error))
    _RESPONSE_EVENT.validate_json(json.dumps(event), strict=True)
    assert event["response"]["status"] == "failed"
    assert list(events.end()) == []
