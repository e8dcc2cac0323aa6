"""The server process: uvicorn, signals, TLS, shutdown."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import HANDLED_SIGNALS

from pyllama_spec.engine.checks import count
from pyllama_spec.errors import ArgumentError
from pyllama_spec.llama import Llama
from pyllama_spec.server.app import create_app
from pyllama_spec.server.exchange import App
from pyllama_spec.server.model_list import ModelList
from pyllama_spec.server.service import log
from pyllama_spec.server.settings import ServerSettings

# Windows has no such signal.
_HANGUP: signal.Signals | None = getattr(signal, "SIGHUP", None)
# mallopt()'s names of two limits, in glibc's malloc.h.
_M_ARENA_MAX, _M_MMAP_THRESHOLD = -8, -3
_MAX_HEADER_BYTES = 64 << 10
# In addition to the time of running requests: for their last messages to arrive.
_LAST_WORDS_S = 2
# Between the first two looks whether a client that sends no more is there.
_PROBE_S = 0.01
# Windows lets two servers share a port unless one forbids it. Elsewhere an ended server leaves its
# port in use for a while.
_OWN_PORT: int = getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """The address and the limits of a server's socket.

    Attributes:
        host, port: the address; port 0 means any free port.
        certificate, key: PEM files for TLS; None for HTTP.
        header_timeout_s: seconds for a request's head to arrive.
        max_connections: the most connections; further ones get a 503.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    certificate: Path | None = None
    key: Path | None = None
    header_timeout_s: float = 10.0
    max_connections: int = 1024

    def __post_init__(self) -> None:
        count(self.port, "port", 0, 65535)


def serve(
    llm: Llama | ModelList,
    settings: ServerSettings,
    listening: Listening,
    *,
    on_start: Callable[[str], None] = log.info,
) -> tuple[int, int]:
    """Serves until SIGTERM or Ctrl-C; then refuses new requests and finishes the running ones.

    Meanwhile the whole process has Python's warnings off, and a limited C heap.

    Args:
        llm: the model, which the caller closes; or a list of models.
        settings: the limits, keys and defaults.
        listening: the address to listen on, with its limits.
        on_start: called with the address once the server listens.

    Returns:
        The number of requests that ran at the end, and how many of them were cut.

    Raises:
        ArgumentError: the address is not available, or a TLS file is unreadable.
    """
    limit_heap()
    server = HttpServer(create_app(llm, settings), listening, on_start)
    with warnings.catch_warnings():
        # The library's warnings may quote a client's schema or chat.
        warnings.simplefilter("ignore")
        server.run()
    return server.ended


def limit_heap() -> None:
    """Limits what glibc's heap keeps of freed memory: two arenas, and large blocks apart.

    A dozen threads process large bodies. Each thread has an arena, which keeps what is free below
    its last used piece, and a freed block of some MiB makes the next ones parts of an arena too.
    """
    import ctypes

    with suppress(AttributeError, OSError, TypeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_ARENA_MAX, 2)
        libc.mallopt(_M_MMAP_THRESHOLD, 4 << 20)


def _config(app: App, listening: Listening) -> uvicorn.Config:
    class Protocol(_Protocol):
        header_timeout_s = listening.header_timeout_s

    config = uvicorn.Config(
        app, http=Protocol, ws="none", loop="asyncio", lifespan="off", log_config=None,
        access_log=False, proxy_headers=True, forwarded_allow_ips="127.0.0.1,::1",
        server_header=False,
        limit_concurrency=listening.max_connections,
        h11_max_incomplete_event_size=_MAX_HEADER_BYTES,
        timeout_graceful_shutdown=int(app.serving.settings.stop_timeout_s) + _LAST_WORDS_S,
        ssl_certfile=listening.certificate, ssl_keyfile=listening.key,
    )  # fmt: skip
    try:
        config.load()
    except OSError as error:  # of ssl, too
        raise ArgumentError(
            problem=f"TLS cannot be set up with {listening.certificate} and {listening.key}: "
            f"{error}"
        ) from None
    return config


