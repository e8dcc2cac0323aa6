"""The models of a server: loads them on demand, and closes others to make room.

A model is loaded when a request needs it, one at a time, in a thread of its own; requests for it
wait meanwhile, within bounds, and all others continue. If the memory bound would be exceeded, the
least recently used model is closed first, and never one that answers or has waiting requests. If
none is idle, models take turns: after turn_s seconds the one loaded for longest drains, that is, it
gets no new requests, finishes its running ones, and is closed. Everything except loading and
closing happens in the event loop, so that there are no locks.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, MutableSet, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import monotonic, time
from typing import Any, NamedTuple, TypeVar

import anyio

from pyllama_spec.drafters import needs_file
from pyllama_spec.engine import Adapter, ContextParams
from pyllama_spec.engine.closeable import closed_on_failure
from pyllama_spec.engine.identity import parts_of
from pyllama_spec.errors import (
    CancelledError,
    ModelLoadError,
    OutOfMemoryError,
    PyllamaSpecError,
    RemoteError,
)
from pyllama_spec.gguf.reader import GgufKey, read_keys
from pyllama_spec.llama import Llama
from pyllama_spec.llama.loading import WATCH, check_parallel
from pyllama_spec.llama.open_options import OpenOptions
from pyllama_spec.server.api_errors import NO_RETRY, ApiError, for_client
from pyllama_spec.server.door import Serving, log, note_failure
from pyllama_spec.server.metrics import Metrics
from pyllama_spec.server.model_list import ModelList, ModelSpec
from pyllama_spec.server.service import Service
from pyllama_spec.server.settings import ServerSettings

_T = TypeVar("_T")
Adapters = Sequence[tuple[Adapter, float]]
STATES = ("loaded", "loading", "unloaded", "failed")
# How often a model may fail before only a restart of the server helps: see Service.has_leaked.
_MAX_LEAKS = 8
# How long a failed model waits for its last requests, and how often it looks.
_LAST_USERS_S, _LOOK_S = 2.0, 0.02
# Between two tries without a request, in units of the Retry-After.
_N_RETRY = 3
# How long an end waits for a load that has to stop.
_LAST_LOAD_S = 5.0
_MIB = 1 << 20


class Failure(NamedTuple):
    """Why a model could not be loaded, for clients, and when by monotonic().

    `may_pass`: a later load may succeed though nobody changes anything.
    """

    why: str
    at: float
    may_pass: bool


def not_loaded(name: str, why: str, *, may_pass: bool = False) -> ApiError:
    """The error for a request to a model or an adapter that cannot be loaded."""
    message = f"the model {name!r} cannot be loaded: {why}"
    if may_pass:
        return ApiError(503, message, "model_not_loaded", "model")
    message += "; whoever runs the server has to correct that"
    return ApiError(500, message, "model_not_loaded", "model", headers=NO_RETRY)


def given_up(name: str) -> ApiError:
    """The error of a request to a model that failed too often."""
    return ApiError(
        500, f"the model {name!r} failed too often; whoever runs the server has to restart it",
        "model_failed", headers=NO_RETRY,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Opened:
    """A loaded model, with its adapters by name, and why others failed.

    `store_bytes` are for copies of prompts.
    """

    llm: Llama
    store_bytes: int = 0
    adapters: dict[str, Adapters] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def n_bytes(self) -> int:
        """The memory that it takes as of now: the first text to embed opens another context."""
        return self.llm.memory_bytes + self.store_bytes


class ServedModel:
    """A model of a server, and its state.

    `is_own`: the server loads and closes it. `n_leaks` counts the contexts that it has left to the
    process by failures, which are not freed, and reopenings without memory. `draining` is set while
    it takes no new requests since another model waits for its memory; done once it is closed, or
    need not be.
    """

    def __init__(self, spec: ModelSpec, opened: Opened | None = None) -> None:
        self.spec, self.name, self.created = spec, spec.name, int(time())
        self.opened, self.is_own = opened, opened is None
        self.service: Service | None = None
        self.failure: Failure | None = None
        self.n_users = self.n_waiting = self.n_leaks = 0
        self.n_bytes = 0 if opened is None else opened.n_bytes
        self.draining: asyncio.Future[None] | None = None
        self.last_used = self.loaded_at = monotonic()
        self.loading: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None

    @property
    def state(self) -> str:
        """One of STATES."""
        if self.service is not None and self.service.is_usable:
            return "loaded"
        if self.loading is not None:
            return "loading"
        return "unloaded" if self.failure is None and self.service is None else "failed"

    @property
    def is_idle(self) -> bool:
        """Whether the model is loaded and unused."""
        is_wanted = self.n_waiting and self.draining is None
        return self.service is not None and not (self.n_users or is_wanted)

    @property
    def takes_requests(self) -> bool:
        """Whether the model is loaded and not draining."""
        return self.draining is None and self.state == "loaded"

    @property
    def has_failed(self) -> bool:
        """Whether the loaded model failed inside, so that it has to be loaded again."""
        return self.service is not None and not self.service.is_usable

    @property
    def is_given_up(self) -> bool:
        """Whether it failed so often that it is not opened again."""
        return self.n_leaks > _MAX_LEAKS

    def note_leak(self) -> None:
        """Counts the context of a model that failed, before it is closed."""
        if self.service is not None and self.service.has_leaked:
            self.service.has_leaked, self.n_leaks = False, self.n_leaks + 1

    def failure_of(self, adapter: str | None) -> str | None:
        """The last load error of the model or of an adapter; None for none."""
        if self.opened is not None:
            return self.opened.failures.get(adapter or "")
        return None if self.failure is None else self.failure.why

    def places(self) -> Iterator[tuple[str, str]]:
        """The paths of its files, each with its name in messages."""
        path = Path(self.spec.keywords["model_path"])
        yield str(path), self.name
        if path.is_absolute() and len(path.parts) > 2:  # further parts of a split model
            yield f"{path.parent}{os.sep}", ""
        for name, (adapter, _) in self.spec.adapters.items():
            yield str(adapter), name
        for word in ("draft", "lora_path", "draft_memory"):
            file = self.spec.keywords.get(word)
            if isinstance(file, (str, os.PathLike)):
                yield os.fspath(file), Path(file).name

    def cancel_timer(self) -> None:
        """Cancels its expiry, or its next reopening."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def end_draining(self) -> None:
        """Ends its draining, as it is closed or can stay; waiting loads check again."""
        if self.draining is not None:
            self.draining.set_result(None)
            self.draining = None


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
            keywords = {**listed.file_keywords, "max_waiting": listed.max_waiting}
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
        self._threads: set[threading.Thread] = set()
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
        if name is not None and name in one.opened.failures:
            raise not_loaded(name, one.opened.failures[name])
        one.n_users += 1
        one.cancel_timer()
        return one.service, () if name is None else one.opened.adapters[name]

    def done_with(self, one: ServedModel) -> None:
        """Ends a use()."""
        one.n_users -= 1
        if one.opened is not None:
            one.n_bytes = one.opened.n_bytes
        self._released(one)
        self._recover(one)

    def _recover(self, one: ServedModel) -> None:
        """Opens the caller's model again after a failure; of a list, a request does that."""
        is_wanted = one.has_failed and not (one.is_own or one.is_given_up or self._is_ending)
        if is_wanted and one.loading is None:
            one.loading = self._begin(self._load(one))

    def _released(self, one: ServedModel) -> None:
        """Called when a request or a load ends: the model may close now, or when it expires."""
        one.last_used = monotonic()
        self._changed.set()
        after = one.spec.keep_alive_s
        if after is not None and one.is_idle and not self._is_ending:
            one.cancel_timer()
            loop, used = asyncio.get_running_loop(), one.last_used
            one.timer = loop.call_later(after, lambda: self._begin(self._expire(one, used)))

    def without_paths(self, message: str) -> str:
        """A message for a client, without file paths."""
        places = [place for one in self.all for place in one.places()]
        for path, name in sorted(places, key=lambda place: -len(place[0])):
            message = message.replace(path, name)
        return message

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
                awaited: asyncio.Future[None] | None = one.draining
                if awaited is None:
                    awaited = one.loading = one.loading or self._begin(self._load(one))
                await asyncio.wait({awaited}, timeout=max(until - monotonic(), 0))
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
            raise ApiError(503, "the server is stopping: it loads no model", "stopping")
        if one.is_given_up:
            raise given_up(one.name)
        if one.failure is None:
            return
        # A file may appear a moment later; until then requests get the same error at once.
        if monotonic() < one.failure.at + self.serving.settings.retry_after_s:
            raise not_loaded(one.name, one.failure.why, may_pass=one.failure.may_pass)
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
            one.n_bytes, one.loaded_at = opened.n_bytes, monotonic()
            self._released(one)
            seconds = one.loaded_at - begin
            metrics.add("pyllama_spec:model_loads", 1, one.name)
            metrics.observe("pyllama_spec:model_load_seconds", seconds, one.name)
            log.info(
                "%s was loaded in %.1f s and takes %d MiB", one.name, seconds, one.n_bytes // _MIB
            )
        except Exception as error:  # noqa: BLE001 - reported to the model's requests, and logged
            self._note_failure(one, error)
        finally:
            one.loading = None
            self._changed.set()

    async def _opened(self, one: ServedModel) -> Opened | None:
        """Loads a model within the common memory bound; None if no request waits any more."""
        if one.has_failed:
            await self._last_users(one)
            await self._close(one, "failure")
            if one.is_given_up:
                return None
        WATCH.set(self._watch)
        turn_ends = monotonic() + self._listed.turn_s
        while await self._make_room(one, turn_ends):
            try:
                opened = await in_daemon(
                    lambda: self.open(one.spec), lambda made: made.llm.close(), self._threads
                )
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
            await in_daemon(opened.llm.close, lambda _: None, self._threads)
        return None

    def open(self, spec: ModelSpec) -> Opened:
        """Loads a model in a thread that does not delay exit."""
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
            opened.failures[name] = self.without_paths(for_client(error))

    def _watch(self, _fraction: float) -> None:
        if self._is_ending:
            raise CancelledError("the server stops: the load is ended")

    async def _reopened(self, one: ServedModel) -> Opened | None:
        """Opens the caller's model again. After an error it is tried later, without a request."""
        await self._last_users(one)
        one.note_leak()
        if one.opened is None or one.is_given_up:
            return None
        if one.failure is None:
            log.warning("%s failed and is being reopened", one.name)
        WATCH.set(self._watch)
        await in_daemon(one.opened.llm.reopen, lambda _: None, self._threads)
        return one.opened

    async def _last_users(self, one: ServedModel) -> None:
        """Waits until no request uses a failed model; bounded, as a client may not read."""
        until = monotonic() + _LAST_USERS_S
        while one.n_users and monotonic() < until:
            await asyncio.sleep(_LOOK_S)

    def _note_failure(self, one: ServedModel, error: Exception) -> None:
        """Records what clients are told of a load's error."""
        if self._is_ending:
            return
        note_failure(error)
        why = "it failed inside; the server's log says where"
        if isinstance(error, PyllamaSpecError):
            log.warning("%s cannot be loaded: %s", one.name, error)
            why = self.without_paths(for_client(error))
        one.failure = Failure(why, monotonic(), isinstance(error, (OutOfMemoryError, RemoteError)))
        self.serving.metrics.add("pyllama_spec:model_load_failures", 1, one.name)
        if not one.is_own:  # a proxy sends no request to a server that is not ready
            one.n_leaks += isinstance(error, OutOfMemoryError)
            one.cancel_timer()
            wait_s = _N_RETRY * self.serving.settings.retry_after_s
            one.timer = asyncio.get_running_loop().call_later(wait_s, self._recover, one)

    # ---- room

    def _fits(self, one: ServedModel, n_bytes: int, without: Sequence[ServedModel] = ()) -> bool:
        """Whether a model fits beside the loaded ones, without some of them."""
        others = [m for m in self._others(one) if m not in without]
        if self._listed.max_loaded is not None and len(others) >= self._listed.max_loaded:
            return False
        most = self._listed.memory_bytes
        return most is None or n_bytes + sum(m.n_bytes for m in others) <= most

    def _others(self, one: ServedModel) -> list[ServedModel]:
        return [m for m in self.all if m is not one and m.service is not None]

    async def _bytes_of(self, one: ServedModel) -> int:
        """The memory of a model's last load, or an estimate from its files."""
        if one.n_bytes:
            return one.n_bytes
        files, cache = await asyncio.to_thread(expected_bytes, one.spec.keywords)
        most = self._listed.memory_bytes
        # If the files alone exceed the bound, it is refused with all that it takes.
        return files + cache if most is None or files > most else min(files + cache, most)

    async def _make_room(self, one: ServedModel, turn_ends: float) -> bool:
        """Closes idle models until a model fits; False if no request waits for it any more."""
        n_bytes, most = await self._bytes_of(one), self._listed.memory_bytes
        if most is not None and n_bytes > most:
            raise ModelLoadError(
                f"it takes {'' if one.n_bytes else 'about '}{-(-n_bytes // _MIB)} MiB, and all "
                f"models together may take {most // _MIB}",
                setup="allow more `memory_mib`, or give it a smaller `n_ctx`, `n_parallel` or "
                "`prefix_cache_bytes`",
            )
        try:
            while not self._fits(one, n_bytes):
                self._watch(0.0)
                if await self._close_oldest():
                    continue
                if not one.n_waiting:
                    return False
                left_s = turn_ends - monotonic()
                if left_s <= 0:
                    self._drain_others(one, n_bytes)
                self._changed.clear()
                with anyio.move_on_after(left_s if left_s > 0 else None):
                    await self._changed.wait()
            return True
        finally:
            for other in self.all:  # those still loaded need not be closed any more
                other.end_draining()

    def _drain_others(self, one: ServedModel, n_bytes: int) -> None:
        """Drains the models whose memory another one needs, loaded for longest first."""
        others = sorted(self._others(one), key=lambda other: other.loaded_at)
        if any(other.n_waiting and other.draining is None for other in others):
            return  # just loaded: requests that waited for it come first
        drained: list[ServedModel] = []
        for other in others:
            if self._fits(one, n_bytes, drained):
                other.end_draining()
                continue
            drained.append(other)
            if other.draining is None:
                other.draining = asyncio.get_running_loop().create_future()
                log.info("%s takes no new requests: %s needs its memory", other.name, one.name)

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
        one.note_leak()
        one.service, one.opened, one.n_bytes = None, None, opened.n_bytes
        one.cancel_timer()
        one.end_draining()
        await in_daemon(opened.llm.close, lambda _: None, self._threads)
        self.serving.metrics.add("pyllama_spec:model_unloads", 1, one.name, reason)
        log.info("%s was closed: %s", one.name, reason)
        self._changed.set()

    # ---- the beginning and the end

    def start(self) -> None:
        """Starts loading the models with `preload`, in the file's order. Call it once."""
        if self._has_preloaded is not None:
            return
        self._has_preloaded = False
        for one in self.all if self.only is None else ():
            for path in one.spec.missing_files():
                log.warning("%s cannot be loaded: %s does not exist", one.name, path)
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
    def given_up(self) -> list[ServedModel]:
        """The models that failed too often; only a restart of the server helps them."""
        return [one for one in self.all if one.is_given_up]

    @property
    def is_ready(self) -> bool:
        """Whether all preloads have ended, successfully or not; and that the only model works."""
        return self._has_preloaded is True and (self.only is None or self.only.takes_requests)

    def counts(self) -> dict[str, int]:
        """The number of models in each state."""
        states = [one.state for one in self.all]
        return {state: states.count(state) for state in STATES}

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
        until = monotonic() + _LAST_LOAD_S  # a load ends with its next part of a file
        if self._tasks:
            await asyncio.wait(self._tasks)
        for one in self.all:
            if one.is_own:
                await self._close(one, "end")
        while self._threads and monotonic() < until:
            await asyncio.sleep(_LOOK_S)


