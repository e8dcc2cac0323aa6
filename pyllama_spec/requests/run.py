"""A request: what was asked (Request), what runs (Run), and what it has given (GenerationRecord).

A Detokenizer turns tokens into Pieces: whole characters, without stop strings.

A run lives from the call to the reading of its last piece: it waits in line, has a sequence, turns
the tokens of each round into pieces, and ends.
"""

from __future__ import annotations

import codecs
import contextlib
import copy
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from time import monotonic, perf_counter
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pyllama_spec.engine import Context, Model, Sampler, SamplerParams, Vocab
from pyllama_spec.engine.media import PlacedRows
from pyllama_spec.engine.media_ids import up_to_medium
from pyllama_spec.errors import (
    ArgumentError,
    CancelledError,
    ContextFullError,
    shown,
)
from pyllama_spec.requests.options import LogitsProcessor, RequestOptions
from pyllama_spec.speculative import (
    Adapters,
    Round,
    SequenceRun,
    SequenceState,
    SpeculationStats,
    Step,
    StepSampler,
    Timing,
    TokenSampler,
    why_exact,
)
from pyllama_spec.speculative.acceptance import accepting_sampler
from pyllama_spec.speculative.prediction import Prediction

Ids = npt.NDArray[np.int32]


class _History:
    """The ids so far as an array for user functions; appending costs constant time."""

    def __init__(self, prompt: Sequence[int], capacity: int) -> None:
        self._ids = np.empty(max(capacity, len(prompt)) + 1, dtype=np.int32)
        self._ids[: len(prompt)] = prompt
        self._n = len(prompt)

    def append(self, token: int) -> None:
        self._ids[self._n] = token
        self._n += 1

    def view(self) -> Ids:
        """shape: [n] int32, read-only; later tokens do not change it."""
        ids = self._ids[: self._n]
        ids.flags.writeable = False
        return ids


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The natural logarithm of one token's probability, and the likeliest ids with theirs."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def token_logprob(logits: npt.NDArray[np.float32], token: int, n_top: int) -> TokenLogprob:
    """The log-softmax of one token and of the n_top likeliest, of logits [n_vocab] float32."""
    row = logits.astype(np.float64)
    peak = row.max()
    log_sum = peak + np.log(np.exp(row - peak).sum())
    n_top = min(n_top, row.size)
    top: tuple[tuple[int, float], ...] = ()
    if n_top:
        ids = np.argpartition(-row, n_top - 1)[:n_top]
        # Equal logits: the smaller id first, so that the order is the same every time.
        ids = ids[np.lexsort((ids, -row[ids]))]
        top = tuple((int(i), float(row[i] - log_sum)) for i in ids)
    return TokenLogprob(token, float(row[token] - log_sum), top)


class Observer:
    """Records committed tokens with their rows, for log-probabilities and stopping criteria."""

    def __init__(
        self, context: Context, options: RequestOptions, prompt: Sequence[int], max_tokens: int
    ) -> None:
        self._context = context
        self._n_top = options.logprobs
        self._criteria = options.criteria
        self.history = _History(prompt, len(prompt) + max_tokens)
        self.logprobs: list[TokenLogprob] = []
        self._n_tokens = 0
        # How many tokens there were when a stopping criterion said stop.
        self.n_stop: int | None = None

    def __call__(self, row: int, token: int) -> None:
        """Records a committed token, whose row of the last batch this is."""
        if self._n_top is not None:
            logits = self._context.logits(row)
            self.logprobs.append(token_logprob(logits, token, self._n_top))
        if self._criteria and self.n_stop is None:
            ids, logits = self.history.view(), np.array(self._context.logits(row))
            if any(stop(ids, logits) for stop in self._criteria):
                self.n_stop = self._n_tokens
        self._n_tokens += 1
        self.history.append(token)


class ProcessedSampler(StepSampler):
    """A sampler with logits processors, which see each position once, after committed tokens."""

    def __init__(
        self,
        sampler: Sampler,
        processors: Sequence[LogitsProcessor],
        history: _History,
    ) -> None:
        self._sampler = sampler
        self._processors = processors
        self._history = history

    def sample(self, context: Context, i: int) -> int:
        """See StepSampler.sample."""
        scores = np.array(context.logits(i))
        shape = scores.shape
        for processor in self._processors:
            returned = processor(self._history.view(), scores)
            scores = np.asarray(returned, dtype=np.float32)
            if returned is None or scores.shape != shape:
                raise ArgumentError(
                    "logits_processor", problem=f"returned {shown(returned)}",
                    expected=f"the scores, an array of shape {shape}",
                )  # fmt: skip
        if np.isnan(scores).any() or not np.isfinite(scores).any():
            raise ArgumentError(
                "logits_processor", problem="left no token, or a NaN, in the scores"
            )
        return self._sampler.sample_row(scores)

    def accept(self, token: int, *, generated: bool = True) -> None:
        """See StepSampler.accept."""
        self._sampler.accept(token, generated=generated)


