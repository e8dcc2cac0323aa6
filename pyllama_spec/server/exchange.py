"""One HTTP request: its endpoint, its body, its model, and its answer, whole or as events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, NamedTuple, TypeVar
from urllib.parse import SplitResult, quote, urlsplit

import anyio
import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.routing import Route as StarletteRoute
from starlette.routing import Router
from starlette.types import Message, Receive, Scope, Send

from pyllama_spec.chat.pictures import has_media
from pyllama_spec.llama.llama import called
from pyllama_spec.server.api_errors import ApiError, api_error, invalid_type, openai_error
from pyllama_spec.server.models import Keys, Models, stopped, stopping
from pyllama_spec.server.service import (
    Answer,
    Asked,
    Event,
    RequestInfo,
    Service,
    Shape,
    log,
    note_failure,
)
from pyllama_spec.server.settings import LOOPBACK, ServerSettings
from pyllama_spec.server.shapes import ChatRequest

_T = TypeVar("_T")
# The headers with the request's id: OpenAI's and Anthropic's.
_REQUEST_ID = ("X-Request-Id", "Request-Id")
_JSON = "application/json"
# A proxy that gathers a stream would show it at its end.
_STREAM = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_PING = b": ping\n\n"
# So many events are sent together at most.
_MAX_HELD = 64
# Characters of a path in the log.
_MAX_LOGGED = 200
# The status in the log of a request whose client left before its answer began; nginx's word for it.
_LEFT = 499
# What asks every few seconds how the server is.
_CHECKS = ("/health", "/v1/health", "/ready", "/metrics")
_PREFLIGHT_S = "600"
# Headers of an answer that the published JavaScript clients read.
_READABLE = "request-id, retry-after, x-request-id, x-should-retry"
# Translates the body of a dialect, with what the model's template knows.
ToAsked = Callable[[Any, Service], Asked]
ToChat = Callable[[Any, Service], ChatRequest]


class ClientGone(Exception):  # noqa: N818 - nothing went wrong here
    """The client disconnected, or has stopped reading."""


class Events(NamedTuple):
    """An answer as a stream of events, and the events of an error after it began."""

    source: AsyncGenerator[Event, None]
    failed: Callable[[ApiError], Iterable[Event]]


class Content(NamedTuple):
    """An answer as bytes."""

    raw: bytes
    kind: str = _JSON
    status: int = 200
    headers: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Route:
    """An endpoint: its place, its function, and the msgspec type of its body.

    The function takes the exchange and the parsed body, None without a type. It returns what is
    sent: Events, Content, or anything that msgspec writes as JSON. A GET answers HEAD too. An open
    endpoint needs no key and outlives the stop.
    """

    method: str
    path: str
    handler: Callable[[Exchange, Any], Awaitable[Any]]
    body: type[Any] | None = None
    error_form: Callable[[ApiError], dict[str, Any]] = openai_error
    is_open: bool = False


def _sse(event: Event) -> bytes:
    """An event as bytes: its data as JSON, but for a text."""
    name, data = event
    raw = data.encode() if isinstance(data, str) else msgspec.json.encode(data)
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + raw + b"\n\n"


class Exchange:
    """A request and its answer over ASGI.

    Starlette's StreamingResponse and sse-starlette's EventSourceResponse send the status before the
    first event, so that a refusal would be a 200; and each event by itself, where the events of a
    round are one message here.
    """

    def __init__(
        self,
        models: Models,
        routes: Mapping[str, Route],
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        self.models, self.serving, self._receive, self._send = models, models.serving, receive, send
        self.request = Request(scope, receive)
        self.path, self.method, self._routes = str(scope["path"]), self.request.method, routes
        self._route = routes.get("GET" if self.method == "HEAD" else self.method)
        self.info, self._status = RequestInfo(self.request.headers.get("x-request-id", "")), 0
        self._headers = dict.fromkeys(_REQUEST_ID, self.info.id)
        self._given: Sequence[str] = ()
        self._model = models.only.name if models.only is not None else ""
        self._has_given_up = False

    # ---- the request as a whole

    async def run(self) -> None:
        """Admits the request, answers it, and reports errors."""
        task = asyncio.current_task()
        assert task is not None
        self.serving.tasks.add(task)
        try:
            try:
                await self._answer()
            except asyncio.CancelledError:
                if not self.serving.is_cutting:
                    raise
                await self._send_error(stopped())
            except ClientGone:
                raise
            except Exception as error:  # noqa: BLE001 - sent to the client in its form, and logged
                await self._send_error(error)
        except ClientGone:
            self.info.note["left"] = True
        finally:
            self.serving.tasks.discard(task)
            self._log()

    async def _answer(self) -> None:
        """Raises ApiError for a request that the server must not answer."""
        serving, route, methods = self.serving, self._route, ", ".join(sorted(self._routes))
        self._headers |= check_page(self.request, serving.settings)
        if self.method == "OPTIONS" and methods and "origin" in self.request.headers:
            await self._send_answer(
                Content(b"", "text/plain", 204, preflight(self.request, methods))
            )
            return
        if route is None or not route.is_open:
            check_key(self.request, serving.keys, self.info)  # before it says what there is
        if not methods:
            raise ApiError(404, f"there is no {self.path:.200}", "unknown_path")
        if route is None:
            raise ApiError(
                405, f"{self.path} takes {methods}", "unknown_method", headers={"Allow": methods}
            )
        if serving.is_stopping and not route.is_open:
            raise stopping()
        if route.body is None:
            await self._send_answer(await route.handler(self, None))
            return
        body = await self._read(route.body)
        await self._send_answer(await self._watched(route.handler(self, body)))

    def _log(self) -> None:
        settings, status, info = self.serving.settings, self._status, self.info
        if self.path in _CHECKS and not settings.logs_checks and 0 < status < 400:
            return
        if not status and "left" in info.note:
            status = _LEFT
        note: dict[str, Any] = {"id": info.id}
        if settings.logs_clients:
            client = self.request.client
            note["from"] = quote(client.host[:_MAX_LOGGED], safe=":") if client else "-"
        note |= info.note
        # Percent-encoded again: a newline in a path would forge a line.
        path = quote(self.path[:_MAX_LOGGED], safe="/:@!$&'()*+,;=~", errors="replace")
        path, seconds = path[:_MAX_LOGGED], monotonic() - info.arrived_at
        fields = {"method": self.method, "path": path, "status": status, "seconds": seconds, **note}
        log.info(
            "%s %s %d %.3f s%s", self.method, path, status, seconds,
            "".join(f" {k}={v}" for k, v in note.items()), extra={"request": fields},
        )  # fmt: skip

    # ---- the body, and the model that answers it

    async def _read(self, shape: type[_T]) -> _T:
        """Parses the body as a msgspec type."""
        settings = self.serving.settings
        raw = await read_body(self.request, settings)
        body = decoded(raw, shape)
        names: Sequence[str] = shape.__struct_fields__  # type: ignore[attr-defined]
        self._given = [name for name in names if getattr(body, name) is not None]
        return body

    @asynccontextmanager
    async def model(
        self, name: str | None, *, needs_base: bool = False
    ) -> AsyncGenerator[Service, None]:
        """The service of a named model, which is loaded if needed and stays loaded in the block."""
        models = self.models
        choice = models.find(name)
        if needs_base and choice.adapter is not None:
            raise ApiError(
                400, f"{choice.adapter!r} is an adapter, which applies to generation only: ask "
                f"{choice.model.name!r}", "unsupported", "model",
            )  # fmt: skip
        service, adapters = await models.use(choice)
        try:
            self._model = service.name
            if models.only is None:
                self.info.note["model"] = service.name
            if choice.adapter is None:
                yield service
                return
            self.info.note["adapter"] = choice.adapter
            with service.llm.with_adapters(adapters):
                yield service
        finally:
            models.done_with(choice.model)

    async def generate(
        self, body: Any, shape: Shape | None = None, to_asked: ToAsked | None = None
    ) -> Any:
        """The answer to a request for a text, in a shape.

        Args:
            body: the parsed body, which has `model` and `stream`.
            shape: the form of the answer; None for OpenAI's.
            to_asked: translates the body of a dialect.
        """
        shape = shape or Shape()
        if body.stream:
            return Events(self._events(body, shape, to_asked), shape.failed)
        async with self._answering(body, to_asked) as answer:
            return await answer.whole(shape)

    async def _events(
        self, body: Any, shape: Shape, to_asked: ToAsked | None
    ) -> AsyncGenerator[Event, None]:
        async with (
            self._answering(body, to_asked) as answer,
            aclosing(answer.events(shape)) as events,
        ):
            async for event in events:
                yield event

    @asynccontextmanager
    async def _answering(self, body: Any, to_asked: ToAsked | None) -> AsyncGenerator[Answer, None]:
        async with self.model(body.model) as service:
            if to_asked is not None:  # a template says what it knows of thoughts in a moment
                body = await asyncio.to_thread(to_asked, body, service)
            yield service.answer(body, self.info)

    async def count_tokens(self, body: Any, to_chat: ToChat | None = None) -> int:
        """The number of tokens of a chat's prompt, without computing them; see generate()."""

        def counted(service: Service, chat: Any) -> int:
            with service.unstarted(chat, self.info) as handle:
                return handle.status.n_prompt

        async with self.model(body.model) as service:
            chat = body if to_chat is None else await asyncio.to_thread(to_chat, body, service)
            call = partial(counted, service, chat)
            n: int = await called(call, reads_media=has_media(chat.messages))
            return n

    # ---- output

    async def _send_answer(self, answer: Any) -> None:
        """Sends what a handler returned: Events, Content, or an object as JSON."""
        if isinstance(answer, Events):
            await self._send_events(answer)
            return
        content = answer if isinstance(answer, Content) else Content(msgspec.json.encode(answer))
        more = {**content.headers, "Content-Length": str(len(content.raw))}
        await self._begin(content.status, content.kind, more)
        await self._deliver({"type": "http.response.body", "body": content.raw})

    async def _begin(self, status: int, kind: str, more: Mapping[str, str]) -> None:
        self._status = status
        headers = {"Content-Type": kind, **more, **self._headers}
        raw = [(k.lower().encode(), v.encode("latin-1")) for k, v in headers.items()]
        await self._deliver({"type": "http.response.start", "status": status, "headers": raw})

    async def _deliver(self, message: Message) -> None:
        """Sends a message to the client within send_timeout_s."""
        limit = self.serving.settings.send_timeout_s
        timer = asyncio.get_running_loop().call_later(limit, self._give_up)
        try:
            await self._send(message)
        except OSError:
            raise ClientGone from None
        finally:
            timer.cancel()
        if self._has_given_up:
            raise ClientGone

    def _give_up(self) -> None:
        """Closes the connection of a client that does not read, so that the sender continues."""
        self._has_given_up = True
        # ASGI has no word for this, and pending data would be kept until the network gives up.
        transport = getattr(getattr(self._send, "__self__", None), "transport", None)
        if transport is not None:
            transport.abort()

    async def _send_error(self, error: BaseException) -> None:
        """Sends an error in place of an answer that has not started."""
        shown = self._shown(error)
        if not self._status:
            form = openai_error if self._route is None else self._route.error_form
            raw = msgspec.json.encode(form(shown))
            await self._send_answer(Content(raw, _JSON, shown.status, shown.headers))

    def _shown(self, error: BaseException) -> ApiError:
        """An error as its client sees it; writes it to the log and the metrics."""
        settings = self.serving.settings
        shown = api_error(error, settings.retry_after_s, self._given)
        note_failure(error)
        shown.request_id = self.info.id
        self.info.note["error"] = code = shown.code or shown.type
        if option := settings.flags.get(shown.option, shown.option):
            self.info.note["option"] = option
            if code == "unsupported":  # all else a client can help by itself, or wait for
                shown.message += f"; the server's option {option} allows it"
        self.serving.metrics.add("pyllama_spec:request_errors", 1, self._model, code)
        return shown

    # ---- while the answer is made

    async def _left(self) -> None:
        """Ends when the client disconnects."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _watched(self, work: Awaitable[_T]) -> _T:
        """The result of a handler, which is cancelled when the client disconnects."""
        task, left = asyncio.ensure_future(work), asyncio.ensure_future(self._left())
        try:
            await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise ClientGone
        finally:
            await _ended(task, left)

    async def _send_events(self, events: Events) -> None:
        """Sends events, with pings while none comes; an error before the first is plain."""
        held, changed, has_room = list[bytes](), asyncio.Event(), asyncio.Event()

        async def read() -> None:
            async with aclosing(events.source) as source:
                async for event in source:
                    held.append(_sse(event))
                    changed.set()
                    if len(held) >= _MAX_HELD:
                        has_room.clear()
                        await has_room.wait()

        reader, left = asyncio.ensure_future(read()), asyncio.ensure_future(self._left())
        reader.add_done_callback(lambda _: changed.set())
        left.add_done_callback(lambda _: changed.set())
        error: BaseException | None = None
        try:
            while True:
                with anyio.move_on_after(self.serving.settings.ping_s):
                    await changed.wait()
                changed.clear()
                if reader.done() or left.done():
                    break
                await self._send_part(held or [_PING])
                has_room.set()
            if not reader.done():
                raise ClientGone
            error = reader.exception()
        except asyncio.CancelledError:
            if not (self._status and self.serving.is_cutting):
                raise
            error = stopped()
        finally:
            await _ended(reader, left)
        if error is not None:
            if not self._status:
                try:
                    raise error
                finally:
                    del error  # its frames hold the body, and would hold itself
            held += map(_sse, events.failed(self._shown(error)))
        await self._send_part(held)
        await self._deliver({"type": "http.response.body", "body": b""})

    async def _send_part(self, held: list[bytes]) -> None:
        """Sends the held events, which are those of a round, as one message."""
        raw = b"".join(held)
        held.clear()
        if not self._status:
            await self._begin(200, "text/event-stream; charset=utf-8", _STREAM)
        await self._deliver({"type": "http.response.body", "body": raw, "more_body": True})


# ---- who may ask


def check_page(request: Request, settings: ServerSettings) -> dict[str, str]:
    """Refuses browser pages of other sites; returns the headers for an admitted origin.

    A browser sends a page's own origin with the page's requests, and the host name that it used:
    another site's name if that resolves to this machine. Programs send no origin.
    """
    host = request.headers.get("host") or ""
    if settings.allowed_hosts and _split(f"//{host}").hostname not in settings.allowed_hosts:
        raise ApiError(
            403, f"this server does not answer to the Host {host!r:.100}", "unknown_host",
            option="allowed_hosts",
        )  # fmt: skip
    origin = request.headers.get("origin")
    if origin is None:
        return {}
    named = settings.cors_origins
    is_open = "*" in named
    is_near = "localhost" in named and _split(origin).hostname in LOOPBACK
    if is_open or is_near or origin in named:
        return {
            "Access-Control-Allow-Origin": "*" if is_open else origin, "Vary": "Origin",
            "Access-Control-Expose-Headers": _READABLE,
        }  # fmt: skip
    if _split(origin).netloc.lower() != host.lower():
        raise ApiError(
            403, f"pages of {origin!r:.100} may not call this server", "unknown_origin",
            option="cors_origins",
        )  # fmt: skip
    return {}


def preflight(request: Request, methods: str) -> dict[str, str]:
    """The answer to a checked preflight request of another origin, which may send any header."""
    return {
        "Access-Control-Allow-Methods": methods,
        "Access-Control-Allow-Headers": request.headers.get("access-control-request-headers", "*"),
        "Access-Control-Max-Age": _PREFLIGHT_S,
    }


def check_key(request: Request, keys: Keys, info: RequestInfo) -> None:
    """Requires a key if the server has keys; records whose it is."""
    kind, _, key = (request.headers.get("authorization") or "").partition(" ")
    given = key.strip() if kind.lower() == "bearer" and key else request.headers.get("x-api-key")
    caller = keys.caller_of(given)
    if caller is None:
        what = "the API key that was sent is unknown" if given else "an API key is needed"
        how = "send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'"
        bearer = {"WWW-Authenticate": "Bearer"}
        raise ApiError(401, f"{what}: {how}", "invalid_api_key", headers=bearer)
    info.caller, name = caller
    if name:
        info.note["key"] = name


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:  # a bracket that does not close
        return urlsplit("")


# ---- bodies


async def read_body(request: Request, settings: ServerSettings) -> bytearray:
    """Reads the whole body, within its limits of size and time."""
    most, body = settings.max_body_bytes, bytearray()
    length = request.headers.get("content-length")
    if length is not None and length.isdigit() and int(length) > most:
        raise _too_large(most)
    try:
        with anyio.fail_after(settings.body_timeout_s):
            async for part in request.stream():
                body += part
                if len(body) > most:
                    raise _too_large(most)
    except TimeoutError:
        raise ApiError(
            408, f"the body did not arrive within {settings.body_timeout_s:g} s", "timeout"
        ) from None
    except ClientDisconnect:
        raise ClientGone from None
    return body


def _too_large(most: int) -> ApiError:
    return ApiError(
        413, f"the body has more than the {most} bytes that this server takes", "too_large",
        option="max_body_bytes",
    )  # fmt: skip


def decoded(raw: bytes | bytearray, shape: type[_T]) -> _T:
    """Parses a body as a msgspec type."""
    if not raw:
        raise ApiError(400, "the body is empty", "invalid_json")
    try:
        return _present(raw, shape)
    except msgspec.ValidationError as error:
        raise invalid_type(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON: {error}", "invalid_json") from None


def _present(raw: bytes | bytearray, shape: type[_T]) -> _T:
    """Parses a body; a null is absent where its field takes none, as clients send their models."""
    try:
        return msgspec.json.decode(raw, type=shape)
    except msgspec.ValidationError:
        fields = msgspec.json.decode(raw)
        if not isinstance(fields, dict) or None not in fields.values():
            raise
        present = {name: value for name, value in fields.items() if value is not None}
        return msgspec.convert(present, shape)


async def _ended(*tasks: asyncio.Future[Any]) -> None:
    """Cancels tasks and waits for them, so that they release their resources."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# ---- the application


class App:
    """The application: finds the endpoint of a request, admits it, and reports errors.

    See create_app(). Await serving.stop() before the server ends.
    """

    def __init__(self, models: Models, routes: Iterable[Route]) -> None:
        self.models, self.serving = models, models.serving
        paths: dict[str, dict[str, Route]] = {}
        for route in routes:
            paths.setdefault(route.path, {}).setdefault(route.method, route)
        endpoints = [
            StarletteRoute(path, endpoint=_Endpoint(models, by_method))
            for path, by_method in paths.items()
        ]
        self._router = Router(endpoints, default=_Endpoint(models, {}), redirect_slashes=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        self.models.start()
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1003})
            return
        await self._router(scope, receive, send)


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """The routes of a path by method; empty for an unknown path."""

    models: Models
    routes: Mapping[str, Route]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI, for a request of HTTP."""
        await Exchange(self.models, self.routes, scope, receive, send).run()
