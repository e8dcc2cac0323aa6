"""A server on a socket with a tiny model whose answers the test dictates."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from pyllama_spec import Llama
from pyllama_spec.server import ServerSettings, create_app
from pyllama_spec.server.app import App
from tests.faces.chat_world import Said, open_family


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
    server = uvicorn.Server(
        uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None, lifespan="off")
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.01)
        (socket,) = server.servers[0].sockets
        yield Served(f"http://127.0.0.1:{socket.getsockname()[1]}", llm, app, defaults)
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def family_server(family: str, **settings: Any) -> Iterator[Served]:
    """A server of a tiny model with the chat template of a published family."""
    with open_family(family) as llm, served(llm, **settings) as server:
        yield server
