"""The application: finds the route of a request, asks for the key, gives errors their form."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from starlette.routing import BaseRoute, Router
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from pyllama_spec.llama import Llama
from pyllama_spec.server import routes_openai
from pyllama_spec.server.api_errors import ApiError, api_error, openai_error
from pyllama_spec.server.exchange import ClientGone, Exchange, Route
from pyllama_spec.server.service import Service, log
from pyllama_spec.server.settings import ServerSettings

# Every module of endpoints; the first route of a path counts.
_ROUTES: Sequence[Route] = (*routes_openai.ROUTES,)


def create_app(llm: Llama, settings: ServerSettings | None = None) -> App:
    """An ASGI application that answers with a Llama.

    Args:
        llm: opened with n_parallel and max_waiting as many clients need; the caller closes it,
            after the server has ended.
        settings: bounds, keys and defaults.

    """
    return App(Service(llm, settings or ServerSettings()))


class App:
    """See create_app().

    Attributes:
        service: what answers; its stop() is for a server that ends.

    """

    def __init__(self, service: Service) -> None:
        self.service = service
        paths: dict[str, dict[str, Route]] = {}
        for route in _ROUTES:
            paths.setdefault(route.path, {}).setdefault(route.method, route)
        routes: list[BaseRoute] = [
            StarletteRoute(path, endpoint=_Endpoint(service, by_method))
            for path, by_method in paths.items()
        ]
        self._router = Router(routes, default=_Endpoint(service, {}), redirect_slashes=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1003})
            return
        await self._router(scope, receive, send)


class _Endpoint:
    """The routes of one path, by method; none for a path that there is not."""

    def __init__(self, service: Service, by_method: dict[str, Route]) -> None:
        self._service, self._by_method = service, by_method

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(self._service, scope, receive, send)
        method = "GET" if exchange.method == "HEAD" else exchange.method
        route = self._by_method.get(method)
        form = openai_error if route is None else route.error_form
        begin = perf_counter()
        task = asyncio.current_task()
        assert task is not None
        self._service.running.add(task)
        try:
            self._check(exchange, route)
            assert route is not None
            await route.handler(exchange)
        except ClientGone:
            exchange.note["left"] = True
        except Exception as error:  # noqa: BLE001 - told to the client in its form, and logged
            told = api_error(error, self._service.settings.retry_after_s)
            self._service.note_failure(error)
            exchange.note["error"] = told.code
            if not exchange.status:
                await _answer(exchange, form(told), told)
        finally:
            self._service.running.discard(task)
            log.info(
                "%s %s %d %.3f s %s", exchange.method, exchange.path, exchange.status,
                perf_counter() - begin, exchange.note,
            )  # fmt: skip

    def _check(self, exchange: Exchange, route: Route | None) -> None:
        """Raises ApiError where a request is not to be answered."""
        settings = self._service.settings
        _check_host(exchange, settings)
        if not self._by_method:
            raise ApiError(404, f"there is no {exchange.path:.200}", "unknown_path")
        if route is None:
            allowed = ", ".join(sorted(self._by_method))
            raise ApiError(
                405, f"{exchange.path} takes {allowed}", "unknown_method",
                headers={"Allow": allowed},
            )  # fmt: skip
        if not route.is_open and not settings.accepts_key(_key(exchange)):
            raise ApiError(
                401, "an API key is needed: send 'Authorization: Bearer KEY'", "invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )  # fmt: skip
        if self._service.is_stopping and not route.is_open:
            raise ApiError(503, "the server is stopping", "stopping", headers={"Retry-After": "5"})


async def _answer(exchange: Exchange, told: dict[str, Any], error: ApiError) -> None:
    try:
        await exchange.send_json(told, error.status, error.headers)
    except ClientGone:
        exchange.note["left"] = True


def _key(exchange: Exchange) -> str | None:
    kind, _, key = (exchange.header("authorization") or "").partition(" ")
    if kind.lower() == "bearer" and key:
        return key.strip()
    return exchange.header("x-api-key")


def _check_host(exchange: Exchange, settings: ServerSettings) -> None:
    """Keeps out pages of others that a browser on this machine shows."""
    host = exchange.header("host") or ""
    if settings.allowed_hosts and urlsplit(f"//{host}").hostname not in settings.allowed_hosts:
        raise ApiError(403, f"the Host header names {host!r:.100}, which is not served", "host")


def asgi(app: App) -> ASGIApp:
    """The same, for type checkers."""
    return app
