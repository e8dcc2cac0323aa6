"""The application: finds the endpoint of a request, admits the request, and reports errors."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic
from urllib.parse import quote

from starlette.routing import BaseRoute, Router
from starlette.routing import Route as StarletteRoute
from starlette.types import Receive, Scope, Send

from pyllama_spec.llama import Llama
from pyllama_spec.server import door, messages, native, openai, page_files, responses
from pyllama_spec.server.api_errors import ApiError, openai_error
from pyllama_spec.server.door import ClientGone
from pyllama_spec.server.exchange import REQUEST_ID, Content, Exchange, Route
from pyllama_spec.server.model_list import ModelList
from pyllama_spec.server.models import Models
from pyllama_spec.server.serving import log, stopped, stopping
from pyllama_spec.server.settings import ServerSettings

# Characters of a path in the log.
_MAX_LOGGED = 200
# The status in the log of a request whose client left before its answer began; nginx's word for it.
_LEFT = 499
# What asks every few seconds how the server is.
_CHECKS = ("/health", "/v1/health", "/ready", "/metrics")
# Every module of endpoints; the first route of a path counts.
_ROUTES: Sequence[Route] = (
    *openai.ROUTES, *native.ROUTES, *messages.ROUTES, *responses.ROUTES, *page_files.ROUTES,
)  # fmt: skip


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
            if exchange.is_large:
                door.give_back_soon()
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
