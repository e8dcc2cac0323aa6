"""Runs the requests of a model: one queue, and rounds over all placed requests.

A context has a place for each of its sequences. Requests queue in the order of their age, get a
place, and are computed side by side in rounds, by a thread of the runner that lives while it has
work. With one place, as long as nobody else waits, the reader of a request computes it itself.

A place belongs to a request, and never to a thread. A stream that nobody reads pauses; if others
wait for its place, it is computed to its end. Any thread can end a request at any stage without
waiting. An exception of a request's callback ends that request alone.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic

from pyllama_spec.engine import Context, Model, computing
from pyllama_spec.errors import (
    BusyError,
    CancelledError,
    ClosedError,
    DeadlineError,
    ForkedError,
    OutOfMemoryError,
    QueueFullError,
    is_process_end,
)
from pyllama_spec.requests.run import Piece, RequestStatus, Run, copied
from pyllama_spec.speculative import Round, SequenceRun, SequenceState, Timing
from pyllama_spec.speculative.sequence import n_common

# How many pieces a stream may be ahead of its reader while nobody waits for its place.
_MAX_AHEAD = 64
_CLOSED = "the model is closed; open it again"
_CANCELLED = "the generation was cancelled"
LATE = "the request was not answered within its timeout; allow more time, or fewer tokens"
_IN_CALLBACK = (
    "a callback of a running generation may not {what}: it would wait for itself; read the stream "
    "to its end or close() it before, or do it in another thread"
)
# A stream may be collected as garbage by a thread that has checked and is about to wait, which then
# misses the notification: it checks again.
_RECHECK_S = 0.5
_Outcome = tuple[Run, tuple[list[Piece], str | None, BaseException | None]]


def _wait(changed: threading.Condition, seconds: float | None = None) -> None:
    changed.wait(_RECHECK_S if seconds is None else min(seconds, _RECHECK_S))


class Line:
    """The queued and placed requests, and the places themselves."""

    def __init__(self, n_places: int) -> None:
        self.n_places = n_places
        self.waiting: list[Run] = []  # oldest first
        self.placed: list[Run] = []
        # The sequences without a request, the one that was used last at the end.
        self.idle = [SequenceState(i) for i in range(n_places)]
        # How many callers want an idle sequence for themselves.
        self.n_visits = 0
        self._n_runs = 0
        # The last request that each sequence served, if none came since.
        self.served: dict[int, Run] = {}

    def everyone(self) -> list[Run]:
        """All requests that have not ended."""
        return [*self.waiting, *self.placed]

    def enter(self, run: Run) -> None:
        """Queues a new request."""
        run.number = self._n_runs
        self._n_runs += 1
        self.waiting.append(run)

    def leave(self, run: Run) -> None:
        """Called when a request ends: frees its place."""
        for runs in (self.waiting, self.placed):
            if run in runs:
                runs.remove(run)
        if run.state is not None:
            self.idle.append(run.state)
            self.served[run.state.seq_id] = run
            run.state = None

    def owns_sequence(self, run: Run) -> bool:
        """Whether only its reader uses the sequence of a request now."""
        if run.sequence is None:
            return False
        is_read = run.is_inline and run.state is not None
        return is_read or self.served.get(run.sequence.seq_id) is run

    # ---- who is next

    @property
    def n_wanted(self) -> int:
        """The number of places that requests wait for, beyond the idle ones."""
        return max(len(self.waiting) + self.n_visits - len(self.idle), 0)

    @property
    def has_work(self) -> bool:
        """Whether the runner's thread has a request to compute, or to give a place to."""
        if any(not run.is_inline and not self._is_paused(run) for run in self.placed):
            return True
        return bool(self.waiting) and not self.waiting[0].is_inline and self._has_room

    @property
    def _has_room(self) -> bool:
        return len(self.idle) > self.n_visits

    def _is_paused(self, run: Run) -> bool:
        """Whether a request is far enough ahead of its reader, and nobody waits for its place."""
        most = run.max_ahead
        return most is not None and len(run.pieces) >= most and not self.n_wanted

    def admit(self) -> None:
        """Gives places to the next requests, each the sequence with most of its prompt."""
        while self.waiting and self._has_room:
            run = self.waiting.pop(0)
            run.state = self._place_for(run)
            self.idle.remove(run.state)
            self.served.pop(run.state.seq_id, None)
            self.placed.append(run)

    def choose(self) -> Sequence[Run]:
        """The requests of the next round."""
        return [run for run in self.placed if not self._is_paused(run)]

    def _place_for(self, run: Run) -> SequenceState:
        """The idle sequence with the longest common prefix, if that is half of what it holds.

        Less is not worth the rest of what may be another conversation. Else an empty one, with the
        lowest number, so that those that compute lie side by side; else the one that was not used
        for longest.
        """
        best, n_best = self.idle[0], 0
        for state in self.idle:
            n = 0
            if state.adapters == run.request.adapters:
                n = n_common(state.tokens[: state.n_decoded], run.request.prompt)
            if 2 * n >= state.n_decoded and n > n_best:
                best, n_best = state, n
        empty = [state for state in self.idle if not state.n_decoded]
        return min(empty, key=lambda s: s.seq_id) if empty and not n_best else best

    def position(self, run: Run) -> int | None:
        """The number of requests before this one; None if it is not in the queue."""
        return self.waiting.index(run) if run in self.waiting else None