async def in_daemon(
    call: Callable[[], _T], drop: Callable[[_T], None], threads: MutableSet[threading.Thread]
) -> _T:
    """Runs a long call in a daemon thread; `drop` gets a result that nobody waits for."""
    done: Future[_T] = Future()
    done.set_running_or_notify_cancel()  # from here on nothing cancels it

    def run() -> None:
        try:
            done.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            done.set_exception(error)
        finally:
            threads.discard(thread)

    def forget(done: Future[_T]) -> None:
        if done.exception() is None:
            drop(done.result())

    run_here = copy_context().run
    thread = threading.Thread(target=run_here, args=(run,), name="pyllama_spec-load", daemon=True)
    threads.add(thread)
    thread.start()
    try:
        return await asyncio.wrap_future(done)
    except asyncio.CancelledError:
        done.add_done_callback(forget)
        raise


# ---- the memory that a model will take

_ENDS = (
    ".block_count", ".embedding_length", ".context_length", ".attention.head_count",
    ".attention.head_count_kv", ".attention.key_length", ".attention.value_length",
)  # fmt: skip


def options_of(keywords: Mapping[str, Any]) -> OpenOptions:
    """The options of a Llama() call with these keywords, defaults included."""
    more = dict(keywords)
    return OpenOptions.from_keywords(more.pop("model_path"), more)[0]


