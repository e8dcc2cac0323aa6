"""One generation on an open model: the loop's rounds, turned into text as they come."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pyllama_spec.assembly import Piece, TextAssembler
from pyllama_spec.engine import Context, Model, Sampler
from pyllama_spec.engine.closing import Closing
from pyllama_spec.engine.errors import ArgumentError
from pyllama_spec.gate import Gate
from pyllama_spec.logprobs import TokenLogprob, token_logprob
from pyllama_spec.request import LogitsProcessor, RequestOptions
from pyllama_spec.speculative import (
    SequenceState,
    SpeculationStats,
    SpeculativeLoop,
    Step,
    Timing,
    TokenSampler,
)

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Runtime:
    """What a generation needs of an open model. It outlives the Llama while a stream is open."""

    model: Model
    context: Context
    loop: SpeculativeLoop
    sequence: SequenceState
    gate: Gate


@dataclass(slots=True)
class GenerationRecord:
    """What a generation has given so far.

    Attributes:
        prompt_tokens: the prompt's ids.
        text: what came out, without stop strings and end tokens.
        tokens: its ids, up to the last one that gave some of the text. An end token is not there.
        from_draft: for each of them, whether it was drafted and accepted.
        logprobs: for each of them, if the request asked for it.
        finish_reason: "stop" or "length" at the end, else None.
        stats: counts of all rounds, also of tokens behind a stop string.
        timing: seconds.

    """

    prompt_tokens: tuple[int, ...]
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    from_draft: list[bool] = field(default_factory=list)
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
        self.tokens += piece.tokens
        self.from_draft += piece.from_draft
        self.logprobs += logprobs[len(self.logprobs) : len(self.tokens)]


class Generation(Closing, Iterator[Piece]):
    """A running generation: an iterator over its pieces, whose last one has a finish_reason.

    It takes the model's turn with its first piece and gives it back with the last one, or when it
    is closed or dropped. What was decoded until then stays in the model's memory, where the next
    request with the same beginning finds it.

    Attributes:
        record: what it has given so far; complete after the last piece.
        lock: held while a step runs.

    Raises:
        BusyError: this thread has another stream of the model open.
        ContextFullError: the prompt does not fit.
        CancelledError: Llama.cancel() was called.
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
    ) -> None:
        self.record = GenerationRecord(tuple(prompt))
        sampler = Sampler(
            runtime.model, options.sampler_params(runtime.model.vocab, seed=seed, last_n=last_n)
        )
        # The generator does not know this object: a cycle would keep a dropped stream alive.
        self._pieces = _generate(runtime, self.record, options, sampler)
        # Reentrant: a callback may look at its own stream.
        self.lock = threading.RLock()

    def __iter__(self) -> Generation:
        return self

    def __next__(self) -> Piece:
        with self.lock:
            return next(self._pieces)

    def close(self) -> None:
        """Ends it; a step that another thread computes is waited for. May be called twice."""
        with self.lock:
            self._pieces.close()


class _History:
    """The ids so far, for functions of the user's: growing costs nothing per token."""

    def __init__(self, prompt: Sequence[int], n_max: int) -> None:
        self._ids = np.empty(max(n_max, len(prompt)) + 1, dtype=np.int32)
        self._ids[: len(prompt)] = prompt
        self._n = len(prompt)

    def append(self, token: int) -> None:
        self._ids[self._n] = token
        self._n += 1

    def view(self) -> Ids:
        """shape: [n] int32, read-only; what it shows does not change later."""
        ids = self._ids[: self._n]
        ids.flags.writeable = False
        return ids


class _ProcessedSampler:
    """A sampler behind logits processors. They see each position once, with what is committed."""

    def __init__(
        self, sampler: Sampler, processors: Sequence[LogitsProcessor], history: _History
    ) -> None:
        self._sampler = sampler
        self._processors = processors
        self._history = history

    def sample(self, context: Context, i: int) -> int:
        scores = np.array(context.logits(i))
        shape = scores.shape
        for processor in self._processors:
            scores = np.asarray(processor(self._history.view(), scores), dtype=np.float32)
            if scores.shape != shape:
                raise ArgumentError(
                    f"the logits processor {processor!r} returned an array of shape "
                    f"{scores.shape}; expected the scores, of shape {shape}"
                )
        if np.isnan(scores).any() or not np.isfinite(scores).any():
            raise ArgumentError("the logits processors left no token, or a NaN, in the scores")
        return self._sampler.sample_row(scores)

    def accept(self, token: int, *, generated: bool = True) -> None:
        self._sampler.accept(token, generated=generated)


