"""A running request: connects a sequence's run with the pieces of its text."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from pyllama_spec.constraints import Guide
from pyllama_spec.engine import Context, Model, Sampler, SamplerParams
from pyllama_spec.engine.closeable import closed_on_failure
from pyllama_spec.errors import ArgumentError, ContextFullError, shown
from pyllama_spec.requests.detokenizer import Detokenizer, Piece, TokenByToken
from pyllama_spec.requests.logprobs import TokenLogprob, token_logprob
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
from pyllama_spec.speculative.rejection import BY_GRAMMAR, accepting_sampler
from pyllama_spec.speculative.sequence import Prediction

if TYPE_CHECKING:
    from pyllama_spec.requests.guided import GuidedSampler

Ids = npt.NDArray[np.int32]
# The source of a token that was not drafted.
TARGET = "target"


def _why_exact(accepts: str, params: SamplerParams, options: RequestOptions) -> str | None:
    """The reason why a request accepts exactly in spite of its option; None without one."""
    if accepts == "exact":
        return None
    if accepts == "distribution" and options.guide is not None:
        return BY_GRAMMAR
    if accepts == "distribution" and options.processors:
        return "logits processors change the distribution"
    return why_exact(params, accepts)


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


def _called(function: Callable[..., Any], kind: str, ids: Ids, logits: Any) -> Any:
    """Calls a user function; returns its result."""
    try:
        returned = function(ids, logits)
        return bool(returned) if kind == "stopping_criteria" else returned
    except (StopIteration, GeneratorExit) as error:
        raise ArgumentError(
            kind, problem=f"of {function!r} raised {type(error).__name__}"
        ) from error


class Keeper(Protocol):
    """Keeps the content of sequences for later requests; called in the computing thread.

    An exception before the request is the request's error; one after it is ignored.
    """

    def before(self, state: SequenceState, prompt: Sequence[int]) -> None:
        """Called before a request starts on a sequence, whose content may be anything."""
        ...

    def behind(self, state: SequenceState) -> None:
        """Called when a text has ended, before another request gets the sequence."""
        ...


def guided_sampler(model: Model, sampler: Sampler, guide: Guide | None) -> GuidedSampler | None:
    """A sampler constrained by a guide, if the request has one."""
    if guide is None:
        return None
    # With the first such request: what follows guides is a library of its own.
    from pyllama_spec.requests.guided import GuidedSampler

    with closed_on_failure(sampler):
        return GuidedSampler(model, sampler, guide)


class _ProcessedSampler(StepSampler):
    """A sampler with logits processors, which see each position once, after committed tokens."""

    def __init__(
        self,
        sampler: Sampler | GuidedSampler,
        processors: Sequence[LogitsProcessor],
        history: _History,
    ) -> None:
        self._sampler = sampler
        self._processors = processors
        self._history = history

    def sample(self, context: Context, i: int) -> int:
        scores = np.array(context.logits(i))
        shape = scores.shape
        for processor in self._processors:
            returned = _called(processor, "logits_processor", self._history.view(), scores)
            try:
                scores = np.asarray(returned, dtype=np.float32)
            except (TypeError, ValueError, OverflowError) as error:
                raise ArgumentError(
                    "logits_processor", processor, f"scores as its result: {error}"
                ) from None
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
        self._sampler.accept(token, generated=generated)


class _Observer:
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
        if self._n_top is not None:
            logits = self._context.logits(row)
            self.logprobs.append(token_logprob(logits, token, self._n_top))
        if self._criteria and self.n_stop is None:
            ids, logits = self.history.view(), np.array(self._context.logits(row))
            if any(_called(stop, "stopping_criteria", ids, logits) for stop in self._criteria):
                self.n_stop = self._n_tokens
        self._n_tokens += 1
        self.history.append(token)


class Job:
    """A request's work on the model, and the text of its tokens.

    `stop_reason` is the stop string or the id of the token, of the request's, that ended the text;
    `end_token` the token that did, which is no part of it. `sources` has the source of each token
    of the text, and of those of the last round that are not in it.
    """

    def __init__(
        self,
        model: Model,
        context: Context,
        prompt: Sequence[int],
        options: RequestOptions,
        *,
        seed: int | None,
        last_n: int,
        by_token: bool = False,
        adapters: Adapters = None,
        acceptance: str = "exact",
    ) -> None:
        self._asked_s = perf_counter()
        self.prompt = tuple(prompt)
        self.run: SequenceRun | None = None
        self.adapters = adapters
        self.keeper: Keeper | None = None
        self.end_token: int | None = None
        self.stop_reason: str | int | None = None
        self.n_shifts = self._n_cached = 0
        self.sources: list[str] = []
        self._context, self._vocab = context, model.vocab
        params = options.sampler_params(model.vocab, seed=seed, last_n=last_n)
        accepts = options.acceptance or acceptance
        self._why_exact = _why_exact(accepts, params, options)
        self._sampler, self._rejection, self._noise = accepting_sampler(
            model, params, accepts, self._why_exact
        )
        self._guided = guided_sampler(model, self._sampler, options.guide)
        pieces = TokenByToken if by_token else Detokenizer
        self._detokenizer = pieces(
            model.vocab, options.stops, keep_stop=options.include_stop_str_in_output,
            min_tokens=options.min_tokens,
        )  # fmt: skip
        self._stop_ids = frozenset(options.stop_token_ids)
        self._texts: list[str] = []
        # The runs before this one, of a text that is longer than the context, and their tokens.
        self._past: list[int] = []
        self._past_stats, self._past_timing = SpeculationStats(), Timing()
        self._round: Round | None = None
        self._n_delivered = 0
        # The ids of the text, once it has ended.
        self._tokens: list[int] | None = None
        self._n_end: int | None = None
        self.options = options
        # Here and not when it begins: then all requests would wait for its tokens.
        self._prediction = self._predicted()
        self._max_tokens = self._token_limit(options.max_tokens)
        wants_rows = options.logprobs is not None or options.criteria or options.processors
        self._observer = (
            _Observer(context, options, self.prompt, self._max_tokens) if wants_rows else None
        )

    def _token_limit(self, max_tokens: int | None) -> int:
        """The maximum number of generated tokens; as in llama-cpp-python the last needs room."""
        if self.options.context_shift and max_tokens is not None:
            return max_tokens
        room = max(self._context.n_ctx_seq - len(self.prompt), 1)
        return room if max_tokens is None or max_tokens <= 0 else min(max_tokens, room)

    @property
    def logprobs(self) -> Sequence[TokenLogprob]:
        """The log-probabilities of all tokens so far, if requested."""
        return () if self._observer is None else self._observer.logprobs

    @property
    def stats(self) -> SpeculationStats:
        """The statistics so far."""
        run = self.run
        if run is None or not self.n_shifts:
            return SpeculationStats() if run is None else run.stats
        stats = SpeculationStats()
        stats.add(self._past_stats)
        stats.add(run.stats)
        return stats

    @property
    def n_generated(self) -> int:
        """The number of tokens generated so far."""
        return len(self._past) + (0 if self.run is None else self.run.n_generated)

    @property
    def n_cached(self) -> int:
        """The number of prompt tokens that were not decoded again."""
        return self._n_cached if self.n_shifts or self.run is None else self.run.n_cached

    @property
    def timing(self) -> Timing:
        """The seconds of the request so far."""
        run = self.run
        if run is None or not self.n_shifts:
            return Timing() if run is None else run.timing
        return self._past_timing.plus(run.timing)

    def begin(self, round_: Round, state: SequenceState, loaded: Timing) -> SequenceRun:
        """Moves a sequence to the start of the prompt, and shows the prompt to the penalties."""
        n_ctx = self._context.n_ctx_seq
        if len(self.prompt) >= n_ctx:
            raise ContextFullError.of_prompt(len(self.prompt), n_ctx)
        n_history = self._sampler.params.n_history if self.options.sees_prompt else 0
        n_seen = len(self.prompt) if n_history < 0 else min(n_history, len(self.prompt))
        for token in self.prompt[len(self.prompt) - n_seen :]:
            self._sampler.accept(token, generated=False)
        row_sampler = self._guided or self._sampler
        token_sampler: TokenSampler = row_sampler
        if self.options.processors and self._observer is not None:
            processors = self.options.processors
            token_sampler = _ProcessedSampler(row_sampler, processors, self._observer.history)
        self._round = round_
        run = SequenceRun(
            state,
            self.prompt,
            token_sampler,
            self._max_tokens,
            self._observer,
            timing=replace(loaded, queue_s=perf_counter() - self._asked_s),
            adapters=self.adapters,
            max_draft=self.options.n_draft,
            remember=self.options.remember,
            user=self.options.user or "",
            prediction=self._prediction,
            rejection=self._rejection,
            noise=self._noise,
        )
        self._begin(run)
        return run

    def _begin(self, run: SequenceRun) -> None:
        assert self._round is not None
        run.stats.why_exact = self._why_exact
        if self._guided is not None:
            run.forced = self._guided.forced
        elif self._sampler.params.grammar is not None:
            run.forced = self._forced
        if self.keeper is not None and not self.n_shifts:
            self.keeper.before(run.state, self.prompt)
        self._round.begin(run)
        self.run = run

    def _shift(self) -> None:
        """Shifts a full context: drops the older half of the tokens that may be dropped.

        What stays is read anew, as a prompt: it then has the rows that it has alone, in any kind of
        memory, and a drafter sees all of it.
        """
        run = self.run
        assert run is not None
        tokens, options = list(run.state.tokens), self.options
        n_bos = int(self.prompt[0] == self._vocab.bos)
        n_keep = len(self.prompt) if options.n_keep < 0 else min(options.n_keep, len(self.prompt))
        # Some tokens have to go, or the next shift would come at once.
        n_keep = min(max(n_keep, n_bos), len(tokens) // 2)
        n_forgotten = max((len(tokens) - n_keep) // 2, 1)
        self._past += tokens[len(run.prompt) :][: run.n_generated]
        self._past_stats.add(run.stats)
        self._past_timing = self._past_timing.plus(run.timing)
        self._n_cached = self.n_cached
        self.n_shifts += 1
        assert self._round is not None
        self._round.scheduler.pause(run)
        self._begin(
            SequenceRun(
                run.state, [*tokens[:n_keep], *tokens[n_keep + n_forgotten :]], run.sampler,
                run.n_left, run.observe, adapters=run.adapters, is_cancelled=run.is_cancelled,
                max_draft=run.max_draft,
                remember=run.remember, user=run.user,
                prediction=run.prediction, rejection=self._rejection, noise=self._noise,
                n_before=len(self._past),
            )
        )  # fmt: skip

    def _predicted(self) -> Prediction | None:
        """The tokens of the prediction."""
        text = self.options.prediction
        if not text:
            return None
        return Prediction(self._vocab.tokenize(text, add_special=False), len(self.prompt))

    @property
    def _n_before(self) -> int:
        """The sequence position at which the text starts; negative after a context shift."""
        assert self.run is not None
        return len(self.run.prompt) - len(self._past)

    def keep(self, state: SequenceState) -> None:
        """Stores the sequence after the last round; nothing for a private request."""
        if self.keeper is not None and self.options.remember:
            with contextlib.suppress(Exception):  # the text is complete, whatever happens here
                self.keeper.behind(state)

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

    def take(self, step: Step) -> tuple[list[Piece], str | None, BaseException | None]:
        """The pieces of a round up to the text's end, the finish reason and a callback's error.

        What a callback raised after that end, where only a draft has led, is not an error.
        """
        if self.run is not None and not self.run.timing.first_token_s and step.tokens:
            self.run.timing.first_token_s = perf_counter() - self._asked_s
        pieces, finish = self._take(step)
        self._texts += [piece.text for piece in pieces]
        if finish == "length" and step.error is None and self._may_shift():
            self._shift()
            return pieces, None, None
        if finish is not None:
            self.note_end()
        is_past_end = finish is not None and isinstance(step.error, Exception)
        return pieces, finish, None if is_past_end else step.error

    def _may_shift(self) -> bool:
        """Whether a text without room may shift the context."""
        return self.options.context_shift and self.run is not None and self.run.n_left > 0

    def _take(self, step: Step) -> tuple[list[Piece], str | None]:
        pieces: list[Piece] = []
        finish, detokenizer = step.finish_reason, self._detokenizer
        n_stop = None if self._observer is None else self._observer.n_stop
        # The round says "stop" for an end token, which is not a text.
        tokens = step.tokens[:-1] if finish == "stop" else step.tokens
        for i, token in enumerate(tokens):
            is_stop = token in self._stop_ids and detokenizer.n_fed >= self.options.min_tokens
            if is_stop or detokenizer.n_fed == n_stop:
                self._n_end = self._n_before + detokenizer.n_fed
                if is_stop:
                    self.stop_reason = token
                    if self.options.include_stop_str_in_output:
                        pieces += self._feed(token, i, step)
                return [*pieces, *detokenizer.flush()], "stop"
            pieces += self._feed(token, i, step)
            if detokenizer.stop is not None:
                self.stop_reason = detokenizer.stop
                self._n_end = self._n_before + detokenizer.n_fed - 1
                return pieces, "stop"
        is_full = finish == "length" and self._may_shift()
        if finish is not None and not is_full:
            pieces += detokenizer.flush()
            if len(tokens) < len(step.tokens) and detokenizer.n_fed != n_stop:
                self.end_token = step.tokens[-1]
                if self.end_token in self._stop_ids:
                    self.stop_reason = self.end_token
        return pieces, finish

    def _feed(self, token: int, i: int, step: Step) -> list[Piece]:
        """Feeds token i of a round; returns the text that can be emitted."""
        is_drafted = i < step.n_accepted
        self.sources.append(step.who if is_drafted else TARGET)
        return self._detokenizer.feed(token, from_draft=is_drafted)

    def note_delivered(self, piece: Piece, *, in_sequence: bool) -> None:
        """Called before a piece is delivered: the text in memory then ends with it.

        As without a draft its last token counts as not decoded yet.
        """
        self._n_delivered += len(piece.tokens)
        if in_sequence and self.run is not None:
            self.run.state.n_given = max(self._n_before + self._n_delivered - 1, 0)

    def note_end(self) -> None:
        """Called when all is delivered: the text ends in its last round, at its end or before."""
        if self.run is not None:
            self.run.state.n_given = self._n_end

    def _generated(self) -> list[int]:
        """The ids generated so far."""
        run = self.run
        if run is None:
            return list(self._past)
        return [*self._past, *run.state.tokens[len(run.prompt) :][: run.n_generated]]

    def attach_partial(self, error: BaseException) -> None:
        """Attaches the partial text to an error, if the exception takes attributes."""
        partial: Any = error
        tokens = self._generated() if self._tokens is None else self._tokens
        text = "".join(self._texts)
        with contextlib.suppress(Exception):  # the model may be closed by now
            tokens = [token for token in tokens if not self._vocab.is_eog(token)]
            text = self._vocab.detokenize(tokens).decode(errors="ignore")
        with contextlib.suppress(Exception):
            partial.partial_tokens, partial.partial_text = tuple(tokens), text

    def close(self) -> None:
        """Frees the sampler and releases the sequence."""
        if self.run is not None:
            if self._tokens is None:
                self._tokens = self._generated()
            # It is a method of this job, which has the run: the two would keep the request's texts
            # until the cycle collector runs.
            self.run.forced = None
        for draws in (self._rejection, self._noise):
            if draws is not None:
                draws.close()
        self._sampler.close()
