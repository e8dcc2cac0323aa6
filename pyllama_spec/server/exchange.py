"""One HTTP request: its body, its answer or stream, and a client that disconnects."""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive, Scope, Send

from pyllama_spec.server import bodies
from pyllama_spec.server.api_errors import ApiError, api_error, openai_error
from pyllama_spec.server.serving import names_of, note_failure

if TYPE_CHECKING:
    from pyllama_spec.server.models import Models
    from pyllama_spec.server.served_model import ChosenModel
    from pyllama_spec.server.service import Service

_T = TypeVar("_T")
# An error as an event of a stream.
_LateError = Callable[[ApiError], bytes]
_JSON = b"application/json"
_PING = b": ping\n\n"
# So many events are sent together at most.
_MAX_HELD = 64


class ClientGone(Exception):  # noqa: N818 - nothing went wrong here
    """The client disconnected, or has stopped reading."""


def sse(data: object, event: str | None = None) -> bytes:
    """One event of a stream: JSON, except of text and bytes, which are written unchanged."""
    raw = data.encode() if isinstance(data, str) else data
    raw = raw if isinstance(raw, bytes) else msgspec.json.encode(raw)
    head = b"" if event is None else b"event: " + event.encode() + b"\n"
    return head + b"data: " + raw + b"\n\n"


