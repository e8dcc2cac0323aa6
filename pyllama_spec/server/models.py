"""The models of a server: loads them on demand, and closes others to make room.

A model is loaded when a request needs it, one at a time, in a thread of its own; requests for it
wait meanwhile, within bounds, and all others continue. If the memory bound would be exceeded, the
least recently used model is closed first, and never one that answers or has waiting requests.
All else happens in the event loop, so that there are no locks.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import monotonic, time
from typing import Any, NamedTuple, TypeVar

from pyllama_spec.drafters import needs_file
from pyllama_spec.engine import Adapter
from pyllama_spec.engine.closeable import closed_on_failure
from pyllama_spec.engine.identity import parts_of
from pyllama_spec.errors import (
    CancelledError,
    ModelLoadError,
    OutOfMemoryError,
    PyllamaSpecError,
    RemoteError,
)
from pyllama_spec.llama import Llama
from pyllama_spec.llama.open_model import WATCH
from pyllama_spec.llama.open_options import OpenOptions
from pyllama_spec.server.api_errors import NO_RETRY, ApiError
from pyllama_spec.server.metrics import Metrics
from pyllama_spec.server.model_list import ModelList, ModelSpec
from pyllama_spec.server.service import Service, log, note_failure
from pyllama_spec.server.settings import ServerSettings, key_and_name
from pyllama_spec.speculative.stats import plural

_T = TypeVar("_T")
Adapters = Sequence[tuple[Adapter, float]]
# How long a failed model waits for its last requests, and how often it looks.
_LAST_USERS_S, _LOOK_S = 2.0, 0.02
# How often a running stop looks whether all have ended, and how long it waits for cut requests.
_LOOK_AT_END_S, _LAST_S = 0.05, 2.0
_MIB = 1 << 20


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
        self.settings, self.metrics, self.began_at = settings, Metrics(), int(time())
        self.keys = Keys(settings.api_keys)
        self.tasks: set[asyncio.Task[Any]] = set()
        self.is_stopping = self.is_cutting = self._is_hurried = False
        self.on_stop: list[Callable[[], None]] = []

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
            await asyncio.sleep(_LOOK_AT_END_S)
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


class Failure(NamedTuple):
    """When a model could not be loaded, by monotonic().

    `may_pass`: a later load may succeed though nobody changes anything.
    """

    at: float
    may_pass: bool


def not_loaded(name: str, *, may_pass: bool = False) -> ApiError:
    """The error for a request to a model or an adapter that cannot be loaded."""
    message = f"the model {name!r} cannot be loaded; the server's log says why"
    if may_pass:
        return ApiError(503, message, "model_not_loaded", "model")
    return ApiError(500, message, "model_not_loaded", "model", headers=NO_RETRY)


@dataclass(frozen=True, slots=True)
class Opened:
    """A loaded model, with its adapters by name, None for one that cannot be loaded.

    `store_bytes` are for copies of prompts.
    """

    llm: Llama
    store_bytes: int = 0
    adapters: dict[str, Adapters | None] = field(default_factory=dict)

    @property
    def n_bytes(self) -> int:
        """The memory that it takes as of now: the first text to embed opens another context."""
        return self.llm.memory_bytes + self.store_bytes


class ServedModel:
    """A model of a server, and its state.

    `is_own`: the server loads and closes it.
    """

    def __init__(self, spec: ModelSpec, opened: Opened | None = None) -> None:
        self.spec, self.name, self.created = spec, spec.name, int(time())
        self.opened, self.is_own = opened, opened is None
        self.service: Service | None = None
        self.failure: Failure | None = None
        self.n_users = self.n_waiting = 0
        self.n_bytes = 0 if opened is None else opened.n_bytes
        self.last_used = monotonic()
        self.loading: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None

    @property
    def state(self) -> str:
        """One of loaded, loading, unloaded, failed."""
        if self.service is not None and self.service.is_usable:
            return "loaded"
        if self.loading is not None:
            return "loading"
        return "unloaded" if self.failure is None and self.service is None else "failed"

    @property
    def is_idle(self) -> bool:
        """Whether the model is loaded and unused."""
        return self.service is not None and not (self.n_users or self.n_waiting)

    @property
    def takes_requests(self) -> bool:
        """Whether the model is loaded and works."""
        return self.state == "loaded"

    def cancel_timer(self) -> None:
        """Cancels its expiry."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class ChosenModel(NamedTuple):
    """The model of a name, and its adapter or None."""

    model: ServedModel
    adapter: str | None


