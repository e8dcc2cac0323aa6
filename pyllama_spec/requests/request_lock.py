"""The lock of a context without a queue: one thread at a time; others can cancel it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyllama_spec.engine import computing
from pyllama_spec.errors import BusyError, CancelledError, ClosedError

# The message for a request whose model was closed, before it or during it.
CLOSED = "the model is closed; open it again"


class RequestLock:
    """Lets one thread in at a time; others wait. `interrupt` ends a decode, or allows them."""

    def __init__(self, interrupt: Callable[[bool], None]) -> None:
        self._condition = threading.Condition()
        self._interrupt = interrupt
        self._owner: int | None = None
        self._is_closed = False

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Holds the lock within the block.

        close() and cancel() both interrupt a decode, which raises CancelledError. The caller gets
        the error that says why: the same one as between two decodes.
        """
        me = threading.get_ident()
        with self._condition:
            if self._owner == me:
                raise BusyError("this thread is computing on the same model: let that end first")
            while self._owner is not None and not self._is_closed:
                self._condition.wait()
            self._check_open()
            self._owner = me
        try:
            with computing(lambda: self._is_closed):
                yield
        except CancelledError as error:
            with self._condition:  # close() interrupts the decode before it has noted why
                if self._is_closed:
                    raise ClosedError(CLOSED) from error
            raise
        finally:
            with self._condition:
                self._owner = None
                if not self._is_closed:
                    self._interrupt(False)
                self._condition.notify_all()

    def cancel(self) -> None:
        """Cancels the running request, if any."""
        with self._condition:
            if self._owner is not None and not self._is_closed:
                self._interrupt(True)

    def close(self) -> bool:
        """Cancels the running request and refuses new ones; False if it was closed already."""
        with self._condition:
            if self._is_closed:
                return False
            if self._owner == threading.get_ident():
                raise BusyError("this thread computes on the model that it closes")
            if self._owner is not None:
                self._interrupt(True)
            self._is_closed = True
            self._condition.notify_all()
            while self._owner is not None:
                self._condition.wait()
            return True

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(CLOSED)