class Exchange:
    """A request and its answer over ASGI. `note` has figures for the log: counts, never text.

    Starlette's StreamingResponse and sse-starlette's EventSourceResponse send the status before the
    first event, so that a refusal would be a 200; and each event by itself, where the events of a
    round are one message here.
    """

    def __init__(self, models: Models, scope: Scope, receive: Receive, send: Send) -> None:
        self.models, self.serving, self._receive, self._send = models, models.serving, receive, send
        self._used: ChosenModel | None = None
        self._with_adapters = ExitStack()
        self._late_error: _LateError | None = None
        self._given = frozenset[str]()
        self.request = Request(scope, receive)
        self.path: str = scope["path"]
        self.method = self.request.method
        # Ours alone: a client's would be its text in the log.
        self.request_id = secrets.token_hex(8)
        self.id_headers: Sequence[bytes] = (b"x-request-id",)
        self.status = 0
        self.note: dict[str, Any] = {}
        self.extra_headers: list[tuple[bytes, bytes]] = []
        self._body_is_read = self._has_left = self._has_given_up = self.is_large = False
        # For a stream: its source, the part to send, and the number of sends.
        self._task: asyncio.Task[Any] | None = None
        self._held: list[bytes] = []
        self._has_held, self._sending, self._n_sent = asyncio.Event(), asyncio.Lock(), 0

    def header(self, name: str) -> str | None:
        """The first header of a lower-case name; None without one."""
        return self.request.headers.get(name)

    def client_address(self) -> str:
        """The client's address; "-" if unknown.

        Where a proxy on this machine passes it on, that of the proxy's client: the last one in
        X-Forwarded-For, which the proxy itself has written there.
        """
        host = self.request.client.host if self.request.client else "-"
        # A proxy may add a header of its own behind the client's.
        given = self.request.headers.getlist("x-forwarded-for")
        told = given[-1].rpartition(",")[2].strip() if given else ""
        with suppress(ValueError):
            if told and ipaddress.ip_address(host).is_loopback:
                return str(ipaddress.ip_address(told.partition("%")[0]))
        return host

    # ---- the model that answers it

    async def use(
        self,
        name: str | None = None,
        *,
        needs_base: bool = False,
        late_error: _LateError | None = None,
    ) -> Service:
        """Gets the service of a named model, which stays loaded until release().

        A stream, which has a late_error, starts with pings while it waits for a load; a later error
        is its last event.
        """
        models = self.models
        choice = models.find(name)
        if needs_base and choice.adapter is not None:
            raise ApiError(
                400, f"{choice.adapter!r} is an adapter, which applies to generation only: ask "
                f"{choice.model.name!r}", "unsupported", "model",
            )  # fmt: skip
        self.release()
        if choice.model.takes_requests:
            self._used = await models.use(name)
        else:
            self._used = await self._loaded(name, late_error)
        service = self.service
        if models.only is None:
            self.note["model"] = service.name
        if choice.adapter is not None:
            self.note["adapter"] = choice.adapter
            self._with_adapters.enter_context(service.llm.with_adapters(models.adapters(choice)))
        return service

    async def _loaded(self, name: str | None, late_error: _LateError | None) -> ChosenModel:
        self._late_error = late_error
        calls = (self._ping, self._send_held) if late_error is not None else ()
        beside = [asyncio.ensure_future(call()) for call in calls]
        try:
            return await self.watched(self.models.use(name))
        finally:
            await _ended(*beside)

    @property
    def service(self) -> Service:
        """The service that use() got."""
        assert self._used is not None
        assert self._used.model.service is not None
        return self._used.model.service

    def release(self) -> None:
        """Called when the request ends or changes its model. May be called twice."""
        used, self._used = self._used, None
        self._with_adapters.close()
        if used is not None:
            self.models.done_with(used.model)

    # ---- input

    async def body(self) -> bytes:
        """Reads the whole body."""
        settings = self.serving.settings
        most, parts, n = settings.max_body_bytes, list[bytes](), 0
        mib, rest = divmod(most, 1 << 20)
        told = f"{most} bytes" if rest else f"{mib} MiB"
        too_large = ApiError(
            413, f"the body has more than the {told} that this server takes", "too_large",
            option="max_body_bytes",
        )  # fmt: skip
        length = self.header("content-length")
        if length is not None and length.isdigit() and int(length) > most:
            raise too_large

        try:
            with anyio.fail_after(settings.body_timeout_s):
                async for part in self.request.stream():
                    n += len(part)
                    if n > most:
                        raise too_large
                    parts.append(part)
        except TimeoutError:
            raise ApiError(
                408, f"the body did not arrive within {settings.body_timeout_s:g} s", "timeout"
            ) from None
        except ClientDisconnect:
            raise ClientGone from None
        self._body_is_read = True
        return b"".join(parts)

    async def read(self, shape: type[_T]) -> _T:
        """Parses the body as a msgspec type."""
        raw = await self.body()
        self.is_large = len(raw) >= bodies.LARGE
        body = await bodies.read(raw, shape, self.serving.settings.max_inputs)
        if isinstance(body, Mapping):
            self._given = frozenset(body)
            return body
        fields = await bodies.apart(names_of, raw) if self.is_large else names_of(raw)
        self._given = frozenset(
            name for name, value in fields.items() if memoryview(value) != memoryview(b"null")
        )
        self.note_unknown(self._given, shape.__struct_fields__)  # type: ignore[attr-defined]
        return body

    def note_unknown(self, names: Iterable[str], known: Collection[str]) -> None:
        """Says in the log which of a request's fields the endpoint does not know."""
        self.serving.note_unknown(self.path, names, known)

    async def prepared(self, call: Callable[..., _T], *given: Any) -> _T:
        """Runs a call on the body: here, or in a thread if the body is large."""
        return await bodies.apart(call, *given) if self.is_large else call(*given)

    # ---- output

    async def send_json(
        self, answer: object, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        """Sends a whole answer as JSON."""
        await self.send_bytes(msgspec.json.encode(answer), _JSON, status, headers)

    async def send_bytes(
        self,
        raw: bytes,
        kind: bytes,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Sends a whole answer."""
        more = [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()]
        more.append((b"content-length", str(len(raw)).encode()))
        await self._begin(status, kind, more)
        await self._deliver({"type": "http.response.body", "body": raw})

    async def send_parts(self, parts: Sequence[bytes], kind: bytes) -> None:
        """Sends a large answer in parts, between which other requests are answered."""
        length = str(sum(map(len, parts))).encode()
        await self._begin(200, kind, [(b"content-length", length)])
        for part in parts:
            await self._deliver({"type": "http.response.body", "body": part, "more_body": True})
            await asyncio.sleep(0)
        await self._deliver({"type": "http.response.body", "body": b""})

    async def _begin(self, status: int, kind: bytes, more: list[tuple[bytes, bytes]]) -> None:
        own = [(name, self.request_id.encode()) for name in self.id_headers]
        headers = [(b"content-type", kind), *more, *own, *self.extra_headers]
        self.status = status
        await self._deliver({"type": "http.response.start", "status": status, "headers": headers})

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

    # ---- while the answer is made

    async def _left(self) -> None:
        """Ends when the client disconnects."""
        if not self._body_is_read:
            with suppress(ApiError):
                await self.body()
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def watched(self, work: Awaitable[_T]) -> _T:
        """The result of a task, which is cancelled when the client disconnects."""
        task, left = asyncio.ensure_future(work), asyncio.ensure_future(self._left())
        try:
            await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise ClientGone
        finally:
            await _ended(task, left)

    async def send_events(
        self,
        events: AsyncGenerator[bytes, None],
        error_event: _LateError,
    ) -> None:
        """Sends events, with pings while the first one takes long; an error before it is plain."""
        self._task, self._late_error = asyncio.current_task(), None
        beside = [
            asyncio.ensure_future(one)
            for one in (self._end_with_client(), self._ping(), self._send_held())
        ]
        try:
            try:
                async for event in events:
                    await self._hold(event)
                await self._send_now()
            except Exception as error:
                if not self.status or isinstance(error, ClientGone):
                    raise
                await self._send_now(error_event(self._told(error)))
            await self._deliver({"type": "http.response.body", "body": b""})
        except asyncio.CancelledError:
            if self._has_left:
                raise ClientGone from None
            if not (self.status and self.serving.is_cutting):
                raise
            await self._send_now(error_event(self._told(stopped())))
            await self._deliver({"type": "http.response.body", "body": b""})
        finally:
            self._task = None
            await _ended(*beside)
            await events.aclose()

    async def _end_with_client(self) -> None:
        """Cancels the stream when its client disconnects, whatever it waits for."""
        await self._left()
        self._end_now()

    def _end_now(self) -> None:
        self._has_left = True
        if self._task is not None:
            self._task.cancel()

    async def _ping(self) -> None:
        """Sends a comment on a silent stream, so that no proxy closes the connection."""
        while True:
            n_sent = self._n_sent
            await asyncio.sleep(self.serving.settings.ping_s)
            if n_sent == self._n_sent and not self._held:
                self._held.append(_PING)
                self._has_held.set()

    def _told(self, error: BaseException) -> ApiError:
        """An error in the client's format, and its log entry."""
        settings = self.serving.settings
        told = api_error(error, settings.retry_after_s, self._given)
        told.message = self.models.without_paths(told.message)
        note_failure(error)
        told.request_id = self.request_id
        self.note["error"] = code = told.code or told.type
        if option := settings.flags.get(told.option, told.option):
            self.note["option"] = option
        used = self._used.model if self._used is not None else self.models.only
        self.serving.metrics.note_error("" if used is None else used.name, code)
        _let_go(error)
        return told

    async def send_error(
        self, error: BaseException, form: Callable[[ApiError], dict[str, Any]]
    ) -> None:
        """Sends an error in place of an answer that has not started."""
        told = self._told(error)
        if not self.status:
            await self.send_json(form(told), told.status, told.headers)
        elif self._late_error is not None:
            await self._send_now(self._late_error(told))
            await self._deliver({"type": "http.response.body", "body": b""})

    async def _hold(self, event: bytes) -> None:
        """Holds an event until those of the same round are there."""
        self._held.append(event)
        self._has_held.set()
        if len(self._held) >= _MAX_HELD:
            await self._send_now()

    async def _send_held(self) -> None:
        """Sends the held events when their source waits for the next one."""
        while True:
            await self._has_held.wait()
            try:
                await self._send_now()
            except ClientGone:
                self._end_now()
                return

    async def _send_now(self, event: bytes = b"") -> None:
        """Sends the held events and one more."""
        async with self._sending:
            raw = b"".join((*self._held, event))
            self._held.clear()
            self._has_held.clear()
            if not raw:
                return
            self._n_sent += 1
            if not self.status:
                # A proxy that gathers a stream would show it at its end.
                no_buffer = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
                await self._begin(200, b"text/event-stream; charset=utf-8", no_buffer)
            await self._deliver({"type": "http.response.body", "body": raw, "more_body": True})


@dataclass(frozen=True, slots=True)
class Route:
    """An endpoint. A GET answers HEAD too. An open one needs no key and outlives the stop."""

    method: str
    path: str
    handler: Callable[[Exchange], Awaitable[None]]
    error_form: Callable[[ApiError], dict[str, Any]] = openai_error
    is_open: bool = False
    id_headers: Sequence[bytes] = (b"x-request-id",)


def stopping() -> ApiError:
    """The error for a request that arrives while the server stops."""
    return ApiError(503, "the server is stopping: it takes nothing new", "stopping")


def stopped() -> ApiError:
    """The error for a request that the server's stop cancels."""
    return ApiError(
        503, "the server stopped before the answer was complete: send the request again", "stopping"
    )


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
