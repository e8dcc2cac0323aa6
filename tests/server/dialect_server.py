"""A server on a socket with a tiny model whose answers the test dictates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyllama_spec import Llama
from pyllama_spec.server import ServerSettings, create_app
from pyllama_spec.server.app import App
from tests.faces.chat_world import Said, open_family
from tests.server.world import run


class Served:
    """A server that runs.

    Args:
        url: its address.
        llm: its model.
        app: its application.
        defaults: the defaults of its requests.

    """

    def __init__(self, url: str, llm: Llama, app: App, defaults: dict[str, Any]) -> None:
        self.url, self.llm, self.app, self._defaults = url, llm, app, defaults

    def say(self, text: str | None) -> None:
        """Sets the model's next answer; None for its own."""
        self._defaults.pop("logits_processor", None)
        if text is not None:
            ids = self.llm.model.vocab.tokenize(text, add_special=False, parse_special=True)
            self._defaults["logits_processor"] = Said(ids)


@contextmanager
def served(llm: Llama, **settings: Any) -> Iterator[Served]:
    """A server of a model, which it does not close."""
    defaults: dict[str, Any] = {"temperature": 0.0, "max_tokens": 400}
    app = create_app(llm, ServerSettings(defaults=defaults, **settings))
    with run(app) as client:
        yield Served(client.url, llm, app, defaults)


@contextmanager
def family_server(family: str, **settings: Any) -> Iterator[Served]:
    """A server of a tiny model with the chat template of a published family."""
    with open_family(family) as llm, served(llm, **settings) as server:
        yield server
