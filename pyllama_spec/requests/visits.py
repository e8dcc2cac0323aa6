"""Exclusive use of a context between the rounds of the runner that computes on it."""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pyllama_spec.engine import computing
from pyllama_spec.errors import BusyError, CancelledError, PyllamaSpecError
from pyllama_spec.requests.line import Line
from pyllama_spec.requests.request_lock import CLOSED
from pyllama_spec.requests.ticket import Ticket
from pyllama_spec.speculative import Round, SequenceState

_IN_CALLBACK = (
    "a callback of a running generation may not {what}: it would wait for itself; read the stream "
    "to its end or close() it before, or do it in another thread"
)


class Visits(ABC):
    """A context for one thread at a time: the runner's rounds, or a visitor."""

    def __init__(self, round_: Round) -> None:
        self._round = round_
        self._line = Line(round_.target.n_seq_max)
        # Reentrant: a stream that is collected as garbage is withdrawn in the middle of any
        # statement, those under this lock included. Nobody computes under it: it is never held
        # for long.
        self._lock = threading.RLock()
        # Notified when a round is over, a place is free, or a visitor leaves.
        self._changed = threading.Condition(self._lock)
        # The thread that computes a round now.
        self._computer: int | None = None
        # The thread that has the context for itself now, and how many have it or want it.
        self._visitor: int | None = None
        self._n_exclusive = 0
        self._is_closed = False
        # Kept here: at exit this module's names may be gone.
        self._is_finalizing = sys.is_finalizing

    @property
    def _is_out_of_reach(self) -> bool:
        """Whether the lock's holder may be a thread that no longer exists, after a fork or at exit.

        Streams that are dropped then have nothing to release.
        """
        return self._round.target.is_forked or self._is_finalizing()

    @abstractmethod
    def _wake(self) -> None:
        """Called after a change: wakes the next computing thread."""

    @abstractmethod
    def _put_aside(self, tickets: Sequence[Ticket]) -> None:
        """Copies the sequences of requests, and frees their places."""

    def _refuse_callback(self, what: str) -> None:
        if self._computer == threading.get_ident():
            raise BusyError(_IN_CALLBACK.format(what=what))

    def is_usable(self) -> bool:
        """Whether the context can compute. Never waits for a round."""
        target = self._round.target
        if target.is_forked:
            return False
        with self._lock:
            if self._is_closed:
                return False
            # A computing thread updates has_failed itself, and would not stand another one.
            is_free = (self._computer or self._visitor) is None
            return not (target.find_failure() if is_free else target.has_failed)

    def is_closed(self) -> bool:
        """Whether close() was called."""
        return self._is_closed

    def _check_open(self) -> None:
        if self._is_closed:
            raise self._closed_error()

    def _closed_error(self) -> PyllamaSpecError:
        return self._round.target.model.closed_error(CLOSED)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Excludes rounds from the context within the block."""
        self._round.target.check_process()
        self._refuse_callback("use the model's memory")
        me = threading.get_ident()
        if self._visitor == me:  # an override in a subclass may use another call
            yield
            return
        with self._lock:
            self._n_exclusive += 1
        try:
            with self._lock:
                while not self._is_closed and (self._computer or self._visitor) is not None:
                    self._changed.wait()
                self._check_open()
                self._visitor = me
            with computing(self.is_closed):
                yield
        except CancelledError as error:
            if self._is_closed:
                raise self._closed_error() from error
            raise
        finally:
            with self._lock:
                self._n_exclusive -= 1
                if self._visitor == me:
                    self._visitor = None
                    if not self._is_closed:
                        self._round.target.cancel(False)
                self._changed.notify_all()
                self._wake()

    @contextmanager
    def visit(self, *, oldest: bool = False) -> Iterator[SequenceState]:
        """exclusive() with an idle sequence, the last used or the oldest: waits in line for one."""
        self._round.target.check_process()
        self._refuse_callback("use the model's memory")
        line = self._line
        with self._lock:
            line.n_visits += 1
        try:
            while True:
                with self.exclusive():
                    if not line.idle:
                        self._put_aside(line.unread())
                    if line.idle:
                        yield line.idle[0 if oldest else -1]
                        return
                with self._lock:
                    while not (self._is_closed or line.idle or line.unread()):
                        self._changed.wait(line.patience_s())
        finally:
            with self._lock:
                line.n_visits -= 1
                self._wake()

    def latest(self) -> SequenceState:
        """The sequence of the newest request; BusyError if all of several have one."""
        line = self._line
        if line.idle:
            return line.idle[-1]
        placed = line.placed[-1].state if line.placed else None
        if placed is None or line.n_places > 1:
            raise BusyError("every sequence of the model has a request running; wait for one")
        return placed

    def idle(self) -> list[SequenceState]:
        """The sequences without a request, longest unused first. Needs exclusive()."""
        return list(self._line.idle)

    def note_latest(self, sequence: SequenceState) -> None:
        """Marks an idle sequence as the last used one. Needs exclusive()."""
        self._line.use(sequence)
