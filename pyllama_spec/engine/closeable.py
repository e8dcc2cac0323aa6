"""The base of all objects that have a close()."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol, TypeVar

from pyllama_spec.engine.binding import ffi, fork_generation
from pyllama_spec.errors import ClosedError

Self = TypeVar("Self", bound="Closeable")


class Closeable:
    """A context manager that ends with close()."""

    def close(self) -> None:
        """Releases resources. May be called twice."""
        raise NotImplementedError

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _CanBeClosed(Protocol):
    def close(self) -> None: ...


@contextmanager
def closed_on_failure(*opened: _CanBeClosed | None) -> Iterator[None]:
    """Closes the given objects if the block fails; skips None.

    Keeping the exception, as a notebook does, keeps its frames, and with them the models.
    """
    try:
        yield
    except BaseException:
        for one in opened:
            if one is not None:
                one.close()
        raise


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
