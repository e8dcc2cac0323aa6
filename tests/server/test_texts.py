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
# What tests/server/test_random_requests.py does not draw.
CHATS: list[dict[str, Any]] = [
    {"return_token_ids": True, "typical_p": 0.9},
    {"tools": [WEATHER], "tool_choice": "required"},
    {"tools": [WEATHER], "tool_choice": "auto"},
    {"reasoning_format": "auto"},
    {"max_completion_tokens": 6, "max_tokens": None},
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


@pytest.mark.parametrize("options", CHATS, ids=",".join)
def test_a_chat_is_the_librarys(client: Client, library: Llama, options: dict[str, Any]) -> None:
    given = {"max_tokens": 40, "temperature": 0, **options}
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
def test_who_drafted_each_piece(client: Client, path: str) -> None:
    given = {"prompt": PROMPT, "messages": MESSAGES, **REPEATING}
    shown = {**given, "speculation": {"show_tokens": True}}
    (choice,) = client.right(path, shown)["choices"]
    text = choice["text"] if path == TEXT else choice["message"]["content"]
    streamed = [
        one for c in deltas(client.chunks(path, shown)) for one in c.get("token_sources", ())
    ]
    for pieces in (choice["token_sources"], streamed):
        assert "".join(piece["text"] for piece in pieces) == text
        assert {piece["source"] for piece in pieces} == {"target", "copy"}
    assert "token_sources" not in client.right(path, given)["choices"][0]


@pytest.mark.parametrize(("wanted", "most"), [({"draft": False}, 0), ({"n_draft": 2}, 2)], ids=repr)
def test_a_request_says_how_much_is_drafted(
    client: Client, wanted: dict[str, Any], most: int
) -> None:
    body = {"prompt": PROMPT, **REPEATING}
    free, bound = client.right(TEXT, body), client.right(TEXT, {**body, "speculation": wanted})
    assert bound["choices"][0]["text"] == free["choices"][0]["text"]
    speculation = bound["speculation"]
    assert free["speculation"]["accepted"] > 0
    assert len(speculation["accepted_histogram"]) - 1 <= most
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
