"""The queue for a model's sequences: which request is next, and which has to give up its place.

It decides and calls no engine. A runner uses it under its lock.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from time import monotonic

from pyllama_spec.engine.system import memory_bytes
from pyllama_spec.requests.run import Run
from pyllama_spec.speculative import SavedSequence, SequenceState
from pyllama_spec.speculative.sequence import n_common

# How long an unread stream keeps a place that others wait for. Copying it away and
# back takes about as long as computing some tokens, so that it is not done between two of them.
_PATIENCE_S = 0.1
# The limit of all suspended streams; less on a machine with less than eight times it.
_COPIES_BYTES = 4 << 30


class Line:
    """The queued, placed and suspended requests, and the places themselves."""

    def __init__(self, n_places: int) -> None:
        self.n_places = n_places
        self.waiting: list[Run] = []  # oldest first
        self.placed: list[Run] = []
        # Those that have begun, have no place and are not in line: nobody reads them.
        self.aside: list[Run] = []
        # The sequences without a request, the one that was used last at the end.
        self.idle = [SequenceState(i) for i in range(n_places)]
        # How many callers want an idle sequence for themselves.
        self.n_visits = 0
        # The maximum size of the copies of requests that were set aside.
        self.max_copies_bytes = min(_COPIES_BYTES, memory_bytes() // 8)
        self._n_runs = 0
        # The last request that each sequence served, if none came since.
        self._served: dict[int, Run] = {}

    def everyone(self) -> list[Run]:
        """All requests that have not ended."""
        return [*self.waiting, *self.placed, *self.aside]

    def begun(self) -> list[Run]:
        """The requests that have or had a place."""
        return [*self.placed, *self.aside, *(run for run in self.waiting if run.saved is not None)]

    def enter(self, run: Run) -> None:
        """Queues a new request."""
        run.number = self._n_runs
        self._n_runs += 1
        self.waiting.append(run)

    def return_to(self, run: Run) -> None:
        """Queues a suspended request again, at the position of its age."""
        if run in self.aside and run.has_caught_up:
            self.aside.remove(run)
            self.waiting.append(run)
            self.waiting.sort(key=lambda run: run.number)

    def leave(self, run: Run) -> None:
        """Called when a request ends: frees its place."""
        for runs in (self.waiting, self.placed, self.aside):
            if run in runs:
                runs.remove(run)
        if run.state is not None:
            self.idle.append(run.state)
            self._served[run.state.seq_id] = run
            run.state = None

    def owns_sequence(self, run: Run) -> bool:
        """Whether only its reader uses the sequence of a request now."""
        if run.sequence is None:
            return False
        is_read = run.is_inline and run.state is not None
        return is_read or self._served.get(run.sequence.seq_id) is run

    def use(self, sequence: SequenceState) -> None:
        """Marks an idle sequence as the last used one, without a request."""
        self.idle.remove(sequence)
        self.idle.append(sequence)
        self._served.pop(sequence.seq_id, None)

    # ---- who is next

    def is_next(self, reader: Run | None) -> bool:
        """Whether the request is first in the queue; None: one that the runner thread computes."""
        if not self.waiting:
            return False
        first = self.waiting[0]
        return not first.is_inline if reader is None else first is reader

    @property
    def has_room(self) -> bool:
        """Whether the first request can get a place."""
        return len(self.idle) > self.n_visits

    def can_begin(self, reader: Run | None) -> bool:
        """Whether is_next(), and a place is free or can be freed."""
        return self.is_next(reader) and (self.has_room or bool(self.unread()))

    @property
    def is_busy(self) -> bool:
        """Whether a placed request needs the runner thread."""
        return any(not run.is_inline and not run.is_paused for run in self.placed)

    def admit(self, reader: Run | None) -> None:
        """Gives places to the next requests, each the sequence with most of its prompt."""
        while self.is_next(reader) and self.has_room:
            run = self.waiting.pop(0)
            run.state = self._place_for(run)
            self.idle.remove(run.state)
            self._served.pop(run.state.seq_id, None)
            self.placed.append(run)

    def _place_for(self, run: Run) -> SequenceState:
        """The idle sequence with the longest common prefix, if that is half of what it holds.

        Less is not worth the rest of what may be another conversation. Else an empty one, with the
        lowest number, so that those that compute lie side by side; else the one that was not used
        for longest.
        """
        text = run.request.prompt if run.saved is None else run.saved.tokens
        best, n_best = self.idle[0], 0
        for state in self.idle:
            n = 0
            if state.adapters == run.request.adapters:
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

    def unread(self) -> list[Run]:
        """The requests to suspend: as many as others wait for, those unread for longest first.

        They keep their places until their time is over. A thread does not read one stream while it
        waits for another: where it asks itself, its own go at once.
        """
        if not (n := self.n_wanted):
            return []
        begun, me = monotonic() - _PATIENCE_S, threading.get_ident()
        over = sorted(
            (since, run.number, run) for since, run in self._paused()
            if since <= begun or run.reader == me
        )  # fmt: skip
        return [run for _, _, run in over[:n]]

    def _paused(self) -> list[tuple[float, Run]]:
        return [
            (run.unread_since, run) for run in self.placed
            if run.unread_since is not None and run.is_paused and not run.is_pinned
        ]  # fmt: skip

    def patience_s(self, run: Run | None = None) -> float | None:
        """Seconds until a stream may be suspended or a request's timeout; None for never."""
        ends = [run.deadline for run in ([run] if run else self.waiting) if run.deadline]
        if self.n_wanted and (run is None or run.is_inline):
            ends += [since + _PATIENCE_S for since, _ in self._paused()]
        return max(min(ends) - monotonic(), 0.001) if ends else None

    def put_aside(self, run: Run, saved: SavedSequence) -> None:
        """Suspends a request that nobody reads, with a copy of its sequence.

        The sequence keeps its content for requests with the same prefix.
        """
        state = run.state
        if run.is_over or state is None:
            return
        held = SequenceState(state.seq_id, list(saved.tokens), saved.n_decoded, saved.n_given)
        held.adapters = saved.adapters
        run.state, run.saved = None, saved
        self.placed.remove(run)
        self.idle.append(held)
        self.aside.append(run)
        self._bound_copies()

    def _bound_copies(self) -> None:
        """Bounds the copies: drops those suspended for longest, which recompute instead."""
        kept = [run.saved for run in (*self.waiting, *self.aside) if run.saved is not None]
        n_bytes = sum(saved.n_bytes for saved in kept)
        for run in self.aside:
            if n_bytes <= self.max_copies_bytes:
                return
            if run.saved is not None:
                n_bytes -= run.saved.n_bytes
                run.saved = run.saved.without_memory()

    def position(self, run: Run) -> int | None:
        """The number of requests before this one; None if it is not in the queue."""
        return self.waiting.index(run) if run in self.waiting else None

    def choose(self, reader: Run | None) -> Sequence[Run]:
        """The requests of the next round: a reader's own, or all of the runner thread."""
        return [
            run for run in self.placed if (run is reader or not run.is_inline) and not run.is_paused
        ]  # fmt: skip
