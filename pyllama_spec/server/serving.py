"""One run of a server: its limits, metrics, running requests and shutdown."""

from __future__ import annotations

import asyncio
import logging
import re
import traceback
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from time import monotonic
from typing import Any

from pyllama_spec.engine.checks import meant
from pyllama_spec.errors import PyllamaSpecError
from pyllama_spec.server.api_errors import ApiError
from pyllama_spec.server.keys import Keys
from pyllama_spec.server.metrics import Metrics
from pyllama_spec.server.settings import ServerSettings
from pyllama_spec.speculative.stats import plural

log = logging.getLogger("pyllama_spec.server")
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


class Serving:
    """One run of a server."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings, self.metrics = settings, Metrics()
        self.keys = Keys(settings.api_keys)
        self.tasks: set[asyncio.Task[Any]] = set()
        self.is_stopping = self.is_cutting = self._is_hurried = False
        self.on_stop: list[Callable[[], None]] = []
        self._named = set[str]()

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

    def cut_now(self) -> None:
        """Ends the wait of stop(); callable from any thread and signal handler."""
        self._is_hurried = True


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