class _Observer:
    """Sees every committed token with its row, as the loop goes."""

    def __init__(
        self, runtime: Runtime, options: RequestOptions, prompt: Sequence[int], n_max: int
    ) -> None:
        self._context = runtime.context
        self._n_top = options.logprobs
        self._criteria = options.criteria
        self.history = _History(prompt, len(prompt) + n_max)
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        # How many tokens there were when a stopping criterion said stop.
        self.n_stop: int | None = None

    def __call__(self, row: int, token: int) -> None:
        if self._n_top is not None:
            logits = self._context.logits(row)
            self.logprobs.append(token_logprob(logits, token, self._n_top))
        if self._criteria and self.n_stop is None:
            ids, logits = self.history.view(), np.array(self._context.logits(row))
            if any(stop(ids, logits) for stop in self._criteria):
                self.n_stop = len(self.tokens)
        self.tokens.append(token)
        self.history.append(token)


def _generate(
    runtime: Runtime, record: GenerationRecord, options: RequestOptions, sampler: Sampler
) -> Generator[Piece, None, None]:
    """The generation. Everything that touches the context happens inside gate.running()."""
    gate = runtime.gate
    n_max = _n_max(runtime, record, options)
    observer = _Observer(runtime, options, record.prompt_tokens, n_max)
    assembler = TextAssembler(runtime.model.vocab, options.stops)
    turn = gate.acquire()
    try:
        with gate.running(turn):
            steps = _start(runtime, record, options, sampler, observer, n_max)
        finish: str | None = None
        while finish is None:
            with gate.running(turn):
                pieces, finish = _take(next(steps), observer, assembler)
            for piece in pieces:
                record.add(piece, observer.logprobs)
                yield piece
    except GeneratorExit:
        raise
    except BaseException as error:
        _attach_partial(error, runtime, observer.tokens)
        raise
    finally:
        sampler.close()
        gate.release(turn)
    # The turn is given back before the last piece: a reader who stops there leaves nothing open.
    record.finish_reason = finish
    yield Piece("", finish_reason=finish)


def _n_max(runtime: Runtime, record: GenerationRecord, options: RequestOptions) -> int:
    """How many tokens fit: the last one is never decoded and needs no room."""
    room = max(runtime.context.n_ctx_seq - len(record.prompt_tokens) + 1, 1)
    wanted = options.max_tokens
    return room if wanted is None or wanted <= 0 else min(wanted, room)


def _start(
    runtime: Runtime,
    record: GenerationRecord,
    options: RequestOptions,
    sampler: Sampler,
    observer: _Observer,
    n_max: int,
) -> Iterator[Step]:
    """Decodes the prompt, shows it to the penalties, and sets the rounds up."""
    loop, prompt = runtime.loop, record.prompt_tokens
    loop.prefill(runtime.sequence, prompt)
    record.stats, record.timing = loop.stats, loop.timing
    n_history = sampler.params.n_history
    n_seen = len(prompt) if n_history < 0 else min(n_history, len(prompt))
    for token in prompt[len(prompt) - n_seen :]:
        sampler.accept(token, generated=False)
    chooser: TokenSampler = sampler
    if options.processors:
        chooser = _ProcessedSampler(sampler, options.processors, observer.history)
    return loop.generate(runtime.sequence, chooser, n_max, observer)


def _take(
    step: Step, observer: _Observer, assembler: TextAssembler
) -> tuple[list[Piece], str | None]:
    """The pieces of a round, cut where the text ends, and why it ends there."""
    pieces: list[Piece] = []
    finish = step.finish_reason
    # The loop says "stop" for an end token, which is no text.
    tokens = step.tokens[:-1] if finish == "stop" else step.tokens
    for i, token in enumerate(tokens):
        if assembler.n_fed == observer.n_stop:
            finish = "stop"
            break
        pieces += assembler.feed(token, from_draft=i < step.n_accepted)
        if assembler.is_stopped:
            return pieces, "stop"
    if finish is not None:
        pieces += assembler.flush()
    return pieces, finish


def _attach_partial(error: BaseException, runtime: Runtime, tokens: list[int]) -> None:
    """Lets the error carry what had been generated; some exceptions take no attributes."""
    with contextlib.suppress(Exception):
        vocab = runtime.model.vocab
        kept = [token for token in tokens if not vocab.is_eog(token)]
        partial: Any = error
        partial.partial_tokens = tuple(kept)
        partial.partial_text = vocab.detokenize(kept).decode(errors="ignore")
