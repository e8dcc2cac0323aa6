"""One generation on an open model: its text while it runs, then its statistics."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from types import TracebackType
from typing import Any, TypeVar

from pyllama_spec.engine import Context, Model
from pyllama_spec.engine.closeable import Closeable
from pyllama_spec.errors import BusyError, ForkedError
from pyllama_spec.requests.detokenizer import Piece
from pyllama_spec.requests.job import TARGET, Job, Keeper
from pyllama_spec.requests.logprobs import TokenLogprob
from pyllama_spec.requests.options import RequestOptions
from pyllama_spec.requests.runner import Runner
from pyllama_spec.requests.ticket import PENDING, RequestStatus, Ticket
from pyllama_spec.speculative import Adapters, Round, SpeculationStats, Timing

_T = TypeVar("_T")
_H = TypeVar("_H", bound="Handle[Any]")


@dataclass(frozen=True, slots=True)
class Runtime:
    """The parts of an open model that a generation needs. They outlive Llama during a stream."""

    model: Model
    context: Context
    round: Round
    runner: Runner
    # Called before the model is closed.
    on_close: Callable[[], None] | None = None
    # How drafts are accepted for requests without that option; see Llama.
    acceptance: str = "exact"


@dataclass(slots=True)
class GenerationRecord:
    """The output of a generation so far.

    Attributes:
        prompt_tokens: the prompt's ids.
        text: the generated text, without stop strings and end tokens.
        tokens: the ids of the text, up to the last one with a part of it; without an end token.
        from_draft: for each id, whether it was drafted and accepted.
        logprobs: for each id, its log-probabilities if the request asked for them.
        finish_reason: "stop" or "length" at the end, else None.
        stop_reason: the stop string or the id of stop_token_ids that ended it; None for another
            end.
        n_shifts: the number of times that the older half of the text was dropped, with
            context_shift.
        stats: counts of all rounds, including tokens after a stop string.
        timing: seconds.
        n_cached: the number of prompt tokens that were not read: another request had read them.
        note: a remark on the prompt for the caller, such as tools that the chat template does not
            show; "" for none.
        token_sources: the text in pieces, each with the source of its tokens: "model", "copy" of
            the text itself, "memory" for a copy of an earlier one, "grammar", or "target" for the
            target's own choice, and for a piece of which not all tokens were drafted.

    """

    prompt_tokens: tuple[int, ...]
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    from_draft: list[bool] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    n_shifts: int = 0
    stats: SpeculationStats = field(default_factory=SpeculationStats)
    timing: Timing = field(default_factory=Timing)
    n_cached: int = 0
    note: str = ""
    token_sources: list[tuple[str, str]] = field(default_factory=list)

    @property
    def usage(self) -> dict[str, Any]:
        """Token counts as in OpenAI's API; end tokens and text after a stop string do not count."""
        n_prompt, n = len(self.prompt_tokens), len(self.tokens)
        return {
            "prompt_tokens": n_prompt,
            "completion_tokens": n,
            "total_tokens": n_prompt + n,
            "prompt_tokens_details": {"cached_tokens": self.n_cached},
        }

    @property
    def stretches(self) -> tuple[tuple[str, str], ...]:
        """The text in maximal parts of equal origin, each with who drafted it."""
        return tuple(
            ("".join(text for text, _ in parts), who)
            for who, parts in groupby(self.token_sources, itemgetter(1))
        )

    def add(self, piece: Piece, logprobs: Sequence[TokenLogprob], sources: Sequence[str]) -> None:
        """Appends a piece. `logprobs` and `sources` are those of all tokens until now."""
        self.text += piece.text
        if piece.text:
            who = sources[len(self.tokens)] if piece.is_drafted else TARGET
            self.token_sources.append((piece.text, who))
        self.tokens += piece.tokens
        self.from_draft += piece.from_draft
        self.logprobs += logprobs[len(self.logprobs) : len(self.tokens)]
        self.finish_reason = piece.finish_reason


class Handle(Closeable, Iterator[_T], AsyncIterator[_T]):
    """A request that is read by `for` or `async for`; leaving `async with` aborts it."""

    def __iter__(self: _H) -> _H:
        return self

    def __aiter__(self: _H) -> _H:
        return self

    @abstractmethod
    def abort(self) -> None:
        """Cancels the request at any stage, from any thread, without waiting."""

    async def __aenter__(self: _H) -> _H:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abort()


