"""Imports the compiled module, turns status codes into exceptions, and holds C objects."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

# NumPy refuses a second interpreter. It has to do so before that one registers the end of the
# engine (atexit, below), which would end it for the whole process.
import numpy as np  # noqa: F401

from pyllama_spec.engine.closeable import Closeable
from pyllama_spec.engine.cpu_variants import load_engine
from pyllama_spec.errors import (
    PROCESS_ENDS,
    ArgumentError,
    BusyError,
    CancelledError,
    ClosedError,
    ContextFullError,
    EngineError,
    ForkedError,
    ModelLoadError,
    OutOfMemoryError,
    PyllamaSpecError,
    RemoteError,
    UnsupportedError,
)

# cffi builds their types at run time.
_engine: Any = load_engine()
ffi, lib = _engine.ffi, _engine.lib

__all__ = [
    "Handle",
    "Owner",
    "check",
    "computing",
    "ffi",
    "fork_generation",
    "keep_error",
    "last_error",
    "lib",
]

_EXCEPTIONS: dict[int, type[PyllamaSpecError]] = {
    lib.LLAMA_SPEC_ARGUMENT: ArgumentError,
    lib.LLAMA_SPEC_MEMORY: OutOfMemoryError,
    lib.LLAMA_SPEC_LOAD: ModelLoadError,
    lib.LLAMA_SPEC_FULL: ContextFullError,
    lib.LLAMA_SPEC_BUSY: BusyError,
    lib.LLAMA_SPEC_ENGINE: EngineError,
    lib.LLAMA_SPEC_UNSUPPORTED: UnsupportedError,
    lib.LLAMA_SPEC_CANCELLED: CancelledError,
    lib.LLAMA_SPEC_POISONED: EngineError,
    lib.LLAMA_SPEC_FORKED: ForkedError,
    lib.LLAMA_SPEC_REMOTE: RemoteError,
}


# What the engine logs before it stops for want of memory, in the middle of a graph too.
_LACKS_MEMORY = re.compile(
    r"insufficient memory(?: \(attempted to allocate [^)]*\))?|ErrorOutOf(?:Device|Host)Memory"
    r"|(?:cannot|failed to) allocate [^;\n)]*|out of memory|bad_alloc|resource allocation failed",
    re.IGNORECASE,
)


# Per thread: the exception that ended a call from inside, such as KeyboardInterrupt; and what
# computing() was given, the innermost last.
_waiting = threading.local()


def keep_error(kind: object, error: BaseException, trace: object) -> bool:
    """Stores the exception of an engine callback; check() raises it after the call.

    Python handles signals when its code runs again: before the first line of a callback.
    """
    _waiting.error = error
    return True


@ffi.def_extern(onerror=keep_error)  # type: ignore[untyped-decorator]
def pyllama_spec_wants_to_stop() -> bool:
    """Called by long engine loops: runs pending signal handlers; returns whether to stop."""
    return _is_to_stop()


lib.llama_spec_on_wait(lib.pyllama_spec_wants_to_stop)


@contextlib.contextmanager
def computing(is_closed: Callable[[], bool]) -> Iterator[None]:
    """Within the block, this thread's calls wait for a hung server of layers only while open.

    A call that still waits a second after is_closed() has become true gives the server up, and is
    a CancelledError. Blocks may be nested, as by a callback that uses another model.
    """
    blocks: list[Callable[[], bool]] = vars(_waiting).setdefault("blocks", [])
    blocks.append(is_closed)
    try:
        yield
    finally:
        blocks.pop()


def _is_to_stop() -> bool:
    blocks: list[Callable[[], bool]] = vars(_waiting).get("blocks", [])
    return bool(blocks) and blocks[-1]()


def last_error() -> str:
    """The message that this thread's last failed call left."""
    text: Any = ffi.string(lib.llama_spec_last_error())
    return bytes(text).decode("utf-8", errors="replace")


def check(code: int, what: str) -> None:
    """Raises the exception that belongs to a status code."""
    # Whatever the result: a signal may have arrived just then.
    if stopped := vars(_waiting).pop("error", None):
        raise stopped
    if code == lib.LLAMA_SPEC_EXITING:
        # In a daemon thread, while the process ends: Python lets this one end a thread in silence.
        raise SystemExit(PROCESS_ENDS)
    if code < 0:
        if code == lib.LLAMA_SPEC_REMOTE and _is_to_stop():
            code = lib.LLAMA_SPEC_CANCELLED
        text = last_error()
        if code == lib.LLAMA_SPEC_ENGINE and (said := _LACKS_MEMORY.search(text)):
            raise OutOfMemoryError(f"{what}: out of memory (the engine says: {said[0]})")
        raise _error(code, what, text)


def _error(code: int, what: str, text: str) -> PyllamaSpecError:
    """The exception of a status code; the C side sets options in backticks, as Python's errors."""
    problem, _, setup = text.partition("; ") if code == lib.LLAMA_SPEC_MEMORY else (text, "", "")
    error = _EXCEPTIONS.get(code, EngineError)(problem=f"{what}: {problem}", setup=setup)
    return error.about_first()


# A daemon thread that computes while the process ends would find the engine's static data gone.
_MAX_EXIT_WAIT_MS = 10_000
atexit.register(lib.llama_spec_shutdown, _MAX_EXIT_WAIT_MS)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lib.llama_spec_after_fork)


def fork_generation() -> int:
    """The number of forks since the process that first imported the module."""
    n: int = lib.llama_spec_fork_generation()
    return n


class Handle:
    """A C object, shared by its owner and the parts that need only it."""

    __slots__ = ("_closed", "_generation", "_pointer")

    def __init__(self, pointer: Any, free: Callable[[Any], Any], closed: str) -> None:
        self._pointer: Any = ffi.gc(pointer, free)
        self._closed = closed
        self._generation = fork_generation()

    @property
    def pointer(self) -> Any:
        """The pointer for the functions of the C ABI."""
        if self._pointer is None:
            raise ClosedError(self._closed)
        return self._pointer

    @property
    def is_closed(self) -> bool:
        """Whether close() was called."""
        return self._pointer is None

    @property
    def is_forked(self) -> bool:
        """Whether the object belongs to the parent process: unusable here."""
        return self._generation != fork_generation()

    def close(self) -> None:
        """Releases the C object. May be called twice."""
        self._pointer = None


class Owner(Closeable):
    """The owner of a C object, in `_handle`."""

    _handle: Handle

    @property
    def handle(self) -> Any:
        """The C handle, for the other modules of engine/."""
        return self._handle.pointer

    @property
    def is_closed(self) -> bool:
        """Whether close() was called."""
        return self._handle.is_closed

    @property
    def is_forked(self) -> bool:
        """Whether it belongs to the parent of this process: no call works then."""
        return self._handle.is_forked

    def close(self) -> None:
        """Frees the C object, once nothing else needs it. May be called twice."""
        self._handle.close()