def expected_bytes(keywords: Mapping[str, Any]) -> tuple[int, int]:
    """Bytes of a Llama's files with its copies of prompts, and of its KV cache with all positions.

    Files that cannot be read, and options that are refused later, count as 0.
    """
    options = options_of(keywords)
    path, draft = Path(options.model_path), options.draft
    files, cache = _file_bytes(path), 0
    if isinstance(draft, (str, os.PathLike)) and needs_file(os.fspath(draft)):
        files += _file_bytes(Path(draft))
    with suppress(PyllamaSpecError):
        options.check()
        params = options.context_params()
        check_parallel(options.n_parallel, params)
        files += options.store_bytes()
        keys = read_keys(path, lambda name: name.endswith(_ENDS))
        cache = _cache_bytes(keys, params, options.n_parallel)
    return files, cache


def _file_bytes(path: Path) -> int:
    with suppress(OSError, ValueError):
        return sum(part.stat().st_size for part in parts_of(path))
    return 0


def _cache_bytes(keys: Mapping[str, GgufKey], params: ContextParams, n_parallel: int) -> int:
    """Bytes of a KV cache of float16, from a file's keys; a quantized one takes less."""
    named = {end: key.value for name, key in keys.items() for end in _ENDS if name.endswith(end)}

    def number(end: str) -> int:
        length = named.get(end)
        return length if isinstance(length, int) else 0

    heads = named.get(".attention.head_count_kv") or named.get(".attention.head_count") or 0
    n_heads = sum(heads) if isinstance(heads, list) else heads * number(".block_count")
    of_head = number(".embedding_length") // max(number(".attention.head_count"), 1)
    width = sum(number(f".attention.{one}_length") or of_head for one in ("key", "value"))
    n_ctx = params.n_ctx or number(".context_length")
    return int(n_heads * width * 2 * n_ctx * n_parallel)


