"""One generation on an open model: text as it comes, and what is known of it at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from pyllama_spec.engine import Context, Model
from pyllama_spec.engine.closeable import Closeable
from pyllama_spec.errors import BusyError, ForkedError
from pyllama_spec.requests.detokenizer import Piece
from pyllama_spec.requests.job import Job
from pyllama_spec.requests.logprobs import TokenLogprob
from pyllama_spec.requests.options import RequestOptions
from pyllama_spec.requests.runner import Runner
from pyllama_spec.speculative import Round, SpeculationStats, Timing


@dataclass(frozen=True, slots=True)
class Runtime:
    """What a generation needs of an open model. It outlives the Llama while a stream is open.

    Attributes:
        on_close: called before the model is closed; may be None.

    """

    model: Model
    context: Context
    round: Round
    runner: Runner
    on_close: Callable[[], None] | None = None


@dataclass(slots=True)
class GenerationRecord:
    """What a generation has given so far.

    Attributes:
        prompt_tokens: the prompt's ids.
        text: what came out, without stop strings and end tokens.
        tokens: its ids, up to the last one that gave some of the text. An end token is not there.
        from_draft: for each of them, whether it was drafted and accepted.
        spans: the text in stretches: where each ends in it, and whether all of its tokens were
            drafted and accepted.
        logprobs: for each of them, if the request asked for it.
        finish_reason: "stop" or "length" at the end, else None.
        stats: counts of all rounds, also of tokens behind a stop string.
        timing: seconds.

    """

    prompt_tokens: tuple[int, ...]
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    from_draft: list[bool] = field(default_factory=list)
    spans: list[tuple[int, bool]] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    stats: SpeculationStats = field(default_factory=SpeculationStats)
    timing: Timing = field(default_factory=Timing)

    @property
    def usage(self) -> dict[str, int]:
        """Token counts; end tokens and what follows a stop string do not count."""
        n_prompt, n = len(self.prompt_tokens), len(self.tokens)
        return {"prompt_tokens": n_prompt, "completion_tokens": n, "total_tokens": n_prompt + n}

    def add(self, piece: Piece, logprobs: Sequence[TokenLogprob]) -> None:
        """Appends a piece. `logprobs` are those of all tokens of the generation until now."""
        self.text += piece.text
        if piece.text:
            if self.spans and self.spans[-1][1] == piece.is_drafted:
                self.spans.pop()
            self.spans.append((len(self.text), piece.is_drafted))
        self.tokens += piece.tokens
        self.from_draft += piece.from_draft
        self.logprobs += logprobs[len(self.logprobs) : len(self.tokens)]
        self.finish_reason = piece.finish_reason


class Generation(Closeable, Iterator[Piece]):
    """A running generation: an iterator over its pieces, whose last one has a finish_reason.

    It takes a place in the model with its first piece and gives it back with the last one, or when
    it is closed or dropped. What was decoded until then stays in the model's memory, where the
    next request with the same beginning finds it.

    Attributes:
        record: what it has given so far; complete after the last piece.

    Raises:
        BusyError: this thread has as many streams of the model open as it has places.
        ContextFullError: the prompt does not fit.
        CancelledError: Llama.cancel() was called.
        ClosedError: Llama.close() was called, before it or meanwhile.
        Exception: what a logits processor or a stopping criterion raised.
            All of them carry partial_text and partial_tokens.

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
    ) -> None:
        self.record = GenerationRecord(tuple(prompt))
        job = Job(
            runtime.model, runtime.context, prompt, options, seed=seed, last_n=last_n,
            by_token=by_token,
        )  # fmt: skip
        # The generator does not know this object: a cycle would keep a dropped stream alive.
        self._pieces = _recorded(runtime.runner, job, self.record)
        self._runner, self._job = runtime.runner, job
        # Reentrant: a callback may look at its own stream.
        self._lock = threading.RLock()

    def start(self) -> None:
        """Begins to compute without being read, where others can compute beside it.

        For whoever wants a text as a whole: a stream that is read piece by piece does not run ahead
        of its reader by more than some pieces.
        """
        self._runner.start(self._job)

    @property
    def end_token(self) -> int | None:
        """The token that ended the text, which is no part of it; None where none did, or yet."""
        return self._job.end_token

    def __iter__(self) -> Generation:
        return self

    def __next__(self) -> Piece:
        with self.reading():
            return next(self._pieces)

    def read_all(self) -> GenerationRecord:
        """Reads it to its end. An exception on the way ends it: Ctrl-C may come anywhere."""
        try:
            for _ in self:
                pass
        except BaseException as error:
            if not hasattr(error, "partial_tokens"):  # raised between two pieces
                self._job.attach_partial(error)
            with suppress(BusyError):
                self.close()
            raise
        return self.record

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Around all that fetches pieces or ends it: one thread at a time.

        Raises:
            BusyError: a callback of a running generation calls, in the thread that computes.
            ForkedError: it is of the process that this one was forked from.

        """
        self._runner.check_reader()
        with self._lock:
            yield

    def close(self) -> None:
        """Ends it; a step that another thread computes is waited for. May be called twice.

        In a forked child it does nothing: it is the parent's.
        """
        with suppress(ForkedError), self.reading():
            self._pieces.close()
            # One that was started and never read has no generator yet that could do it.
            self._runner.withdraw(self._job)


def _recorded(runner: Runner, job: Job, record: GenerationRecord) -> Generator[Piece, None, None]:
    pieces = runner.pieces(job)
    try:
        for piece in pieces:
            if job.run is not None:
                record.stats, record.timing = job.run.stats, job.run.timing
            record.add(piece, job.logprobs)
            yield piece
    finally:
        if job.run is not None:
            record.stats, record.timing = job.run.stats, job.run.timing
        pieces.close()
