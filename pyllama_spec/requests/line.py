"""The queue for a model's sequences: which request is next, and which has to give up its place.

It decides and calls no engine. A runner uses it under its lock.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from time import monotonic

from pyllama_spec.engine.system import memory_bytes
from pyllama_spec.requests.ticket import Arrival, Ticket
from pyllama_spec.speculative import SavedSequence, SequenceState
from pyllama_spec.speculative.sequence import n_common

# How long an unread stream keeps a place that others wait for. Copying it away and
# back takes about as long as computing some tokens, so that it is not done between two of them.
_PATIENCE_S = 0.1
# For how long a request waits for one that was asked for before it, and is not made yet. Rendering
# and tokenizing take milliseconds; the thread that makes it may also wait for something else.
_ARRIVING_S = 5.0
# The limit of all suspended streams; less on a machine with less than eight times it.
_COPIES_BYTES = 4 << 30


class Line:
    """The queued, placed and suspended requests, and the places themselves.

    A request that is asked for in an event loop is made in a thread, and comes into line later, at
    the place of its call: those after it leave a place for it.
    """

    def __init__(self, n_places: int) -> None:
        self.n_places = n_places
        self.waiting: list[Ticket] = []  # oldest first
        self.placed: list[Ticket] = []
        # Those that have begun, have no place and are not in line: nobody reads them.
        self.aside: list[Ticket] = []
        # The sequences without a request, the one that was used last at the end.
        self.idle = [SequenceState(i) for i in range(n_places)]
        # How many callers want an idle sequence for themselves.
        self.n_visits = 0
        # The maximum size of the copies of requests that were set aside.
        self.max_copies_bytes = min(_COPIES_BYTES, memory_bytes() // 8)
        self._n_tickets = self._n_arrivals = 0
        # Calls whose requests are made now.
        self._arriving: list[Arrival] = []
        # The last request that each sequence served, if none came since.
        self._served: dict[int, Ticket] = {}

    def everyone(self) -> list[Ticket]:
        """All requests that have not ended."""
        return [*self.waiting, *self.placed, *self.aside]

    def begun(self) -> list[Ticket]:
        """The requests that have or had a place."""
        return [*self.placed, *self.aside, *(t for t in self.waiting if t.saved is not None)]

    def arrive(self, *, is_slow: bool) -> Arrival:
        """Notes a call that will create a request, which keeps the call's queue position."""
        arrival = self._arrival(is_slow)
        self._arriving.append(arrival)
        return arrival

    def _arrival(self, is_slow: bool = False) -> Arrival:
        arrival = Arrival(self._n_arrivals, monotonic(), is_slow)
        self._n_arrivals += 1
        return arrival

    def made(self, arrival: Arrival) -> None:
        """Called when the call's request is queued or will not come. May be called twice."""
        if arrival in self._arriving:
            self._arriving.remove(arrival)

    def enter(self, ticket: Ticket) -> None:
        """Queues a new request at the position of its call."""
        ticket.number = self._n_tickets
        self._n_tickets += 1
        ticket.arrival = ticket.arrival or self._arrival()
        self._queue(ticket)

    def _queue(self, ticket: Ticket) -> None:
        self.waiting.append(ticket)
        self.waiting.sort(key=lambda t: t.age)

    def return_to(self, ticket: Ticket) -> None:
        """Queues a suspended request again, at the position of its age."""
        if ticket in self.aside and ticket.has_caught_up:
            self.aside.remove(ticket)
            self._queue(ticket)

    def leave(self, ticket: Ticket) -> None:
        """Called when a request ends: frees its place."""
        for tickets in (self.waiting, self.placed, self.aside):
            if ticket in tickets:
                tickets.remove(ticket)
        if ticket.state is not None:
            self.idle.append(ticket.state)
            self._served[ticket.state.seq_id] = ticket
            ticket.state = None

    def owns_sequence(self, ticket: Ticket) -> bool:
        """Whether only its reader uses the sequence of a request now."""
        run = ticket.job.run
        if run is None:
            return False
        is_read = ticket.is_inline and ticket.state is not None
        return is_read or self._served.get(run.seq_id) is ticket

    def use(self, sequence: SequenceState) -> None:
        """Marks an idle sequence as the last used one, without a request."""
        self.idle.remove(sequence)
        self.idle.append(sequence)
        self._served.pop(sequence.seq_id, None)

    # ---- who is next

    def is_next(self, reader: Ticket | None) -> bool:
        """Whether the request is first in the queue; None: one that the runner thread computes."""
        if not self.waiting:
            return False
        first = self.waiting[0]
        return not first.is_inline if reader is None else first is reader

    @property
    def has_room(self) -> bool:
        """Whether the first request can get a place."""
        return len(self.idle) > self.n_visits + len(self._before_first())

    def _before_first(self) -> list[Arrival]:
        """The calls that go before the first request in the queue."""
        if not (self._arriving and self.waiting):
            return []
        first, since = self.waiting[0].arrival, monotonic() - _ARRIVING_S
        if first is None:
            return []
        return [
            one for one in self._arriving
            if one.number < first.number and one.at > since and (first.is_slow or not one.is_slow)
        ]  # fmt: skip

    def can_begin(self, reader: Ticket | None) -> bool:
        """Whether is_next(), and a place is free or can be freed."""
        return self.is_next(reader) and (self.has_room or bool(self.unread()))

    @property
    def is_busy(self) -> bool:
        """Whether a placed request needs the runner thread."""
        return any(not t.is_inline and not t.is_paused for t in self.placed)

    def admit(self, reader: Ticket | None) -> None:
        """Gives places to the next requests, each the sequence with most of its prompt."""
        while self.is_next(reader) and self.has_room:
            ticket = self.waiting.pop(0)
            ticket.state = self._place_for(ticket)
            self.idle.remove(ticket.state)
            self._served.pop(ticket.state.seq_id, None)
            self.placed.append(ticket)

    def _place_for(self, ticket: Ticket) -> SequenceState:
        """The idle sequence with the longest common prefix, if that is half of what it holds.

        Less is not worth the rest of what may be another conversation. Else an empty one, with the
        lowest number, so that those that compute lie side by side; else the one that was not used
        for longest.
        """
        job = ticket.job
        text = job.prompt if ticket.saved is None else ticket.saved.tokens
        best, n_best = self.idle[0], 0
        for state in self.idle:
            n = 0
            if state.adapters == job.adapters:
                n = n_common(state.tokens[: state.n_decoded], text)
            if 2 * n >= state.n_decoded and n > n_best:
                best, n_best = state, n
        empty = [state for state in self.idle if not state.n_decoded]
        return min(empty, key=lambda s: s.seq_id) if empty and not n_best else best

    # ---- places that are given back

    @property
    def n_wanted(self) -> int:
        """The number of places that requests wait for, beyond the idle ones."""
        return max(len(self.waiting) + self.n_visits - len(self.idle), 0)

    def unread(self) -> list[Ticket]:
        """The requests to suspend: as many as others wait for, those unread for longest first.

        They keep their places until their time is over. A thread does not read one stream while it
        waits for another: where it asks itself, its own go at once.
        """
        if not (n := self.n_wanted):
            return []
        begun, me = monotonic() - _PATIENCE_S, threading.get_ident()
        over = sorted(
            (since, t.age, t) for since, t in self._paused()
            if since <= begun or t.reader == me
        )  # fmt: skip
        return [ticket for _, _, ticket in over[:n]]

    def _paused(self) -> list[tuple[float, Ticket]]:
        return [
            (t.unread_since, t) for t in self.placed
            if t.unread_since is not None and t.is_paused and not t.is_pinned
        ]  # fmt: skip

    def patience_s(self, ticket: Ticket | None = None) -> float | None:
        """Seconds until a stream may be suspended or a request's timeout; None for never."""
        ends = [t.deadline for t in ([ticket] if ticket else self.waiting) if t.deadline]
        if ticket is None or ticket.is_inline:
            ends += [one.at + _ARRIVING_S for one in self._before_first()]
        if self.n_wanted and (ticket is None or ticket.is_inline):
            ends += [since + _PATIENCE_S for since, _ in self._paused()]
        return max(min(ends) - monotonic(), 0.001) if ends else None

    def put_aside(self, ticket: Ticket, saved: SavedSequence) -> None:
        """Suspends a request that nobody reads, with a copy of its sequence.

        The sequence keeps its content for requests with the same prefix.
        """
        state = ticket.state
        if ticket.is_over or state is None:
            return
        held = SequenceState(state.seq_id, list(saved.tokens), saved.n_decoded, saved.n_given)
        held.adapters = saved.adapters
        ticket.state, ticket.saved = None, saved
        self.placed.remove(ticket)
        self.idle.append(held)
        self.aside.append(ticket)
        self._bound_copies()

    def _bound_copies(self) -> None:
        """Bounds the copies: drops those suspended for longest, which recompute instead."""
        kept = [t.saved for t in (*self.waiting, *self.aside) if t.saved is not None]
        n_bytes = sum(saved.n_bytes for saved in kept)
        for ticket in self.aside:
            if n_bytes <= self.max_copies_bytes:
                return
            if ticket.saved is not None:
                n_bytes -= ticket.saved.n_bytes
                ticket.saved = ticket.saved.without_memory()

    def position(self, ticket: Ticket) -> int | None:
        """The number of requests before this one; None if it is not in the queue."""
        return self.waiting.index(ticket) if ticket in self.waiting else None

    def choose(self, reader: Ticket | None) -> Sequence[Ticket]:
        """The requests of the next round: a reader's own, or all of the runner thread."""
        return [
            t for t in self.placed if (t is reader or not t.is_inline) and not t.is_paused
        ]  # fmt: skip
