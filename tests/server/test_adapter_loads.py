"""Adapters of a server's models that cannot be loaded, and are tried again."""

from __future__ import annotations

import json
import resource
import shutil
import threading
from pathlib import Path

import pytest

from pyllama_spec.engine import Adapter, Model
from pyllama_spec.server import models as server_models
from tests.fuzz.runner import mapped_bytes
from tests.models import model_path
from tests.models.adapter import write_large_adapter
from tests.server.models_world import (
    ASKED,
    Held,
    adapters,
    asked,
    own_text,
    several,
    spec,
    states,
    text_of,
)
from tests.server.world import PATIENCE_S, TEXT, Endless, until

__all__ = ["adapters"]


def test_an_adapter_that_lacked_memory_is_tried_again_later(
    adapters: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine calls it a file that is no adapter of the model."""
    large = write_large_adapter(model_path("llama", seed=0), tmp_path / "private.gguf")
    n_tries = 0

    def load_in_little_memory(model: Model, path: Path) -> Adapter:
        nonlocal n_tries
        if path != large:  # it loads in another thread, and the limit is the process's
            return Adapter(model, path)
        n_tries += 1
        limits = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (mapped_bytes() + (24 << 20), limits[1]))
        try:
            return Adapter(model, path)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limits)

    monkeypatch.setattr(server_models, "Adapter", load_in_little_memory)
    named = {"large": (large, 1.0), "poet": (adapters[0], 1.0)}
    with several(spec("a", adapters=named)) as (client, models):
        for n in (1, 1, 1, 2):  # a client in a loop starts no load with each request
            if n == 2:
                make_old(models, "large")
            connection, response = client.send("POST", TEXT, {**ASKED, "model": "large"})
            answer = json.loads(response.read())
            connection.close()
            assert (response.status, answer["error"]["code"]) == (503, "model_not_loaded"), answer
            assert response.getheader("retry-after") is not None
            assert "there is not enough memory for it" in answer["error"]["message"]
            assert "private" not in str(answer)
            until(lambda: not models.named("a").retries)
            assert n_tries == n
        assert states(client)["large"] == "failed"
        assert text_of(asked(client, "poet")) == own_text("a", adapters[0])
        monkeypatch.undo()
        shutil.copy(adapters[0], large)
        make_old(models, "large")
        until(lambda: asked(client, "large")[0] == 200)
        assert states(client)["large"] == "loaded"
        until(lambda: models.named("a").n_users == 0)
        assert models.begun == ["a"]


def test_an_adapter_that_was_damaged_is_tried_again_later(
    adapters: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "poet.gguf"
    path.write_bytes(adapters[0].read_bytes()[:-100])
    caplog.set_level("WARNING", "pyllama_spec.server")
    with several(spec("a", adapters={"poet": (path, 1.0)})) as (client, models):
        assert [asked(client, "poet")[0] for _ in range(2)] == [500] * 2
        (line,) = caplog.messages
        assert f"the adapter poet cannot be loaded: cannot use {path}" in line
        path.write_bytes(adapters[0].read_bytes())
        make_old(models, "poet")
        with Endless(client, model="a"):  # a model that computes meanwhile
            assert asked(client, "poet")[0] == 500
            until(lambda: not models.named("a").retries)
            assert text_of(asked(client, "poet")) == own_text("a", adapters[0])


def make_old(models: Held, name: str) -> None:
    """Lets an adapter be tried again at the next request."""
    opened = models.named(name).opened
    assert opened is not None
    failure = opened.failures[name]
    opened.failures[name] = failure._replace(at=failure.at - 3600)


def test_an_adapter_whose_file_stalls_delays_no_request_and_no_stop(
    adapters: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on, has_begun = threading.Event(), threading.Event()

    def load_in_the_end(model: Model, path: Path) -> Adapter:
        has_begun.set()
        assert may_go_on.wait(PATIENCE_S)
        return Adapter(model, path)

    monkeypatch.setattr("pyllama_spec.server.models._LAST_LOAD_S", 0.1)
    named = {"poet": (tmp_path / "gone.gguf", 1.0), "clerk": (adapters[1], 1.0)}
    try:
        with several(spec("a", adapters=named)) as (client, models):
            assert asked(client, "poet")[0] == 500
            monkeypatch.setattr(server_models, "Adapter", load_in_the_end)
            make_old(models, "poet")
            assert [asked(client, "poet")[0] for _ in range(2)] == [500] * 2
            assert has_begun.wait(PATIENCE_S) and len(models.named("a").retries) == 1
            assert asked(client, "clerk")[0] == 200
        (opened,) = models.made
        assert not opened.llm.model.is_closed  # it is not closed below its load
    finally:
        may_go_on.set()
    until(lambda: not models._threads)
    opened.llm.close()
