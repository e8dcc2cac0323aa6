"""What a request over HTTP says of its drafts, and the server's defaults."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pyllama_spec import Llama
from tests.faces.tools import open_tiny
from tests.server.world import Client, served

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "the cat sat on the cat sat on the"}]
PROMPT = "the cat sat on the cat sat on the"
# One token over and over, which a lookup finds.
REPEATING = {"max_tokens": 60, "temperature": 0, "logit_bias": {"97": 50.0}}


def opened() -> Llama:
    return open_tiny("prompt-lookup", n_ctx=512, n_parallel=3)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with served(opened(), alias="tiny") as client:
        yield client


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
