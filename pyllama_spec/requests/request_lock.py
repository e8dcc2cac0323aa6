"""Who may use a context now: one request at a time, across threads."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from pyllama_spec.errors import BusyError, CancelledError, ClosedError

# A stream that was dropped may hang in a cycle, a traceback's for example, and hold its turn until
# somebody collects garbage; where all threads wait for it that is nobody else. The wait doubles.
COLLECT_AFTER_S = 0.5
# What a request is told whose model was closed, before it or under it.
CLOSED = "the model is closed; open it again"
_OPEN_STREAM = (
    "this thread has a stream open on the same model, or is in a callback of a request: read the "
    "stream to its end or close() it before the next request, or open the model with n_parallel=2 "
    "or more"
)


@dataclass(slots=True, eq=False)
class Lease:
    """One request's turn.

    Attributes:
        thread: the thread that last computed for it.
        is_running: whether a thread computes for it now; False while a stream waits to be read.
        is_cancelled: whether cancel() was called on it.

    """

    thread: int = field(default_factory=threading.get_ident)
    is_running: bool = False
    is_cancelled: bool = False


class RequestLock:
    """Lets one request in at a time; others wait.

    A turn outlasts the calls of a stream, and those may come from different threads. Waiting for a
    stream that the same thread holds would never end, so that is an error instead.

    Args:
        interrupt: called with True to end a decode in another thread, with False to allow decodes.

    """

    def __init__(self, interrupt: Callable[[bool], None]) -> None:
        # The condition's lock is reentrant: a stream that is collected as garbage gives its turn
        # back in the middle of any statement, these included.
        self._condition = threading.Condition()
        self._interrupt = interrupt
        self._owner: Lease | None = None
        self._is_closed = False
        # Whether decodes are still interrupted for a request that was dropped.
        self._is_interrupted = False

    @property
    def is_closed(self) -> bool:
        """Whether close() was called."""
        return self._is_closed

    def is_held_by(self, lease: Lease) -> bool:
        """Whether the turn is this request's."""
        return self._owner is lease

    def acquire(self, lease: Lease) -> None:
        """Waits for the turn.

        Args:
            lease: made by the caller, so that Ctrl-C in here cannot lose it.

        Raises:
            BusyError: this thread holds it itself.
            ClosedError: the model is closed, or was closed meanwhile.

        """
        thread = threading.get_ident()
        with self._condition:
            has_collected, timeout_s = False, COLLECT_AFTER_S
            while self._owner is not None and not self._is_closed:
                if self._owner.thread != thread:
                    was_notified = self._condition.wait(timeout_s)
                    # It may have been given back since, while this thread waited to wake up.
                    if not was_notified and self._owner is not None and not self._owner.is_running:
                        timeout_s *= 2
                        gc.collect()
                elif self._owner.is_running or has_collected:
                    raise BusyError(_OPEN_STREAM)
                else:
                    # A dropped stream may hang in a traceback's cycle: let that go first.
                    has_collected = True
                    gc.collect()
            self._check_open()
            self._settle()
            self._owner = lease

    def release(self, lease: Lease, *, is_dropped: bool = False) -> None:
        """Gives the turn back; nothing if it was given back before.

        Args:
            lease: of the request.
            is_dropped: it may be the garbage collector that calls, which may have freed the context
                already: the engine is left alone, until settle() or the next turn.

        """
        with self._condition:
            lease.is_running = False
            if self._owner is lease:
                self._owner = None
                self._is_interrupted |= lease.is_cancelled
                if not is_dropped:
                    self._settle()
                self._condition.notify_all()

    def settle(self, action: Callable[[], None]) -> None:
        """Allows decodes again after a request that was cancelled and dropped.

        Args:
            action: called if nobody has the turn, and before anybody can take it.

        """
        with self._condition:
            if self._owner is None:
                self._settle()
                action()

    def _settle(self) -> None:
        if self._is_interrupted and not self._is_closed:
            self._interrupt(False)
            self._is_interrupted = False

    @contextmanager
    def running(self, lease: Lease) -> Iterator[None]:
        """Around everything that uses the context.

        close() and cancel() both interrupt a decode, which raises CancelledError. The caller gets
        the error that says why: the same one as between two decodes.

        Raises:
            ClosedError: the model was closed since the last time, or meanwhile.
            CancelledError: the request was cancelled since the last time, or meanwhile.

        """
        with self._condition:
            self._check_open()
            if lease.is_cancelled:
                raise CancelledError("the generation was cancelled")
            lease.is_running, lease.thread = True, threading.get_ident()
        try:
            yield
        except CancelledError as error:
            with self._condition:  # close() interrupts the decode before it has noted why
                if self._is_closed:
                    raise ClosedError(CLOSED) from error
            raise
        finally:
            with self._condition:
                lease.is_running = False
                self._condition.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """A turn for one short piece of work."""
        lease = Lease()
        try:
            self.acquire(lease)
            with self.running(lease):
                yield
        finally:
            self.release(lease)

    def cancel(self) -> None:
        """Cancels the request whose turn it is; nothing if there is none."""
        with self._condition:
            if self._owner is not None and not self._is_closed:
                self._owner.is_cancelled = True
                self._interrupt(True)

    def close(self) -> bool:
        """Ends the current request and lets nobody in any more.

        Returns:
            True for the call that closed it, False if it was closed already.

        Raises:
            BusyError: called from inside the running request, by a callback of it.

        """
        with self._condition:
            if self._is_closed:
                return False
            owner = self._owner
            if owner is not None and owner.is_running and owner.thread == threading.get_ident():
                raise BusyError("a callback of the running generation may not close the model")
            if owner is not None:
                owner.is_cancelled = True
                self._interrupt(True)
            self._is_closed = True
            while owner is not None and owner.is_running:
                self._condition.wait()
            self._owner = None
            self._condition.notify_all()
            return True

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(CLOSED)