# ---- figures

_RUNNING = "Requests that are computed."
_WAITING = "Requests that wait in the queue or for a load."
_SINCE = "per second, of requests that ended since the last scrape."


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
        ("llamacpp:n_busy_slots_per_decode", "The average number of sequences in a decode.",
         of(lambda service: service.metrics.sequences_per_decode)),
        ("llamacpp:n_tokens_max", "The most tokens that a sequence has had.",
         of(lambda service: service.metrics.max_tokens)),
        ("llamacpp:prompt_tokens_seconds", f"Computed tokens of prompts {_SINCE}",
         of(lambda service: service.metrics.prompt_pace.read())),
        ("llamacpp:predicted_tokens_seconds", f"Generated tokens {_SINCE}",
         of(lambda service: service.metrics.text_pace.read())),
        ("pyllama_spec:model_memory_bytes", "Bytes of memory that a loaded model takes.",
         lambda one: one.n_bytes if one.service else 0),
    )  # fmt: skip
    for name, text, count in gauges:
        gauge = metrics.gauge(name, text)
        for one in models:
            gauge.labels(one.name).set_function(partial(count, one))
    text = "1 for the state of a model, 0 for its other states."
    states = metrics.gauge("pyllama_spec:model_state", text, "state")
    for one in models:
        for state in STATES:
            states.labels(one.name, state).set_function(partial(_is_in, one, state))


def _is_in(one: ServedModel, state: str) -> bool:
    return one.state == state
