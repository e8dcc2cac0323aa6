"""The door of a server: who is admitted, what a body may hold, and the end of it all."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import secrets
import traceback
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit

import anyio
import msgspec
from starlette.requests import ClientDisconnect, Request

from pyllama_spec.engine.checks import meant
from pyllama_spec.errors import PyllamaSpecError
from pyllama_spec.server.api_errors import ApiError, invalid_type
from pyllama_spec.server.metrics import Metrics
from pyllama_spec.server.settings import ServerSettings, key_and_name
from pyllama_spec.speculative.stats import plural

log = logging.getLogger("pyllama_spec.server")
_T = TypeVar("_T")
_PREFLIGHT_S = "600"
# Headers of an answer that the published JavaScript clients read.
_READABLE = "request-id, retry-after, x-request-id, x-should-retry"
# Bytes of a body that leaves holes in the C heap, and how long its release waits for others.
_LARGE, _QUIET_S = 1 << 16, 1.0
# How often a running stop looks whether all have ended.
_LOOK_S = 0.05
# So long a cut request may take to end before the last line of the log.
_LAST_S = 2.0
# The names of as many fields at most: clients choose them.
_MOST = 64
# What may be in the log: a client could write a text in the place of a name.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,39}")
# Published fields on which no answer depends.
_QUIET = frozenset((
    "metadata", "service_tier", "store", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention", "truncation", "include", "cache_control", "cache_prompt",
    "client_metadata", "max_tool_calls", "betas",
))  # fmt: skip


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


class Keys:
    """The keys of a server, which may change while it serves.

    A key keeps its number while the server runs, and no other key gets it later: drafts find a
    user's texts by it. Keys are known by their digests, so that the time of a look-up says nothing
    of a key.
    """

    def __init__(self, keys: Sequence[str] = ()) -> None:
        self._numbers: dict[bytes, int] = {}
        self._callers: dict[bytes, tuple[str, str]] = {}
        self.replace(keys)

    def replace(self, keys: Sequence[str]) -> tuple[int, int]:
        """Replaces the accepted keys; returns how many are new, and how many are gone."""
        before, self._callers = self._callers.keys(), {}
        for line in keys:
            key, name = key_and_name(line)
            digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
            number = self._numbers.setdefault(digest, len(self._numbers))
            self._callers[digest] = f"key {number}", name or str(number + 1)
        return len(self._callers.keys() - before), len(before - self._callers.keys())

    def __len__(self) -> int:
        return len(self._callers)

    def caller_of(self, given: str | None) -> tuple[str, str] | None:
        """The user of a key for drafts, and its name in the log; None for no such key.

        `given` has a character for a byte, as a header. Both are "" where no key is needed.
        """
        if not self._callers:
            return "", ""
        return self._callers.get(hashlib.sha256((given or "").encode("latin-1")).digest())


class Serving:
    """One run of a server."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings, self.metrics = settings, Metrics()
        self.keys = Keys(settings.api_keys)
        self.tasks: set[asyncio.Task[Any]] = set()
        self.is_stopping = self.is_cutting = self._is_hurried = False
        self.on_stop: list[Callable[[], None]] = []
        self._named = set[str]()
        self._release: asyncio.TimerHandle | None = None

    async def stop(self) -> tuple[int, int]:
        """Refuses new requests, and waits until the running ones end, time out or are cut."""
        self.is_stopping = True
        for call in self.on_stop:
            call()
        running, until = set(self.tasks), monotonic() + self.settings.stop_timeout_s
        if running:
            log.info(
                "stopping: %d running or waiting, cut in %g s; a second signal cuts now",
                len(running), self.settings.stop_timeout_s,
            )  # fmt: skip
        while (left := [task for task in running if not task.done()]) and monotonic() < until:
            if self._is_hurried:
                break
            await asyncio.sleep(_LOOK_S)
        self.is_cutting = True
        for task in left:
            task.cancel()
        if left:  # their lines come before the last one
            await asyncio.wait(left, timeout=_LAST_S)
        if running:
            log.info("%s", stopped_in_words(len(running), len(left)))
        return len(running), len(left)

    def read_keys_again(self) -> None:
        """Reloads the keys from their source; if that cannot be read, the old ones stay."""
        if self.settings.read_keys is None:
            log.info("SIGHUP: the API keys stay: the server was started without a file of keys")
            return
        try:
            n_new, n_gone = self.keys.replace(self.settings.read_keys())
        except PyllamaSpecError as error:
            log.warning("SIGHUP: the API keys stay as they were: %s", error)
            return
        log.info("SIGHUP: API keys: %d in use, %d new, %d removed", len(self.keys), n_new, n_gone)

    def note_unknown(self, path: str, names: Iterable[str], known: Collection[str]) -> None:
        """Names in the log, once each, the fields of a request that its endpoint does not know."""
        for name in names:
            is_said = name in known or name in _QUIET or name in self._named
            if is_said or not _NAME.fullmatch(name) or len(self._named) >= _MOST:
                continue
            self._named.add(name)
            log.warning(
                "%s: the field %s is not known here and changes nothing%s", path, name,
                meant(name, known),
            )  # fmt: skip
            if len(self._named) == _MOST:
                log.warning("further fields that are not known are not named")

    def note_size(self, n_bytes: int) -> None:
        """Schedules the release of free C heap memory after large bodies, for all of them at once.

        Texts of megabytes, their copies and their tokens leave holes, which glibc keeps: about
        100 MiB after some dozens of large bodies.
        """
        if n_bytes >= _LARGE and self._release is None:
            loop = asyncio.get_running_loop()
            self._release = loop.call_later(_QUIET_S, self._give_back, loop)

    def _give_back(self, loop: asyncio.AbstractEventLoop) -> None:
        self._release = None
        loop.run_in_executor(None, _trim)

    def cut_now(self) -> None:
        """Ends the wait of stop(); callable from any thread and signal handler."""
        self._is_hurried = True


