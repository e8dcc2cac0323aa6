"""Bodies within max_body_bytes but with too much for a request: each is a 400 at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.faces.tools import open_tiny
from tests.server.world import Client, is_idle, served, until

CHAT, TEXT, MESSAGES, RESPONSES = (
    "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses",
)  # fmt: skip
USER = {"role": "user", "content": "a"}
BLOCK = {"type": "text", "text": ""}
THOUGHT = {"type": "thinking", "thinking": "a"}
REASONING = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "a"}]}
SCHEMA = {"enum": list(range(100_001))}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with served(open_tiny(n_parallel=2, max_waiting=3)) as client:
        yield client
        until(lambda: is_idle(client))


def refused(client: Client, path: str, body: Any, said: str) -> None:
    """Asserts that a body is refused as more than is taken, and that nothing was begun for it."""
    status, answer = client.post(path, body)
    assert status == 400, answer
    assert said in answer["error"]["message"]
    assert not client.service.answers


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        (CHAT, {"messages": [{"role": "user", "content": [BLOCK] * 40_000}]}, "100000"),
        (MESSAGES, {"messages": [USER, {"role": "assistant", "content": [THOUGHT] * 50_000}, USER]},
         "100000"),
        (RESPONSES, {"input": [{**REASONING, "summary": [BLOCK] * 40_000}]}, "100000"),
        (CHAT, {"messages": [USER], "chat_template_kwargs": {"a": [[[]]] * 60_000}}, "100000"),
        (TEXT, {"prompt": "a", "json_schema": SCHEMA}, "100000"),
    ],
)  # fmt: skip
def test_messages_and_what_is_in_them(client: Client, path: str, body: Any, said: str) -> None:
    refused(client, path, body, said)


@pytest.mark.parametrize(
    ("field", "value", "most"),
    [
        ("stop", ["a"] * 65, "64"),
        ("stop_token_ids", [1] * 10_001, "10000"),
        ("logit_bias", {str(i): 1 for i in range(10_001)}, "10000"),
        ("model", "m" * 257, "256"),
        ("timeout", -0.5, "0"),
        ("timeout", -(10**30), "0"),
    ],
)
def test_options(client: Client, field: str, value: Any, most: str) -> None:
    for path, body in (
        (CHAT, {"messages": [USER]}),
        (TEXT, {"prompt": "a"}),
        ("/completion", {"prompt": "a"}),
        ("/infill", {"input_prefix": "a", "input_suffix": "b"}),
        (MESSAGES, {"messages": [USER], "max_tokens": 1}),
        (RESPONSES, {"input": "a"}),
    ):
        name = "stop_sequences" if (field, path) == ("stop", MESSAGES) else field
        if (field, path) != ("stop", RESPONSES):  # which has none
            refused(client, path, {**body, name: value}, most)


BOMBS = {
    "keys": b"{%s}" % b",".join(b'"%d":0' % i for i in range(300_000)),
    "lists": b'{"messages": [%s]}' % b",".join([b"[]"] * 300_000),
    "objects": b'{"messages": [%s]}' % b",".join([b"{}"] * 300_000),
    "depth": b'{"messages": %s' % (b"[" * 300_000),
    "ids": b'{"prompt": [%s7]}' % (b"7," * (5 << 18)),
    "a number": b'{"prompt": "a", "max_tokens": %s}' % (b"9" * 300_000),
    "no end of a text": b'{"prompt": "' + b"a" * 300_000,
    "backslashes": b'{"prompt": "' + b"\\" * 300_001,
    "blanks": b'{"prompt": "%s", "content": "%s"}' % (b" " * 3_000_000, b" " * 3_000_000),
    "no UTF-8": b'{"prompt": "' + b"\xff" * 300_000 + b'"}',
}


@pytest.mark.parametrize("path", (CHAT, TEXT, MESSAGES, RESPONSES, "/tokenize"))
def test_a_bomb_is_a_400(client: Client, path: str) -> None:
    for name, body in BOMBS.items():
        status, answer = client.post(path, body)
        if (name, path) != ("blanks", "/tokenize"):
            assert status == 400, (name, answer)
            assert answer["error"]["message"]
        assert not client.service.answers
