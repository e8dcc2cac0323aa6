"""Models that fail inside: the server opens them again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pyllama_spec import Llama
from tests.models import model_path
from tests.rpc.tools import Server
from tests.server.models_world import ASKED, ENDLESS, TEXT, asked, keywords, several, spec, text_of
from tests.server.world import Client, served, until

# Seconds between two tries, and what clients are told.
SOON = {"retry_after_s": 1}


def remote(layers: Server) -> dict[str, Any]:
    return {"n_gpu_layers": -1, "rpc_servers": [layers.address], "draft": "prompt-lookup"}


@contextmanager
def one_model(layers: Server) -> Iterator[Client]:
    """A server of a model that the caller opened."""
    with Llama(**keywords("a", **remote(layers))) as llm, served(llm, **SOON) as client:
        yield client


@contextmanager
def listed_model(layers: Server) -> Iterator[Client]:
    """A server that loads the model itself."""
    with several(spec("a", remote(layers)), settings=SOON) as (client, _):
        yield client


def works(llm: Llama) -> bool:
    return llm.is_usable


def is_ready(client: Client) -> bool:
    return client.get("/ready")[0] == 200


@pytest.mark.parametrize("serving", [one_model, listed_model])
def test_a_model_whose_layers_were_lost_is_opened_again(serving: Any) -> None:
    with Server() as layers, serving(layers) as client:
        text = text_of(asked(client, None))
        layers.kill()
        status, answer = asked(client, None)
        assert (status, answer["error"]["code"]) == (503, "layers_unreachable"), answer
        # It cannot be opened before they are there again.
        until(lambda: asked(client, None)[1]["error"]["code"] == "model_not_loaded")
        if serving is one_model:
            status, answer = client.get("/ready")
            assert (status, answer["error"]["code"]) == (503, "loading")
            assert "failed inside" in answer["error"]["message"]
        assert client.get("/health")[0] == 200
        layers.start()
        until(lambda: asked(client, None)[0] == 200)
        assert is_ready(client)
        assert text_of(asked(client, None)) == text


def test_the_only_model_is_opened_again_though_nobody_asks() -> None:
    """A proxy sends nothing to a server that is not ready."""
    with Server() as layers, one_model(layers) as client:
        connection, response = client.send("POST", TEXT, ENDLESS)
        assert response.readline()
        layers.kill()
        layers.start()
        rest = response.read()
        connection.close()
        assert b'"layers_unreachable"' in rest, rest[-1000:]
        until(lambda: is_ready(client))
        text_of(client.post(TEXT, {**ASKED, "max_tokens": 2}))


def test_all_requests_of_a_failed_model_are_told_to_come_again() -> None:
    with Server() as layers, one_model(layers) as client:
        several_at_once = [client.send("POST", TEXT, ENDLESS) for _ in range(2)]
        for _, response in several_at_once:
            assert response.readline()
        layers.kill()
        for connection, response in several_at_once:
            rest = response.read()
            connection.close()
            assert b'"layers_unreachable"' in rest or b'"model_failed"' in rest, rest[-1000:]


def test_a_llama_is_opened_again_in_place() -> None:
    given = {**keywords("a"), "n_parallel": 1}
    with Server() as layers, Llama(**given, **remote(layers)) as llm:
        expected = llm.create_completion("the cat", max_tokens=8, temperature=0)
        assert works(llm)
        llm.chat_format = "chatml"
        layers.kill()
        with pytest.raises(Exception, match="lost"):
            llm.create_completion("the cat and the dog", max_tokens=8)
        assert not works(llm)
        with pytest.raises(Exception, match="cannot be reached"):
            llm.reopen()
        assert not works(llm)
        layers.start()
        llm.reopen()
        assert works(llm)
        assert llm.chat_format == "chatml"
        again = llm.create_completion("the cat", max_tokens=8, temperature=0)
        assert text_of((200, again)) == text_of((200, expected))
        model = str(model_path("llama", seed=0))
        assert llm.model_path == model
    assert not works(llm)