class Models:
    """All models of a server; or one open Llama, `only`, which answers to any name."""

    def __init__(self, listed: ModelList | Llama, settings: ServerSettings) -> None:
        self.serving = serving = Serving(settings)
        self.only: ServedModel | None = None
        if isinstance(listed, Llama):
            name = settings.alias or Path(listed.model_path).name
            keywords = {"model_path": listed.model_path, "max_waiting": listed.max_waiting}
            spec = ModelSpec(name=name, keywords=keywords, aliases=settings.aliases)
            self.only = only = ServedModel(spec, Opened(listed))
            only.service = Service(listed, settings, name, serving.metrics.of(name))
            self._listed, self.all = ModelList(specs=(spec,), default=name), [only]
        else:
            self._listed, self.all = listed, [ServedModel(spec) for spec in listed.specs]
        self._by_name: dict[str, ChosenModel] = {}
        for one in self.all:
            plain = dict.fromkeys((one.name, *one.spec.aliases), ChosenModel(one, None))
            self._by_name |= plain | {name: ChosenModel(one, name) for name in one.spec.adapters}
        # Models are loaded one at a time.
        self._one_load = asyncio.Lock()
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._has_preloaded: bool | None = None
        self._is_ending = False
        serving.on_stop.append(self._stop_loading)
        add_gauges(serving.metrics, self.all)

    # ---- for requests

    def find(self, name: str | None) -> ChosenModel:
        """The model of a name; None for a request without one."""
        if self.only is not None:
            return ChosenModel(self.only, None)
        default = self._listed.default
        choice = self._by_name.get(default if name is None else name)
        if choice is None and self._listed.takes_any_name:
            choice = self._by_name[default]
        if choice is None:
            names = ", ".join(self._by_name)
            message = f"there is no model {name!r:.100} here; there are {names}"
            raise ApiError(404, message, "model_not_found", "model")
        return choice

    async def use(self, choice: ChosenModel) -> tuple[Service, Adapters]:
        """Waits until a model is loaded, and keeps it loaded until done_with()."""
        one, name = choice
        if not one.takes_requests:
            await self._wait_for(one)
        assert one.service is not None and one.opened is not None
        adapters = () if name is None else one.opened.adapters[name]
        if adapters is None:
            raise not_loaded(name or "")
        one.n_users += 1
        one.cancel_timer()
        return one.service, adapters

    def done_with(self, one: ServedModel) -> None:
        """Ends a use()."""
        one.n_users -= 1
        if one.opened is not None:
            one.n_bytes = one.opened.n_bytes
        self._released(one)

    def _released(self, one: ServedModel) -> None:
        """Called when a request or a load ends: the model may close now, or when it expires."""
        one.last_used = monotonic()
        self._changed.set()
        after = one.spec.keep_alive_s
        if after is not None and one.is_idle and not self._is_ending:
            one.cancel_timer()
            loop, used = asyncio.get_running_loop(), one.last_used
            one.timer = loop.call_later(after, lambda: self._begin(self._expire(one, used)))

    async def _wait_for(self, one: ServedModel) -> None:
        """Waits until a model is loaded; starts the load if needed."""
        most = one.spec.keywords.get("max_waiting")
        if most is not None and one.n_waiting >= most:
            raise ApiError(
                429, f"waiting for the model {one.name!r} to load: {one.n_waiting}; "
                "the server allows no more: try again later", "queue_full", option="max_waiting",
            )  # fmt: skip
        limit = self._listed.load_timeout_s
        until = monotonic() + limit
        one.n_waiting += 1
        try:
            while not one.takes_requests:
                self._check(one)
                one.loading = one.loading or self._begin(self._load(one))
                await asyncio.wait({one.loading}, timeout=max(until - monotonic(), 0))
                if not one.takes_requests and monotonic() >= until:
                    raise ApiError(
                        503, f"the model {one.name!r} takes no requests after {limit:g} s: it is "
                        "still being loaded, or waits for its turn", "model_loading", "model",
                        option="load_timeout_s",
                    )  # fmt: skip
        finally:
            one.n_waiting -= 1
            self._released(one)

    def _check(self, one: ServedModel) -> None:
        """Raises if the model cannot be loaded."""
        if self._is_ending:
            raise stopping()
        if one.failure is None:
            return
        # A file may appear a moment later; until then requests get the same error at once.
        if monotonic() < one.failure.at + self.serving.settings.retry_after_s:
            raise not_loaded(one.name, may_pass=one.failure.may_pass)
        one.failure = None

    # ---- loading

    async def _load(self, one: ServedModel) -> None:
        """Loads a model, or opens the caller's again, or records the error."""
        metrics, begin = self.serving.metrics, monotonic()
        try:
            async with self._one_load:
                opened = await (self._opened(one) if one.is_own else self._reopened(one))
            if opened is None:
                return
            settings = self.serving.settings
            settings = replace(
                settings, defaults={**settings.defaults, **one.spec.defaults},
                chat_defaults={**settings.chat_defaults, **one.spec.chat_defaults},
            )  # fmt: skip
            one.opened, one.failure = opened, None
            one.service = Service(opened.llm, settings, one.name, metrics.of(one.name))
            one.n_bytes, eyes = opened.n_bytes, opened.llm.mmproj_path
            self._released(one)
            log.info(
                "%s was loaded in %.1f s and takes %d MiB%s", one.name, monotonic() - begin,
                one.n_bytes // _MIB, f", projector {eyes.name}" if eyes else "",
            )  # fmt: skip
        except Exception as error:  # noqa: BLE001 - reported to the model's requests, and logged
            self._note_failure(one, error)
        finally:
            one.loading = None
            self._changed.set()

    async def _opened(self, one: ServedModel) -> Opened | None:
        """Loads a model within the common memory bound; None if no request waits any more."""
        if one.service is not None:  # it has failed
            await self._last_users(one)
            await self._close(one, "failure")
        WATCH.set(self._watch)
        while await self._make_room(one):
            try:
                opened = await asyncio.to_thread(self.open, one.spec)
            except OutOfMemoryError:
                if not await self._close_oldest():
                    raise
                continue
            one.n_bytes = opened.n_bytes
            # More than expected: others make room for it, or it is closed again.
            while not self._fits(one, one.n_bytes) and await self._close_oldest():
                pass
            if self._fits(one, one.n_bytes):
                return opened
            await asyncio.to_thread(opened.llm.close)
        return None

    def open(self, spec: ModelSpec) -> Opened:
        """Loads a model, in a thread; at the end of the server with its next part of a file."""
        llm = Llama(**spec.keywords)
        with closed_on_failure(llm):
            opened = Opened(llm, options_of(spec.keywords).store_bytes())
            for name in spec.adapters:
                self._load_adapter(opened, spec, name)
            self._watch(1.0)
        llm.cache = self._listed.cache
        return opened

    def _load_adapter(self, opened: Opened, spec: ModelSpec, name: str) -> None:
        """Loads an adapter, or records why it cannot be."""
        path, scale = spec.adapters[name]
        try:
            opened.adapters[name] = [(Adapter(opened.llm.model, path), scale)]
        except PyllamaSpecError as error:
            log.warning("the adapter %s cannot be loaded: %s", name, error)
            opened.adapters[name] = None

    def _watch(self, _fraction: float) -> None:
        if self._is_ending:
            raise CancelledError("the server stops: the load is ended")

    async def _reopened(self, one: ServedModel) -> Opened | None:
        """Opens the caller's model again."""
        await self._last_users(one)
        if one.opened is None:
            return None
        log.warning("%s failed and is being reopened", one.name)
        WATCH.set(self._watch)
        await asyncio.to_thread(one.opened.llm.reopen)
        return one.opened

    async def _last_users(self, one: ServedModel) -> None:
        """Waits until no request uses a failed model; bounded, as a client may not read."""
        until = monotonic() + _LAST_USERS_S
        while one.n_users and monotonic() < until:
            await asyncio.sleep(_LOOK_S)

    def _note_failure(self, one: ServedModel, error: Exception) -> None:
        if self._is_ending:
            return
        note_failure(error)
        if isinstance(error, PyllamaSpecError):
            log.warning("%s cannot be loaded: %s", one.name, error)
        one.failure = Failure(monotonic(), isinstance(error, (OutOfMemoryError, RemoteError)))

    # ---- room

    def _fits(self, one: ServedModel, n_bytes: int) -> bool:
        """Whether a model fits beside the loaded ones."""
        others, most = self._others(one), self._listed.memory_bytes
        if self._listed.max_loaded is not None and len(others) >= self._listed.max_loaded:
            return False
        return most is None or n_bytes + sum(m.n_bytes for m in others) <= most

    def _others(self, one: ServedModel) -> list[ServedModel]:
        return [m for m in self.all if m is not one and m.service is not None]

    async def _bytes_of(self, one: ServedModel) -> int:
        """The memory of a model's last load, or that of its files."""
        if one.n_bytes:
            return one.n_bytes
        return await asyncio.to_thread(expected_bytes, one.spec.keywords)

    async def _make_room(self, one: ServedModel) -> bool:
        """Closes idle models until a model fits; False if no request waits for it any more."""
        n_bytes, most = await self._bytes_of(one), self._listed.memory_bytes
        if most is not None and n_bytes > most:
            raise ModelLoadError(
                f"it takes {'' if one.n_bytes else 'at least '}{-(-n_bytes // _MIB)} MiB, and all "
                f"models together may take {most // _MIB}",
                setup="allow more `memory_mib`, or give it a smaller `n_ctx`, `n_parallel` or "
                "`prefix_cache_bytes`",
            )
        while not self._fits(one, n_bytes):
            self._watch(0.0)
            if await self._close_oldest():
                continue
            if not one.n_waiting:
                return False
            self._changed.clear()
            await self._changed.wait()
        return True

    async def _close_oldest(self) -> bool:
        """Closes the idle model that was unused for longest; False if all are in use."""
        idle = [one for one in self.all if one.is_own and one.is_idle]
        if idle:
            await self._close(min(idle, key=lambda one: one.last_used), "memory")
        return bool(idle)

    async def _expire(self, one: ServedModel, last_used: float) -> None:
        """Closes a model that was unused for its expiry time."""
        async with self._one_load:
            if one.is_idle and one.last_used == last_used:
                await self._close(one, "idle")

    async def _close(self, one: ServedModel, reason: str) -> None:
        opened = one.opened
        if opened is None:
            return
        one.service, one.opened, one.n_bytes = None, None, opened.n_bytes
        one.cancel_timer()
        await asyncio.to_thread(opened.llm.close)
        log.info("%s was closed: %s", one.name, reason)
        self._changed.set()

    # ---- the beginning and the end

    def start(self) -> None:
        """Starts loading the models with `preload`, in the file's order. Call it once."""
        if self._has_preloaded is not None:
            return
        self._has_preloaded = False
        self._begin(self._preload())

    async def _preload(self) -> None:
        """Loads what fits beside the models before it; a request may close others for the rest."""
        for one in self.all:
            if not one.spec.is_preloaded or one.service is not None or self._is_ending:
                continue
            if one.loading is None and not self._fits(one, await self._bytes_of(one)):
                log.warning("%s is not loaded at the start: there is no room for it", one.name)
                continue
            one.loading = one.loading or self._begin(self._load(one))
            await asyncio.wait({one.loading})
        self._has_preloaded = True

    @property
    def is_ready(self) -> bool:
        """Whether all preloads have ended, successfully or not."""
        return self._has_preloaded is True

    def _begin(self, call: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(call)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _stop_loading(self) -> None:
        """Stops the running load; its waiting requests get the error of a stopping server."""
        self._is_ending = True
        for one in self.all:
            one.cancel_timer()
            if one.loading is not None:
                one.loading.cancel()

    async def close(self) -> None:
        """Closes the models that this object loaded, after the last answer."""
        self._stop_loading()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for one in self.all:
            if one.is_own:
                await self._close(one, "end")


# ---- the memory that a model will take


def options_of(keywords: Mapping[str, Any]) -> OpenOptions:
    """The options of a Llama() call with these keywords, defaults included."""
    more = dict(keywords)
    return OpenOptions.from_keywords(more.pop("model_path"), more)[0]


def expected_bytes(keywords: Mapping[str, Any]) -> int:
    """Bytes of a Llama's files with its copies of prompts; a file that cannot be read counts as 0.

    The KV cache counts once the model is loaded.
    """
    options = options_of(keywords)
    n, draft = _file_bytes(Path(options.model_path)), options.draft
    if isinstance(draft, (str, os.PathLike)) and needs_file(os.fspath(draft)):
        n += _file_bytes(Path(draft))
    if options.mmproj_path is not None:
        n += _file_bytes(Path(options.mmproj_path))
    with suppress(PyllamaSpecError):
        n += options.store_bytes()
    return n


def _file_bytes(path: Path) -> int:
    with suppress(OSError, ValueError):
        return sum(part.stat().st_size for part in parts_of(path))
    return 0


# ---- figures

_RUNNING = "Requests that are computed."
_WAITING = "Requests that wait in the queue or for a load."


def add_gauges(metrics: Metrics, models: Sequence[ServedModel]) -> None:
    """Adds the gauges of some models; a model that is not loaded has 0."""

    def of(count: Callable[[Service], float]) -> Callable[[ServedModel], float]:
        return lambda one: count(one.service) if one.service else 0

    def waiting(one: ServedModel) -> float:
        return one.n_waiting + of(Service.n_waiting)(one)

    running = of(Service.n_running)
    gauges: Sequence[tuple[str, str, Callable[[ServedModel], float]]] = (
        ("vllm:num_requests_running", _RUNNING, running),
        ("llamacpp:requests_processing", _RUNNING, running),
        ("vllm:num_requests_waiting", _WAITING, waiting),
        ("llamacpp:requests_deferred", _WAITING, waiting),
        ("llamacpp:prompt_tokens_seconds", "Computed tokens of prompts per second.",
         of(lambda service: service.metrics.prompt_tps)),
        ("llamacpp:predicted_tokens_seconds", "Generated tokens per second.",
         of(lambda service: service.metrics.text_tps)),
        ("pyllama_spec:model_memory_bytes", "Bytes of memory that a loaded model takes.",
         lambda one: one.n_bytes if one.service else 0),
    )  # fmt: skip
    for name, text, count in gauges:
        gauge = metrics.gauge(name, text)
        for one in models:
            gauge.labels(one.name).set_function(partial(count, one))
