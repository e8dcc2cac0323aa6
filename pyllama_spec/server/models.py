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
import math
import os
import re
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, MutableSet, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic, time
from typing import Any, NamedTuple, TypeVar

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
from pyllama_spec.llama.open_model import WATCH, check_parallel
from pyllama_spec.llama.open_options import OpenOptions
from pyllama_spec.server.api_errors import NO_RETRY, ApiError, for_client
from pyllama_spec.server.metrics import Metrics
from pyllama_spec.server.model_list import ModelList, ModelSpec, is_missing
from pyllama_spec.server.service import Service
from pyllama_spec.server.serving import Serving, log, note_failure
from pyllama_spec.server.settings import ServerSettings

_T = TypeVar("_T")
# Bytes of a number in the KV cache, by its type's name.
_TYPE_BYTES = {
    "f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q5_1": 24 / 32, "q5_0": 22 / 32,
    "q4_1": 20 / 32, "q4_0": 18 / 32,
}  # fmt: skip
# The engine rounds the cells of a sequence up to so many.
_CELLS = 256
_ENDS = (
    ".block_count", ".embedding_length", ".context_length", ".attention.head_count",
    ".attention.head_count_kv", ".attention.key_length", ".attention.value_length",
)  # fmt: skip


class Failure(NamedTuple):
    """Why a model or an adapter could not be loaded, for clients, and when by monotonic().

    `may_pass`: a later load may succeed though nobody changes anything.
    """

    why: str
    at: float
    may_pass: bool = False


class MissingError(ModelLoadError):
    """Files of a model do not exist."""

    def __init__(self, missing: list[tuple[str, Path]]) -> None:
        super().__init__(lacks(missing))
        self.missing = missing


class NeverFitsError(OutOfMemoryError):
    """A model takes more than all models together may."""


def may_pass(error: Exception) -> bool:
    """See Failure."""
    is_outside = isinstance(error, (OutOfMemoryError, RemoteError))
    return is_outside and not isinstance(error, NeverFitsError)


def lacks(missing: Sequence[tuple[str, Path]]) -> str:
    """The message about missing files, without paths, for clients."""
    keys = " and of its ".join(key for key, _ in missing)
    return f"the file of its {keys} does not exist"


def not_loaded(name: str, why: str, *, may_pass: bool) -> ApiError:
    """The error for a request to a model that cannot be loaded."""
    message = f"the model {name!r} cannot be loaded: {why}"
    if may_pass:
        return ApiError(503, message, "model_not_loaded", "model")
    message += "; whoever runs the server has to correct that"
    return ApiError(500, message, "model_not_loaded", "model", headers=NO_RETRY)


Adapters = Sequence[tuple[Adapter, float]]
_NO_MEMORY = re.compile(r"\(the engine says: .*(?:failed to allocate|bad_alloc)", re.DOTALL)
# How often a model may fail before only a restart of the server helps: see Service.has_leaked.
_MAX_LEAKS = 8
STATES = ("loaded", "loading", "unloaded", "failed")


class Opened(NamedTuple):
    """A loaded model, with its adapters by name; `store_bytes` are for copies of prompts."""

    llm: Llama
    store_bytes: int
    adapters: dict[str, Adapters]
    failures: dict[str, Failure]

    @property
    def n_bytes(self) -> int:
        """The memory that it takes as of now: the first text to embed opens another context."""
        return self.llm.memory_bytes + self.store_bytes

    def load_adapter(
        self, spec: ModelSpec, name: str, failure_of: Callable[[Exception], Failure]
    ) -> None:
        """Loads an adapter, or records why it cannot be."""
        path, scale = spec.adapters[name]
        try:
            self.adapters[name] = [(Adapter(self.llm.model, path), scale)]
            self.failures.pop(name, None)
        except (PyllamaSpecError, MemoryError) as error:
            log.warning("the adapter %s cannot be loaded: %s", name, error or "out of memory")
            # The engine says that such a file is no adapter; its log has the reason.
            if isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)):
                error = OutOfMemoryError("there is not enough memory for it")
            self.failures[name] = failure_of(error)


