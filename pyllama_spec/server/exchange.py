"""One HTTP request: its endpoint, its body, its model, and its answer, whole or as events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import quote

import anyio
import msgspec
from starlette.requests import Request
from starlette.routing import Route as StarletteRoute
from starlette.routing import Router
from starlette.types import Message, Receive, Scope, Send

from pyllama_spec.server import door
from pyllama_spec.server.api_errors import ApiError, api_error, openai_error
from pyllama_spec.server.door import (
    ClientGone,
    RequestInfo,
    log,
    note_failure,
    stopped,
    stopping,
)
from pyllama_spec.server.service import Answer, Event, Service, Shape
from pyllama_spec.server.shapes import ChatRequest

if TYPE_CHECKING:
    from pyllama_spec.server.models import Models

_T = TypeVar("_T")
# The header with the request's id.
REQUEST_ID = ("X-Request-Id",)
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


# Translates the body of a dialect, with what the model's template knows.
ToChat = Callable[[Any, Service], ChatRequest]


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
    id_headers: Sequence[str] = REQUEST_ID


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

    def __init__(self, models: Models, scope: Scope, receive: Receive, send: Send) -> None:
        self.models, self.serving, self._receive, self._send = models, models.serving, receive, send
        self.request = Request(scope, receive)
        self.path: str = scope["path"]
        self.method = self.request.method
        self.info = RequestInfo()
        self.status = 0
        self.headers: dict[str, str] = {}
        self._given = frozenset[str]()
        self._model = models.only.name if models.only is not None else ""
        self._has_given_up = False

    # ---- the body, and the model that answers it

    async def read(self, shape: type[_T]) -> _T:
        """Parses the body as a msgspec type."""
        settings = self.serving.settings
        raw = await door.read_body(self.request, settings)
        self.serving.note_size(len(raw))
        body = door.decoded(raw, shape)
        self._given = door.given_names(raw)
        known: Sequence[str] = shape.__struct_fields__  # type: ignore[attr-defined]
        self.serving.note_unknown(self.path, self._given, known)
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

    async def generate(self, body: Any, shape: Shape, to_chat: ToChat | None = None) -> Any:
        """The answer to a request for a text, in a shape.

        Args:
            body: the parsed body, which has `model` and `stream`.
            shape: the form of the answer.
            to_chat: translates the body of a dialect.
        """
        if body.stream:
            return Events(self._events(body, shape, to_chat), shape.failed)
        async with self._answering(body, to_chat) as answer:
            return await answer.whole(shape)

    async def _events(
        self, body: Any, shape: Shape, to_chat: ToChat | None
    ) -> AsyncGenerator[Event, None]:
        async with (
            self._answering(body, to_chat) as answer,
            aclosing(answer.events(shape)) as events,
        ):
            async for event in events:
                yield event

    @asynccontextmanager
    async def _answering(self, body: Any, to_chat: ToChat | None) -> AsyncGenerator[Answer, None]:
        async with self.model(body.model) as service:
            if to_chat is not None:  # a template says what it knows of thoughts in a moment
                body = await service.in_thread(to_chat, body, service)
            yield service.answer(body, self.info)

    async def count_tokens(self, body: Any, to_chat: ToChat | None = None) -> int:
        """The number of tokens of a chat's prompt, without computing them; see generate()."""
        async with self.model(body.model) as service:
            return await service.in_thread(_n_prompt, service, body, to_chat, self.info)

    # ---- output

    async def send(self, answer: Any) -> None:
        """Sends what a handler returned: Events, Content, or an object as JSON."""
        if isinstance(answer, Events):
            await self._send_events(answer)
        elif isinstance(answer, Content):
            await self._send_content(answer)
        else:
            await self.send_json(answer)

    async def send_json(
        self, answer: object, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        """Sends a whole answer as JSON."""
        await self._send_content(Content(msgspec.json.encode(answer), _JSON, status, headers or {}))

    async def _send_content(self, answer: Content) -> None:
        more = {**answer.headers, "Content-Length": str(len(answer.raw))}
        await self._begin(answer.status, answer.kind, more)
        await self._deliver({"type": "http.response.body", "body": answer.raw})

    async def _begin(self, status: int, kind: str, more: Mapping[str, str]) -> None:
        self.status = status
        headers = {"Content-Type": kind, **more, **self.headers}
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

    async def send_error(
        self, error: BaseException, form: Callable[[ApiError], dict[str, Any]]
    ) -> None:
        """Sends an error in place of an answer that has not started."""
        shown = self._shown(error)
        if not self.status:
            await self.send_json(form(shown), shown.status, shown.headers)

    def _shown(self, error: BaseException) -> ApiError:
        """An error as its client sees it; writes it to the log and the metrics."""
        settings = self.serving.settings
        shown = api_error(error, settings.retry_after_s, self._given)
        shown.message = self.models.without_paths(shown.message)
        note_failure(error)
        shown.request_id = self.info.id
        self.info.note["error"] = code = shown.code or shown.type
        if option := settings.flags.get(shown.option, shown.option):
            self.info.note["option"] = option
        self.serving.metrics.add("pyllama_spec:request_errors", 1, self._model, code)
        _let_go(error)
        return shown

    # ---- while the answer is made

    async def _left(self) -> None:
        """Ends when the client disconnects."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def watched(self, work: Awaitable[_T]) -> _T:
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
            if not (self.status and self.serving.is_cutting):
                raise
            error = stopped()
        finally:
            await _ended(reader, left)
        if error is not None:
            if not self.status:
                raise error
            held += map(_sse, events.failed(self._shown(error)))
        await self._send_part(held)
        await self._deliver({"type": "http.response.body", "body": b""})

    async def _send_part(self, held: list[bytes]) -> None:
        """Sends the held events, which are those of a round, as one message."""
        raw = b"".join(held)
        held.clear()
        if not self.status:
            await self._begin(200, "text/event-stream; charset=utf-8", _STREAM)
        await self._deliver({"type": "http.response.body", "body": raw, "more_body": True})


def _n_prompt(service: Service, body: Any, to_chat: ToChat | None, info: RequestInfo) -> int:
    chat = body if to_chat is None else to_chat(body, service)
    with service.unstarted(chat, info) as handle:
        return handle.status.n_prompt


def _let_go(error: BaseException | None) -> None:
    """Clears the frames of a reported error, which refer to the body and the error.

    The cycle collector runs seldom, as it counts objects and not megabytes.
    """
    while error is not None and error.__traceback__ is not None:
        error.__traceback__, error = None, error.__context__


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


class _Endpoint:
    """The routes of a path by method; empty for an unknown path."""

    def __init__(self, models: Models, by_method: dict[str, Route]) -> None:
        self._models, self._serving, self._by_method = models, models.serving, by_method
        self._methods = ", ".join(sorted(by_method))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI, for a request of HTTP."""
        exchange = Exchange(self._models, scope, receive, send)
        route = self._by_method.get("GET" if exchange.method == "HEAD" else exchange.method)
        form = openai_error if route is None else route.error_form
        id_headers = REQUEST_ID if route is None else route.id_headers
        exchange.headers = dict.fromkeys(id_headers, exchange.info.id)
        task = asyncio.current_task()
        assert task is not None
        self._serving.tasks.add(task)
        try:
            try:
                await self._answer(exchange, route)
            except asyncio.CancelledError:
                if not self._serving.is_cutting:
                    raise
                await exchange.send_error(stopped(), form)
            except ClientGone:
                raise
            except Exception as error:  # noqa: BLE001 - sent to the client in its form, and logged
                await exchange.send_error(error, form)
        except ClientGone:
            exchange.info.note["left"] = True
        finally:
            self._serving.tasks.discard(task)
            self._log(exchange)

    async def _answer(self, exchange: Exchange, route: Route | None) -> None:
        """Raises ApiError for a request that the server must not answer."""
        request, serving = exchange.request, self._serving
        exchange.headers |= door.check_page(request, serving.settings)
        if exchange.method == "OPTIONS" and self._by_method and "origin" in request.headers:
            headers = door.preflight_headers(self._methods)
            await exchange.send(Content(b"", "text/plain", 204, headers))
            return
        if route is None or not route.is_open:
            door.check_key(request, serving.keys, exchange.info)  # before it says what there is
        if not self._by_method:
            raise ApiError(404, f"there is no {exchange.path:.200}", "unknown_path")
        if route is None:
            raise ApiError(
                405, f"{exchange.path} takes {self._methods}", "unknown_method",
                headers={"Allow": self._methods},
            )  # fmt: skip
        if serving.is_stopping and not route.is_open:
            raise stopping()
        if route.body is None:
            await exchange.send(await route.handler(exchange, None))
            return
        body = await exchange.read(route.body)
        await exchange.send(await exchange.watched(route.handler(exchange, body)))

    def _log(self, exchange: Exchange) -> None:
        settings, status, info = self._serving.settings, exchange.status, exchange.info
        if exchange.path in _CHECKS and not settings.logs_checks and 0 < status < 400:
            return
        if not status and "left" in info.note:
            status = _LEFT
        note = {"id": info.id}
        if settings.logs_clients:
            note["from"] = door.client_address(exchange.request)
        note |= info.note
        log.info(
            "%s %s %d %.3f s%s", exchange.method, _logged(exchange.path), status,
            monotonic() - info.arrived_at, "".join(f" {k}={v}" for k, v in note.items()),
        )  # fmt: skip


def _logged(path: str) -> str:
    """A path for the log, percent-encoded again: a newline in it would forge a line."""
    return quote(path[:_MAX_LOGGED], safe="/:@!$&'()*+,;=~", errors="replace")[:_MAX_LOGGED]
