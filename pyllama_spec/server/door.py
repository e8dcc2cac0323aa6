"""The door of the server: which pages and keys are admitted, and what a body may hold.

Small bodies are parsed at once, large ones in a thread, one after the other. A C decoder holds the
interpreter's lock until it is done, so a thread alone does not help. A large body is therefore
scanned first: only many small values take long to decode, and more than a request needs are refused
by a count of signs.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import secrets
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from time import monotonic
from typing import Any, TypeVar
from urllib.parse import urlsplit

import anyio
import msgspec
from starlette.requests import ClientDisconnect, Request

from pyllama_spec.server.api_errors import ApiError, invalid_type
from pyllama_spec.server.keys import Keys
from pyllama_spec.server.settings import ServerSettings

_T = TypeVar("_T")
_PREFLIGHT_S = "600"
# Headers of the published JavaScript clients, each of which a browser asks for by name.
_STAINLESS = (
    "arch", "async", "custom-poll-interval", "helper", "helper-method", "lang", "os",
    "package-version", "poll-helper", "retry-count", "runtime", "runtime-version", "timeout",
)  # fmt: skip
# Headers of an answer that these clients read.
_READABLE = "request-id, retry-after, x-request-id, x-should-retry"
_PAGE_HEADERS = ", ".join((
    "authorization", "content-type", "user-agent", "idempotency-key", "x-api-key",
    "anthropic-version", "anthropic-beta", "anthropic-dangerous-direct-browser-access",
    "openai-organization", "openai-project", "openai-beta",
    "x-session-id",
    *(f"x-stainless-{name}" for name in _STAINLESS),
))  # fmt: skip
# Bytes of a body that is decoded in a thread: fewer take less time than a thread's turn.
LARGE = 1 << 16
# In lists and objects of one request: 2,048 messages with many parts each have fewer.
MAX_VALUES = 100_000
# Ids of prompts, which count by themselves: the longest contexts have as many.
_MAX_NUMBERS = 1 << 20
_THREAD = "pyllama_spec-bodies"
# A moment after a large body, so that several are given back together.
_QUIET_S = 1.0
_waiting: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()
_QUOTE, _BACKSLASH = b'"', ord("\\")
# mallopt()'s name of the limit, in glibc's malloc.h.
_M_ARENA_MAX, _N_ARENAS = -8, 2


class ClientGone(Exception):  # noqa: N818 - nothing went wrong here
    """The client disconnected, or has stopped reading."""


@dataclass(slots=True)
class RequestInfo:
    """An HTTP request beside its body.

    Attributes:
        id: this server's own: a client's id would be its text in the log.
        caller: the owner of the request's key; "" where none is needed.
        note: figures for the request's line of the log: counts, never text.
        arrived_at: when it arrived, by monotonic().
    """

    id: str = field(default_factory=lambda: secrets.token_hex(8))
    caller: str = ""
    note: dict[str, Any] = field(default_factory=dict)
    arrived_at: float = field(default_factory=monotonic)


# ---- who may ask


def check_page(request: Request, settings: ServerSettings) -> dict[str, str]:
    """Refuses browser pages of other sites; returns the headers for an admitted origin.

    A browser sends a page's own origin with the page's requests, and the host name that it used:
    another site's name if that resolves to this machine. Programs send no origin.
    """
    host = request.headers.get("host") or ""
    if settings.allowed_hosts and _name(host) not in settings.allowed_hosts:
        raise ApiError(
            403, f"this server does not answer to the Host {host!r:.100}", "unknown_host",
            option="allowed_hosts",
        )  # fmt: skip
    origin = request.headers.get("origin")
    if origin is None:
        return {}
    is_open = "*" in settings.cors_origins
    if is_open or origin in settings.cors_origins:
        return {
            "Access-Control-Allow-Origin": "*" if is_open else origin, "Vary": "Origin",
            "Access-Control-Expose-Headers": _READABLE,
        }  # fmt: skip
    if _netloc(origin) != host.lower():
        raise ApiError(
            403, f"pages of {origin!r:.100} may not call this server", "unknown_origin",
            option="cors_origins",
        )  # fmt: skip
    return {}


def preflight_headers(methods: str) -> dict[str, str]:
    """The answer to a checked preflight request of another origin."""
    return {
        "Access-Control-Allow-Methods": methods,
        "Access-Control-Allow-Headers": _PAGE_HEADERS,
        "Access-Control-Max-Age": _PREFLIGHT_S,
    }


def check_key(request: Request, keys: Keys, info: RequestInfo) -> None:
    """Requires a key if the server has keys; records whose it is."""
    kind, _, key = (request.headers.get("authorization") or "").partition(" ")
    given = key.strip() if kind.lower() == "bearer" and key else request.headers.get("x-api-key")
    caller = keys.caller_of(given)
    if caller is None:
        how = "'Authorization: Bearer KEY'"
        message = (
            f"this server does not know the API key that was sent as {how} or 'x-api-key: KEY'"
        )
        raise ApiError(
            401, message if given else f"an API key is needed: send it as {how}", "invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )  # fmt: skip
    info.caller = caller.user
    if caller.shown:
        info.note["key"] = caller.shown


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


def client_address(request: Request) -> str:
    """The client's address; "-" if unknown.

    Where a proxy on this machine passes it on, that of the proxy's client: the last one in
    X-Forwarded-For, which the proxy itself has written there.
    """
    host = request.client.host if request.client else "-"
    # A proxy may add a header of its own after the client's.
    given = request.headers.getlist("x-forwarded-for")
    last = given[-1].rpartition(",")[2].strip() if given else ""
    with suppress(ValueError):
        if last and ipaddress.ip_address(host).is_loopback:
            return str(ipaddress.ip_address(last.partition("%")[0]))
    return host


# ---- bodies


async def read_body(request: Request, settings: ServerSettings) -> bytes:
    """Reads the whole body, within its limits of size and time."""
    most, parts, n = settings.max_body_bytes, list[bytes](), 0
    length = request.headers.get("content-length")
    if length is not None and length.isdigit() and int(length) > most:
        raise _too_large(most)
    try:
        with anyio.fail_after(settings.body_timeout_s):
            async for part in request.stream():
                n += len(part)
                if n > most:
                    raise _too_large(most)
                parts.append(part)
    except TimeoutError:
        raise ApiError(
            408, f"the body did not arrive within {settings.body_timeout_s:g} s", "timeout"
        ) from None
    except ClientDisconnect:
        raise ClientGone from None
    return b"".join(parts)


def _too_large(most: int) -> ApiError:
    mib, rest = divmod(most, 1 << 20)
    shown = f"{most} bytes" if rest else f"{mib} MiB"
    return ApiError(
        413, f"the body has more than the {shown} that this server takes", "too_large",
        option="max_body_bytes",
    )  # fmt: skip


def given_names(raw: bytes) -> frozenset[str]:
    """The fields of a body that was decoded, without those that are null.

    None where a name is no text, as with half of a character: the decoder has skipped it.
    """
    try:
        fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return frozenset()
    return frozenset(k for k, value in fields.items() if memoryview(value) != memoryview(b"null"))


@lru_cache(maxsize=1)
def _executor(pid: int) -> ThreadPoolExecutor:
    """The only thread of the process: several would block the event loop for a time slice each."""
    return ThreadPoolExecutor(1, _THREAD)


async def apart(call: Callable[..., _T], *given: Any) -> _T:
    """Runs a call on a large body in the thread; the event loop continues."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_executor(os.getpid()), partial(call, *given))


