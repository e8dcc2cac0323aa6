"""A handle of a C object: the last holder frees it, and it refuses use after close()."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyllama_spec.engine.binding import ffi, fork_generation
from pyllama_spec.errors import ClosedError, PyllamaSpecError


class Handle:
    """A C object, shared by its owner and the parts that need only it.

    Attributes:
        refusal: the error for a use after close(); None for a ClosedError.
    """

    __slots__ = ("_closed", "_generation", "_pointer", "refusal")

    def __init__(self, pointer: Any, free: Callable[[Any], Any], closed: str) -> None:
        self._pointer: Any = ffi.gc(pointer, free)
        self._closed = closed
        self._generation = fork_generation()
        self.refusal: PyllamaSpecError | None = None

    @property
    def pointer(self) -> Any:
        """The pointer for the functions of the C ABI."""
        if self._pointer is None:
            raise self.closed_error(self._closed)
        return self._pointer

    def closed_error(self, message: str) -> PyllamaSpecError:
        """The error for a use after close(): a new one, for each thread."""
        refusal = self.refusal
        return ClosedError(message) if refusal is None else refusal.copied()

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
