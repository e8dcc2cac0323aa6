"""Requests of both dialects become chat requests, and a refusal names the field."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from pyllama_spec.errors import ArgumentError, UnsupportedError
from pyllama_spec.server import messages, responses
from pyllama_spec.server.api_errors import ApiError
from pyllama_spec.server.dialect import DialectRequest
from pyllama_spec.server.exchange import decoded
from pyllama_spec.server.service import Thoughts
from pyllama_spec.server.shapes import ChatRequest, Sampling

Json = dict[str, Any]
_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
_ASK = {"role": "user", "content": "Hi"}
_NO_THOUGHTS = Thoughts()
_THINKER = Thoughts(are_marked=True)


def _part(text: str) -> Json:
    return {"type": "text", "text": text}


def _read(shape: type[Any], body: Json) -> Any:
    return decoded(json.dumps(body).encode(), shape)


def _shown(chat: ChatRequest) -> Json:
    return {name: one for name, one in msgspec.to_builtins(chat).items() if one is not None}


def _messages(thoughts: Thoughts = _NO_THOUGHTS, **body: Any) -> Json:
    body = {"model": "m", "max_tokens": 9, "messages": [_ASK], **body}
    return _shown(messages.chat_request(_read(messages.MessagesRequest, body), thoughts))


def _responses(thoughts: Thoughts = _NO_THOUGHTS, **body: Any) -> Json:
    body = {"model": "m", "input": "Hi", **body}
    return _shown(responses.chat_request(_read(responses.ResponsesRequest, body), thoughts))


# What a dialect says in its own words, or has no place for in its answers.
_NOT_TAKEN = {
    "model", "max_tokens", "temperature", "top_p", "top_k", "n", "stop", "json_schema",
    "response_format", "return_token_ids", "user", "stream", "stream_options",
}  # fmt: skip


@pytest.mark.parametrize(
    ("dialect", "request_"),
    [
        (messages, messages.MessagesRequest(messages=[_ASK])),
        (responses, responses.ResponsesRequest(input="Hi")),
    ],
)
def test_every_other_option_of_a_chat_is_taken_as_a_further_field(
    dialect: Any, request_: DialectRequest
) -> None:
    names = {*Sampling.__struct_fields__, "chat_template_kwargs", "reasoning_format"} - _NOT_TAKEN
    assert "include_stop_str_in_output" in names
    given = {name: f"of {name}" for name in names}
    chat = dialect.chat_request(msgspec.structs.replace(request_, **given), Thoughts())
    assert {name: getattr(chat, name) for name in names} == given


# ---- Anthropic's messages


def test_a_message_as_a_chat() -> None:
    chat = _messages(
        system=[_part("Be "), _part("brief.")], temperature=0, top_p=0.9, top_k=4,
        stop_sequences=["END"], stream=True, metadata={"user_id": "u"}, seed=3,
        service_tier="auto", cache_control={"type": "ephemeral"}, betas=["new"],
    )  # fmt: skip
    assert chat == {
        "model": "m",
        "messages": [
            {"role": "system", "content": [_part("Be brief.")]},
            {"role": "user", "content": [_part("Hi")]},
        ],
        "reasoning_format": "auto", "max_tokens": 9, "temperature": 0, "top_p": 0.9, "top_k": 4,
        "stop": ["END"], "stream": True, "user": "u", "seed": 3,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }  # fmt: skip


def test_a_conversation_with_tools() -> None:
    """Results follow their calls directly, whatever else the user says in that turn."""
    chat = _messages(
        messages=[
            _ASK,
            {"role": "user", "content": "there"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "look", "signature": ""},
                    {"type": "redacted_thinking", "data": "xx"},
                    _part("Wait."),
                    {"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "Köln"}},
                    {"type": "tool_use", "id": "b", "name": "time", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    _part("Here."),
                    {"type": "tool_result", "tool_use_id": "a", "content": "rain"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "b",
                        "content": [_part("1"), _part("2")],
                    },
                    {"type": "tool_result", "tool_use_id": "c", "is_error": True},
                ],
            },
        ]
    )
    call = {"name": "weather", "arguments": '{"city": "Köln"}'}
    assert chat["messages"] == [
        {"role": "user", "content": [_part("Hi"), _part("\n\n"), _part("there")]},
        {
            "role": "assistant", "content": [_part("Wait.")], "reasoning_content": "look",
            "tool_calls": [
                {"id": "a", "type": "function", "function": call},
                {"id": "b", "type": "function", "function": {"name": "time", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "a", "name": "weather", "content": "rain"},
        {"role": "tool", "tool_call_id": "b", "name": "time", "content": "12"},
        {"role": "tool", "tool_call_id": "c", "content": ""},
        {"role": "user", "content": [_part("Here.")]},
    ]  # fmt: skip


def test_a_last_message_of_the_assistant_goes_on() -> None:
    chat = _messages(messages=[_ASK, {"role": "assistant", "content": "Well"}])
    assert chat["continue_final_message"] is True
    assert "continue_final_message" not in _messages()


@pytest.mark.parametrize("choice, expected", [
    ({"type": "auto"}, {"tool_choice": "auto"}),
    ({"type": "none"}, {"tool_choice": "none"}),
    ({"type": "any"}, {"tool_choice": "required"}),
    ({"type": "any", "disable_parallel_tool_use": True},
     {"tool_choice": "required", "parallel_tool_calls": False}),
    ({"type": "tool", "name": "look"},
     {"tool_choice": {"type": "function", "function": {"name": "look"}}}),
])  # fmt: skip
def test_tools_of_a_message(choice: Json, expected: Json) -> None:
    tool = {"name": "look", "description": "d", "input_schema": _SCHEMA}
    chat = _messages(tools=[tool, {**tool, "type": "custom"}], tool_choice=choice)
    function = {"name": "look", "description": "d", "parameters": _SCHEMA}
    assert chat["tools"] == [{"type": "function", "function": function}] * 2
    assert {key: chat[key] for key in expected} == expected


@pytest.mark.parametrize("asked, of_thinker, of_others", [
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"thinking_token_budget": 1024}, {}),
    ({"thinking": {"type": "disabled"}}, {"reasoning_effort": "none"},
     {"reasoning_effort": "none"}),
    ({"thinking": {"type": "adaptive"}}, {}, {}),
    ({"output_config": {"effort": "max"}}, {"reasoning_effort": "xhigh"}, {}),
    ({"output_config": {"effort": "low"}, "thinking": {"type": "enabled", "budget_tokens": 5}},
     {"reasoning_effort": "low", "thinking_token_budget": 5}, {}),
])  # fmt: skip
def test_thinking_counts_where_the_template_marks_it(
    asked: Json, of_thinker: Json, of_others: Json
) -> None:
    for thoughts, expected in ((_THINKER, of_thinker), (Thoughts(), of_others)):
        chat = _messages(**asked, thoughts=thoughts)
        assert {key: chat[key] for key in ("reasoning_effort", "thinking_token_budget")
                if key in chat} == expected  # fmt: skip


def test_a_form_of_the_answer_in_both() -> None:
    asked = {"type": "json_schema", "schema": _SCHEMA}
    chat = _messages(output_config={"format": asked})
    assert chat["response_format"]["json_schema"]["schema"] == _SCHEMA
    chat = _responses(text={"format": {**asked, "name": "place", "strict": True}})
    assert chat["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "place", "schema": _SCHEMA, "strict": True},
    }
    assert _responses(text={"format": {"type": "json_object"}})["response_format"] == {
        "type": "json_object"
    }
    assert "response_format" not in _responses(text={"format": {"type": "text"}})


def test_a_stamp_in_a_system_prompt_does_not_part_prefixes() -> None:
    texts = set()
    for stamp in ("a5145", "00fff"):
        head = f"x-anthropic-billing-header: cc_version=2.1; cch={stamp};You help. cch=12345;"
        chat = _messages(system=[_part(head), _part("More.")])
        texts.add(chat["messages"][0]["content"][0]["text"])
    (text,) = texts
    assert text.endswith(";You help. cch=12345;More.")
    own = "My header: cch=a5145; stays"
    assert _messages(system=own)["messages"][0]["content"] == [_part(own)]


@pytest.mark.parametrize("body, place, kind", [
    ({"messages": [3]}, "messages[0]", ApiError),
    ({"messages": [{"content": "x"}]}, "messages[0].role", ApiError),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]},
     "messages[0].content[0].text", ApiError),
    ({"messages": [{"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "document"}]}]}]},
     "messages[0].content[0].content[0]", UnsupportedError),
    ({"messages": [{"role": "user", "content": [
        {"type": "image", "source": {"type": "file", "file_id": "x"}}]}]},
     "messages[0].content[0].source", UnsupportedError),
    ({"messages": [{"role": "user", "content": [
        {"type": "document", "source": {"type": "base64", "data": "x"}}]}]},
     "messages[0].content[0]", UnsupportedError),
    ({"messages": [_ASK, {"role": "assistant", "content": [
        {"type": "tool_use", "id": "a", "name": "b", "input": {}}]}]},
     "messages", ArgumentError),
    ({"max_tokens": 0}, "max_tokens", ApiError),
    ({"stop_sequences": [1]}, "stop_sequences", ApiError),
    ({"tools": [{"name": "a"}]}, "tools[0].input_schema", ApiError),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
     "tools[0]", UnsupportedError),
    ({"tool_choice": {"type": "some"}}, "tool_choice", UnsupportedError),
    ({"output_config": {"effort": "some"}}, "output_config.effort", ArgumentError),
    ({"container": "c"}, "container", UnsupportedError),
])  # fmt: skip
def test_a_message_is_refused_with_its_place(body: Json, place: str, kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught:
        _messages(**body)
    assert place in str(caught.value)


# ---- OpenAI's responses


def test_a_response_as_a_chat() -> None:
    chat = _responses(
        instructions="Be brief.", max_output_tokens=9, temperature=0.5, top_p=0.9, stream=True,
        user="u", metadata={"a": "b"},
        store=False, previous_response_id=None, truncation="auto", seed=3, service_tier="auto",
    )  # fmt: skip
    assert chat == {
        "model": "m",
        "messages": [
            {"role": "system", "content": [_part("Be brief.")]},
            {"role": "user", "content": [_part("Hi")]},
        ],
        "reasoning_format": "auto", "max_tokens": 9, "temperature": 0.5, "top_p": 0.9,
        "stream": True, "user": "u", "seed": 3,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }  # fmt: skip


def test_items_become_turns() -> None:
    """The assistant's thoughts, text and calls are one turn, whichever items hold them."""
    items: list[Json] = [
        {"role": "developer", "content": "Rules."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "reasoning", "id": "rs", "summary": [], "content": [
            {"type": "reasoning_text", "text": "look"}]},
        {"type": "message", "id": "msg", "role": "assistant", "status": "completed", "content": [
            {"type": "output_text", "text": "Wait.", "annotations": []},
            {"type": "refusal", "refusal": "No."}]},
        {"type": "function_call", "call_id": "a", "name": "weather", "arguments": "{}"},
        {"type": "function_call", "call_id": "b", "name": "time", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "rain"},
        {"type": "function_call_output", "call_id": "b", "output": [
            {"type": "input_text", "text": "12"}]},
        {"type": "reasoning", "id": "rs2", "summary": [{"type": "summary_text", "text": "so"}]},
        {"role": "assistant", "content": "Rain at 12."},
        {"role": "user", "content": "Thanks"},
    ]  # fmt: skip
    chat = _responses(instructions="Be brief.", input=items)
    calls = [
        {"id": i, "type": "function", "function": {"name": name, "arguments": "{}"}}
        for i, name in (("a", "weather"), ("b", "time"))
    ]
    assert chat["messages"] == [
        {"role": "system", "content": [_part("Be brief."), _part("\n\n"), _part("Rules.")]},
        {"role": "user", "content": [_part("Hi")]},
        {"role": "assistant", "content": [_part("Wait."), _part("No.")],
         "reasoning_content": "look", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "a", "name": "weather", "content": "rain"},
        {"role": "tool", "tool_call_id": "b", "name": "time", "content": "12"},
        {"role": "assistant", "content": [_part("Rain at 12.")], "reasoning_content": "so"},
        {"role": "user", "content": [_part("Thanks")]},
    ]  # fmt: skip