class ServedModel:
    """A model of a server, and its state.

    `n_leaks` counts the contexts that it has left to the process by failures, which are not freed,
    and reopenings without memory. `draining` is set while it takes no new requests since another
    model waits for its memory; done once it is closed, or need not be.
    """

    def __init__(self, name: str, spec: ModelSpec | None, aliases: Sequence[str] = ()) -> None:
        self.aliases = aliases if spec is None else spec.aliases
        self.name, self.spec, self.created = name, spec, int(time())
        self.service: Service | None = None
        self.opened: Opened | None = None
        self.failure: Failure | None = None
        self.missing: list[tuple[str, Path]] = []
        self.n_users = self.n_waiting = self.n_bytes = self.n_leaks = 0
        self.waits_for_room = False
        self.retries: dict[str, asyncio.Task[None]] = {}
        self.draining: asyncio.Future[None] | None = None
        self.last_used = self.loaded_at = monotonic()
        self.loading: asyncio.Task[None] | None = None
        self.expiry: asyncio.TimerHandle | None = None

    @property
    def state(self) -> str:
        """One of STATES."""
        if self.service is not None and self.service.is_usable:
            return "loaded"
        if self.loading is not None:
            return "loading"
        return "unloaded" if self.failure is None and self.service is None else "failed"

    def is_in(self, state: str) -> bool:
        """Whether this is its state."""
        return self.state == state

    @property
    def is_idle(self) -> bool:
        """Whether the model is loaded and unused."""
        is_wanted = self.n_waiting and self.draining is None
        return self.service is not None and not (self.n_users or is_wanted)

    @property
    def takes_requests(self) -> bool:
        """Whether the model is loaded and not draining."""
        return self.draining is None and self.service is not None and self.service.is_usable

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

    def count_bytes(self) -> None:
        """Updates n_bytes."""
        if self.opened is not None:
            self.n_bytes = self.opened.n_bytes
        elif self.service is not None:
            self.n_bytes = self.service.llm.memory_bytes

    @property
    def adapters(self) -> Sequence[str]:
        """The names of its adapters."""
        return () if self.spec is None else tuple(self.spec.adapters)

    @property
    def draft_asked_for(self) -> str | None:
        """The draft it will have: a drafter's name, or a file's name."""
        draft = None if self.spec is None else self.spec.keywords.get("draft")
        if isinstance(draft, (str, os.PathLike)):
            return None if draft == "none" else Path(draft).name
        return None if draft is None else str(getattr(draft, "name", type(draft).__name__))

    def failure_of(self, adapter: str | None) -> str | None:
        """The last load error of the model or of an adapter; None for none."""
        if self.opened is not None:
            failure = None if adapter is None else self.opened.failures.get(adapter)
        else:
            failure = self.failure
        return None if failure is None else failure.why

    @property
    def max_waiting(self) -> int | None:
        """The maximum number of requests that wait for the load; None for no limit."""
        if self.spec is not None:
            most: int | None = self.spec.keywords.get("max_waiting")
        else:
            most = None if self.service is None else self.service.llm.max_waiting
        return most

    def names(self) -> Iterator[tuple[str, ChosenModel]]:
        """The names of the model and its adapters."""
        for name in (self.name, *self.aliases):
            yield name, ChosenModel(self, None)
        for name in self.adapters:
            yield name, ChosenModel(self, name)

    def places(self) -> Iterator[tuple[str, str]]:
        """The paths of its files, each with its name in messages."""
        adapters: Mapping[str, tuple[Path, float]] = {}
        if self.spec is not None:
            keywords, adapters = self.spec.keywords, self.spec.adapters
        elif self.service is not None:
            keywords = self.service.llm.file_keywords
        else:
            return
        path = Path(keywords["model_path"])
        yield str(path), self.name
        if path.is_absolute() and len(path.parts) > 2:  # further parts of a split model
            yield f"{path.parent}{os.sep}", ""
        for name, (adapter, _) in adapters.items():
            yield str(adapter), name
        for word in ("draft", "lora_path", "draft_memory"):
            file = keywords.get(word)
            if isinstance(file, (str, os.PathLike)):
                yield os.fspath(file), Path(file).name

    def log_missing(self, missing: list[tuple[str, Path]]) -> None:
        """Names missing files in the log, unless the last such lines named the same."""
        if missing != self.missing:
            for key, path in missing:
                log.warning("%s cannot be loaded: its %s, %s, does not exist", self.name, key, path)
        self.missing = missing

    def cancel_expiry(self) -> None:
        """Cancels the expiry timer."""
        if self.expiry is not None:
            self.expiry.cancel()
            self.expiry = None


