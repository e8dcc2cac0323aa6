"""The server process: uvicorn, signals, TLS, shutdown."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
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

from pyllama_spec.engine.checks import count
from pyllama_spec.errors import ArgumentError
from pyllama_spec.llama import Llama
from pyllama_spec.server.app import create_app
from pyllama_spec.server.door import log
from pyllama_spec.server.exchange import App
from pyllama_spec.server.model_list import ModelList
from pyllama_spec.server.settings import ServerSettings

# Windows has no such signal.
_HANGUP: signal.Signals | None = getattr(signal, "SIGHUP", None)


def _has_terminal() -> bool:
    """Whether the process's terminal still exists."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def read_certificate_again(
    context: ssl.SSLContext, certificate: Path | None, key: Path | None
) -> None:
    """Reloads the TLS files for new connections, and logs it.

    If they do not match, the old ones stay.
    """
    if certificate is None:
        return
    try:
        # Apart first: what fails halfway would leave a certificate without its key.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
        context.load_cert_chain(certificate, key)
    except OSError as error:  # of ssl, too
        log.warning("SIGHUP: the certificate stays as it was: %s", error)
        return
    log.info("SIGHUP: the certificate was read again; connections that are open keep the old one")


# mallopt()'s name of the limit, in glibc's malloc.h.
_M_ARENA_MAX, _N_ARENAS = -8, 2
_MAX_HEADER_BYTES = 64 << 10
# In addition to the time of running requests: for their last messages to arrive.
_LAST_WORDS_S = 2
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


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

    SIGHUP rereads the keys by settings.read_keys, and the TLS files. Meanwhile the whole process
    has Python's warnings off, and two arenas of the C heap.

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
    limit_arenas()
    server = HttpServer(create_app(llm, settings), listening, on_start)
    with warnings.catch_warnings():
        # The library's warnings may quote a client's schema or chat.
        warnings.simplefilter("ignore")
        server.run()
    return server.ended


def limit_arenas() -> bool:
    """Limits the C heap to two arenas, instead of eight per core.

    A dozen threads process large bodies. glibc gives each thread an arena, which keeps free memory
    below its last used piece: after an hour of large bodies 150 MiB and more. Python's own small
    objects are elsewhere, so the threads hardly wait for each other.
    """
    import ctypes

    with suppress(AttributeError, OSError, TypeError):
        return bool(ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _N_ARENAS))
    return False


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
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
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
        self.ended, self._ends_with_terminal = (0, 0), False
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
        handlers: dict[signal.Signals, Callable[[int, FrameType | None], None]]
        handlers = dict.fromkeys(_SIGNALS, self.handle_exit)
        if _HANGUP is not None:
            is_kept = signal.getsignal(_HANGUP) is signal.SIG_IGN  # as under nohup
            self._ends_with_terminal = not is_kept and _has_terminal()
            handlers[_HANGUP] = self._hang_up
        before = {one: signal.signal(one, handler) for one, handler in handlers.items()}
        try:
            yield
        finally:
            for one, old in before.items():
                signal.signal(one, old)

    def _hang_up(self, sig: int, frame: FrameType | None) -> None:
        """Handles SIGHUP: rereads the files, or stops if the terminal is closed."""
        if self._ends_with_terminal and not _has_terminal():
            self.should_exit = True  # first: the log may go to the terminal that is closed
            log.warning("SIGHUP: the terminal that the server was started in is closed")
        else:
            self.read_again()

    def read_again(self) -> None:
        """Rereads keys and certificate, from any thread or signal handler, as SIGHUP does."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._read_again)

    def _read_again(self) -> None:
        """Rereads in the loop, where requests read the keys."""
        self._app.serving.read_keys_again()
        listening = self._listening
        if self.config.ssl is not None:
            read_certificate_again(self.config.ssl, listening.certificate, listening.key)

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
    """HTTP with a timeout for the client's request.

    A body that nobody reads must end within the same time, counted from its answer: its bytes unset
    uvicorn's timer between two requests.
    """

    header_timeout_s = 10.0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """A client connected."""
        super().connection_made(transport)
        self._look()

    def data_received(self, data: bytes) -> None:
        """Data arrived from the client."""
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """An answer was sent, whether or not it read the body."""
        super().on_response_complete()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client disconnected."""
        self._stop_timer()
        super().connection_lost(exc)

    def _look(self) -> None:
        """Runs the timer while the client has to send, and stops it while the server does."""
        theirs, ours = self.conn.their_state, self.conn.our_state
        if theirs is h11.IDLE:
            is_awaited = self.timeout_keep_alive_task is None
        else:
            is_awaited = theirs is h11.SEND_BODY and ours in (h11.DONE, h11.MUST_CLOSE)
        if not is_awaited:
            self._stop_timer()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.header_timeout_s, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