async def parsed(raw: bytes, shape: type[_T], max_inputs: int) -> _T:
    """Parses a body as a msgspec type."""
    if len(raw) < LARGE:
        return decoded(raw, shape)
    return await apart(_decoded_large, raw, shape, max_inputs)


def give_back_soon() -> None:
    """Schedules the release of free C heap memory after large bodies.

    Texts of megabytes, their copies and their tokens leave holes, which glibc keeps: about 100 MiB
    after some dozens of large bodies. Call it in the event loop's thread.
    """
    loop = asyncio.get_running_loop()
    if loop not in _waiting:
        _waiting.add(loop)
        loop.call_later(_QUIET_S, _give_back, loop)


def _give_back(loop: asyncio.AbstractEventLoop) -> None:
    _waiting.discard(loop)
    _executor(os.getpid()).submit(_trim)


def _trim() -> None:
    """Does nothing if the C library lacks the call."""
    import ctypes

    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))


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


def _decoded_large(raw: bytes, shape: type[_T], max_inputs: int) -> _T:
    check_signs(raw, max_inputs)
    return decoded(raw, shape)


def decoded(raw: bytes, shape: type[_T]) -> _T:
    """See parsed()."""
    if not raw:
        raise ApiError(400, "the body is empty", "invalid_json")
    try:
        return _present(raw, shape)
    except msgspec.ValidationError as error:
        raise invalid_type(error) from None
    except msgspec.DecodeError as error:
        raise ApiError(400, f"the body is not JSON: {error}", "invalid_json") from None
    except UnicodeDecodeError:
        raise ApiError(400, "the body is not UTF-8", "invalid_json") from None
    except RecursionError:
        raise ApiError(
            400, "the body nests its lists and objects too deep", "invalid_json"
        ) from None


def _present(raw: bytes, shape: type[_T]) -> _T:
    """Parses a body; a null is absent where its field takes none, as clients send their models."""
    try:
        return msgspec.json.decode(raw, type=shape)
    except msgspec.ValidationError:
        fields = msgspec.json.decode(raw)
        if not isinstance(fields, dict) or None not in fields.values():
            raise
        present = {name: value for name, value in fields.items() if value is not None}
        return msgspec.convert(present, shape)


def check_signs(raw: bytes, max_inputs: int) -> None:
    """Refuses a body with too many values, from a count of the signs outside its strings.

    It refuses nothing that check_values() accepts. The decoder refuses invalid JSON.
    """
    n_parts = n_commas = at = 0
    # An object has two texts for a value, its name and itself; the body is no value of one.
    max_parts = 2 * MAX_VALUES + 1 + max_inputs
    while True:
        quote = raw.find(_QUOTE, at)
        between = raw[at:] if quote < 0 else raw[at:quote]
        n_commas += between.count(b",")
        n_parts += between.count(b"[") + between.count(b"{")
        if n_parts > max_parts:
            raise too_many_values()
        if n_commas > _MAX_NUMBERS:
            raise ApiError(
                400, f"the body has more than the {_MAX_NUMBERS} values, numbers too, that this "
                "server takes: send fewer ids", "beyond_bound",
            )  # fmt: skip
        if quote < 0:
            return
        n_parts += 1
        at = _end_of_text(raw, quote + 1)


def _end_of_text(raw: bytes, at: int) -> int:
    """The end of a JSON string that starts at a position."""
    while True:
        end = raw.find(_QUOTE, at)
        if end < 0:
            return len(raw)
        before = end - 1
        while before >= at and raw[before] == _BACKSLASH:
            before -= 1
        if (end - before) % 2:  # an even number of backslashes: the quote is not part of the text
            return end + 1
        at = end + 1


def too_many_values() -> ApiError:
    """The error for a body with too many values."""
    return ApiError(
        400, f"the body has more than the {MAX_VALUES} values in lists and objects that this "
        "server takes: send fewer messages, parts or tools", "beyond_bound",
    )  # fmt: skip
