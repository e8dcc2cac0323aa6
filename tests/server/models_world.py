"""Servers of several models whose loads a test can delay."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pyllama_spec import Llama
from pyllama_spec.server import ModelList, ModelSpec, ServerSettings
from pyllama_spec.server.app import ROUTES
from pyllama_spec.server.exchange import App
from pyllama_spec.server.models import Models, Opened, ServedModel
from tests.models import model_path
from tests.models.adapter import write_adapter
from tests.server.world import PATIENCE_S, TEXT, Client, run

ASKED: dict[str, Any] = {"prompt": "the cat", "max_tokens": 12, "temperature": 0}
SEEDS = {"a": 0, "b": 1, "c": 2}


def keywords(name: str, **more: Any) -> dict[str, Any]:
    """The keywords of Llama() for a model whose text differs by its name."""
    return {
        "model_path": str(model_path("llama", seed=SEEDS[name])), "n_ctx": 256, "n_threads": 1,
        "n_parallel": 2, "max_waiting": 20, "controller": "fixed", "prefix_cache_bytes": 0, **more,
    }  # fmt: skip


def spec(name: str, more: Mapping[str, Any] | None = None, **options: Any) -> ModelSpec:
    """A specification of a model in SEEDS; `more` are keywords of Llama()."""
    return ModelSpec(name=name, keywords=keywords(name, **(more or {})), **options)


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two of the model a."""
    folder, target = tmp_path_factory.mktemp("adapters"), model_path("llama", seed=0)
    return [write_adapter(target, folder / f"{seed}.gguf", seed=seed) for seed in (1, 2)]


class Held(Models):
    """Models whose loads wait until the test releases them."""

    def __init__(self, listed: ModelList, settings: ServerSettings) -> None:
        super().__init__(listed, settings)
        self.begun: list[str] = []
        self.made: list[Opened] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def open(self, spec: ModelSpec) -> Opened:
        self.begun.append(spec.name)
        assert self.may_go_on.wait(PATIENCE_S)
        made = super().open(spec)
        self.made.append(made)
        return made

    def named(self, name: str) -> ServedModel:
        """A model."""
        return self.find(name).model


@contextmanager
def several(
    *specs: ModelSpec, settings: Mapping[str, Any] | None = None, held: bool = False, **limits: Any
) -> Iterator[tuple[Client, Held]]:
    """A server of models; `held`: no load proceeds until the test releases it."""
    listed = ModelList(specs=specs, default=specs[0].name, **limits)
    models = Held(listed, ServerSettings(**(settings or {})))
    if held:
        models.may_go_on.clear()
    try:
        with run(App(models, ROUTES)) as client:
            try:
                yield client, models
            finally:
                models.may_go_on.set()
    finally:
        models.may_go_on.set()


def asked(client: Client, name: str | None, **more: Any) -> tuple[int, Any]:
    """The answer of the model with a name."""
    return client.post(TEXT, {**ASKED, **({} if name is None else {"model": name}), **more})


class Asking:
    """A request in a thread of its own."""

    def __init__(self, client: Client, name: str, **more: Any) -> None:
        self.status, self.answer = 0, None
        self._thread = threading.Thread(target=self._ask, args=(client, name), kwargs=more)
        self._thread.start()

    def _ask(self, client: Client, name: str, **more: Any) -> None:
        self.status, self.answer = asked(client, name, **more)

    def result(self) -> tuple[int, Any]:
        """Waits for the answer."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return self.status, self.answer


def states(client: Client) -> dict[str, str]:
    """The state of each model, as a client is told it."""
    status, answer = client.get("/v1/models")
    assert status == 200
    return {one["id"]: one["state"] for one in answer["data"]}


def written(folder: Path, text: str) -> Path:
    """A file of models."""
    path = folder / "models.toml"
    path.write_text(text, encoding="utf-8")
    return path


def own_text(name: str, adapter: Path | None = None, **more: Any) -> str:
    """The library's text with a model alone."""
    with Llama(**keywords(name, **more)) as llm:
        if adapter is not None:
            llm.set_adapters([(adapter, 1.0)])
        answer: Any = llm.create_completion("the cat", max_tokens=12, temperature=0.0)
        text: str = answer["choices"][0]["text"]
        return text


def text_of(answer: tuple[int, Any]) -> str:
    """The text of a completion."""
    status, body = answer
    assert status == 200, body
    text: str = body["choices"][0]["text"]
    return text
