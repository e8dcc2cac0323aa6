"""An answer leaves no reference cycles, so that a request's data are freed with it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from pyllama_spec.server import bodies
from tests.faces.tools import open_tiny
from tests.server.world import Client, events_of, is_idle, served, until

CHAT, TEXT, MESSAGES, RESPONSES = (
    "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses",
)  # fmt: skip
USER = [{"role": "user", "content": "the cat äöü 猫"}]
FEW: dict[str, Any] = {"prompt": "the cat sat", "max_tokens": 4}
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "yy"]}}, "required": ["a"]}
FORM = {"type": "json_schema", "json_schema": {"name": "form", "schema": SCHEMA}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
ANSWERED: dict[str, tuple[str, dict[str, Any]]] = {
    "text": (TEXT, FEW),
    "grammar": (TEXT, {**FEW, "grammar": 'root ::= "abc" [a-z]* # ' + "x" * 1000}),
    "grammar that ends": (TEXT, {**FEW, "max_tokens": 20, "grammar": 'root ::= "abcde"'}),
    "several": (TEXT, {**FEW, "prompt": ["the cat", "a dog"], "n": 2, "temperature": 1}),
    "log-probabilities": (TEXT, {**FEW, "logprobs": 3, "echo": True}),
    "stops": (TEXT, {**FEW, "stop": ["zz", "e"], "min_tokens": 2, "logit_bias": {"97": 5}}),
    "shifted": (TEXT, {**FEW, "max_tokens": 160, "context_shift": True, "ignore_eos": True,
                       "grammar": "root ::= [a-z]*"}),
    "prediction": (TEXT, {**FEW, "prediction": {"type": "content", "content": "the cat sat"}}),
    "no draft": (TEXT, {**FEW, "speculation": {"draft": False, "show_tokens": True}}),
    "chat": (CHAT, {"messages": USER, "max_tokens": 4, "logprobs": True, "top_logprobs": 2}),
    "form": (CHAT, {"messages": USER, "max_tokens": 20, "response_format": FORM}),
    "form, n": (CHAT, {"messages": USER, "max_tokens": 9, "response_format": FORM, "n": 2}),
    "tool": (CHAT, {"messages": USER, "max_tokens": 30, "tools": [TOOL],
                    "tool_choice": "required"}),
    "messages": (MESSAGES, {"messages": USER, "max_tokens": 4}),
    "count": (MESSAGES + "/count_tokens", {"messages": USER}),
    "responses": (RESPONSES, {"input": "the cat", "max_output_tokens": 4}),
    "embeddings": ("/v1/embeddings", {"input": ["the cat", "a dog"]}),
    "completion": ("/completion", {"prompt": "the cat", "n_predict": 4}),
    "tokenize": ("/tokenize", {"content": "the cat"}),
    "template": ("/apply-template", {"messages": USER}),
}  # fmt: skip
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "grammar": (TEXT, {**FEW, "grammar": "root ::= ("}),
    "schema": (CHAT, {"messages": USER, "response_format": {
        "type": "json_schema", "json_schema": {"name": "f", "schema": {"type": "nothing"}}}}),
    "long": (CHAT, {"messages": [{"role": "user", "content": "the cat " * 500}]}),
    "type": (TEXT, {**FEW, "max_tokens": "many"}),
    "large": (CHAT, {"messages": [{"role": "user", "content": "the cat " * (bodies.LARGE // 4)}]}),
    "large ids, streamed": (TEXT, {"prompt": [97] * (bodies.LARGE // 2), "stream": True}),
}  # fmt: skip
# A stream is of one prompt.
STREAMED = [name for name, (path, body) in ANSWERED.items()
            if path in (CHAT, TEXT) and not isinstance(body.get("prompt"), list)]  # fmt: skip


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    llm = open_tiny("prompt-lookup", n_parallel=3, max_waiting=8, n_ctx=128, embedding=True,
                    pooling_type="mean")  # fmt: skip
    with served(llm) as client:
        yield client
        until(lambda: is_idle(client))


def left_in_circles(client: Client, act: Callable[[], object]) -> list[str]:
    """The kinds of our objects in reference cycles after later requests."""
    act()  # the first one makes what stays: caches, contexts, modules
    until(lambda: is_idle(client))
    gc.disable()
    gc.freeze()  # what is older is not looked at, which would take most of the time
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(2):  # the engine's thread holds the last request until another one comes
            act()
            until(lambda: is_idle(client))
        gc.collect()
    finally:
        gc.set_debug(0)
        gc.unfreeze()
        gc.enable()
    kinds = [type(one) for one in gc.garbage]
    frames = [one.f_code for one in gc.garbage if isinstance(one, FrameType)]
    gc.garbage.clear()
    ours = {kind.__name__ for kind in kinds if kind.__module__.startswith("pyllama_spec")}
    return sorted(ours | {one.co_name for one in frames if "pyllama_spec" in one.co_filename})


@pytest.mark.parametrize("name", ANSWERED)
@pytest.mark.filterwarnings("ignore:the chat template knows no tools")
def test_an_answer_leaves_none(client: Client, name: str) -> None:
    path, body = ANSWERED[name]
    assert left_in_circles(client, lambda: client.right(path, body)) == []


@pytest.mark.parametrize("name", STREAMED)
@pytest.mark.filterwarnings("ignore:the chat template knows no tools")
def test_a_stream_leaves_none(client: Client, name: str) -> None:
    path, body = ANSWERED[name]
    assert left_in_circles(client, lambda: client.chunks(path, body)) == []


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_leaves_none(client: Client, name: str) -> None:
    path, body = REFUSED[name]

    def refused() -> None:
        assert client.post(path, body)[0] == 400

    assert left_in_circles(client, refused) == []


@pytest.mark.parametrize("grammar", ["", "root ::= [a-z]*"])
def test_a_client_that_leaves_leaves_none(client: Client, grammar: str) -> None:
    endless = {**FEW, "max_tokens": 10**6, "context_shift": True, "ignore_eos": True,
               "stream": True, **({"grammar": grammar} if grammar else {})}  # fmt: skip

    def left() -> None:
        for n_events in range(1, 7):  # in a decode, and between two
            connection, response = client.send("POST", TEXT, endless)
            assert response.status == 200
            events = events_of(response)
            for _ in range(n_events):
                next(events)
            response.close()
            connection.close()
            until(lambda: is_idle(client))

    assert left_in_circles(client, left) == []
