"""The application: routes requests, checks the key, and formats errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any
from urllib.parse import quote, urlsplit

from starlette.routing import BaseRoute, Router
from starlette.routing import Route as StarletteRoute
from starlette.types import Receive, Scope, Send

from pyllama_spec.llama import Llama
from pyllama_spec.server import (
    bodies,
    routes_dialects,
    routes_native,
    routes_openai,
    routes_page,
)
from pyllama_spec.server.api_errors import ApiError, openai_error
from pyllama_spec.server.exchange import ClientGone, Exchange, Route, stopped, stopping
from pyllama_spec.server.keys import Keys
from pyllama_spec.server.keywords import CALLER, NOTE
from pyllama_spec.server.model_list import ModelList
from pyllama_spec.server.models import Models
from pyllama_spec.server.serving import log
from pyllama_spec.server.settings import ServerSettings

_PREFLIGHT_S = "600"
# Headers of the published JavaScript clients, each of which a browser asks for by name.
_STAINLESS = (
    "arch", "async", "custom-poll-interval", "helper", "helper-method", "lang", "os",
    "package-version", "poll-helper", "retry-count", "runtime", "runtime-version", "timeout",
)  # fmt: skip
# Headers of an answer that these clients read.
_READABLE = b"request-id, retry-after, x-request-id, x-should-retry"
_PAGE_HEADERS = ", ".join((
    "authorization", "content-type", "user-agent", "idempotency-key", "x-api-key",
    "anthropic-version", "anthropic-beta", "anthropic-dangerous-direct-browser-access",
    "openai-organization", "openai-project", "openai-beta",
    "x-session-id",
    *(f"x-stainless-{name}" for name in _STAINLESS),
))  # fmt: skip


def check_page(exchange: Exchange, settings: ServerSettings) -> None:
    """Refuses browser pages of other sites; admits the allowed origins.

    A browser sends a page's own origin with the page's requests, and the host name that it used:
    another site's name if that resolves to this machine. Programs send no origin.
    """
    host = exchange.header("host") or ""
    if settings.allowed_hosts and _name(host) not in settings.allowed_hosts:
        raise ApiError(
            403, f"this server does not answer to the Host {host!r:.100}", "unknown_host",
            option="allowed_hosts",
        )  # fmt: skip
    origin = exchange.header("origin")
    if origin is None:
        return
    is_listed = "*" in settings.cors_origins or origin in settings.cors_origins
    if is_listed:
        given = "*" if "*" in settings.cors_origins else origin
        exchange.extra_headers += [
            (b"access-control-allow-origin", given.encode("latin-1")), (b"vary", b"Origin"),
            (b"access-control-expose-headers", _READABLE),
        ]  # fmt: skip
    elif _netloc(origin) != host.lower():
        raise ApiError(
            403, f"pages of {origin!r:.100} may not call this server", "unknown_origin",
            option="cors_origins",
        )  # fmt: skip


async def answer_preflight(exchange: Exchange, methods: str) -> None:
    """The answer to a checked preflight request of another origin."""
    await exchange.send_bytes(
        b"", b"text/plain", 204,
        {
            "Access-Control-Allow-Methods": methods,
            "Access-Control-Allow-Headers": _PAGE_HEADERS,
            "Access-Control-Max-Age": _PREFLIGHT_S,
        },
    )  # fmt: skip


def check_key(exchange: Exchange, keys: Keys) -> None:
    """Requires a key if the server has keys."""
    kind, _, key = (exchange.header("authorization") or "").partition(" ")
    given = key.strip() if kind.lower() == "bearer" and key else exchange.header("x-api-key")
    caller = keys.caller_of(given)
    if caller is None:
        how = "'Authorization: Bearer KEY'"
        told = f"this server does not know the API key that was sent as {how} or 'x-api-key: KEY'"
        raise ApiError(
            401, told if given else f"an API key is needed: send it as {how}", "invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )  # fmt: skip
    CALLER.set(caller.user)
    if caller.shown:
        exchange.note["key"] = caller.shown


def _name(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:  # a bracket that does not close
        return None


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


# Characters of a path in the log.
_MAX_LOGGED = 200
# The status in the log of a request whose client left before its answer began; nginx's word for it.
_LEFT = 499
# What asks every few seconds how the server is.
_CHECKS = ("/health", "/v1/health", "/ready", "/metrics")
# Every module of endpoints; the first route of a path counts.
_ROUTES: Sequence[Route] = (
    *routes_openai.ROUTES,
    *routes_native.ROUTES,
    *routes_dialects.ROUTES,
    *routes_page.ROUTES,
)


def create_app(llm: Llama | ModelList, settings: ServerSettings | None = None) -> App:
    """Creates an ASGI application over a Llama, or over several models.

    Args:
        llm: opened with n_parallel and max_waiting for as many clients as needed; the caller closes
            it after the server has ended. A list of models loads and closes its models itself; end
            it with `await app.models.close()`.
        settings: bounds, keys and defaults.

    """
    return App(Models(llm, settings or ServerSettings()))


class App:
    """See create_app(). Await serving.stop() before the server ends."""

    def __init__(self, models: Models) -> None:
        self.models, self.serving = models, models.serving
        paths: dict[str, dict[str, Route]] = {}
        for route in _ROUTES:
            paths.setdefault(route.path, {}).setdefault(route.method, route)
        routes: list[BaseRoute] = [
            StarletteRoute(path, endpoint=_Endpoint(models, by_method))
            for path, by_method in paths.items()
        ]
        self._router = Router(routes, default=_Endpoint(models, {}), redirect_slashes=False)

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
        method = "GET" if exchange.method == "HEAD" else exchange.method
        route = self._by_method.get(method)
        form = openai_error if route is None else route.error_form
        if route is not None:
            exchange.id_headers = route.id_headers
        NOTE.set(exchange.note)
        begin, task = perf_counter(), asyncio.current_task()
        assert task is not None
        self._serving.tasks.add(task)
        try:
            await self._answer(exchange, route)
        except ClientGone:
            exchange.note["left"] = True
        except asyncio.CancelledError:
            if not self._serving.is_cutting:
                raise
            await _told(exchange, stopped(), form)
        except Exception as error:  # noqa: BLE001 - told to the client in its form, and logged
            await _told(exchange, error, form)
        finally:
            exchange.release()
            self._serving.tasks.discard(task)
            if exchange.is_large:
                bodies.give_back_soon()
            self._log(exchange, perf_counter() - begin)

    def _log(self, exchange: Exchange, seconds: float) -> None:
        settings, status = self._serving.settings, exchange.status
        if exchange.path in _CHECKS and not settings.logs_checks and 0 < status < 400:
            return
        if not status and "left" in exchange.note:
            status = _LEFT
        note = {"id": exchange.request_id}
        if settings.logs_clients:
            note["from"] = exchange.client_address()
        note |= exchange.note
        log.info(
            "%s %s %d %.3f s%s", exchange.method, _logged(exchange.path), status, seconds,
            "".join(f" {k}={v}" for k, v in note.items()),
        )  # fmt: skip

    async def _answer(self, exchange: Exchange, route: Route | None) -> None:
        """Raises ApiError for a request that the server must not answer."""
        settings = self._serving.settings
        check_page(exchange, settings)
        if exchange.method == "OPTIONS" and self._by_method and exchange.header("origin"):
            await answer_preflight(exchange, self._methods)
            return
        if route is None or not route.is_open:
            check_key(exchange, self._serving.keys)  # before it is said what there is
        if not self._by_method:
            raise ApiError(404, f"there is no {exchange.path:.200}", "unknown_path")
        if route is None:
            raise ApiError(
                405, f"{exchange.path} takes {self._methods}", "unknown_method",
                headers={"Allow": self._methods},
            )  # fmt: skip
        if self._serving.is_stopping and not route.is_open:
            raise stopping()
        await route.handler(exchange)


def _logged(path: str) -> str:
    """A path for the log, percent-encoded again: a newline in it would forge a line."""
    return quote(path[:_MAX_LOGGED], safe="/:@!$&'()*+,;=~", errors="replace")[:_MAX_LOGGED]


async def _told(
    exchange: Exchange, error: BaseException, form: Callable[[ApiError], dict[str, Any]]
) -> None:
    try:
        await exchange.send_error(error, form)
    except ClientGone:
        exchange.note["left"] = True