class Generation(Handle[Piece]):
    """The handle of a request: an iterator over its pieces, whose last one has a finish_reason.

    It takes a place in the model with its first piece, or with start(), and releases it with the
    last one, or when it is closed or dropped. The decoded tokens stay in the model's memory for the
    next request with the same beginning.

    `for` reads it and blocks. `async for` reads it in an event loop without blocking: the request
    is computed in another thread, at most 64 pieces ahead of its reader. Cancelling the reading
    task, or leaving `async with`, aborts it. A stream that nobody reads loses its place to requests
    that wait for one, and resumes with the same text once it is read again.

    Attributes:
        record: the record of what it has given so far; complete after the last piece.

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

    def __init__(
        self,
        runtime: Runtime,
        prompt: Sequence[int],
        options: RequestOptions,
        *,
        seed: int | None = None,
        last_n: int = 64,
        by_token: bool = False,
        adapters: Adapters = None,
    ) -> None:
        self.record = GenerationRecord(tuple(prompt))
        job = Job(
            runtime.model, runtime.context, prompt, options, seed=seed, last_n=last_n,
            by_token=by_token, adapters=adapters, acceptance=runtime.acceptance,
        )  # fmt: skip
        self._runner, self._job = runtime.runner, job
        self._ticket = runtime.runner.ticket(job, options.timeout_s)
        # The generator does not know this object: a cycle would keep a dropped stream alive.
        self._pieces = _recorded(runtime.runner, self._ticket, self.record)
        self._id = ""
        # Reentrant: a callback may look at its own stream.
        self._lock = threading.RLock()

    @property
    def id(self) -> str:
        """A unique name of this request."""
        if not self._id:
            import uuid  # not needed to open a model

            self._id = f"gen-{uuid.uuid4().hex}"
        return self._id

    @property
    def options(self) -> RequestOptions:
        """The options of the request."""
        return self._job.options

    @property
    def status(self) -> RequestStatus:
        """The state of the request: stage, queue position, progress of the prompt."""
        return self._runner.status(self._ticket)

    @property
    def stats(self) -> SpeculationStats:
        """The statistics so far; the record gets them when the text ends."""
        return self._ticket.job.stats

    def start(self, *, is_whole: bool = True, is_detached: bool = False) -> None:
        """Queues the request before it is read, so that a runner thread can compute it.

        Args:
            is_whole: whether it is computed to its end, for a reader of the whole text; else a
                stream runs ahead of its reader by no more than some pieces.
            is_detached: whether it is computed before anybody reads it, with n_parallel=1 too.

        """
        with self.reading():
            if self._ticket.number >= 0:
                return
            if self._runner.start(self._ticket, is_whole=is_whole, is_detached=is_detached):
                next(self._pieces)  # up to the point where dropping it ends the request

    def look_after(self, keeper: Keeper) -> None:
        """Sets the keeper of its sequence's content, called before and after the request."""
        self._job.keeper = keeper

    @property
    def end_token(self) -> int | None:
        """The end token of the text, which the text does not include; None without one so far."""
        return self._job.end_token

    # ---- for a thread that waits

    def __next__(self) -> Piece:
        with self.reading():
            return next(self._pieces)

    def read_all(self) -> GenerationRecord:
        """Reads the generation to its end. An exception, such as Ctrl-C, cancels it."""
        try:
            for _ in self:
                pass
        except BaseException as error:
            if not hasattr(error, "partial_tokens"):  # raised between two pieces
                self._job.attach_partial(error)
            with suppress(BusyError):
                self.close()
            raise
        ended_by = self._ticket.error
        if ended_by is not None and self.record.finish_reason is None:
            raise ended_by  # its reader had it before, or closed it
        return self.record

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Lets one thread at a time read or close the generation.

        Raises:
            BusyError: a callback of a running generation calls it, in the thread that computes.
            ForkedError: it belongs to the parent of this forked process.

        """
        self._runner.check_reader()
        with self._lock:
            yield

    # ---- for an event loop

    async def __anext__(self) -> Piece:
        return await self.arriving(self.__next__, PENDING)

    async def arriving(
        self, advance: Callable[[], _T], pending: _T, others: Sequence[Generation] = ()
    ) -> _T:
        """The result of a blocking read of this generation, without blocking the event loop.

        Args:
            advance: reads; returns `pending` if PENDING is all that there is to read.
            pending: see advance.
            others: further answers to the request, which it reads too.

        Raises:
            StopAsyncIteration: there is nothing more to read.

        """
        import asyncio  # not needed to open a model

        loop, arrived = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody reads any more
                loop.call_soon_threadsafe(arrived.set)

        together = (self, *others)
        for one in together:
            one._runner.listen(one._ticket, wake)
            one.start(is_whole=False, is_detached=True)
        while True:
            arrived.clear()
            with ExitStack() as stack:
                for one in together:
                    stack.enter_context(one.reading())
                    one._ticket.polls = True
                try:
                    result = advance()
                except StopIteration:
                    raise StopAsyncIteration from None
                finally:
                    for one in together:
                        one._ticket.polls = False
            if result is not pending:
                return result
            left_s = self._runner.time_left_s(self._ticket)
            timer = None if left_s is None else loop.call_later(left_s, arrived.set)
            try:
                await arrived.wait()
            except BaseException:  # the task is cancelled: nobody reads any more
                for one in together:
                    one.abort()
                raise
            finally:
                if timer is not None:
                    timer.cancel()

    async def aread_all(self) -> GenerationRecord:
        """read_all() in an event loop."""
        self.start(is_detached=True)
        async for _ in self:
            pass
        return self.record

    # ---- its end

    def abort(self) -> None:
        """Cancels the request at any stage, from any thread, without waiting.

        A request that is queued, set aside or unread ends at once; one that is being computed ends
        with the round. Its readers get CancelledError. May be called twice, and after its end.
        """
        self._runner.abort(self._ticket)

    def close(self) -> None:
        """Closes the request, and waits for a step in another thread. May be called twice.

        In a forked child it does nothing: it is the parent's.
        """
        with suppress(ForkedError):
            self._runner.check_reader()
            self._runner.abort(self._ticket)  # a reader in another thread stops waiting
            with self._lock:
                self._pieces.close()
                self._runner.withdraw(self._ticket)


def _recorded(
    runner: Runner, ticket: Ticket, record: GenerationRecord
) -> Generator[Piece, None, None]:
    pieces, job = runner.pieces(ticket), ticket.job

    def note_figures() -> None:
        if job.run is not None:
            record.stats, record.timing = job.stats, job.timing
            record.n_cached, record.n_shifts = job.n_cached, job.n_shifts

    try:
        for piece in pieces:
            note_figures()
            if piece.finish_reason is not None:
                record.stop_reason = job.stop_reason
            if piece is not PENDING:
                record.add(piece, job.logprobs, job.sources)
            yield piece
    finally:
        note_figures()
        pieces.close()
