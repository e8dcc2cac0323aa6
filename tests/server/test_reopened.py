"""Models that fail inside: the server opens them again."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pyllama_spec import Llama
from tests.rpc.tools import Server
from tests.server.models_world import asked, keywords, several, spec, text_of
from tests.server.world import Client, Endless, served, until

# Seconds between two tries, and what clients are told.
SOON = {"retry_after_s": 1, "has_slots": True}


def remote(layers: Server) -> dict[str, Any]:
    return {"n_gpu_layers": -1, "rpc_servers": [layers.address], "draft": "prompt-lookup"}


@contextmanager
def one_model(layers: Server, **more: Any) -> Iterator[Client]:
    """A server of a model that the caller opened."""
    given = keywords("a", **{**remote(layers), **more})
    with Llama(**given) as llm, served(llm, **SOON) as client:
        yield client


@contextmanager
def listed_model(layers: Server, **more: Any) -> Iterator[Client]:
    """A server that loads the model itself."""
    with several(spec("a", {**remote(layers), **more}), settings=SOON) as (client, _):
        yield client


@pytest.mark.parametrize("serving", [one_model, listed_model])
def test_a_model_whose_layers_were_lost_is_opened_again(serving: Any) -> None:
    with Server() as layers, serving(layers) as client:
        text = text_of(asked(client, None))
        layers.kill()
        status, answer = asked(client, None)
        assert (status, answer["error"]["code"]) == (503, "layers_unreachable"), answer
        # It cannot be opened before they are there again.
        until(lambda: asked(client, None)[1]["error"]["code"] == "model_not_loaded")
        for path in ("/health", "/props", "/slots"):  # none of them waits
            assert client.get(path)[0] == 200
        layers.start()
        until(lambda: asked(client, None)[0] == 200)
        assert text_of(asked(client, None)) == text


def test_a_hung_server_of_layers_delays_no_other_model() -> None:
    """A model whose client has left is closed for another one, though its decode hangs."""
    with Server() as layers:
        specs = spec("a", remote(layers)), spec("b")
        with several(*specs, settings=SOON, max_loaded=1) as (client, models):
            text = Endless(client, model="a")
            layers.process.send_signal(signal.SIGSTOP)
            text.close()
            until(lambda: not models.named("a").n_users)
            text_of(asked(client, "b"))
            layers.process.send_signal(signal.SIGCONT)