def _bound(listening: Listening) -> socket.socket:
    """A socket bound to the address; never shared with another process."""
    try:
        addresses = socket.getaddrinfo(
            listening.host, listening.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, address = addresses[0]
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, _OWN_PORT, 1)
        try:
            sock.bind(address)
        except OSError:
            sock.close()
            raise
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ArgumentError(
            problem=f"cannot listen at {listening.host}:{listening.port}: {reason}",
            remedy="name another `host` or `port`",
        ) from None  # fmt: skip
    return sock


class HttpServer(uvicorn.Server):
    """An application with its listening socket; run() serves it in any thread.

    `ended`: the number of requests that ran at the end, and how many of them were cut.
    """

    def __init__(
        self, app: App, listening: Listening, on_start: Callable[[str], None] = log.info
    ) -> None:
        super().__init__(_config(app, listening))
        self._app, self._listening, self._on_start = app, listening, on_start
        self.ended = 0, 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._socket = _bound(listening)

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serves until stop(), or in the main thread until a signal; see serve()."""
        with self._socket:
            asyncio.run(self.serve([self._socket]))

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serves in the running loop, which also runs read_again()."""
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    def stop(self) -> None:
        """Stops the server, from any thread, without waiting."""
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Handles signals in the block. Unlike uvicorn, does not raise a handled signal again."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handlers: dict[int, Callable[[int, FrameType | None], None]]
        handlers = dict.fromkeys(HANDLED_SIGNALS, self.handle_exit)
        if _HANGUP is not None:
            # Of a closed terminal, or as a service's reload; nohup redirects the input.
            is_of_terminal = sys.stdin is not None and sys.stdin.isatty()
            handlers[_HANGUP] = self.handle_exit if is_of_terminal else self._reload
        before = {one: signal.signal(one, handler) for one, handler in handlers.items()}
        try:
            yield
        finally:
            for one, old in before.items():
                signal.signal(one, old)

    def _reload(self, sig: int, frame: FrameType | None) -> None:
        self.read_again()

    def read_again(self) -> None:
        """Rereads the keys, from any thread or signal handler, as SIGHUP does."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._app.serving.read_keys_again)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handles a signal: the first stops the server, a second cancels what still runs."""
        if self.should_exit:
            self._app.serving.cut_now()
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts to listen, and logs the address."""
        await super().startup(sockets)
        self._app.models.start()
        if self.started and sockets:
            host, port = sockets[0].getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            scheme = "https" if self.config.is_ssl else "http"
            self._on_start(f"{scheme}://{shown}:{port}")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuses new requests, and waits for running ones."""
        stopping = asyncio.ensure_future(self._app.serving.stop())
        await super().shutdown(sockets)
        self.ended = await stopping
        await self._app.models.close()


class _Protocol(H11Protocol):
    """HTTP with a timeout for the head of a request, and answers to clients that half-close."""

    header_timeout_s = 10.0
    _timer: asyncio.TimerHandle | None = None
    _is_half_closed = False

    def connection_made(self, transport: Any) -> None:
        """A client connected."""
        super().connection_made(transport)
        self._look()

    def data_received(self, data: bytes) -> None:
        """Data arrived from the client."""
        super().data_received(data)
        self._look()

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more: it has left, or waits for its answer, which has not begun."""
        cycle = self.cycle
        if cycle is None or cycle.response_started or cycle.more_body or self.config.is_ssl:
            return False
        if cycle.scope["http_version"] != "1.1":  # to which no 1xx may be sent
            return False
        self._is_half_closed = True
        self._probe(_PROBE_S)
        return True

    def _probe(self, wait_s: float) -> None:
        """Sends what a client that has left refuses, which the next time loses the connection."""
        if self.cycle is not None and not self.cycle.response_started:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._timer = self.loop.call_later(wait_s, self._probe, min(2 * wait_s, 1.0))

    def on_response_complete(self) -> None:
        """An answer was sent."""
        super().on_response_complete()
        if self._is_half_closed:
            self.transport.close()
        else:
            self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client disconnected."""
        self._stop_timer()
        super().connection_lost(exc)

    def _look(self) -> None:
        """Runs the timer while the client has to send a head, or a body that nobody reads."""
        theirs, ours = self.conn.their_state, self.conn.our_state
        is_unread = theirs is h11.SEND_BODY and ours in (h11.DONE, h11.MUST_CLOSE)
        if not is_unread and (theirs is not h11.IDLE or self.timeout_keep_alive_task is not None):
            self._stop_timer()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.header_timeout_s, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
