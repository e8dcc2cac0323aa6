"""Stream: the handle of a request, for threads that wait and for event loops."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from time import perf_counter
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from pyllama_spec.engine.closeable import Closeable
from pyllama_spec.errors import BusyError, ForkedError
from pyllama_spec.requests.run import GenerationRecord, Piece, RequestStatus, Run
from pyllama_spec.requests.runner import Runner

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)
_R = TypeVar("_R")


def new_id(prefix: str) -> str:
    """A unique name of an answer."""
    import uuid  # not needed to open a model

    return f"{prefix}-{uuid.uuid4().hex}"


class Shape(Protocol[_T_co]):
    """The form in which a request is answered: a function of its pieces and records."""

    @property
    def id(self) -> str:
        """The name of the answer."""

    def chunks(self, i: int, piece: Piece, records: Sequence[GenerationRecord]) -> Sequence[_T_co]:
        """What a piece of choice i adds; the records have it already."""

    def choice(self, i: int, record: GenerationRecord) -> Any:
        """The whole of choice i."""

    def whole(
        self, choices: Sequence[Any], records: Sequence[GenerationRecord], wall_s: float
    ) -> Any:
        """The whole answer."""


class Stream(Closeable, Iterator[_T], AsyncIterator[_T], Generic[_T]):
    """The handle of a request: iterates over its pieces or chunks, or returns the whole result.

    `for` and result() wait. In an event loop `async for` and `await` do the same and never block
    it: the request is computed in another thread, at most 64 pieces ahead of its reader. It comes
    into line with its first piece, or with start(), and has its place up to the last one, which has
    a finish_reason. A reader that leaves before closes it, by close(), `with`, or by dropping it;
    in an event loop by abort(), `async with`, or by being cancelled. While other requests wait for
    its place, a stream is computed to its end, whether or not it is read.

    Attributes:
        id: the id of the response and of every chunk.
        records: the record of what each answer has given so far.
        record: that of the first one.

    Raises:
        ContextFullError: the prompt does not fit.
        CancelledError: abort() or Llama.cancel() was called.
        DeadlineError: timeout_s has passed.
        QueueFullError: as many requests wait as Llama(max_waiting=) allows.
        ClosedError: Llama.close() was called, before the request or during it.
        BusyError: a callback of a running generation reads it, and would wait for itself.
        Exception: the error of a logits processor or a stopping criterion. All of these carry
            partial_text and partial_tokens.
    """

    _runs: tuple[Run, ...] = ()  # until it is made: it may be dropped before

    def __init__(
        self,
        runner: Runner,
        runs: Sequence[Run],
        shape: Shape[_T] | None = None,
        *,
        width: int = 1,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        """Made by Llama's calls.

        Args:
            runner: computes it.
            runs: its answers; several for a list of prompts, and for several answers to a prompt.
            shape: the form of what it gives; None for pieces and a record.
            width: how many answers are read in turns.
            on_end: called once all answers were read to their end.
        """
        self._runner, self._shape, self._width = runner, shape, width
        self._on_end = on_end
        self.records = [run.record for run in runs]
        self.record = self.records[0]
        self._left, self._items = list(range(len(runs))), deque[_T]()
        self._begun_s, self._id = 0.0, "" if shape is None else shape.id
        # Reentrant: a callback may look at its own stream.
        self._lock = threading.RLock()
        self._runs = tuple(runs)

    def __repr__(self) -> str:
        reason = self.record.finish_reason
        state = "going on" if reason is None else f"ended: {reason}"
        return f"<Stream: {self.record.usage['completion_tokens']} tokens, {state}>"

    def __del__(self) -> None:
        for run in self._runs:
            if run.number >= 0:
                self._runner.abort(run)

    # ---- what is known of it

    @property
    def id(self) -> str:
        """A unique name of this request."""
        self._id = self._id or new_id("gen")
        return self._id

    @property
    def status(self) -> RequestStatus:
        """The state of the request: stage, queue position, progress of the prompt."""
        statuses = self.statuses
        return next((one for one in statuses if one.stage != "ended"), statuses[-1])

    @property
    def statuses(self) -> list[RequestStatus]:
        """The state of each choice, in the order of the prompts."""
        return [self._runner.status(run) for run in self._runs]

    @property
    def n_generated(self) -> int:
        """The number of generated tokens of all choices, unread ones included."""
        return sum(status.n_generated for status in self.statuses)

    @property
    def prompt_tokens(self) -> list[int]:
        """The ids of the prompt, or of the first one; known before the request starts."""
        return list(self.record.prompt_tokens)

    @property
    def end_token(self) -> int | None:
        """The end token of the text, which the text does not include; None without one so far."""
        return self._runs[0].end_token

    # ---- for a thread that waits

    def start(self, *, is_whole: bool = False) -> None:
        """Queues the request; it is then computed whether or not it is read.

        Args:
            is_whole: whether to compute it to its end; else only some pieces ahead of its reader.

        Raises:
            QueueFullError: as many requests wait as Llama(max_waiting=) allows.
        """
        self._start(is_whole=is_whole, is_detached=True)

    def _start(self, *, is_whole: bool, is_detached: bool) -> None:
        self._begun_s = self._begun_s or perf_counter()
        with self._reading():
            for run in self._runs:
                self._runner.start(run, is_whole=is_whole, is_detached=is_detached)

    def __iter__(self) -> Stream[_T]:
        return self

    def __next__(self) -> _T:
        self._runner.check_reader()
        with self._lock:
            item = self._next()
        assert item is not None
        return item

    def _next(self, *, waits: bool = True) -> _T | None:
        """The next item; None if there is none yet, and the reader does not wait."""
        if len(self._runs) > 1 and not self._begun_s:
            self._start(is_whole=False, is_detached=False)
        while not self._items:
            if not self._left:
                raise StopIteration
            is_idle = True
            for i in self._left[: self._width]:
                try:
                    piece = self._read(i, waits=waits)
                except BaseException:
                    self._left.clear()  # an iterator that has raised is over
                    self.abort()  # and so are the other answers
                    raise
                if piece is not None:
                    is_idle, shape = False, self._shape
                    as_it_is: Any = (piece,)
                    self._items += shape.chunks(i, piece, self.records) if shape else as_it_is
            if is_idle and not waits:
                return None
        return self._items.popleft()

    def _read(self, i: int, *, waits: bool) -> Piece | None:
        try:
            piece = self._runner.read(self._runs[i], waits=waits)
        except BaseException:
            self._left.remove(i)
            raise
        if piece is not None and piece.finish_reason is not None:
            self._left.remove(i)
            is_whole = all(record.finish_reason is not None for record in self.records)
            on_end, self._on_end = self._on_end, None if is_whole else self._on_end
            if is_whole and on_end is not None:
                on_end()
        return piece

    def read_all(self) -> GenerationRecord:
        """Reads the first answer to its end. An exception, such as Ctrl-C, cancels it."""
        return self._read_all(0)

    def _read_all(self, i: int) -> GenerationRecord:
        run = self._runs[i]
        try:
            with self._reading():
                while i in self._left:
                    self._read(i, waits=True)
        except BaseException as error:
            if not hasattr(error, "partial_tokens"):  # raised between two pieces
                run.attach_partial(error)
            with suppress(BusyError, ForkedError):
                self._runner.check_reader()
                self._runner.withdraw(run)
            raise
        if run.error is not None and run.record.finish_reason is None:
            raise run.hand_over_error()  # its reader had it before, or closed it
        return run.record

    def result(self) -> Any:
        """The whole response, as without stream=True. Blocks until it is complete."""
        shape, self._begun_s = self._shape, self._begun_s or perf_counter()
        if shape is None:
            return self.read_all()
        try:
            if len(self._runs) > 1:
                self._start(is_whole=True, is_detached=False)
            choices = [shape.choice(i, self._read_all(i)) for i in range(len(self._runs))]
        except BaseException:
            with suppress(BusyError):
                self.close()  # the other answers
            raise
        return shape.whole(choices, self.records, perf_counter() - self._begun_s)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Lets one thread at a time read or close the stream.

        Raises:
            BusyError: a callback of a running generation calls it, in the thread that computes.
            ForkedError: it belongs to the parent of this forked process.
        """
        self._runner.check_reader()
        with self._lock:
            yield

    # ---- for an event loop

    def __aiter__(self) -> Stream[_T]:
        return self

    async def __anext__(self) -> _T:
        return await self._arriving(partial(self._next, waits=False))

    def __await__(self) -> Generator[Any, None, Any]:
        return self.aresult().__await__()

    async def aresult(self) -> Any:
        """result() in an event loop; the same as awaiting the stream."""
        try:
            self.start(is_whole=True)
            for i in range(len(self._runs)):
                with suppress(Exception):  # result() raises it
                    while i in self._left:
                        await self._arriving(partial(self._read, i, waits=False))
            return self.result()
        finally:
            self.abort()

    async def _arriving(self, advance: Callable[[], _R | None]) -> _R:
        """The first result of a read that does not wait."""
        import asyncio  # not needed to open a model

        loop, arrived = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody reads any more
                loop.call_soon_threadsafe(arrived.set)

        for run in self._runs:
            self._runner.listen(run, wake)
        self.start()
        while True:
            arrived.clear()
            try:
                with self._reading():
                    result = advance()
            except StopIteration:
                raise StopAsyncIteration from None
            if result is not None:
                return result
            left_s = self._runner.time_left_s(self._runs)
            timer = None if left_s is None else loop.call_later(left_s, arrived.set)
            try:
                await arrived.wait()
            except BaseException:  # the task is cancelled: nobody reads any more
                self.abort()
                raise
            finally:
                if timer is not None:
                    timer.cancel()

    async def __aenter__(self) -> Stream[_T]:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abort()

    # ---- its end

    def abort(self) -> None:
        """Cancels the request at any stage, from any thread, without waiting.

        A request that is queued or unread ends at once; one that is being computed ends
        with the round. Its readers get CancelledError. May be called twice, and after its end.
        """
        for run in self._runs:
            self._runner.abort(run)

    def close(self) -> None:
        """Closes the request, and waits for a step in another thread. May be called twice.

        In a forked child it does nothing: it is the parent's.
        """
        with suppress(ForkedError):
            self._runner.check_reader()
            self.abort()  # a reader in another thread stops waiting
            with self._lock:
                for run in self._runs:
                    self._runner.withdraw(run)
                self._left, self._items = [], deque()
