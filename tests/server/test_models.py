"""Several models: their names, loads and closes, and the effect on other requests.

The test holds loads up, so that no assertion depends on a clock.
"""

from __future__ import annotations

import json
import random
import re
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pyllama_spec import Llama
from pyllama_spec.server import ModelSpec
from pyllama_spec.server.app import ROUTES
from tests.models import model_path
from tests.server.models_world import (
    ASKED,
    Asking,
    adapters,
    asked,
    keywords,
    own_text,
    several,
    spec,
    states,
    text_of,
)
from tests.server.world import ENDLESS, PATIENCE_S, TEXT, is_idle, served, until
from tests.tiers import release_except

__all__ = ["adapters"]

MESSAGES = [{"role": "user", "content": "the cat"}]


def test_the_model_of_the_request_answers_with_its_own_text(adapters: list[Path]) -> None:
    wanted = {
        "a": own_text("a"), "alias": own_text("a"), "b": own_text("b"),
        "poet": own_text("a", adapters[0]), "clerk": own_text("a", adapters[1]),
    }  # fmt: skip
    assert len(set(wanted.values())) == 4
    of_a = spec(
        "a", {"draft": "prompt-lookup"}, aliases=("alias",),
        adapters={"poet": (adapters[0], 1.0), "clerk": (adapters[1], 1.0)},
    )  # fmt: skip
    with several(of_a, spec("b")) as (client, models):
        assert states(client) == dict.fromkeys(("a", "poet", "clerk", "b"), "unloaded")
        assert client.get("/v1/models/poet")[1]["parent"] == "a"
        assert client.get("/v1/models/alias")[1]["id"] == "a"
        for name, text in wanted.items():
            status, answer = asked(client, name)
            assert text_of((status, answer)) == text
            assert answer["model"] == name
        assert text_of(asked(client, None)) == wanted["a"]
        # Side by side, those with other adapters too.
        begun = {name: Asking(client, name) for _ in range(2) for name in wanted}
        assert {name: text_of(one.result()) for name, one in begun.items()} == wanted
        assert states(client) == dict.fromkeys(("a", "poet", "clerk", "b"), "loaded")
        assert sorted(models.begun) == ["a", "b"]
        shown = {one["id"]: one for one in client.get("/v1/models")[1]["data"]}
        assert shown["a"]["meta"]["draft"] == "prompt-lookup"
        assert shown["b"]["meta"]["draft"] is None
        assert shown["a"]["meta"]["memory_bytes"] == models.made[0].llm.memory_bytes


# What each endpoint needs beside the name of its model.
BODIES: dict[str, dict[str, Any]] = {
    "completions": {"prompt": "a", "max_tokens": 1}, "completion": {"prompt": "a", "n_predict": 1},
    "infill": {"input_prefix": "a", "input_suffix": "b"}, "chat": {"messages": MESSAGES},
    "messages": {"messages": MESSAGES, "max_tokens": 1}, "responses": {"input": "a"},
    "embeddings": {"input": "a"}, "rerank": {"query": "a", "documents": ["b"]},
    "tokenize": {"content": "a", "input": "a"}, "detokenize": {"tokens": [97]},
    "apply-template": {"messages": MESSAGES},
}  # fmt: skip


def body_of(path: str) -> dict[str, Any]:
    words = set(re.split(r"[/_]", path))
    known = {**BODIES, "count": BODIES["tokenize"], "reranking": BODIES["rerank"]}
    body = next(known[word] for word in (*known, "") if word in words)
    return {**body, **({"messages": MESSAGES} if "chat" in words else {})}


def test_every_endpoint_with_a_body_goes_by_its_model() -> None:
    paths = sorted({route.path for route in ROUTES if route.method == "POST"})
    assert len(paths) > 20
    with several(spec("a"), spec("b")) as (client, models):
        for path in paths:
            status, answer = client.post(path, {**body_of(path), "model": "c"})
            message = answer["error"]["message"]
            assert status == 404, (path, answer)
            assert "'c'" in message
            assert "there are a, b" in message
        assert models.begun == []
        for path in paths:
            status, answer = client.post(path, {**body_of(path), "model": "b"})
            assert status in (200, 400), (path, answer)
        assert models.begun == ["b"]
        assert client.get("/v1/models/c")[0] == 404
        assert client.get("/props?model=c")[0] == 404
        assert client.get("/props?model=a")[1]["state"] == "unloaded"
        assert client.get("/props?model=b")[1]["model_alias"] == "b"
        assert models.begun == ["b"]


def test_one_model_without_a_list_takes_any_name() -> None:
    with served(Llama(**keywords("a")), alias="mine", aliases=("gpt-4o",)) as client:
        assert client.get("/v1/models/gpt-4o")[1]["aliases"] == ["gpt-4o"]
        assert asked(client, "whatever")[1]["model"] == "whatever"
        assert client.get("/v1/models/whatever")[0] == 404
        assert states(client) == {"mine": "loaded"}


