"""Many requests side by side: one thread computes their rounds, others read what comes.

The thread lives while there is something to compute and ends with the last request, so that none is
left behind. Requests that find no place wait in line. Whoever reads a stream slower than it is
computed holds it up: it pauses some pieces ahead of its reader, and goes on when that has caught
up. What a callback of one request raises ends that request alone.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from pyllama_spec.errors import BusyError, CancelledError, ClosedError, is_process_end
from pyllama_spec.requests.detokenizer import Piece
from pyllama_spec.requests.job import Job
from pyllama_spec.requests.request_lock import CLOSED, COLLECT_AFTER_S
from pyllama_spec.speculative import Round, SequenceState
from pyllama_spec.speculative.sequence import n_common

# How many pieces a stream may be ahead of its reader.
_MAX_AHEAD = 64
_OPEN_STREAMS = (
    "this thread has a stream open in each of the model's {n} places: read one to its end or "
    "close() it before the next request, or open the model with a larger n_parallel"
)
_IN_CALLBACK = "a callback of a running generation may not {what}"


@dataclass(slots=True, eq=False)
class Ticket:
    """A request in line, or in a place.

    Attributes:
        job: the request.
        ready: notified when there are pieces, or it is over.
        max_ahead: how many pieces it may be ahead of its reader; None for a text that is read as a
            whole.
        reader: the thread that read it last.
        pieces: computed, not read.
        finish: why its text ends; None before.
        error: what ended it instead.

    """

    job: Job
    ready: threading.Condition
    max_ahead: int | None
    reader: int
    pieces: deque[Piece] = field(default_factory=deque)
    state: SequenceState | None = None
    finish: str | None = None
    error: BaseException | None = None
    is_cancelled: bool = False

    @property
    def is_over(self) -> bool:
        """Whether its text has come to an end, or an error."""
        return self.finish is not None or self.error is not None

    @property
    def is_paused(self) -> bool:
        """Whether it waits for its reader."""
        return self.max_ahead is not None and len(self.pieces) >= self.max_ahead


class ParallelRunner:
    """Runs as many requests at once as the context has sequences.

    Args:
        round_: computes.

    """

    def __init__(self, round_: Round) -> None:
        self.load_s = 0.0
        self._round = round_
        # Sequences without a request, the one that was used last at the end.
        self._idle = [SequenceState(i) for i in range(round_.target.n_seq_max)]
        self._n_places = len(self._idle)
        # Reentrant: a stream that is collected as garbage is withdrawn in the middle of any
        # statement, those under this lock included.
        self._lock = threading.RLock()
        # Notified when the thread stops computing.
        self._round_over = threading.Condition(self._lock)
        self._waiting: deque[Ticket] = deque()
        self._placed: list[Ticket] = []
        self._thread: threading.Thread | None = None
        self._computing: Sequence[Ticket] = ()
        self._is_computing = False
        self._n_exclusive = 0
        self._is_closed = False

    # ---- for readers

    def pieces(self, job: Job) -> Generator[Piece, None, None]:
        """See Runner."""
        ticket = job.ticket or self._submit(job, _MAX_AHEAD)
        try:
            while (piece := self._next(ticket)).finish_reason is None:
                yield piece
        except GeneratorExit:
            raise
        except BaseException as error:
            if ticket.error is None:  # of the reader alone, such as Ctrl-C
                job.attach_partial(error)
            raise
        finally:
            self.withdraw(job)
        yield piece

    def start(self, job: Job) -> None:
        """See Runner."""
        self._submit(job, None)

    def check_reader(self) -> None:
        """See Runner."""
        self._round.target.check_process()
        self._refuse_callback("make another request, or read or close one")

    def _submit(self, job: Job, max_ahead: int | None) -> Ticket:
        reader = threading.get_ident()
        self._round.target.check_process()
        self._refuse_callback("make another request")
        with self._lock:
            self._check_open()
            ticket = Ticket(job, threading.Condition(self._lock), max_ahead, reader)
            job.ticket = ticket
            self._waiting.append(ticket)
            self._ensure_thread()
            return ticket

    def _check_places(self, ticket: Ticket) -> None:
        """Refuses to wait for a place where all of them wait for this thread: it would not end."""
        for is_last_try in (False, True):
            held = [
                t for t in self._placed
                if t.reader == ticket.reader and t.max_ahead and not t.is_cancelled
            ]  # fmt: skip
            if ticket not in self._waiting or len(held) < self._n_places:
                return
            if is_last_try:
                raise BusyError(_OPEN_STREAMS.format(n=self._n_places))
            # A dropped stream may hang in a traceback's cycle: let that go first.
            gc.collect()

    def _next(self, ticket: Ticket) -> Piece:
        """The next piece; waits for it."""
        self._round.target.check_process()
        with self._lock:
            ticket.reader = threading.get_ident()
            timeout_s = COLLECT_AFTER_S
            while not ticket.pieces and not ticket.is_over:
                self._check_open()
                self._check_places(ticket)
                self._ensure_thread()
                if not ticket.ready.wait(timeout_s) and not self._is_computing:
                    timeout_s *= 2
                    gc.collect()  # streams that were dropped, but hang in a cycle, hold the places
            if ticket.pieces:
                piece = ticket.pieces.popleft()
                self._ensure_thread()
                return piece
            if ticket.error is not None:
                raise ticket.error
            return Piece("", finish_reason=ticket.finish)

    def withdraw(self, job: Job) -> None:
        """See Runner."""
        if self._round.target.is_forked:
            return  # a thread that is not there may have held the lock
        with self._lock:
            ticket = job.ticket
            if ticket in self._waiting:
                self._waiting.remove(ticket)
                job.close()
            elif ticket in self._placed:
                self._cancel([ticket])
                self._ensure_thread()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(CLOSED)

    def _refuse_callback(self, what: str) -> None:
        if self._is_computing and self._thread is threading.current_thread():
            raise BusyError(_IN_CALLBACK.format(what=what))

    # ---- for the model's owner

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """See Runner. Waits for the round that is computed now."""
        self._round.target.check_process()
        self._refuse_callback("use the model's memory")
        with self._lock:
            self._check_open()
            self._n_exclusive += 1
            try:
                while self._is_computing:
                    self._round_over.wait()
                self._check_open()
                yield
            finally:
                self._n_exclusive -= 1
                self._ensure_thread()

    def latest(self) -> SequenceState:
        """See Runner; of requests that have ended."""
        if not self._idle:
            raise BusyError("every sequence of the model has a request running; wait for one")
        return self._idle[-1]

    def idle(self) -> list[SequenceState]:
        """See Runner."""
        return list(self._idle)

    def note_latest(self, sequence: SequenceState) -> None:
        """See Runner."""
        self._idle.remove(sequence)
        self._idle.append(sequence)

    def cancel(self) -> None:
        """Ends the requests that have a place; those in line are not touched."""
        if self._round.target.is_forked:
            return
        with self._lock:
            self._cancel(self._placed)

    def _cancel(self, tickets: Sequence[Ticket]) -> None:
        for ticket in tickets:
            ticket.is_cancelled = True
            if ticket.job.run is not None:
                ticket.job.run.is_cancelled = True
        if self._computing and all(ticket.is_cancelled for ticket in self._computing):
            # Nobody else waits for this decode.
            self._round.target.cancel(True)

    def close(self) -> bool:
        """See Runner.

        Raises:
            BusyError: called by a callback of a running request.

        """
        if self._round.target.is_forked:
            return True
        with self._lock:
            if self._is_closed:
                return False
            self._refuse_callback("close the model")
            self._is_closed = True
            self._cancel(self._placed)
            while self._is_computing:
                self._round_over.wait()
            for ticket in [*self._waiting, *self._placed]:
                self._end(ticket, ClosedError(CLOSED))
            self._waiting.clear()
            self._placed.clear()
            thread = self._thread
        if thread is not None:
            thread.join()
        return True

    # ---- the thread

    def _ensure_thread(self) -> None:
        """Starts the thread if there is something for it to do."""
        is_allowed = not self._is_closed and not self._n_exclusive
        if self._thread is None and is_allowed and self._has_work():
            self._thread = threading.Thread(target=self._work, name="pyllama_spec", daemon=True)
            self._thread.start()

    def _has_work(self) -> bool:
        has_place = bool(self._waiting) and len(self._placed) < self._n_places
        return has_place or any(t.is_cancelled or not t.is_paused for t in self._placed)

    def _work(self) -> None:
        try:
            while self._one_round():
                pass
        except BaseException as error:
            with self._lock:
                for ticket in list(self._placed):
                    ticket.error = _error_of_its_own(error)
                    self._placed.remove(ticket)
                    with contextlib.suppress(Exception):  # its reader must not wait
                        self._end(ticket, ticket.error)
                    ticket.ready.notify_all()
                self._stop()
                if not is_process_end(error):
                    self._ensure_thread()  # for those in line
            if is_process_end(error):
                raise

    def _one_round(self) -> bool:
        """Lets requests in, computes a round and hands out what it gave; False at the end."""
        with self._lock:
            if self._is_closed or self._n_exclusive or not self._has_work():
                self._stop()
                return False
            admitted = self._admit()
            self._computing = [t for t in self._placed if t.is_cancelled or not t.is_paused]
            self._is_computing = True
        round_ = self._round
        failed = [(ticket, error) for ticket in admitted if (error := self._begin(ticket))]
        tickets = {id(t.job.run): t for t in self._computing if t.job.run and not t.job.run.is_over}
        steps = round_.step([t.job.run for t in tickets.values() if t.job.run])
        outcomes = [(tickets[id(run)], tickets[id(run)].job.take(step)) for run, step in steps]
        with self._lock:
            round_.target.cancel(False)
            self._computing = ()
            for ticket, error in failed:
                self._end(ticket, error)
            self._hand_out(outcomes)
            # Held by whoever waits for it, under the same lock: it is over when this is left.
            self._is_computing = False
            self._round_over.notify_all()
        return True

    def _stop(self) -> None:
        """The thread's end: after this another one may begin."""
        target = self._round.target
        target.pause_threads()
        if not self._is_closed:
            target.cancel(False)  # of a round that did not get to its end
        self._computing, self._is_computing, self._thread = (), False, None
        self._round_over.notify_all()

    def _admit(self) -> list[Ticket]:
        """Gives places to those in line, each the one that holds most of its prompt."""
        admitted = []
        while self._waiting and len(self._placed) < self._n_places:
            ticket = self._waiting.popleft()
            ticket.state = self._place_for(ticket.job.prompt)
            self._idle.remove(ticket.state)
            self._placed.append(ticket)
            admitted.append(ticket)
        return admitted

    def _place_for(self, prompt: Sequence[int]) -> SequenceState:
        """The idle sequence with the longest common beginning, if that is half of what it holds.

        Less is not worth the rest of what may be another conversation. Else an empty one, with the
        lowest number, so that those that compute lie side by side; else the one that was not used
        for longest.
        """
        best, n_best = self._idle[0], 0
        for state in self._idle:
            n = n_common(state.tokens[: state.n_decoded], prompt)
            if 2 * n >= state.n_decoded and n > n_best:
                best, n_best = state, n
        empty = [state for state in self._idle if not state.n_decoded]
        return min(empty, key=lambda s: s.seq_id) if empty and not n_best else best

    def _begin(self, ticket: Ticket) -> BaseException | None:
        assert ticket.state is not None
        try:
            run = ticket.job.begin(self._round, ticket.state, self.load_s)
            if ticket.is_cancelled:  # while it had no run
                run.is_cancelled = True
        except BaseException as error:  # noqa: BLE001 - its reader gets it
            return error
        return None

    def _hand_out(
        self,
        outcomes: Sequence[tuple[Ticket, tuple[list[Piece], str | None, BaseException | None]]],
    ) -> None:
        raised: set[int] = set()
        for ticket, (pieces, finish, error) in outcomes:
            ticket.pieces.extend(pieces)
            if error is not None and id(error) in raised:
                error = _error_of_its_own(error)
            if error is not None:
                raised.add(id(error))
            if finish is not None or error is not None:
                self._end(ticket, error, finish)
            else:
                ticket.ready.notify_all()

    def _end(self, ticket: Ticket, error: BaseException | None, finish: str | None = None) -> None:
        """Takes a request out of its place, and tells its reader."""
        if isinstance(error, CancelledError) and self._is_closed:
            error = ClosedError(CLOSED)
        if error is not None:
            ticket.job.attach_partial(error)
        ticket.error, ticket.finish = error, finish
        ticket.job.close()
        if ticket in self._placed:
            self._placed.remove(ticket)
        if ticket.state is not None:
            self._idle.append(ticket.state)
            ticket.state = None
        ticket.ready.notify_all()


def _error_of_its_own(error: BaseException) -> BaseException:
    """One for each request: they carry what was generated. Some exceptions cannot be copied."""
    try:
        return copy.copy(error)
    except Exception:  # noqa: BLE001 - one of the user's
        return error