Stage = Literal["new", "queued", "reading", "generating", "ended"]
# The source of a token that was not drafted.
TARGET = "target"


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of a generation, in order, with the tokens that it comes from.

    Attributes:
        text: whole characters; "" only in the last piece.
        tokens: the ids of the text: several if a character is split across tokens.
        from_draft: for each token, whether it was drafted and accepted.
        finish_reason: "stop" or "length" on the last piece, else None.
    """

    text: str
    tokens: tuple[int, ...] = ()
    from_draft: tuple[bool, ...] = ()
    finish_reason: str | None = None

    @property
    def is_drafted(self) -> bool:
        """Whether the piece has tokens, all of them drafted and accepted."""
        return bool(self.from_draft) and all(self.from_draft)


@dataclass(slots=True)
class _Group:
    """Tokens that together end at a whole character. Offsets count characters of the output."""

    start: int
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    from_draft: list[bool] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.start + len(self.text)

    def as_piece(self) -> Piece:
        return Piece(self.text, tuple(self.tokens), tuple(self.from_draft))

    def truncated(self, at: int) -> Piece:
        """The part before character `at`, where the text ends."""
        n = sum(start < at for start in self.starts)
        text = self.text[: max(at - self.start, 0)]
        return Piece(text, tuple(self.tokens[:n]), tuple(self.from_draft[:n]))


class Detokenizer:
    """Turns tokens into text, and emits it once no stop string can contain it.

    A stop is looked for after every token, so that the text does not depend on how many tokens a
    round committed. The stop string that begins first wins; of those that begin at one place the
    longest. One that ends within `min_tokens` has no effect.
    """

    def __init__(
        self,
        vocab: Vocab,
        stops: Sequence[str] = (),
        *,
        keep_stop: bool = False,
        min_tokens: int = 0,
        by_token: bool = False,
    ) -> None:
        self._vocab, self._by_token = vocab, by_token
        self._keep_stop, self._min_tokens = keep_stop, min_tokens
        # Where the text ended with the last token before which no stop string counts.
        self._n_unstoppable = 0
        self._stops = tuple(stops)
        self._sorted = sorted(self._stops)
        self._longest = max(map(len, self._stops), default=0)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._n_chars = 0
        # The text of the groups that are not emitted yet.
        self._held = ""
        self._complete: deque[_Group] = deque()
        self._open = _Group(0)
        self.stop: str | None = None
        self.n_fed = 0

    def feed(self, token: int, *, from_draft: bool = False) -> list[Piece]:
        """Takes the next token; returns the text that can be emitted."""
        group = self._open
        self.n_fed += 1
        if self._by_token:  # each at once, whether it ends on a whole character or not
            whole = self._vocab.piece(token).decode(errors="replace")
            return [Piece(whole, (token,), (from_draft,))]
        text = self._decoder.decode(self._vocab.piece(token))
        group.tokens.append(token)
        group.from_draft.append(from_draft)
        group.starts.append(self._n_chars)
        group.text += text
        self._n_chars += len(text)
        self._held += text
        # A control token has no text: it goes with what follows it.
        if group.text and not self._decoder.getstate()[0]:
            self._complete.append(group)
            self._open = _Group(self._n_chars)
        if self.n_fed <= self._min_tokens:
            self._n_unstoppable = self._n_chars
        elif text and (first_stop := self._find_stop()) is not None:
            at, self.stop = first_stop
            at += len(self.stop) if self._keep_stop else 0
            return self._end_at(self._n_chars - len(self._held) + at)
        return self._release(self._n_chars - self._n_uncertain())

    def flush(self) -> list[Piece]:
        """Returns the remaining text. Drops an unfinished character, but not its tokens."""
        pieces = self._release(self._n_chars)
        if self._open.tokens:
            pieces.append(self._open.as_piece())
            self._open = _Group(self._n_chars)
        return pieces

    def _find_stop(self) -> tuple[int, str] | None:
        """The position of the first stop string in the held text, and the string."""
        held, n_barred = self._held, self._n_unstoppable - (self._n_chars - len(self._held))
        stops = [
            (at, -len(stop), stop)
            for stop in self._stops
            if (at := held.find(stop, max(n_barred - len(stop) + 1, 0))) >= 0
        ]
        if not stops:
            return None
        at, _, stop = min(stops)
        return at, stop

    def _n_uncertain(self) -> int:
        """The length of the longest suffix of the text that a stop string starts with."""
        held, stops = self._held, self._sorted
        for n in range(min(self._longest - 1, len(held)), 0, -1):
            # Of the sorted stops, one that begins with these characters comes at or after them.
            at = bisect_right(stops, held[-n:])
            if at < len(stops) and stops[at].startswith(held[-n:]):
                return n
        return 0

    def _release(self, limit: int) -> list[Piece]:
        pieces: list[Piece] = []
        while self._complete and self._complete[0].end <= limit:
            group = self._complete.popleft()
            self._held = self._held[len(group.text) :]
            pieces.append(group.as_piece())
        return pieces

    def _end_at(self, at: int) -> list[Piece]:
        groups = [*self._complete, self._open]
        self._complete.clear()
        self._open, self._held = _Group(at), ""
        return [group.truncated(at) for group in groups if group.start < at]


@dataclass(frozen=True, slots=True)
class Request:
    """What a caller asked for.

    Attributes:
        prompt: the ids of the prompt.
        options: its options.
        seed: the seed of one without an own; None for a random one.
        last_n: how many past tokens the penalties see by default.
        by_token: whether each token is given at once, whole characters or not.
        adapters: the adapters that it is computed with.
        media: the rows of pictures in the prompt, whose ids are below 0.
    """

    prompt: tuple[int, ...]
    options: RequestOptions
    seed: int | None = None
    last_n: int = 64
    by_token: bool = False
    adapters: Adapters = None
    media: tuple[PlacedRows, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestStatus:
    """The state of a request.

    Attributes:
        stage: "new" before it is read or started; "queued" while it waits for a place; "reading"
            its prompt; "generating"; "ended".
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
        return usage_of([self])

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