def test_a_list_may_take_any_name() -> None:
    with several(spec("a"), spec("b"), takes_any_name=True) as (client, models):
        status, answer = asked(client, "whatever")
        assert (text_of((status, answer)), answer["model"]) == (own_text("a"), "whatever")
        assert text_of(asked(client, "b")) == own_text("b")
        assert models.begun == ["a", "b"]


# ---- while a model is loaded


def test_a_load_is_one_for_all_who_wait_and_holds_up_nobody() -> None:
    with several(spec("a"), spec("b")) as (client, models):
        assert asked(client, "a")[0] == 200
        models.may_go_on.clear()
        waiting = [Asking(client, "b") for _ in range(2)]
        until(lambda: models.named("b").n_waiting == 2)
        assert states(client) == {"a": "loaded", "b": "loading"}
        assert client.get("/health")[0] == 200
        figures = client.get("/metrics")[1]
        assert 'vllm:num_requests_waiting{model="b"} 2.0' in figures
        assert asked(client, "a")[0] == 200  # others go on
        models.may_go_on.set()
        texts = {text_of(one.result()) for one in waiting}
        assert texts == {own_text("b")}
        assert models.begun == ["a", "b"]
        figures = client.get("/metrics")[1]
        assert 'vllm:request_success_total{finished_reason="length",model="b"} 2.0' in figures
        assert 'vllm:request_success_total{finished_reason="length",model="a"} 2.0' in figures


def test_waiting_for_a_load_has_bounds() -> None:
    with several(spec("a", {"max_waiting": 3}), held=True) as (client, models):
        waiting = [Asking(client, "a") for _ in range(3)]
        until(lambda: models.named("a").n_waiting == 3)
        connection, response = client.send("POST", TEXT, {**ASKED, "model": "a"})
        assert response.status == 429
        assert response.getheader("retry-after")
        assert "waiting for the model 'a' to load: 3; the server" in response.read().decode()
        connection.close()
        models.may_go_on.set()
        assert [one.result()[0] for one in waiting] == [200] * 3
    with several(spec("a"), held=True, load_timeout_s=0.05) as (client, models):
        status, answer = asked(client, "a")
        assert (status, answer["error"]["code"]) == (503, "model_loading")
        assert "after 0.05 s: it is still being loaded" in answer["error"]["message"]
        models.may_go_on.set()
        until(lambda: models.named("a").service is not None)
        assert asked(client, "a")[0] == 200
        assert models.begun == ["a"]


def test_a_client_that_leaves_waits_no_more_and_the_load_goes_on() -> None:
    with several(spec("a"), held=True) as (client, models):
        connection = client.connect()
        connection.request("POST", TEXT, json.dumps(ASKED))
        until(lambda: models.named("a").n_waiting == 1)
        connection.close()
        until(lambda: models.named("a").n_waiting == 0 and is_idle(client))
        models.may_go_on.set()
        until(lambda: models.named("a").state == "loaded")


STREAMS: dict[str, dict[str, Any]] = {
    TEXT: {"prompt": "a", "max_tokens": 2}, "/completion": {"prompt": "a", "n_predict": 2},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 2},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 2},
    "/v1/responses": {"input": "a", "max_output_tokens": 2},
}  # fmt: skip


def kinds(events: str) -> list[Any]:
    """The kinds of the events' data, in order."""
    data = [line[6:] for line in events.splitlines() if line.startswith("data: ")]
    return [sorted(json.loads(one)) if one.startswith("{") else one for one in data]


@pytest.mark.parametrize("path", release_except(STREAMS, (TEXT, "/v1/messages")))
def test_a_stream_that_waits_for_a_load_is_not_silent(path: str) -> None:
    """The stream ends as elsewhere, and an error is its last event."""
    body = {**STREAMS[path], "temperature": 0, "stream": True}
    gone = spec("b", {"model_path": "/no/such/private.gguf"})
    for name, end in (("a", ""), ("b", "cannot be loaded")):
        with several(spec("a"), gone, settings={"ping_s": 0.01}, held=True) as (client, models):
            connection, response = client.send("POST", path, {**body, "model": name})
            assert response.status == 200
            assert [response.readline() for _ in range(4)] == [b": ping\n", b"\n"] * 2
            models.may_go_on.set()
            rest = response.read().decode()
            connection.close()
            assert end in rest
            assert "private" not in rest
            if name == "a":  # the events are those of a model that was there
                again = client.send("POST", path, {**body, "model": name})[1].read().decode()
                assert kinds(rest) == kinds(again)
            until(lambda: is_idle(client))


