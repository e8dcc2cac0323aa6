"""A request in its runner: queued, placed, suspended, or over."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal

from pyllama_spec.errors import CancelledError
from pyllama_spec.requests.detokenizer import Piece
from pyllama_spec.requests.job import Job
from pyllama_spec.speculative import SavedSequence, SequenceState

Stage = Literal["new", "queued", "reading", "generating", "aside", "ended"]
# The answer for a non-waiting reader where nothing is there yet.
PENDING = Piece("")


@dataclass(frozen=True, slots=True)
class Arrival:
    """The call that will create a request, perhaps in another thread: its number and time."""

    number: int
    at: float
    is_slow: bool = False


# The call whose request is made in this context; None if the call makes it itself.
ARRIVAL: ContextVar[Arrival | None] = ContextVar("ARRIVAL", default=None)


@dataclass(frozen=True, slots=True)
class RequestStatus:
    """The state of a request.

    Attributes:
        stage: "new" before it is read or started; "queued" while it waits for a place, the first
            time or after it was set aside; "reading" its prompt; "generating"; "aside" while nobody
            reads it and others have its place; "ended".
        queue_position: the number of requests before it in line; None if it is not in line.
        n_prompt, n_read: the number of tokens of its prompt, and of those that the model has read.
        n_cached: the number of those of n_read that were in memory.
        n_generated: the number of tokens of its text, including those that nobody has read yet.

    """

    stage: Stage
    queue_position: int | None
    n_prompt: int
    n_read: int
    n_cached: int
    n_generated: int


@dataclass(slots=True, eq=False)
class Ticket:
    """A runner's record of a request. Use it under the runner's lock only."""

    job: Job
    # Notified when there are pieces, or the request has ended.
    ready: threading.Condition
    # The position of its arrival in line; lower is earlier, and -1 until it is in line.
    number: int = -1
    # The call that asked for it; None until it is in line, unless a thread made it.
    arrival: Arrival | None = None
    # Whether the thread that reads the request computes it.
    is_inline: bool = False
    # How many pieces it may be ahead of its reader; None for a text that is read as a whole.
    max_ahead: int | None = None
    # The thread that read it last.
    reader: int = 0
    # When it has to have ended, by time.monotonic(); None for never.
    deadline: float | None = None
    # Whether its reader gets PENDING now instead of waiting.
    polls: bool = False
    # Called when `ready` is notified, for a reader that does not wait; it must not wait either.
    wake: Callable[[], None] | None = None
    # The pieces that are computed and not read.
    pieces: deque[Piece] = field(default_factory=deque)
    # Its sequence; None without a place.
    state: SequenceState | None = None
    # What it needs to continue while others have its place.
    saved: SavedSequence | None = None
    # Since when it waits for its reader, by time.monotonic(); None while it is to be computed.
    unread_since: float | None = None
    finish: str | None = None
    error: BaseException | None = None
    # The reader's error in place of a plain CancelledError.
    reason: CancelledError | None = None
    is_cancelled: bool = False
    # The number of prompt tokens that were read, once it has ended; -1 before.
    n_read: int = -1
    # Whether it keeps its place though nobody reads it, since it could not be copied.
    is_pinned: bool = False

    @property
    def age(self) -> tuple[int, int]:
        """The order of requests: lower is earlier."""
        return (-1 if self.arrival is None else self.arrival.number), self.number

    @property
    def is_over(self) -> bool:
        """Whether the request ended, with or without an error."""
        return self.finish is not None or self.error is not None

    @property
    def is_paused(self) -> bool:
        """Whether the request waits for its reader."""
        return self.unread_since is not None and not self.is_cancelled

    @property
    def has_caught_up(self) -> bool:
        """Whether the reader has read enough for the request to compute more."""
        if self.is_inline or self.max_ahead is None:
            return not self.pieces
        return 2 * len(self.pieces) <= self.max_ahead

    def notify(self) -> None:
        """Notifies the reader."""
        self.ready.notify_all()
        if self.wake is not None:
            self.wake()

    def status(self, queue_position: int | None) -> RequestStatus:
        """The state of the request, for a queue position."""
        run, n_prompt = self.job.run, len(self.job.prompt)
        n_generated = self.job.n_generated
        stage: Stage = "aside"
        if self.is_over:
            stage = "ended"
        elif self.number < 0:
            stage = "new"
        elif queue_position is not None:
            stage = "queued"
        elif self.state is not None:
            stage = "generating" if n_generated else "reading"
        n_read = self.n_read
        if run is not None and n_read < 0:
            n_read = n_prompt if n_generated else min(run.state.n_decoded, n_prompt)
        n_read = max(n_read, 0)
        n_cached = min(self.job.n_cached, n_read)  # it may begin just now
        return RequestStatus(stage, queue_position, n_prompt, n_read, n_cached, n_generated)
