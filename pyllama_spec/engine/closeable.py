"""The base of all objects that have a close()."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Protocol, TypeVar

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