@pytest.mark.parametrize("fault", ["missing", "memory"])
def test_a_load_that_fails_is_told_and_others_go_on(fault: str, tmp_path: Path) -> None:
    path = tmp_path / "private" / "b.gguf"
    path.parent.mkdir()
    more: dict[str, Any] = {"model_path": str(path)}
    if fault == "memory":
        path.symlink_to(model_path("llama"))
        more |= {"n_ctx": 1 << 30, "n_parallel": 1}
    with several(spec("a"), spec("b", more)) as (client, models):
        for _ in range(2):
            connection, response = client.send("POST", TEXT, {**ASKED, "model": "b"})
            answer = json.loads(response.read())
            connection.close()
            # Waiting helps where another program has the memory, and nowhere else.
            may_pass = fault == "memory"
            assert response.status == (503 if may_pass else 500)
            assert bool(response.getheader("retry-after")) == may_pass
            assert response.getheader("x-should-retry") == (None if may_pass else "false")
            assert answer["error"]["code"] == "model_not_loaded"
            assert "private" not in str(answer)
        assert models.begun == ["b"]  # not once more for each
        assert states(client)["b"] == "failed"
        assert asked(client, "a")[0] == 200
        if fault == "missing":  # and it is there after all
            path.symlink_to(model_path("llama"))
            failure = models.named("b").failure
            assert failure is not None
            models.named("b").failure = failure._replace(at=failure.at - 3600)
            assert asked(client, "b")[0] == 200


def test_an_adapter_that_fails_takes_nothing_else_along(adapters: list[Path]) -> None:
    wrong = {"gone": (Path("/no/such/private.gguf"), 1.0), "model": (model_path("llama"), 1.0)}
    with several(spec("a", adapters={**wrong, "poet": (adapters[0], 1.0)})) as (client, _):
        for name in wrong:
            status, answer = asked(client, name)
            assert (status, answer["error"]["code"]) == (500, "model_not_loaded")
            assert "private" not in str(answer)
        assert text_of(asked(client, "poet")) == own_text("a", adapters[0])
        assert states(client) == {"a": "loaded", "gone": "failed", "model": "failed",
                                  "poet": "loaded"}  # fmt: skip


# ---- the beginning and the end


def test_what_is_preloaded_is_waited_for() -> None:
    gone = ModelSpec(name="gone", keywords=keywords("b", model_path="/none"), is_preloaded=True)
    with several(spec("a", is_preloaded=True), gone, spec("b"), held=True) as (client, models):
        until(lambda: models.begun == ["a"])
        status, answer = client.get("/ready")
        assert (status, answer["error"]["code"]) == (503, "loading")
        assert client.get("/health")[0] == 503
        models.may_go_on.set()
        until(lambda: client.get("/health")[0] == 200)
        assert states(client) == {"a": "loaded", "gone": "failed", "b": "unloaded"}


@pytest.mark.parametrize("is_preloaded", [False, True])
def test_an_end_in_the_middle_of_a_load(is_preloaded: bool) -> None:
    with several(spec("a", is_preloaded=is_preloaded), held=True) as (client, models):
        waiting = Asking(client, "a")
        until(lambda: models.named("a").n_waiting == 1)
        client.server.stop()
        status, answer = waiting.result()
        assert (status, answer["error"]["code"]) == (503, "stopping")
        models.may_go_on.set()
    assert models.named("a").service is None
    assert all(one.llm.model.is_closed for one in models.made)


@pytest.mark.parametrize(
    ("seed", "n_requests"), [(1, 25), pytest.param(2, 400, marks=pytest.mark.slow)]
)
def test_traffic_at_random(seed: int, n_requests: int, adapters: list[Path]) -> None:
    """Random requests, disconnects and loads: each text equals that of its model alone."""
    specs = [
        spec("a", adapters={"poet": (adapters[0], 1.0), "clerk": (adapters[1], 1.0)}),
        spec("b", {"draft": "prompt-lookup"}, keep_alive_s=0),
        spec("c", {"n_parallel": 1}, aliases=("d",)),
    ]
    wanted = {name: own_text(name) for name in "abc"}
    wanted |= {"poet": own_text("a", adapters[0]), "clerk": own_text("a", adapters[1])}
    wanted["d"] = wanted["c"]
    rng = random.Random(seed)
    plans = [(rng.choice(list(wanted)), rng.choice(("whole", "stream", "leave", "mute")))
             for _ in range(n_requests)]  # fmt: skip
    with several(*specs, max_loaded=2) as (client, models):

        def one(plan: tuple[str, str]) -> None:
            name, way = plan
            if way == "whole":
                assert text_of(asked(client, name)) == wanted[name]
            elif way == "stream":
                chunks = client.chunks(TEXT, {**ASKED, "model": name})
                text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
                assert text == wanted[name]
            elif way == "leave":
                connection = client.connect()
                body = {**ENDLESS, "model": name, "stream": True}
                connection.request("POST", TEXT, json.dumps(body))
                connection.close()
            else:  # in the middle of its request, with a reset in place of an end
                head = f"POST {TEXT} HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\n{{"
                with socket.create_connection((client.host, client.port), PATIENCE_S) as sock:
                    sock.sendall(head.encode()[: 20 + len(name) * 40])
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(one, plans[: n_requests // 2]))
            until(lambda: is_idle(client))
            n_files = open_files()
            list(pool.map(one, plans[n_requests // 2 :]))
        # The files of two loaded models may come and go.
        until(lambda: is_idle(client) and open_files() <= n_files + 8)
        assert all(one.n_users == one.n_waiting == 0 for one in models.all)
        assert sum(one.service is not None for one in models.all) <= 2
    assert all(made.llm.model.is_closed for made in models.made)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
