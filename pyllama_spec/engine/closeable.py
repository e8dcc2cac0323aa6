"""What all things that are closed have in common."""

from __future__ import annotations

from types import TracebackType
from typing import TypeVar

Self = TypeVar("Self", bound="Closeable")


class Closeable:
    """A context manager that ends with close()."""

    def close(self) -> None:
        """Lets go of what it holds. May be called twice."""
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
