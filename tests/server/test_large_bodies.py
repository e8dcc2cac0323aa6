"""Large bodies are processed in a thread while the loop answers; counts refuse some early."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pyllama_spec.server import door, keywords
from pyllama_spec.server.api_errors import ApiError
from tests.faces.tools import open_tiny
from tests.server.test_noise import value
from tests.server.world import PATIENCE_S, Client, is_idle, served, until
from tests.tiers import release_except

CHAT, TEXT, MESSAGES, RESPONSES = (
    "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses",
)  # fmt: skip
# Above the bound from which on a body is large, and too long for the context.
WORDS = "the cat sat " * (door.LARGE // 8)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with served(open_tiny(embedding=True, pooling_type="mean", max_waiting=8)) as client:
        yield client
        until(lambda: is_idle(client))


def test_others_are_answered_meanwhile(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are answered while one body is decoded and further large ones wait."""
    inside, go_on = threading.Event(), threading.Event()
    decoded = door.decoded

    def held(raw: bytes, shape: type[Any]) -> Any:
        if len(raw) >= door.LARGE:
            inside.set()
            assert go_on.wait(PATIENCE_S)
        return decoded(raw, shape)

    monkeypatch.setattr(door, "decoded", held)
    statuses: list[int] = []

    def send() -> None:
        statuses.append(client.post(TEXT, {"prompt": WORDS})[0])

    senders = [threading.Thread(target=send) for _ in range(3)]
    for sender in senders:
        sender.start()
    try:
        assert inside.wait(PATIENCE_S)
        assert client.get("/health")[0] == 200
        client.right(TEXT, {"prompt": "a", "max_tokens": 2})
        client.right("/tokenize", {"content": "the cat"})
        assert not statuses
    finally:
        go_on.set()
        for sender in senders:
            sender.join(PATIENCE_S)
    assert statuses == [400] * 3


MANY = door.MAX_VALUES * 3
BOMBS = {
    "keys": b"{%s}" % b",".join(b'"%d":0' % i for i in range(MANY)),
    "lists": b'{"messages": [%s]}' % b",".join([b"[]"] * MANY),
    "depth": b'{"messages": %s' % (b"[" * 300_000),
    "texts": b'{"messages": [%s]}' % b",".join([b'"a"'] * MANY),
    "numbers": b'{"prompt": [%s7]}' % (b"7," * (5 << 18)),
    "a number": b'{"prompt": "a", "max_tokens": %s}' % (b"9" * 300_000),
    "a fraction": b'{"prompt": "a", "temperature": 0.%s}' % (b"9" * 300_000),
    "an unknown number": b'{"prompt": [%s]}' % (b"9" * 300_000),
    "no end of a text": b'{"prompt": "' + b"a" * 300_000,
    "backslashes": b'{"prompt": "' + b"\\" * 300_001,
    "nothing": b" " * 300_000,
    "a stretch": b'{"prompt": "%s", "content": "%s"}' % (b" " * 3_000_000, b" " * 3_000_000),
    "no UTF-8": b'{"prompt": "' + b"\xff" * 300_000 + b'"}',
}


PATHS = (CHAT, TEXT, MESSAGES, RESPONSES, "/tokenize")
CASES = [(name, path) for name in BOMBS for path in PATHS]


@pytest.mark.parametrize("case", release_except(CASES, CASES[:: len(PATHS) + 1]))
def test_a_bomb_is_a_400_of_its_kind(client: Client, case: tuple[str, str]) -> None:
    name, path = case
    status, answer = client.post(path, BOMBS[name])
    if name == "a fraction" and path == TEXT:  # a number as any other
        assert status in (200, 400)
        return
    assert status == 400, answer
    error = answer["error"]
    if path != MESSAGES:
        assert error["code"] in (
            "invalid_json", "invalid_type", "invalid_value", "beyond_bound", "unsupported",
        )  # fmt: skip
    assert error["message"]
    assert not client.service.answers


@pytest.mark.parametrize("name", ["keys", "lists", "depth", "texts", "numbers"])
def test_many_values_are_refused_before_they_are_decoded(
    client: Client, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Decoding in C blocks all other threads until it ends, so the refusal comes before."""
    monkeypatch.setattr(door, "decoded", lambda *_: pytest.fail("it was decoded"))
    status, answer = client.post(TEXT, BOMBS[name])
    assert (status, answer["error"]["code"]) == (400, "beyond_bound")


def test_signs_in_texts_do_not_count() -> None:
    texts = ['[{",' * 60_000, "\\" * 60_000, '"' * 60_000, '\\"' * 20_000 + "[[" * 220_000, ""]
    for text in texts:
        door.check_signs(json.dumps({"a": text, "b": [text, {text[:50]: 1}]}).encode(), 0)
    ids = b'{"prompt": [%s7]}' % (b"7," * ((1 << 20) - 1))
    door.check_signs(ids, 0)  # as many as the longest context has


def test_what_the_bound_takes_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts of signs never refuse a body with few enough values."""
    n_taken = n_refused = 0
    for most in (4, 12):
        monkeypatch.setattr(door, "MAX_VALUES", most)
        monkeypatch.setattr(keywords, "MAX_VALUES", most)
        rng = random.Random(most)
        for _ in range(1500):
            body = {"a": value(rng), "b": [value(rng)]}
            raw = json.dumps(body).encode()
            try:
                keywords.check_values(body)
            except ApiError:
                n_refused += 1
                continue
            n_taken += 1
            door.check_signs(raw, 0)
    assert min(n_taken, n_refused) > 100
