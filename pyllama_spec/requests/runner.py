"""Who runs requests: one at a time in the thread that asks, or many side by side (parallel.py)."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager
from typing import Protocol

from pyllama_spec.requests.detokenizer import Piece
from pyllama_spec.requests.job import Job
from pyllama_spec.requests.request_lock import Lease, RequestLock
from pyllama_spec.speculative import Round, SequenceState


class Runner(Protocol):
    """What Llama and its generations ask of it.

    Attributes:
        load_s: seconds that loading took, for the figures of each request.

    """

    load_s: float

    def pieces(self, job: Job) -> Generator[Piece, None, None]:
        """Runs a job and gives its text as it comes; the last piece has a finish_reason."""
        ...

    def start(self, job: Job) -> None:
        """Begins a job that will be read as a whole, where that is possible."""
        ...

    def check_reader(self) -> None:
        """Before a stream is read or closed.

        Raises:
            BusyError: this thread computes, and calls back: it would wait for itself.
            ForkedError: this process was forked: whoever it would wait for is not in it.

        """
        ...

    def withdraw(self, job: Job) -> None:
        """Ends a job that nobody reads any more, after the generator of its pieces was closed."""
        ...

    def exclusive(self) -> AbstractContextManager[None]:
        """Around other work on the context: no request computes meanwhile."""
        ...

    def latest(self) -> SequenceState:
        """The sequence of the request that came last, for whoever saves it. Needs exclusive()."""
        ...

    def idle(self) -> list[SequenceState]:
        """Sequences without a request, the longest unused first. Needs exclusive()."""
        ...

    def note_latest(self, sequence: SequenceState) -> None:
        """From now on an idle sequence is the one that was used last. Needs exclusive()."""
        ...

    def cancel(self) -> None:
        """Ends what runs now."""
        ...

    def close(self) -> bool:
        """Ends what runs, and lets nothing in any more; False if it was closed before."""
        ...


class SerialRunner:
    """One request at a time, computed in the threads that read it; others wait.

    Args:
        round_: computes.

    """

    def __init__(self, round_: Round) -> None:
        self.load_s = 0.0
        self._round = round_
        self._state = SequenceState()
        self._lock = RequestLock(round_.target.cancel)

    def pieces(self, job: Job) -> Generator[Piece, None, None]:
        """See Runner. Everything that touches the context happens inside running()."""
        lock, target = self._lock, self._round.target
        target.check_process()
        lease = Lease()
        finish: str | None = None
        is_dropped = False
        try:
            lock.acquire(lease)
            with lock.running(lease):
                job.begin(self._round, self._state, self.load_s)
            while finish is None:
                pieces, finish = self._advance(job, lease)
                for piece in pieces:
                    job.note_delivered(piece)
                    yield piece
            job.note_end()
        except GeneratorExit:
            # The garbage collector may be at work, and have freed the context before this: nothing
            # of the engine is touched. Whoever calls close() goes on with withdraw().
            is_dropped = True
            raise
        except BaseException as error:
            job.attach_partial(error)
            raise
        finally:
            job.close()
            # In a forked child the lock may be held by a thread that is not there.
            if not target.is_forked:
                if not is_dropped and lock.is_held_by(lease):
                    # Before the next one computes: its threads would sleep through it.
                    target.pause_threads()
                lock.release(lease, is_dropped=is_dropped)
        # The lease is given back before the last piece: a reader who stops there leaves nothing
        # open.
        yield Piece("", finish_reason=finish)

    def _advance(self, job: Job, lease: Lease) -> tuple[list[Piece], str | None]:
        """Rounds until one commits something."""
        assert job.run is not None
        self._round.target.check_process()
        while True:
            with self._lock.running(lease):
                for _, step in self._round.step([job.run]):
                    pieces, finish, error = job.take(step)
                    if error is not None:
                        raise error
                    return pieces, finish

    def start(self, job: Job) -> None:
        """Nothing: it begins when it is read."""

    def check_reader(self) -> None:
        """See Runner. Who reads computes, and a stream that is read already says so itself."""
        self._round.target.check_process()

    def withdraw(self, job: Job) -> None:
        """See Runner. Its lease has been given back."""
        if not self._round.target.is_forked:
            self._lock.settle(self._round.target.pause_threads)

    def exclusive(self) -> AbstractContextManager[None]:
        """See Runner."""
        self._round.target.check_process()
        return self._lock.exclusive()

    def latest(self) -> SequenceState:
        """The one sequence."""
        return self._state

    def idle(self) -> list[SequenceState]:
        """The one sequence."""
        return [self._state]

    def note_latest(self, sequence: SequenceState) -> None:
        """Nothing: there is one sequence."""

    def cancel(self) -> None:
        """Ends the running request; those that wait for their turn are not touched."""
        if not self._round.target.is_forked:
            self._lock.cancel()

    def close(self) -> bool:
        """See Runner."""
        return self._round.target.is_forked or self._lock.close()