class ChosenModel(NamedTuple):
    """The model of a name, and its adapter or None."""

    model: ServedModel
    adapter: str | None


class Expected(NamedTuple):
    """The bytes that a model will take; `likely` has the KV cache, with all positions."""

    least: int
    likely: int


def options_of(keywords: Mapping[str, Any]) -> OpenOptions:
    """The options of a Llama() call with these keywords, defaults included."""
    more = dict(keywords)
    return OpenOptions.from_keywords(more.pop("model_path"), more)[0]


def expected_bytes(keywords: Mapping[str, Any]) -> Expected:
    """The memory that a Llama of these keywords will take, from its readable files alone."""
    options = options_of(keywords)
    path, draft = Path(options.model_path), options.draft
    least = _file_bytes(path)
    if isinstance(draft, (str, os.PathLike)) and needs_file(os.fspath(draft)):
        least += _file_bytes(Path(draft))
    past = 0
    with suppress(PyllamaSpecError):
        options.check()
        params = options.context_params()
        check_parallel(options.n_parallel, params)
        least += options.store_bytes()
        keys = read_keys(path, lambda name: name.endswith(_ENDS))
        past = _past_bytes(keys, params, options.n_parallel)
    return Expected(least, least + past)


def _file_bytes(path: Path) -> int:
    with suppress(OSError, ValueError):
        return sum(part.stat().st_size for part in parts_of(path))
    return 0


