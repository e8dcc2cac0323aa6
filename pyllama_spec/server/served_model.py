"""A model of a server: its options and its state."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic, time
from typing import NamedTuple

from pyllama_spec.engine import Adapter
from pyllama_spec.errors import ModelLoadError, OutOfMemoryError, PyllamaSpecError, RemoteError
from pyllama_spec.llama import Llama
from pyllama_spec.server.api_errors import NO_RETRY, ApiError
from pyllama_spec.server.model_list import ModelSpec
from pyllama_spec.server.service import Service
from pyllama_spec.server.serving import log


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
Loaded = dict[str, Adapters]
_NO_MEMORY = re.compile(r"\(the engine says: .*(?:failed to allocate|bad_alloc)", re.DOTALL)
# How often a model may fail before only a restart of the server helps: see Service.has_leaked.
_MAX_LEAKS = 8
STATES = ("loaded", "loading", "unloaded", "failed")


Failures = dict[str, Failure]
# What clients are told of an error.
Told = Callable[[Exception], Failure]


class Opened(NamedTuple):
    """A loaded model; `store_bytes`, for copies of prompts, is a part of n_bytes."""

    llm: Llama
    adapters: Loaded
    failures: Failures
    n_bytes: int
    store_bytes: int


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
        """Updates n_bytes: the first text to embed opens another context."""
        if self.service is not None:
            store_bytes = 0 if self.opened is None else self.opened.store_bytes
            self.n_bytes = self.service.llm.memory_bytes + store_bytes

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

    def shares_file_with(self, other: ServedModel) -> bool:
        """Whether both are mapped from the same file."""
        if self.spec is None or other.spec is None:
            return False
        each = (self.spec.keywords, other.spec.keywords)
        with suppress(OSError):
            is_mapped = all(one.get("use_mmap", True) for one in each)
            return is_mapped and Path(each[0]["model_path"]).samefile(each[1]["model_path"])
        return False

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


def load_adapters(llm: Llama, spec: ModelSpec, told: Told) -> tuple[Loaded, Failures]:
    """The adapters of a model by name, and the failures of those that did not load."""
    loaded: Loaded = {}
    failures: Failures = {}
    for name in spec.adapters:
        _load_adapter(llm, spec, name, told, loaded, failures)
    return loaded, failures


def retry_adapter(opened: Opened, spec: ModelSpec, name: str, told: Told) -> None:
    """Tries once more to load an adapter."""
    _load_adapter(opened.llm, spec, name, told, opened.adapters, opened.failures)


def _load_adapter(
    llm: Llama, spec: ModelSpec, name: str, told: Told, loaded: Loaded, failures: Failures
) -> None:
    path, scale = spec.adapters[name]
    try:
        loaded[name] = [(Adapter(llm.model, path), scale)]
        failures.pop(name, None)
    except (PyllamaSpecError, MemoryError) as error:
        log.warning("the adapter %s cannot be loaded: %s", name, error or "out of memory")
        # The engine says that such a file is no adapter; its log has the reason.
        if isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)):
            error = OutOfMemoryError("there is not enough memory for it")
        failures[name] = told(error)
