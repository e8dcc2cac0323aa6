"""A server in a thread, and a client that sees what it sends, byte for byte."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from typing import Any
from urllib.parse import urlsplit

from pyllama_spec import Llama
from pyllama_spec.server import ServerSettings, create_app
from pyllama_spec.server.exchange import App
from pyllama_spec.server.process import HttpServer, Listening
from pyllama_spec.server.service import Service

# A test waits so long for what comes at once: it fails there, and does not hang.
PATIENCE_S = 60.0
TEXT = "/v1/completions"
# Nothing ends it but its reader, or the server.
ENDLESS: dict[str, Any] = {
    "prompt": "the cat", "temperature": 0, "ignore_eos": True, "context_shift": True,
    "max_tokens": 10**9,
}  # fmt: skip
# Of one answer to the next these differ.
# And what a server alone says.
VOLATILE = (
    "id", "created", "timing", "speculation", "usage", "timings", "system_fingerprint",
)  # fmt: skip


class Client:
    """Asks a server. Each request has a connection of its own."""

    def __init__(self, url: str, app: App | None = None, server: HttpServer | None = None) -> None:
        self.url = url
        if app is not None and server is not None:  # it runs in this process
            self.models, self.serving, self.server = app.models, app.serving, server
        self.host, self.port = urlsplit(url).hostname or "", urlsplit(url).port or 0
        self.key: str | None = None
        self.patience_s = PATIENCE_S

    @property
    def service(self) -> Service:
        """The service of the one model."""
        assert self.models.only is not None
        assert self.models.only.service is not None
        return self.models.only.service

    def connect(self) -> HTTPConnection:
        """A new connection."""
        return HTTPConnection(self.host, self.port, timeout=self.patience_s)

    def send(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[HTTPConnection, HTTPResponse]:
        """Asks, and gives the response before its body is read."""
        connection = self.connect()
        raw = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        given = {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
        connection.request(method, path, raw, {**given, **(headers or {})})
        return connection, connection.getresponse()

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """The status and the answer, as JSON where it is JSON."""
        connection, response = self.send(method, path, body, headers)
        raw = response.read()
        connection.close()
        kind = response.getheader("content-type", "")
        return response.status, json.loads(raw) if raw and "json" in kind else raw.decode()

    def get(self, path: str, **headers: str) -> tuple[int, Any]:
        """GET."""
        return self.ask("GET", path, None, headers)

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        """POST."""
        return self.ask("POST", path, body, headers)

    def right(self, path: str, body: Any) -> Any:
        """The answer of a POST that has to be answered."""
        status, answer = self.post(path, body)
        assert status == 200, answer
        return answer

    def events(self, path: str, body: Any) -> list[Any]:
        """The data of all events of a stream; the last one is "[DONE]"."""
        connection, response = self.send("POST", path, {**body, "stream": True})
        assert response.status == 200, response.read()
        assert response.getheader("content-type", "").startswith("text/event-stream")
        found = list(events_of(response))
        connection.close()
        return found

    def chunks(self, path: str, body: Any) -> list[dict[str, Any]]:
        """The chunks of a stream that comes to its end."""
        *chunks, last = self.events(path, body)
        assert last == "[DONE]"
        return chunks


def events_of(response: HTTPResponse) -> Iterator[Any]:
    """The data of events, as they come; comments are left out."""
    for line in response:
        text = line.decode().rstrip("\n")
        if text.startswith("data: "):
            data = text.removeprefix("data: ")
            yield data if data == "[DONE]" else json.loads(data)


class Endless:
    """A stream of a text without an end, which has begun."""

    def __init__(self, client: Client, **more: Any) -> None:
        body = {**ENDLESS, "stream": True, **more}
        self._connection, self._response = client.send("POST", TEXT, body)
        assert self._response.status == 200, self._response.read()
        self.events = events_of(self._response)
        next(self.events)

    def __enter__(self) -> Endless:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Its client leaves."""
        self._response.close()
        self._connection.close()


@contextmanager
def served(llm: Llama, **settings: Any) -> Iterator[Client]:
    """A server on a Llama, which is closed with it."""
    with llm, run(create_app(llm, ServerSettings(**settings))) as client:
        yield client


@contextmanager
def run(app: App) -> Iterator[Client]:
    """A server of an application."""
    started = threading.Event()
    urls: list[str] = []

    def on_start(url: str) -> None:
        urls.append(url)
        started.set()

    server = HttpServer(app, Listening(port=0), on_start)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert started.wait(PATIENCE_S)
        yield Client(urls[0], app, server)
    finally:
        server.stop()
        thread.join(PATIENCE_S)
    assert not thread.is_alive(), "the server did not stop"


def until(is_so: Callable[[], bool]) -> None:
    """Waits for something that comes soon, however slow the machine is."""
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.005)


def stages(client: Client) -> list[str]:
    """The stages of the requests, which may change meanwhile."""
    return [one.stage for one in list(client.service.answers)]


def is_idle(client: Client) -> bool:
    """Whether nothing is being answered or computed."""
    services = [one.service for one in client.models.all if one.service is not None]
    return not any(one.answers for one in services) and not client.serving.tasks


def raw_exchange(client: Client, data: bytes, *, leaves: bool = True) -> bytes:
    """The reply to some bytes until the server closes; `leaves` means that no more follow."""
    with socket.create_connection((client.host, client.port), timeout=PATIENCE_S) as sock:
        sock.sendall(data)
        if leaves:
            sock.shutdown(socket.SHUT_WR)
        parts = []
        while part := sock.recv(65536):
            parts.append(part)
        return b"".join(parts)


def steady(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer without what differs from one time to the next."""
    shown = {key: value for key, value in answer.items() if key not in VOLATILE}
    shown["choices"] = [
        {key: value for key, value in choice.items() if key not in VOLATILE}
        for choice in answer["choices"]
    ]
    return shown
