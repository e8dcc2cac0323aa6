"""Every text over HTTP equals the library's for the same request, streamed or whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from pyllama_spec import Llama
from tests.faces.tools import open_tiny
from tests.server.world import Client, served, steady

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "the cat sat on the cat sat on the"}]
PROMPT = "the cat sat on the cat sat on the"
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}},
            "required": ["city"], "additionalProperties": False,
        },
    },
}  # fmt: skip
# One token over and over, which a lookup finds.
REPEATING = {"max_tokens": 60, "temperature": 0, "logit_bias": {"97": 50.0}}
CHATS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.9, "seed": 7, "top_k": 50, "repeat_penalty": 1.1},
    {"temperature": 1.0, "seed": 3, "frequency_penalty": 0.5, "presence_penalty": 0.25},
    {"temperature": 0, "stop": ["q", "zz"]},
    {"temperature": 0, "logit_bias": {"97": 4.0, "98": -5}},
    {"temperature": 0, "min_tokens": 5},
    {"temperature": 0.8, "seed": 5, "n": 3},
    {"temperature": 0, "response_format": {"type": "json_object"}},
    {"temperature": 0, "grammar": "root ::= [a-m]+"},
    {"temperature": 0, "return_token_ids": True, "min_p": 0.1, "typical_p": 0.9},
    {"temperature": 0, "logprobs": True, "top_logprobs": 2},
    {"temperature": 0, "tools": [WEATHER], "tool_choice": "required"},
    {"temperature": 0, "tools": [WEATHER], "tool_choice": "auto"},
    {"temperature": 0, "reasoning_format": "auto"},
    {"temperature": 0, "max_completion_tokens": 6, "max_tokens": None},
]


def opened() -> Llama:
    return open_tiny("prompt-lookup", n_ctx=512, n_parallel=3)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with served(opened(), alias="tiny") as client:
        yield client


@pytest.fixture(scope="module")
def library() -> Iterator[Llama]:
    with opened() as llm:
        yield llm


def name_of(options: dict[str, Any]) -> str:
    return ",".join(name for name in options if name != "temperature") or "greedy"


@pytest.mark.parametrize("options", CHATS, ids=name_of)
def test_a_chat_is_the_librarys(client: Client, library: Llama, options: dict[str, Any]) -> None:
    given = {"max_tokens": 40, **options}
    own: Any = library.create_chat_completion(MESSAGES, model="m", **given)
    whole = client.right(CHAT, {"messages": MESSAGES, "model": "m", **given})
    assert without_call_ids(steady(whole)) == without_call_ids(steady(own))
    chunks = client.chunks(CHAT, {"messages": MESSAGES, **given})
    for i, choice in enumerate(own["choices"]):
        of_choice = [c for c in deltas(chunks) if c["index"] == i]
        message = choice["message"]
        for key in ("content", "reasoning_content"):
            text = "".join(c["delta"].get(key) or "" for c in of_choice)
            assert text == (message.get(key) or "")
        assert of_choice[-1]["finish_reason"] == choice["finish_reason"]
        assert calls_of(of_choice) == [
            (call["function"]["name"], call["function"]["arguments"])
            for call in message.get("tool_calls", ())
        ]
    assert chunks[-1]["usage"] == whole["usage"] | {
        "prompt_tokens_details": chunks[-1]["usage"]["prompt_tokens_details"],
        "completion_tokens_details": chunks[-1]["usage"]["completion_tokens_details"],
    }


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_usage_comes_last_where_it_is_asked_for(client: Client, path: str) -> None:
    body: dict[str, Any] = {"prompt": PROMPT} if path == TEXT else {"messages": MESSAGES}
    body |= {"max_tokens": 30, "temperature": 0, "stream_options": {"include_usage": True}}
    chunks = client.chunks(path, body)
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    last = chunks[-1]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] > 0
    details, speculation = last["usage"]["completion_tokens_details"], last["speculation"]
    assert details["accepted_prediction_tokens"] == speculation["accepted"]
    n_rejected = speculation["drafted"] - speculation["accepted"]
    assert details["rejected_prediction_tokens"] == n_rejected


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_who_drafted_each_piece(client: Client, library: Llama, path: str, n: int) -> None:
    body: dict[str, Any] = {"prompt": PROMPT} if path == TEXT else {"messages": MESSAGES}
    given = {**body, **REPEATING, "n": n}
    shown = {**given, "speculation": {"show_tokens": True}}
    whole, chunks = client.right(path, shown), client.chunks(path, shown)
    sources = set()
    for i, choice in enumerate(whole["choices"]):
        text = choice["text"] if path == TEXT else choice["message"]["content"]
        pieces = choice["token_sources"]
        assert "".join(piece["text"] for piece in pieces) == text
        sources |= {piece["source"] for piece in pieces}
        streamed = [c for c in deltas(chunks) if c["index"] == i]
        for one in streamed:  # each chunk says of its own text
            of_text = one["text"] if path == TEXT else one["delta"].get("content", "")
            said = "".join(piece["text"] for piece in one.get("token_sources", ()))
            assert said == of_text
        assert [p["text"] for c in streamed for p in c.get("token_sources", ())] == [
            piece["text"] for piece in pieces
        ]
    assert sources == {"target", "copy"}
    assert "token_sources" not in client.right(path, given)["choices"][0]


@pytest.mark.parametrize(
    ("wanted", "most"), [({"draft": False}, 0), ({"n_draft": 0}, 0), ({"n_draft": 2}, 2)], ids=repr
)
def test_a_request_says_how_much_is_drafted(
    client: Client, wanted: dict[str, Any], most: int
) -> None:
    body = {"prompt": PROMPT, **REPEATING}
    free, bound = client.right(TEXT, body), client.right(TEXT, {**body, "speculation": wanted})
    assert bound["choices"][0]["text"] == free["choices"][0]["text"]
    speculation = bound["speculation"]
    assert free["speculation"]["accepted"] > 0
    assert len(speculation["verified_histogram"]) - 1 <= most
    assert (speculation["drafted"] > 0) == (most > 0)
    if not most:
        assert speculation["state"] == "disabled"
        assert "speculation.draft=false" in speculation["reason_off"]


def test_the_servers_defaults_and_bounds() -> None:
    with served(opened(), defaults={"temperature": 0.0, "seed": 4}, max_tokens=5) as client:
        texts = {client.right(TEXT, {"prompt": PROMPT, "max_tokens": n})["choices"][0]["text"]
                 for n in (5, 400, 0, -1)}  # fmt: skip
        assert len(texts) == 1
        assert client.right(TEXT, {"prompt": PROMPT})["usage"]["completion_tokens"] <= 5
        hot = {"prompt": PROMPT, "temperature": 1.5, "seed": 1}
        assert client.right(TEXT, hot)["choices"][0]["text"] not in texts


def deltas(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [choice for chunk in chunks for choice in chunk["choices"]]


def calls_of(choices: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Name and arguments of each call of a stream."""
    calls: dict[int, list[str]] = {}
    for choice in choices:
        for call in choice["delta"].get("tool_calls", ()):
            one = calls.setdefault(call["index"], ["", ""])
            one[0] += call["function"].get("name", "")
            one[1] += call["function"].get("arguments", "")
    return [(name, arguments) for name, arguments in calls.values()]


def without_call_ids(answer: dict[str, Any]) -> Any:
    """The ids of calls are made of the answer's own."""
    for choice in answer["choices"]:
        for call in choice["message"].get("tool_calls", ()):
            call["id"] = ""
    return as_json(answer)


def as_json(answer: Any) -> Any:
    """The answer as JSON has it: tuples are lists, keys are text."""
    return json.loads(json.dumps(answer))
