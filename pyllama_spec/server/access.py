"""Access control: the Host header, the Origin of a page, the key."""

from __future__ import annotations

from urllib.parse import urlsplit

from pyllama_spec.server.api_errors import ApiError
from pyllama_spec.server.exchange import Exchange
from pyllama_spec.server.keys import Keys
from pyllama_spec.server.keywords import CALLER
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
    *(f"x-stainless-{name}" for name in _STAINLESS),
))  # fmt: skip


def check_page(exchange: Exchange, settings: ServerSettings) -> None:
    """Refuses browser pages of other sites; admits the allowed origins.

    A browser sends a page's own origin with the page's requests, and the host name that it used:
    another site's name if that resolves to this machine. Programs send no origin.

    Raises:
        ApiError: the request is from such a page.

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
    """Requires a key if the server has keys.

    Raises:
        ApiError: the key is missing or wrong.

    """
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