def _trim() -> None:
    """Does nothing if the C library lacks the call."""
    import ctypes

    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))


def stopping() -> ApiError:
    """The error for a request that arrives while the server stops."""
    return ApiError(503, "the server is stopping: it takes nothing new", "stopping")


def stopped() -> ApiError:
    """The error for a request that the server's stop cancels."""
    return ApiError(
        503, "the server stopped before the answer was complete: send the request again", "stopping"
    )


def stopped_in_words(n: int, n_cut: int) -> str:
    """A sentence on the end of a server, for the log and its program."""
    if not n:
        return "stopped: no request was running"
    requests = plural(n, "request")
    if not n_cut:
        return f"stopped after {requests} finished"
    cut = f"{n_cut} {'was' if n_cut == 1 else 'were'} cut"
    return f"stopped: {requests} ran or waited, {n - n_cut} finished, {cut}"


def note_failure(error: BaseException) -> None:
    """Logs an unexpected exception by type and place; its message may hold a client's text."""
    if isinstance(error, (ApiError, PyllamaSpecError)):
        return
    frames = traceback.extract_tb(error.__traceback__)
    places = " < ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames[::-1])
    log.error("%s in %s", type(error).__name__, places)


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
    is_open = "*" in settings.cors_origins
    if is_open or origin in settings.cors_origins:
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
        how = "'Authorization: Bearer KEY'"
        message = (
            f"this server does not know the API key that was sent as {how} or 'x-api-key: KEY'"
        )
        raise ApiError(
            401, message if given else f"an API key is needed: send it as {how}", "invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )  # fmt: skip
    info.caller, name = caller
    if name:
        info.note["key"] = name


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:  # a bracket that does not close
        return urlsplit("")


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


def decoded(raw: bytes, shape: type[_T]) -> _T:
    """Parses a body as a msgspec type."""
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