@dataclass(frozen=True, slots=True)
class Runtime:
    """The parts of an open model that a generation needs. They outlive Llama during a stream."""

    model: Model
    context: Context
    round: Round
    runner: Runner
    # How drafts are accepted for requests without that option; see Llama.
    acceptance: str = "exact"


class Runner:
    """Runs as many requests in parallel as the context has sequences.

    Without a round, as of a model for embeddings alone, it only takes turns: see exclusive().
    """

    def __init__(
        self,
        model: Model,
        round_: Round | None,
        max_waiting: int | None = None,
        attach_s: float = 0.0,
    ) -> None:
        self._round_or_none = round_
        self._owner = model if round_ is None else round_.target  # it knows its process
        self._line = Line(0 if round_ is None else round_.target.n_seq_max)
        # Reentrant: a stream that is collected as garbage is withdrawn in the middle of any
        # statement, those under this lock included. Nobody computes under it: it is never held
        # for long.
        self._lock = threading.RLock()
        # Notified when a round is over, a place is free, or a visitor leaves.
        self._changed = threading.Condition(self._lock)
        # The thread that computes a round now.
        self._computer: int | None = None
        # The thread that computes something else now, on which context, and how many do or want to.
        self._visitor: int | None = None
        self._visited: Context | None = None
        self._n_exclusive = 0
        # Whether the next round goes before the next visitor.
        self._is_round_due = False
        self._is_closed = False
        # Kept here: at exit this module's names may be gone.
        self._is_finalizing = sys.is_finalizing
        self.loaded, self._attach_s = Timing(), attach_s
        self._max_waiting = max_waiting
        self._thread: threading.Thread | None = None
        # The requests that are computed now.
        self._computing: Sequence[Run] = ()

    def note_loaded(self, load_s: float, draft_s: float) -> None:
        """Records the seconds of opening the model, and of loading the draft's file."""
        has_draft = self._round.drafter.name != "none"
        self.loaded = Timing(load_s, draft_s + self._attach_s if has_draft else 0.0)

    # ---- the turns of rounds and of single threads

    @property
    def _round(self) -> Round:
        assert self._round_or_none is not None
        return self._round_or_none

    @property
    def _is_out_of_reach(self) -> bool:
        """Whether the lock's holder may be a thread that no longer exists, after a fork or at exit.

        Streams that are dropped then have nothing to release.
        """
        return self._owner.is_forked or self._is_finalizing()

    def _refuse_callback(self, what: str) -> None:
        if self._computer == threading.get_ident():
            raise BusyError(_IN_CALLBACK.format(what=what))

    def is_usable(self) -> bool:
        """Whether the context can compute. Never waits for a round."""
        if self._owner.is_forked:
            return False
        with self._lock:
            if self._is_closed or self._round_or_none is None:
                return not self._is_closed
            target = self._round.target
            # A computing thread updates has_failed itself, and would not stand another one.
            is_free = (self._computer or self._visitor) is None
            return not (target.find_failure() if is_free else target.has_failed)

    def is_closed(self) -> bool:
        """Whether close() was called."""
        return self._is_closed

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(_CLOSED)

    def _check_process(self) -> None:
        """Before the lock: in a forked child a thread may hold it that is not there."""
        if self._owner.is_forked:
            raise ForkedError("the model belongs to the parent process; open it in the child")

    @property
    def _is_held(self) -> bool:
        """Whether rounds wait for a thread that has its turn, or is next."""
        return self._visitor is not None or (self._n_exclusive > 0 and not self._is_round_due)

    def _share(self) -> None:
        """Has the thread compute what readers compute: others wait for the place or the turn."""
        for run in self._line.everyone():
            run.is_inline = False
        self._wake()

    @contextlib.contextmanager
    def exclusive(self, context_of: Callable[[], Context] | None = None) -> Iterator[Context]:
        """Has rounds and other threads wait within the block, which computes on one context.

        A round that is due goes before. `context_of` gives another context than the target's; a
        callback of a request may use one.
        """
        self._check_process()
        me = threading.get_ident()
        if context_of is None:
            self._refuse_callback("use the model's memory")
            context_of = self._target
        if me in (self._visitor, self._computer):  # an override in a subclass may use another call
            yield context_of()
            return
        with self._lock:
            self._n_exclusive += 1
            self._share()
        try:
            with self._lock:
                while not self._is_closed and (
                    (self._computer or self._visitor) is not None
                    or (self._is_round_due and self._line.has_work)
                ):
                    _wait(self._changed)
                self._check_open()
                self._visitor, self._is_round_due = me, False
            with computing(self.is_closed):
                context = context_of()
                with self._lock:
                    self._check_open()
                    self._visited = context
                yield context
        except CancelledError as error:
            if self._is_closed:
                raise ClosedError(_CLOSED) from error
            raise
        finally:
            with self._lock:
                self._n_exclusive -= 1
                if self._visitor == me:
                    if self._visited is not None and not self._is_closed:
                        self._visited.cancel(False)
                    self._visitor, self._visited, self._is_round_due = None, None, True
                self._wake()

    def _target(self) -> Context:
        return self._round.target

    @contextlib.contextmanager
    def visit(self, *, oldest: bool = False) -> Iterator[SequenceState]:
        """exclusive() with an idle sequence, the last used or the oldest: waits in line for one."""
        self._check_process()
        self._refuse_callback("use the model's memory")
        line = self._line
        with self._lock:
            line.n_visits += 1
        try:
            while True:
                with self.exclusive():
                    if line.idle:
                        yield line.idle[0 if oldest else -1]
                        return
                with self._lock:
                    while not (self._is_closed or line.idle):
                        _wait(self._changed)
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
        """Marks an idle sequence as the last used one, without a request. Needs exclusive()."""
        line = self._line
        line.idle.remove(sequence)
        line.idle.append(sequence)
        line.served.pop(sequence.seq_id, None)

    # ---- for readers

    def start(self, run: Run, *, is_whole: bool, is_detached: bool) -> None:
        """Queues a request before it is read, unless its reader computes it.

        is_whole: to its end, not some pieces ahead of its reader; is_detached: with one place too.
        """
        if self._line.n_places > 1 or is_detached:
            self._submit(run, max_ahead=None if is_whole else _MAX_AHEAD, is_inline=False)

    def read(self, run: Run, *, waits: bool = True) -> Piece | None:
        """The next piece of a request, which comes into line with the first one that is asked for.

        The last piece has a finish_reason. None if there is none yet, and the reader does not wait.
        """
        try:
            if run.number < 0:
                self._submit(run, max_ahead=_MAX_AHEAD, is_inline=self._line.n_places == 1)
            return self._next(run, waits)
        except BaseException as error:
            if not hasattr(error, "partial_tokens"):  # of the reader alone, such as Ctrl-C
                run.attach_partial(error)
            self.abort(run)
            raise

    def check_reader(self) -> None:
        """Checks that a stream may be read or closed now."""
        self._check_process()
        self._refuse_callback("make another request, or read or close one")

    def _submit(self, run: Run, *, max_ahead: int | None, is_inline: bool) -> None:
        if run.number >= 0 or run.is_over:
            return
        self.check_reader()
        with self._lock:
            self._check_open()
            most, line = self._max_waiting, self._line
            n_waiting = len(line.waiting) + line.n_visits - len(line.idle)
            if most is not None and n_waiting >= most:
                raise QueueFullError(most, f"{n_waiting} wait for a place")
            run.ready = threading.Condition(self._lock)
            run.max_ahead, run.is_inline = max_ahead, is_inline
            line.enter(run)
            if line.n_wanted:
                self._share()
            self._wake()

    def _next(self, run: Run, waits: bool) -> Piece | None:
        """Computes the next piece, or waits for it."""
        while True:
            with self._lock:
                if (piece := self._take(run)) is not None or not waits:
                    return piece
                if not self._is_its_turn(run):
                    assert run.ready is not None
                    _wait(run.ready, self.time_left_s([run]))
                    continue
            self._one_round(run)

    def _take(self, run: Run) -> Piece | None:
        """The next unread piece; None if there is none yet."""
        is_own = self._line.owns_sequence(run)
        if run.pieces:
            piece = run.deliver(run.pieces.popleft(), in_sequence=is_own)
            if not run.is_inline:
                self._wake()  # it may have paused
            return piece
        if run.error is not None:
            raise run.hand_over_error()
        if run.finish is not None:
            return run.deliver(Piece("", finish_reason=run.finish), in_sequence=is_own)
        self._check_open()
        self._expire([run])
        return None if run.error is None else self._take(run)

    def status(self, run: Run) -> RequestStatus:
        """The state of a request; never waits for a round."""
        if self._owner.is_forked:
            return run.status(None)
        with self._lock:
            return run.status(self._line.position(run))

    def time_left_s(self, runs: Sequence[Run]) -> float | None:
        """Seconds to the first deadline of these requests; None without one."""
        ends = [run.deadline for run in runs if run.deadline is not None and not run.is_over]
        return max(min(ends) - monotonic(), 0.001) if ends else None

    def listen(self, run: Run, wake: Callable[[], None]) -> None:
        """Calls `wake` whenever there may be something to read, for a reader that does not block.

        From here on no thread that reads it computes it.
        """
        self.check_reader()
        with self._lock:
            run.wake = wake
            if run.is_inline:
                run.is_inline = False
                self._wake()

    # ---- requests that end before their time

    def abort(self, run: Run, reason: CancelledError | None = None) -> None:
        """Cancels a request at any stage, from any thread, without waiting.

        In line or unread it is over at once. While it is computed it is over with the
        round, and a round of only this request is interrupted. The garbage collector may call it,
        and may have freed the context: unless a thread computes, nothing of the engine is touched.
        """
        if run.is_over or self._is_out_of_reach:
            return
        with self._lock:
            self._cancel([run], reason)
            self._wake()

    def withdraw(self, run: Run) -> None:
        """Ends a request that nobody reads any more, after abort() by the thread of its reader."""
        if self._is_out_of_reach:
            return
        self.abort(run)
        with self._lock:
            if (self._computer or self._visitor) is None and not self._is_closed:
                self._round.target.pause_threads()

    def cancel(self) -> None:
        """Cancels the started requests, not the queued ones."""
        if self._owner.is_forked:
            return
        with self._lock:
            self._cancel(list(self._line.placed))
            if self._visited is not None and not self._is_closed:
                self._visited.cancel(True)
            self._wake()

    def _cancel(self, runs: Sequence[Run], reason: CancelledError | None = None) -> None:
        for run in runs:
            if run.is_over:
                continue
            run.is_cancelled, run.reason = True, run.reason or reason
            if run in self._computing:
                if run.sequence is not None:
                    run.sequence.is_cancelled = True
            else:
                self._end(run, CancelledError(_CANCELLED))
        if self._computing and all(run.is_cancelled for run in self._computing):
            # Nobody else waits for this decode.
            self._round.target.cancel(True)

    def _expire(self, runs: Sequence[Run]) -> None:
        """Ends the requests whose deadline has passed."""
        now = monotonic()
        for run in runs:
            if run.deadline is not None and run.deadline <= now:
                self._cancel([run], DeadlineError(LATE))

    def close(self) -> bool:
        """Ends all requests and refuses new ones; False if already closed."""
        if self._owner.is_forked:
            return True
        with self._lock:
            if self._is_closed:
                return False
            self._refuse_callback("close the model")
            self._is_closed = True
            self._cancel(self._line.everyone())
            me = threading.get_ident()
            if self._computer is not None:
                self._round.target.cancel(True)
            if self._visited is not None and self._visitor != me:
                self._visited.cancel(True)
            self._changed.notify_all()
            while self._computer is not None or self._visitor not in (None, me):
                _wait(self._changed)
            self._cancel(self._line.everyone())  # no thread computes any more that would end them
            thread = self._thread
        if thread is not None:
            thread.join()
        return True

    # ---- the next request

    def _wake(self) -> None:
        """Called after a change: wakes the next computing thread, or starts the runner's."""
        for run in (*self._line.waiting[:1], *self._line.placed):
            if run.is_inline:
                run.notify()
        self._ensure_thread()
        self._changed.notify_all()

    def _ensure_thread(self) -> None:
        """Starts the thread if it has work."""
        if self._thread is None and self._line.has_work and not (self._is_closed or self._is_held):
            thread = threading.Thread(target=self._work, name="pyllama_spec", daemon=True)
            self._thread = thread  # it may be over before start() returns
            # start() waits for the thread, which must not collect a stream and wait for this lock.
            is_collecting = gc.isenabled()
            gc.disable()
            try:
                thread.start()
            except RuntimeError as error:
                self._thread = None
                raise OutOfMemoryError(
                    f"cannot start the thread of the requests: {error}"
                ) from None
            finally:
                if is_collecting:
                    gc.enable()

    def _is_its_turn(self, run: Run) -> bool:
        """Whether a request's reader computes it now."""
        return run.is_inline and self._computer is None and not self._is_held

    # ---- a round

    def _work(self) -> None:
        """The body of the thread."""
        line = self._line
        while True:
            with self._lock:
                self._expire(line.everyone())
                if self._is_closed or self._is_held or not line.has_work:
                    self._stop()
                    return
                if self._computer is not None:
                    _wait(self._changed, self.time_left_s(line.waiting))
                    continue
            try:
                self._one_round(None)
            except BaseException as error:
                if is_process_end(error):
                    raise
                # Its requests have it; those in line are served.

    def _stop(self) -> None:
        """Ends the thread; another one may start then."""
        if self._computer is None and self._visitor is None:
            self._round.target.pause_threads()
        self._thread = None
        self._changed.notify_all()

    def _one_round(self, reader: Run | None) -> None:
        """Assigns places, computes a round and delivers its tokens."""
        target, line, me = self._round.target, self._line, threading.get_ident()
        try:
            with self._lock:
                if self._computer is not None or self._is_held or self._is_closed:
                    return
                self._computer = me
                line.admit()
                self._computing = line.choose()
            if self._computing:
                with computing(self.is_closed):
                    outcomes = self._compute(self._computing)
                with self._lock:
                    self._hand_out(outcomes)
        except BaseException as error:
            with self._lock:
                for run in self._computing:
                    with contextlib.suppress(Exception):  # its reader must not wait
                        self._end(run, copied(error))
            raise
        finally:
            with self._lock:
                if self._computer == me:
                    self._computer, self._computing, self._is_round_due = None, (), False
                    with contextlib.suppress(ClosedError):  # another thread closed the context
                        if reader is not None and reader.is_over:
                            # Before the next one computes: its threads would sleep through it.
                            target.pause_threads()
                        if not self._is_closed:
                            target.cancel(False)
                    self._wake()

    def _compute(self, runs: Sequence[Run]) -> list[_Outcome]:
        """Starts requests with new places, and computes a round of all."""
        outcomes: list[_Outcome] = []
        by_sequence: dict[int, Run] = {}
        sequences: list[SequenceRun] = []
        for run in runs:
            try:
                sequence = run.sequence or run.begin(self._round, self.loaded)
            except BaseException as error:  # noqa: BLE001 - its reader gets it
                outcomes.append((run, ([], None, error)))
                continue
            if run.is_cancelled:  # before it had one
                sequence.is_cancelled = True
            by_sequence[id(sequence)] = run
            sequences.append(sequence)
        for sequence, step in self._round.step(sequences):
            run = by_sequence[id(sequence)]
            outcomes.append((run, run.take(step)))
        return outcomes

    def _hand_out(self, outcomes: list[_Outcome]) -> None:
        raised: set[int] = set()
        for run, (pieces, finish, error) in outcomes:
            run.pieces.extend(pieces)
            if error is not None and id(error) in raised:
                error = copied(error)
            if error is not None:
                raised.add(id(error))
            if finish is not None or error is not None:
                self._end(run, error, finish)
                continue
            run.notify()
        for run in self._computing:
            if run.is_cancelled and not run.is_over:  # while it was computed
                self._end(run, CancelledError(_CANCELLED))
        # A request that is cancelled from here on is in no round: _cancel() ends it itself.
        self._computing = ()
        outcomes.clear()  # see _clear_callers()

    def _end(self, run: Run, error: BaseException | None, finish: str | None = None) -> None:
        """Takes a request out of its place, and notifies its reader."""
        if error is not None:
            _clear_callers(error)
        if isinstance(error, CancelledError):
            error = ClosedError(_CLOSED) if self._is_closed else run.reason or error
        run.end(error, finish)
        self._line.leave(run)
        run.notify()


def _clear_callers(error: BaseException) -> None:
    """Clears the frames that called the one that caught an error: they form a cycle with it."""
    frame = None if error.__traceback__ is None else error.__traceback__.tb_frame
    with contextlib.suppress(RuntimeError):  # the first one that still runs
        while frame is not None:
            frame.clear()
            frame = frame.f_back