_SHOWN: Json = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QQ=="}}
_LINKED = {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}}


def test_pictures_of_messages() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "QQ=="}
    link = {"type": "image", "source": {"type": "url", "url": "https://a.example/b.png"}}
    blocks = [_part("See"), {"type": "image", "source": source}, link]
    result = {"type": "tool_result", "tool_use_id": "a", "content": blocks}
    call = {"type": "tool_use", "id": "a", "name": "look", "input": {}}
    said = _messages(messages=[
        {"role": "user", "content": blocks}, {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ])["messages"]  # fmt: skip
    parts = [_part("See"), _SHOWN, _LINKED]
    assert said[0] == {"role": "user", "content": parts}
    assert said[2] == {"role": "tool", "tool_call_id": "a", "name": "look", "content": parts}


def test_pictures_of_responses() -> None:
    shown = {"type": "input_image", "image_url": _SHOWN["image_url"]["url"], "detail": "auto"}
    blocks = [{"type": "input_text", "text": "See"}, shown]
    said = _responses(input=[
        {"role": "user", "content": blocks},
        {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": blocks},
    ])["messages"]  # fmt: skip
    parts = [_part("See"), _SHOWN]
    assert said[0] == {"role": "user", "content": parts}
    assert said[2] == {"role": "tool", "tool_call_id": "a", "name": "look", "content": parts}


@pytest.mark.parametrize("choice, names, expected", [
    (None, ["look", "count"], None),
    ("required", ["look", "count"], "required"),
    ({"type": "function", "name": "look"}, ["look", "count"],
     {"type": "function", "function": {"name": "look"}}),
])  # fmt: skip
def test_functions_are_offered_and_hosted_tools_are_not(
    choice: Any, names: list[str], expected: Any
) -> None:
    tools: list[Json] = [
        {"type": "web_search"},
        {"type": "function", "name": "look", "parameters": _SCHEMA, "strict": True},
        {"type": "local_shell"},
        {"type": "function", "name": "count", "description": "d", "parameters": None},
    ]
    body = {"tools": tools, "tool_choice": choice}
    chat = _responses(**body)
    assert [tool["function"]["name"] for tool in chat.get("tools", [])] == names
    assert chat.get("tool_choice") == expected
    offered = responses.offered_tools(_read(responses.ResponsesRequest, {"input": "Hi", **body}))
    assert [tool["name"] for tool in offered] == names


def test_an_effort_counts_where_the_template_takes_one() -> None:
    asked: Json = {"reasoning": {"effort": "low", "summary": "auto"}}
    assert _responses(**asked, thoughts=_THINKER)["reasoning_effort"] == "low"
    assert _responses(**asked, thoughts=Thoughts(reads_effort=True))["reasoning_effort"] == "low"
    assert "reasoning_effort" not in _responses(**asked)


@pytest.mark.parametrize("body, place, kind", [
    ({"input": []}, "input", ArgumentError), ({"input": [3]}, "input[0]", ApiError),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]", UnsupportedError),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "x"}]}]},
     "input[0].content[0].image_url", ApiError),
    ({"input": [{"type": "function_call", "name": "a", "arguments": "{}"}]},
     "input[0].call_id", ApiError),
    ({"max_output_tokens": 0}, "max_output_tokens", ApiError),
    ({"store": True}, "store", UnsupportedError),
    ({"tools": [{"type": "function"}]}, "tools[0].name", ApiError),
    ({"tool_choice": {"type": "web_search"}}, "tool_choice", UnsupportedError),
    ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema", ApiError),
])  # fmt: skip
def test_a_response_is_refused_with_its_place(
    body: Json, place: str, kind: type[Exception]
) -> None:
    with pytest.raises(kind) as caught:
        _responses(**body)
    assert place in str(caught.value)