def _past_bytes(keys: Mapping[str, GgufKey], params: ContextParams, n_parallel: int) -> int:
    """Bytes of the KV cache, from a file's keys."""

    def value(end: str) -> Any:
        return next((key.value for name, key in keys.items() if name.endswith(end)), None)

    def number(end: str) -> int:
        length = value(end)
        return length if isinstance(length, int) else 0

    n_layer, n_embd = number(".block_count"), number(".embedding_length")
    heads = value(".attention.head_count_kv") or value(".attention.head_count") or 0
    n_heads = sum(heads) if isinstance(heads, list) else heads * n_layer
    each = value(".attention.head_count")
    of_head = n_embd // each if isinstance(each, int) and each > 0 else 0
    width = sum(
        (number(end) or of_head) * _TYPE_BYTES.get(kind, 2.0)
        for end, kind in (
            (".attention.key_length", params.type_k),
            (".attention.value_length", params.type_v),
        )
    )
    n_ctx = params.n_ctx or number(".context_length")
    n_cells = -(-n_ctx // _CELLS) * _CELLS
    return int(n_heads * width * n_cells * n_parallel)


async def in_daemon(
    call: Callable[[], _T], drop: Callable[[_T], None], threads: MutableSet[threading.Thread]
) -> _T:
    """Runs a long call in a daemon thread; `drop` gets a result that nobody waits for."""
    loop = asyncio.get_running_loop()
    made: asyncio.Future[_T] = loop.create_future()

    def give(result: _T) -> None:
        if made.cancelled():
            drop(result)
        else:
            made.set_result(result)

    def fail(error: BaseException) -> None:
        if not made.cancelled():
            made.set_exception(error)

    def run() -> None:
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(fail, error)
        else:
            try:
                loop.call_soon_threadsafe(give, result)
            except RuntimeError:
                drop(result)
        finally:
            threads.discard(thread)

    thread = threading.Thread(target=run, name="pyllama_spec-load", daemon=True)
    threads.add(thread)
    thread.start()
    return await made


class Room:
    """The bounds of a list of models, and what they leave for a further model."""

    def __init__(self, models: Sequence[ServedModel], listed: ModelList) -> None:
        self._models = models
        self._max_bytes, self._max_loaded = listed.memory_bytes, listed.max_loaded

    def others(self, one: ServedModel) -> list[ServedModel]:
        """The other loaded models."""
        return [m for m in self._models if m is not one and m.service is not None]

    def fits(self, one: ServedModel, n_bytes: int, without: Sequence[ServedModel] = ()) -> bool:
        """Whether a model fits beside the loaded ones, without some of them."""
        others = [m for m in self.others(one) if m not in without]
        if self._max_loaded is not None and len(others) >= self._max_loaded:
            return False
        most = self._max_bytes
        return most is None or n_bytes + sum(m.n_bytes for m in others) <= most

    def oldest_idle(self) -> ServedModel | None:
        """The idle model that was unused for longest; None if all are in use."""
        idle = [one for one in self._models if one.spec is not None and one.is_idle]
        return min(idle, key=lambda one: one.last_used) if idle else None

    def drain_others(self, one: ServedModel, n_bytes: int) -> None:
        """Drains the models whose memory another one needs, loaded for longest first."""
        others = sorted(self.others(one), key=lambda other: other.loaded_at)
        if any(other.n_waiting and other.draining is None for other in others):
            return  # just loaded: requests that waited for it come first
        needed: list[ServedModel] = []
        for other in others:
            if not self.fits(one, n_bytes, needed):
                needed.append(other)
        for other in list(needed):  # a later one may have room enough without the first
            fewer = [m for m in needed if m is not other]
            if self.fits(one, n_bytes, fewer):
                needed = fewer
        for other in others:
            if other not in needed:
                end_draining(other)
            elif other.draining is None:
                other.draining = asyncio.get_running_loop().create_future()
                log.info("%s takes no new requests: %s needs its memory", other.name, one.name)

    def end_draining(self) -> None:
        """Ends the draining of all models: those still loaded need not be closed any more."""
        for one in self._models:
            end_draining(one)


def end_draining(one: ServedModel) -> None:
    """Ends the draining of a model that is closed or can stay; waiting loads check again."""
    if one.draining is not None:
        one.draining.set_result(None)
        one.draining = None


_LAST_USERS_S, _LOOK_S = 2.0, 0.02
# Between two tries without a request, in units of the Retry-After.
_N_RETRY = 3


def given_up(name: str) -> ApiError:
    """The error of a request to a model that failed too often."""
    return ApiError(
        500, f"the model {name!r} failed too often; whoever runs the server has to restart it",
        "model_failed", headers=NO_RETRY,
    )  # fmt: skip


# The maximum number of names in a message.
_MAX_NAMED = 20
# How long an end waits for a load that has to stop.
_LAST_LOAD_S = 5.0
_MIB = 1 << 20


class Models:
    """All models of a server; or one open Llama, `only`, which answers to any name."""

    def __init__(self, listed: ModelList | Llama, settings: ServerSettings) -> None:
        self.serving = serving = Serving(settings)
        self.only: ServedModel | None = None
        if isinstance(listed, Llama):
            name = settings.alias or Path(listed.model_path).name
            self.only = only = ServedModel(name, None, settings.aliases)
            only.service = Service(listed, settings, name, serving.metrics.of(name))
            only.count_bytes()
            spec = ModelSpec(name=name, keywords={})
            self._listed, self.all = ModelList(specs=(spec,), default=name), [only]
        else:
            self._listed = listed
            self.all = [ServedModel(spec.name, spec) for spec in listed.specs]
        self._room = Room(self.all, self._listed)
        self._by_name = {name: choice for one in self.all for name, choice in one.names()}
        # Models are loaded one at a time: which one is now, while others are in line.
        self._one_load = asyncio.Lock()
        self._being_loaded: ServedModel | None = None
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads: set[threading.Thread] = set()
        self._preloads: list[ServedModel] | None = None
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
            names = list(self._by_name)
            more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
            raise ApiError(
                404, f"there is no model {name!r:.100} here; there are "
                f"{', '.join(names[:_MAX_NAMED])}{more}", "model_not_found", "model",
            )  # fmt: skip
        return choice

    async def use(self, choice: ChosenModel) -> Service:
        """Waits until a model is loaded, and keeps it loaded until done_with()."""
        one = choice.model
        if not one.takes_requests:
            await self._wait_for(one)
        if choice.adapter is not None:
            self._check_adapter(one, choice.adapter)
        one.n_users += 1
        one.cancel_expiry()
        assert one.service is not None
        return one.service

    def _check_adapter(self, one: ServedModel, name: str) -> None:
        """Raises if an adapter of a loaded model has failed; a later request may find it loaded."""
        opened = one.opened
        assert opened is not None
        failure = opened.failures.get(name)
        if failure is None:
            return
        if not (self._is_recent(failure) or name in one.retries or self._is_ending):
            one.n_users += 1  # the model stays loaded meanwhile
            one.cancel_expiry()
            one.retries[name] = self._begin(self._retry_adapter, one, opened, name)
        raise not_loaded(name, failure.why, may_pass=failure.may_pass)

    async def _retry_adapter(self, one: ServedModel, opened: Opened, name: str) -> None:
        """Tries once more to load an adapter. No request waits for it."""
        spec = one.spec
        assert spec is not None
        try:
            await in_daemon(
                lambda: opened.load_adapter(spec, name, self._failure), lambda _: None,
                self._threads,
            )  # fmt: skip
        except Exception as error:  # noqa: BLE001 - reported to the requests, and logged
            note_failure(error)
            opened.failures[name] = self._failure(error)
        finally:
            del one.retries[name]
            self.done_with(one)

    def done_with(self, one: ServedModel) -> None:
        """Ends a use()."""
        one.n_users -= 1
        one.count_bytes()
        self._released(one)
        if one.has_failed and not self._is_ending:
            self._begin_recovery(one)

    def _begin_recovery(self, one: ServedModel) -> None:
        """Opens the caller's model again, and closes one of a list: a request loads it again."""
        if one.spec is not None:
            self._begin(self._close_failed, one)
        elif one.loading is None and not one.is_given_up:
            one.loading = asyncio.ensure_future(self._reopen(one))

    async def _close_failed(self, one: ServedModel) -> None:
        await self._last_users(one)
        async with self._one_load:
            if one.has_failed and not one.retries:
                await self._close(one, "failure")

    def _released(self, one: ServedModel) -> None:
        """Called when a request or a load ends: the model may close now, or when it expires."""
        one.last_used = monotonic()
        self._note_change()
        after = None if one.spec is None else one.spec.keep_alive_s
        if after is not None and one.is_idle and not self._is_ending:
            one.cancel_expiry()
            loop = asyncio.get_running_loop()
            one.expiry = loop.call_later(after, self._begin, self._expire, one, one.last_used)

    def adapters(self, choice: ChosenModel) -> Adapters:
        """The adapter of a loaded model by name."""
        opened = choice.model.opened
        return () if choice.adapter is None or opened is None else opened.adapters[choice.adapter]

    def without_paths(self, message: str) -> str:
        """A message for a client, without file paths."""
        places = [place for one in self.all for place in one.places()]
        for path, name in sorted(places, key=lambda place: -len(place[0])):
            message = message.replace(path, name)
        return message

    async def _wait_for(self, one: ServedModel) -> None:
        """Waits until a model is loaded; starts the load if needed."""
        most = one.max_waiting
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
                    load = self._load if one.spec is not None else self._reopen
                    awaited = one.loading = one.loading or asyncio.ensure_future(load(one))
                await asyncio.wait({awaited}, timeout=max(until - monotonic(), 0))
                if not one.takes_requests and monotonic() >= until:
                    is_not = "is not loaded" if one.service is None else "takes no requests"
                    why, option = self._why_not_yet(one)
                    raise ApiError(
                        503, f"the model {one.name!r} {is_not} after {limit:g} s: {why}",
                        "model_loading", "model", option=option,
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
        if self._is_recent(one.failure):
            raise not_loaded(one.name, one.failure.why, may_pass=one.failure.may_pass)
        one.failure = None

    def _is_recent(self, failure: Failure) -> bool:
        return monotonic() < failure.at + self.serving.settings.retry_after_s

    def _why_not_yet(self, one: ServedModel) -> tuple[str, str]:
        """The reason why a model is not loaded, and the keys that an operator could change."""
        now = self._being_loaded
        if one.draining is not None and now is not None:
            return f"it makes room for {now.name!r} once its last requests have ended", "turn_s"
        if now is not None and now.waits_for_room:
            others = (m.name for m in self.all if m.service is not None and not m.is_idle)
            return f"requests to {', '.join(others)} have the room", "memory_mib,max_loaded"
        if now is None or now is one:
            return "it is still being loaded", "load_timeout_s"
        return f"{now.name!r} is loaded before it", "load_timeout_s"

    async def _last_users(self, one: ServedModel) -> None:
        """Waits until no request uses a failed model; bounded, as a client may not read."""
        until = monotonic() + _LAST_USERS_S
        while one.n_users and monotonic() < until:
            await asyncio.sleep(_LOOK_S)

    async def _reopen(self, one: ServedModel) -> None:
        """Opens the model again. After an error it is tried again later, without a request too."""
        failed = one.service
        assert failed is not None
        try:
            await self._last_users(one)
            one.note_leak()
            if one.is_given_up:
                return
            if one.failure is None:
                log.warning("%s failed and is being reopened", one.name)
            await in_daemon(lambda: self._reopened(failed.llm), lambda _: None, self._threads)
            one.failure = None
            one.service = Service(failed.llm, failed.settings, one.name, failed.metrics)
            log.warning("%s was reopened", one.name)
        except Exception as error:  # noqa: BLE001 - reported to the model's requests, and logged
            self._note_failure(one, error)
            one.n_leaks += isinstance(error, OutOfMemoryError)
            # A proxy sends no request to a server that is not ready.
            wait_s = _N_RETRY * self.serving.settings.retry_after_s
            one.cancel_expiry()
            one.expiry = asyncio.get_running_loop().call_later(wait_s, self._retry, one)
        finally:
            one.loading = None

    def _retry(self, one: ServedModel) -> None:
        is_wanted = one.has_failed and not (one.is_given_up or self.serving.is_stopping)
        if is_wanted and one.loading is None:
            one.loading = asyncio.ensure_future(self._reopen(one))

    def _reopened(self, llm: Llama) -> None:
        WATCH.set(self._watch)
        llm.reopen()

    # ---- loading

    async def _load(self, one: ServedModel, *, may_close_others: bool = True) -> None:
        """Loads a model, or records its error."""
        metrics, begin = self.serving.metrics, monotonic()
        try:
            async with self._loading_alone(one):
                if one.has_failed:
                    await self._last_users(one)
                    await self._close(one, "failure")
                    if one.is_given_up:
                        raise _UnwantedError
                opened = await self._opened(one, may_close_others)
            assert one.spec is not None
            defaults = {**self.serving.settings.defaults, **one.spec.defaults}
            chats = {**self.serving.settings.chat_defaults, **one.spec.chat_defaults}
            settings = replace(self.serving.settings, defaults=defaults, chat_defaults=chats)
            one.opened, one.failure = opened, None
            one.missing = []
            one.service = Service(opened.llm, settings, one.name, metrics.of(one.name))
            one.loaded_at = monotonic()
            self._released(one)
            seconds = one.loaded_at - begin
            metrics.counter("pyllama_spec:model_loads", "Loads of a model.").labels(one.name).inc()
            metrics.histogram(
                "pyllama_spec:model_load_seconds",
                "Seconds of loading a model, with the wait for other loads.",
            ).labels(one.name).observe(seconds)
            log.info(
                "%s was loaded in %.1f s and takes %d MiB", one.name, seconds, one.n_bytes // _MIB
            )
        except _UnwantedError:
            pass
        except Exception as error:  # noqa: BLE001 - reported to the model's requests, and logged
            self._note_failure(one, error)
        finally:
            one.loading = None
            self._note_change()

    @asynccontextmanager
    async def _loading_alone(self, one: ServedModel) -> AsyncGenerator[None, None]:
        """Waits until no other model loads, then holds the loading slot."""
        async with self._one_load:
            self._being_loaded = one
            try:
                yield
            finally:
                self._being_loaded = None

    def _note_failure(self, one: ServedModel, error: Exception) -> None:
        if self._is_ending:
            return
        note_failure(error)
        one.failure = self._failure(error)
        counter = self.serving.metrics.counter(
            "pyllama_spec:model_load_failures", "Loads of a model that failed."
        )
        counter.labels(one.name).inc()
        if isinstance(error, MissingError):
            one.log_missing(error.missing)
        elif isinstance(error, PyllamaSpecError):
            log.warning("%s cannot be loaded: %s", one.name, error)

    def _failure(self, error: Exception) -> Failure:
        """What clients are told of a load's error."""
        why = "it failed inside; the server's log says where"
        if isinstance(error, PyllamaSpecError):
            why = for_client(error)
        return Failure(self.without_paths(why), monotonic(), may_pass(error))

    def _note_missing(self, one: ServedModel) -> None:
        """Reports missing files at the start; their paths go to the log only."""
        if one.spec is None:
            return
        for name, (path, _) in one.spec.adapters.items():
            if is_missing(path):
                log.warning("the adapter %s cannot be loaded: %s does not exist", name, path)
        missing = one.spec.missing_files()
        one.log_missing(missing)
        if missing:
            one.failure = Failure(lacks(missing), -math.inf)  # a request looks again at once

    async def _opened(self, one: ServedModel, may_close_others: bool) -> Opened:
        """Loads a model within the common memory bound."""
        spec = one.spec
        assert spec is not None
        turn_ends = monotonic() + self._listed.turn_s
        while True:
            # The memory of the last load, or an estimate from its files.
            n_bytes = one.n_bytes or await self._expected_bytes(spec)
            await self._make_room(one, n_bytes, may_close_others, turn_ends)
            try:
                opened = await in_daemon(
                    lambda: self.open(spec), lambda made: made.llm.close(), self._threads
                )
            except OutOfMemoryError:
                if not may_close_others and self._room.others(one):
                    raise self._left_out(one) from None
                if not (may_close_others and await self._close_oldest()):
                    raise
                continue
            one.n_bytes = opened.n_bytes
            # More than expected: others make room for it, or it is closed again.
            while not self._room.fits(one, one.n_bytes):
                if not (may_close_others and await self._close_oldest()):
                    break
            if self._room.fits(one, one.n_bytes):
                return opened
            await in_daemon(opened.llm.close, lambda _: None, self._threads)

    async def _expected_bytes(self, spec: ModelSpec) -> int:
        """The memory of a model that was never loaded; raises if it exceeds the limit."""
        expected = await asyncio.to_thread(expected_bytes, spec.keywords)
        most = self._listed.memory_bytes
        if most is None or expected.least > most:  # it is refused, with what it takes
            return expected.likely
        return min(expected.likely, most)

    def open(self, spec: ModelSpec) -> Opened:
        """Loads a model in a thread that does not delay exit."""
        WATCH.set(self._watch)
        if missing := spec.missing_files():
            raise MissingError(missing)
        llm = Llama(**spec.keywords)
        with closed_on_failure(llm):
            opened = Opened(llm, options_of(spec.keywords).store_bytes(), {}, {})
            for name in spec.adapters:
                opened.load_adapter(spec, name, self._failure)
            self._watch(1.0)
        llm.cache = self._listed.cache
        return opened

    def _watch(self, _fraction: float) -> None:
        if self._is_ending:
            raise CancelledError("the server stops: the load is ended")

    # ---- room

    def _left_out(self, one: ServedModel) -> _UnwantedError:
        """The preload found no room. It closes no other model; a request for it may."""
        log.warning("%s is not loaded at the start: those before it leave no room", one.name)
        return _UnwantedError()

    async def _make_room(
        self, one: ServedModel, n_bytes: int, may_close_others: bool, turn_ends: float
    ) -> None:
        """Closes idle models until a model fits; waits until one is idle."""
        most = self._listed.memory_bytes
        if most is not None and n_bytes > most:
            raise NeverFitsError(
                f"it takes {'' if one.n_bytes else 'about '}{-(-n_bytes // _MIB)} MiB, and all "
                f"models together may take {most // _MIB}",
                setup="allow more `memory_mib`, or give it a smaller `n_ctx`, `n_parallel` or "
                "`prefix_cache_bytes`",
            )
        try:
            while not self._room.fits(one, n_bytes):
                self._watch(0.0)
                if not may_close_others:
                    raise self._left_out(one)
                if await self._close_oldest():
                    continue
                if not one.n_waiting:
                    raise _UnwantedError
                await self._wait_for_room(one, n_bytes, turn_ends)
        finally:
            self._room.end_draining()

    async def _wait_for_room(self, one: ServedModel, n_bytes: int, turn_ends: float) -> None:
        """Waits for a change; when the others' turn is over, they drain."""
        left_s = turn_ends - monotonic()
        if left_s <= 0:
            self._room.drain_others(one, n_bytes)
        self._changed.clear()
        change = asyncio.ensure_future(self._changed.wait())
        one.waits_for_room = True
        try:
            await asyncio.wait({change}, timeout=left_s if left_s > 0 else None)
        finally:
            change.cancel()
            one.waits_for_room = False

    async def _close_oldest(self) -> bool:
        """Closes the idle model that was unused for longest; False if all are in use."""
        oldest = self._room.oldest_idle()
        if oldest is None:
            return False
        await self._close(oldest, "memory")
        return True

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
        one.cancel_expiry()
        end_draining(one)
        await in_daemon(opened.llm.close, lambda _: None, self._threads)
        counter = self.serving.metrics.counter(
            "pyllama_spec:model_unloads", "Models that were closed, by why.", "reason"
        )
        counter.labels(one.name, reason).inc()
        log.info("%s was closed: %s", one.name, reason)
        self._note_change()

    def _note_change(self) -> None:
        """Wakes waiting loads after a change."""
        self._changed.set()

    # ---- the beginning and the end

    def start(self) -> None:
        """Starts loading the models with `preload`, in the file's order. Call it once."""
        if self._preloads is None:
            for one in self.all:
                self._note_missing(one)
            self._preloads = [one for one in self.all if one.spec and one.spec.is_preloaded]
            self._begin(self._preload)

    async def _preload(self) -> None:
        for one in list(self._preloads or ()):
            if one.service is None and one.loading is None and not self._is_ending:
                one.loading = asyncio.ensure_future(self._load(one, may_close_others=False))
            if one.loading is not None:
                await asyncio.wait({one.loading})
        self._preloads = []

    @property
    def given_up(self) -> list[ServedModel]:
        """The models that failed too often; only a restart of the server helps them."""
        return [one for one in self.all if one.is_given_up]

    @property
    def is_ready(self) -> bool:
        """Whether all preloads have ended, successfully or not; and that the only model works."""
        return self._preloads == [] and (self.only is None or self.only.takes_requests)

    def counts(self) -> dict[str, int]:
        """The number of models in each state."""
        states = [one.state for one in self.all]
        return {state: states.count(state) for state in STATES}

    def _begin(self, call: Callable[..., Any], *given: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.ensure_future(call(*given))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _stop_loading(self) -> None:
        """Stops the running load; its waiting requests get the error of a stopping server."""
        self._is_ending = True
        for one in self.all:
            if one.loading is not None:
                one.loading.cancel()

    async def close(self) -> None:
        """Closes the models that this object loaded, after the last answer."""
        self._stop_loading()
        until = monotonic() + _LAST_LOAD_S  # a load ends with its next part of a file
        retries = {task for one in self.all for task in one.retries.values()}
        if ending := ({one.loading for one in self.all if one.loading} | self._tasks) - retries:
            await asyncio.wait(ending)
        if retries:
            await asyncio.wait(retries, timeout=_LAST_LOAD_S)
        for one in self.all:
            if not one.retries:  # a file that stalls still loads into the model
                await self._close(one, "end")
        while self._threads and monotonic() < until:
            await asyncio.sleep(_LOOK_S)


class _UnwantedError(Exception):
    """A load was abandoned without a failure."""


_RUNNING = "Requests that are computed."
_WAITING = "Requests that wait in the queue or for a load."
_SINCE = "per second, of requests that ended since the last scrape."


def add_gauges(metrics: Metrics, models: Sequence[ServedModel]) -> None:
    """Adds the gauges of some models; a model that is not loaded has 0."""

    def of_service(count: Callable[[Service], float]) -> Callable[[ServedModel], float]:
        return lambda one: count(one.service) if one.service else 0

    def n_waiting(one: ServedModel) -> float:
        return one.n_waiting + of_service(Service.n_waiting)(one)

    gauges: Mapping[str, tuple[str, Callable[[ServedModel], float]]] = {
        "vllm:num_requests_running": (_RUNNING, of_service(Service.n_running)),
        "llamacpp:requests_processing": (_RUNNING, of_service(Service.n_running)),
        "vllm:num_requests_waiting": (_WAITING, n_waiting),
        "llamacpp:requests_deferred": (_WAITING, n_waiting),
        "llamacpp:n_busy_slots_per_decode": (
            "The average number of sequences in a decode.",
            of_service(lambda service: service.metrics.sequences_per_decode),
        ),
        "llamacpp:n_tokens_max": (
            "The most tokens that a sequence has had.",
            of_service(lambda service: service.metrics.max_tokens),
        ),
        "llamacpp:prompt_tokens_seconds": (
            f"Computed tokens of prompts {_SINCE}",
            of_service(lambda service: service.metrics.prompt_pace.read()),
        ),
        "llamacpp:predicted_tokens_seconds": (
            f"Generated tokens {_SINCE}",
            of_service(lambda service: service.metrics.text_pace.read()),
        ),
        "pyllama_spec:model_memory_bytes": (
            "Bytes of memory that a loaded model takes.",
            lambda one: one.n_bytes if one.service else 0,
        ),
    }
    for name, (text, count) in gauges.items():
        gauge = metrics.gauge(name, text)
        for one in models:
            gauge.labels(one.name).set_function(partial(count, one))
    text = "1 for the state of a model, 0 for its other states."
    states = metrics.gauge("pyllama_spec:model_state", text, "state")
    for one in models:
        for state in STATES:
            states.labels(one.name, state).set_function(partial(one.is_in, state))
