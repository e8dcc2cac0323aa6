"""A C object as Python holds it: freed with its last holder, and refused after close()."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyllama_spec.engine.binding import ffi, fork_generation
from pyllama_spec.errors import ClosedError


class Handle:
    """Shared by an object and the parts of it that need the C object and not the whole.

    Args:
        pointer: the C object, which now belongs to this handle.
        free: frees it; called once, when neither this nor any view points to it any more.
        closed: what a use after close() is told.

    """

    __slots__ = ("_closed", "_generation", "_pointer")

    def __init__(self, pointer: Any, free: Callable[[Any], Any], closed: str) -> None:
        self._pointer: Any = ffi.gc(pointer, free)
        self._closed = closed
        self._generation = fork_generation()

    @property
    def pointer(self) -> Any:
        """For the functions of the C ABI.

        Raises:
            ClosedError: close() was called.

        """
        if self._pointer is None:
            raise ClosedError(self._closed)
        return self._pointer

    @property
    def is_closed(self) -> bool:
        """Whether close() was called."""
        return self._pointer is None

    @property
    def is_forked(self) -> bool:
        """Whether it is of the process that this one was forked from, and of no use here."""
        return self._generation != fork_generation()

    def close(self) -> None:
        """Lets go of the C object. May be called twice."""
        self._pointer = None