def usage_of(records: Sequence[GenerationRecord], n: int = 1) -> dict[str, Any]:
    """The usage of answers, n to each prompt, which counts once, as its first answer read it."""
    firsts = records[::n]
    n_prompt = sum(len(record.prompt_tokens) for record in firsts)
    n_text = sum(len(record.tokens) for record in records)
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_text,
        "total_tokens": n_prompt + n_text,
        "prompt_tokens_details": {"cached_tokens": sum(record.n_cached for record in firsts)},
    }


def _why_exact(accepts: str, params: SamplerParams, options: RequestOptions) -> str | None:
    """The reason why a request accepts exactly in spite of its option; None without one."""
    if accepts == "exact":
        return None
    if accepts == "distribution" and options.processors:
        return "logits processors change the distribution"
    return why_exact(params, accepts)


class Run:
    """One request: its place in line, its sequence, its text.

    The runner's lock guards the fields of the queue. The rest is used by the thread that computes,
    and `record` by the thread that reads.

    Attributes:
        request, options: what was asked.
        record: what its reader has got.
        sequence: its run in the rounds; None before it begins.
        before, after: called in the computing thread with its sequence, before it begins, and when
            its text has ended, before another request gets the sequence.
        end_token: the token that ended the text, which is no part of it.
    """

    def __init__(
        self, model: Model, context: Context, request: Request, acceptance: str = "exact"
    ) -> None:
        options, prompt = request.options, request.prompt
        self.request, self.options, self.record = request, options, GenerationRecord(prompt)
        # Its pictures are read before it is in line.
        self.called_s = self._asked_s = perf_counter()
        # ---- its place in line
        self.ready: threading.Condition | None = None  # that there are pieces, or that it ended
        # Its position among those in line; lower is earlier, and -1 until it is in line.
        self.number = -1
        # Whether the thread that reads the request computes it.
        self.is_inline = False
        # How many pieces it may be ahead of its reader; None for a text that is read as a whole.
        self.max_ahead: int | None = None
        # When it has to have ended, by time.monotonic(); None for never.
        self.deadline = None if options.timeout_s is None else monotonic() + options.timeout_s
        # Called when `ready` is notified, for a reader that does not wait; it must not wait either.
        self.wake: Callable[[], None] | None = None
        self.pieces: deque[Piece] = deque()  # computed and not read
        self.state: SequenceState | None = None  # None without a place
        self.finish: str | None = None
        self.error: BaseException | None = None
        self.reason: CancelledError | None = None  # in place of a plain CancelledError
        self.is_cancelled = False
        self._n_read = -1  # prompt tokens that were read, once it has ended
        # ---- its text
        self.before: Callable[[SequenceState], None] | None = None
        self.after: Callable[[SequenceState], None] | None = None
        self.sequence: SequenceRun | None = None
        self.end_token: int | None = None
        self._stop_reason: str | int | None = None
        self._n_delivered = 0
        self._sources: list[str] = []  # of each token, with those of the last round after the end
        # The tokens before the last context shift.
        self._past: list[int] = []
        # The ids of the text, once it has ended, and where that end is in the sequence.
        self._tokens: list[int] | None = None
        self._n_end: int | None = None
        self._context, self._vocab = context, model.vocab
        self._round: Round | None = None
        params = options.sampler_params(model.vocab, seed=request.seed, last_n=request.last_n)
        accepts = options.acceptance or acceptance
        self._why_exact = _why_exact(accepts, params, options)
        self._sampler, self._draws = accepting_sampler(model, params, accepts, self._why_exact)
        self._detokenizer = Detokenizer(
            model.vocab, options.stops, keep_stop=options.include_stop_str_in_output,
            min_tokens=options.min_tokens, by_token=request.by_token,
        )  # fmt: skip
        # Here and not when it begins: then all requests would wait for its tokens.
        self._prediction = None if not options.prediction else Prediction(
            self._vocab.tokenize(options.prediction, add_special=False), len(prompt)
        ).propose  # fmt: skip
        self._max_tokens = self._token_limit(options.max_tokens)
        wants_rows = options.logprobs is not None or options.criteria or options.processors
        self._observer = (
            Observer(context, options, prompt, self._max_tokens) if wants_rows else None
        )

    def _token_limit(self, max_tokens: int | None) -> int:
        """The maximum number of generated tokens; as in llama-cpp-python the last needs room."""
        if self.options.context_shift and max_tokens is not None:
            return max_tokens
        room = max(self._context.n_ctx_seq - len(self.request.prompt), 1)
        return room if max_tokens is None or max_tokens <= 0 else min(max_tokens, room)

    # ---- its place in line

    @property
    def is_over(self) -> bool:
        """Whether the request ended, with or without an error."""
        return self.finish is not None or self.error is not None

    def notify(self) -> None:
        """Notifies the reader."""
        if self.ready is not None:
            self.ready.notify_all()
        if self.wake is not None:
            self.wake()

    def status(self, queue_position: int | None) -> RequestStatus:
        """The state of the request, for a queue position."""
        run, n_prompt, n_generated = self.sequence, len(self.request.prompt), self.n_generated
        stage: Stage = "generating" if n_generated else "reading"
        if self.is_over:
            stage = "ended"
        elif self.number < 0:
            stage = "new"
        elif queue_position is not None:
            stage = "queued"
        n_read = self._n_read
        if run is not None and n_read < 0:
            n_read = n_prompt if n_generated else min(run.state.n_decoded, n_prompt)
        n_read = max(n_read, 0)
        is_first = run is not None and not self.record.n_shifts
        n_cached = run.n_cached if is_first and run else self.record.n_cached
        n_cached = min(n_cached, n_read)  # it may begin just now
        return RequestStatus(stage, queue_position, n_prompt, n_read, n_cached, n_generated)

    # ---- its rounds

    @property
    def n_generated(self) -> int:
        """The number of tokens generated so far."""
        return len(self._past) + (0 if self.sequence is None else self.sequence.n_generated)

    def begin(self, round_: Round, loaded: Timing) -> SequenceRun:
        """Moves its sequence to the start of the prompt, and shows the prompt to the penalties."""
        prompt, options, n_ctx = self.request.prompt, self.options, self._context.n_ctx_seq
        state = self.state
        assert state is not None
        if len(prompt) >= n_ctx:
            raise ContextFullError.of_prompt(len(prompt), n_ctx)
        n_history = self._sampler.params.n_history if options.sees_prompt else 0
        n_seen = len(prompt) if n_history < 0 else min(n_history, len(prompt))
        for token in prompt[len(prompt) - n_seen :]:
            if token >= 0:  # no row of an image
                self._sampler.accept(token, generated=False)
        sampler: TokenSampler = self._sampler
        if options.processors and self._observer is not None:
            sampler = ProcessedSampler(self._sampler, options.processors, self._observer.history)
        self._round = round_
        if self.before is not None:
            self.before(state)
        self.record.timing = replace(loaded, queue_s=perf_counter() - self._asked_s)
        return self._begin(
            SequenceRun(
                state, prompt, sampler, self._max_tokens, self._observer,
                stats=self.record.stats, timing=self.record.timing,
                adapters=self.request.adapters, media=self.request.media,
                max_draft=options.n_draft,
                remember=options.remember, user=options.user or "",
                prediction=self._prediction, draws=self._draws,
            )
        )  # fmt: skip

    def _begin(self, run: SequenceRun) -> SequenceRun:
        assert self._round is not None
        run.stats.why_exact = self._why_exact
        if self._sampler.params.grammar is not None:
            run.forced = self._forced
        self._round.begin(run)
        self.sequence = run
        return run

    def _shift(self) -> None:
        """Shifts a full context: drops the older half of the tokens that may be dropped.

        What stays is read anew, as a prompt: it then has the rows that it has alone, in any kind of
        memory, and a drafter sees all of it.
        """
        run, prompt = self.sequence, self.request.prompt
        assert run is not None and self._round is not None
        tokens, options = list(run.state.tokens), self.options
        n_bos = int(prompt[0] == self._vocab.bos)
        n_keep = len(prompt) if options.n_keep < 0 else min(options.n_keep, len(prompt))
        # Some tokens have to go, or the next shift would come at once.
        n_keep = up_to_medium(tokens, min(max(n_keep, n_bos), len(tokens) // 2))
        end = n_keep + max((len(tokens) - n_keep) // 2, 1)
        while up_to_medium(tokens, end) < end:
            end += 1  # a picture stays or goes as a whole
        media = [
            one if one.start < n_keep else one._replace(start=one.start - end + n_keep)
            for one in run.media if not n_keep <= one.start < end
        ]  # fmt: skip
        self._past += tokens[len(run.prompt) :][: run.n_generated]
        self.record.n_shifts += 1
        self._begin(
            SequenceRun(
                run.state, [*tokens[:n_keep], *tokens[end:]], run.sampler,
                run.n_left, run.observe, stats=run.stats, timing=run.timing, adapters=run.adapters,
                max_draft=run.max_draft, remember=run.remember, user=run.user,
                prediction=run.prediction, draws=self._draws, media=media,
                is_cancelled=run.is_cancelled,
            )
        )  # fmt: skip

    @property
    def _n_before(self) -> int:
        """The sequence position at which the text starts; negative after a context shift."""
        assert self.sequence is not None
        return len(self.sequence.prompt) - len(self._past)

    def _forced(self, max_draft: int) -> Sequence[int]:
        """The tokens that the grammar forces next.

        The model may spell it with other tokens: these are a draft like any other. The last one is
        left out where the text continues, since what follows may belong to it.
        """
        text = self._sampler.forced()
        if len(text) < 2:
            return ()
        ids = self._vocab.tokenize(text, add_special=False)
        if self._vocab.detokenize(ids) != text:  # a space before, of vocabularies that put one
            return ()
        return ids[: min(max_draft, max(len(ids) - 1, 1))]

    # ---- its text

    def take(self, step: Step) -> tuple[list[Piece], str | None, BaseException | None]:
        """The pieces of a round up to the text's end, the finish reason and a callback's error.

        What a callback raised after that end, where only a draft has led, is not an error.
        """
        run = self.sequence
        assert run is not None
        if not run.timing.first_token_s and step.tokens:
            run.timing.first_token_s = perf_counter() - self.called_s
        if not self.record.n_shifts:
            self.record.n_cached = run.n_cached
        pieces, finish = self._take(step)
        if finish == "length" and step.error is None and self._may_shift():
            self._shift()
            return pieces, None, None
        if finish is not None:
            self.note_end()
            if self.after is not None and self.options.remember:
                with contextlib.suppress(Exception):  # the text is complete, whatever happens here
                    self.after(run.state)
        is_past_end = finish is not None and isinstance(step.error, Exception)
        return pieces, finish, None if is_past_end else step.error

    def _may_shift(self) -> bool:
        """Whether a text without room may shift the context."""
        run = self.sequence
        return self.options.context_shift and run is not None and run.n_left > 0

    def _take(self, step: Step) -> tuple[list[Piece], str | None]:
        pieces: list[Piece] = []
        finish, detokenizer = step.finish_reason, self._detokenizer
        n_stop = None if self._observer is None else self._observer.n_stop
        # The round says "stop" for an end token, which is not a text.
        tokens = step.tokens[:-1] if finish == "stop" else step.tokens
        for i, token in enumerate(tokens):
            is_stop = (
                token in self.options.stop_token_ids
                and detokenizer.n_fed >= self.options.min_tokens
            )
            if is_stop or detokenizer.n_fed == n_stop:
                self._n_end = self._n_before + detokenizer.n_fed
                if is_stop:
                    self._stop_reason = token
                    if self.options.include_stop_str_in_output:
                        pieces += self._feed(token, i, step)
                return [*pieces, *detokenizer.flush()], "stop"
            pieces += self._feed(token, i, step)
            if detokenizer.stop is not None:
                self._stop_reason = detokenizer.stop
                self._n_end = self._n_before + detokenizer.n_fed - 1
                return pieces, "stop"
        is_full = finish == "length" and self._may_shift()
        if finish is not None and not is_full:
            pieces += detokenizer.flush()
            if len(tokens) < len(step.tokens) and detokenizer.n_fed != n_stop:
                self.end_token = step.tokens[-1]
                if self.end_token in self.options.stop_token_ids:
                    self._stop_reason = self.end_token
        return pieces, finish

    def _feed(self, token: int, i: int, step: Step) -> list[Piece]:
        """Feeds token i of a round; returns the text that can be emitted."""
        is_drafted = i < step.n_accepted
        self._sources.append(step.who if is_drafted else TARGET)
        return self._detokenizer.feed(token, from_draft=is_drafted)

    def deliver(self, piece: Piece, *, in_sequence: bool) -> Piece:
        """Adds a piece to the record, and ends the text in memory with it.

        As without a draft its last token counts as not decoded yet. At the end of the text the
        memory has what the last round computed up to that end.
        """
        self._n_delivered += len(piece.tokens)
        if piece.finish_reason is not None:
            self.record.stop_reason = self._stop_reason
            if in_sequence:
                self.note_end()
        elif in_sequence and self.sequence is not None:
            self.sequence.state.n_given = max(self._n_before + self._n_delivered - 1, 0)
        logprobs = () if self._observer is None else self._observer.logprobs
        self.record.add(piece, logprobs, self._sources)
        return piece

    def note_end(self) -> None:
        """Ends the text in memory where its last round ended it."""
        if self.sequence is not None:
            self.sequence.state.n_given = self._n_end

    def _generated(self) -> list[int]:
        """The ids generated so far."""
        run = self.sequence
        if run is None:
            return list(self._past)
        return [*self._past, *run.state.tokens[len(run.prompt) :][: run.n_generated]]

    def attach_partial(self, error: BaseException) -> None:
        """Attaches the partial text to an error, if the exception takes attributes."""
        partial: Any = error
        tokens = self._generated() if self._tokens is None else self._tokens
        text = "".join((self.record.text, *(piece.text for piece in self.pieces)))
        with contextlib.suppress(Exception):  # the model may be closed by now
            tokens = [token for token in tokens if not self._vocab.is_eog(token)]
            # As its reader gets it: the beginning of a character waits for its end.
            decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
            text = decoder.decode(self._vocab.detokenize(tokens))
        with contextlib.suppress(Exception):
            partial.partial_tokens, partial.partial_text = tuple(tokens), text

    def hand_over_error(self) -> BaseException:
        """The error for a reader to raise, whose frames hold the model. A copy stays here."""
        error = self.error
        assert error is not None
        self.error = copied(error)
        return error

    def end(self, error: BaseException | None, finish: str | None) -> None:
        """Ends the request, and frees its sampler."""
        if error is not None:
            self.attach_partial(error)
        self._n_read = self.status(None).n_read
        self.error, self.finish = error, finish
        self.before = self.after = None
        if self.sequence is not None:
            if self._tokens is None:
                self._tokens = self._generated()
            # A method of this run: the two would keep the request's texts until the cycle
            # collector runs.
            self.sequence.forced = None
        if self._draws is not None:
            self._draws.close()
        self._sampler.close()


def copied(error: BaseException) -> BaseException:
    """A copy of an error, without its traceback; itself if it cannot be copied."""
    try:
        return copy.copy(error)
    except Exception:  # noqa: BLE001 - one of the user's
        return error
