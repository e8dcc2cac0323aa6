"""Token-level access to a model, as in llama-cpp-python: eval, sample, generate, scores."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from pyllama_spec.chat.prompts import check_fits
from pyllama_spec.engine import Batch, Sampler
from pyllama_spec.engine.checks import integer
from pyllama_spec.engine.exactness import FEW_ROWS
from pyllama_spec.errors import ArgumentError, BusyError, ContextFullError, UnsupportedError
from pyllama_spec.llama.open_model import LlamaState, OpenModel
from pyllama_spec.llama.overridable import Logits, OverridableTokens
from pyllama_spec.requests.generation import Generation
from pyllama_spec.requests.job import guided_sampler
from pyllama_spec.requests.logprobs import TokenLogprob, token_logprob
from pyllama_spec.requests.options import RequestOptions
from pyllama_spec.speculative import SequenceRun, SequenceState
from pyllama_spec.speculative.sequence import Adapters, n_common


class ScoreTable:
    """Rows of logits, each of a token of one text: a row of another text is never left."""

    def __init__(self) -> None:
        self._rows: Logits = np.zeros((0, 0), dtype=np.float32)
        self._tokens: list[int] = []
        self._adapters: Adapters = None
        self._filled: set[int] = set()
        # The row that came last, which the table may be too short for, and its place.
        self._newest: tuple[int, Logits] | None = None

    def table(self, n_rows: int, n_vocab: int) -> Logits:
        """[n_rows, n_vocab]: the rows, zeros where there is none; always the same array."""
        if not self._rows.size:
            self._rows = np.zeros((n_rows, n_vocab), dtype=np.float32)
        return self._rows

    def keep(self, tokens: Sequence[int], adapters: Adapters) -> None:
        """Drops the rows that are not of these tokens, or were computed with other adapters."""
        n = n_common(self._tokens, tokens) if self._adapters == adapters else 0
        if n == len(self._tokens):
            return
        self._tokens = self._tokens[:n]
        for at in [at for at in self._filled if at >= n]:
            self._rows[at] = 0
            self._filled.discard(at)
        if self._newest is not None and self._newest[0] >= n:
            self._newest = None

    def begin(self, tokens: Sequence[int], adapters: Adapters) -> None:
        """keep(), and rows of these tokens come next."""
        self.keep(tokens, adapters)
        self._tokens, self._adapters = list(tokens), adapters

    def put(self, at: int, row: Logits) -> None:
        """The row of a token, [n_vocab]; copied."""
        self._newest = (at, np.array(row))
        if at < len(self._rows):
            self._rows[at] = row
            self._filled.add(at)

    def has(self, at: int) -> bool:
        """Whether the table has the row of a token."""
        return at in self._filled

    def newest(self, at: int) -> Logits | None:
        """The row of a token, if it is the one that came last."""
        return self._newest[1] if self._newest is not None and self._newest[0] == at else None


class LowLevel:
    """The token-level calls. None of them runs beside a request.

    Every call is handed the Llama that it is made on: what a subclass overrides of
    OverridableTokens counts here too, and nothing here keeps a Llama alive.
    """

    def __init__(self, opened: OpenModel, logits_all: bool) -> None:
        self._opened, self.logits_all = opened, logits_all
        self._scores = ScoreTable()
        # Where the next eval() continues, if that is before the end of what the memory holds.
        self._n_back: int | None = None

    def state(self) -> SequenceState:
        """The sequence of the last text."""
        return self._opened.runtime.runner.latest()

    @property
    def n_tokens(self) -> int:
        """The number of tokens in memory of the last text, or less if set lower."""
        n = self.state().n_held
        return n if self._n_back is None else min(self._n_back, n)

    @n_tokens.setter
    def n_tokens(self, n: int) -> None:
        n_held = self.state().n_held
        n = integer(n, "n_tokens")
        if not 0 <= n <= n_held:
            raise ArgumentError(f"n_tokens={n} is outside 0 .. {n_held}, the number of tokens held")
        self._n_back = n

    def input_ids(self, llm: OverridableTokens) -> npt.NDArray[np.intc]:
        """A copy of [n_ctx] ids, of which the first n_tokens are valid."""
        ids = np.zeros(llm.n_ctx(), dtype=np.intc)
        tokens = self.state().tokens[: llm.n_tokens]
        ids[: len(tokens)] = tokens
        return ids

    def scores(self, llm: OverridableTokens) -> Logits:
        """[n_ctx, n_vocab] logits with logits_all, else [n_batch, n_vocab].

        Reads tokens again where a row that counts is missing: requests keep none.
        """
        table, state, n = self._table(llm), self.state(), llm.n_tokens
        self._scores.keep(state.tokens[: state.n_decoded], state.adapters)
        first = 0 if self.logits_all else max(n - 1, 0)
        missing = [at for at in range(first, n) if at < len(table) and not self._scores.has(at)]
        if missing:
            self._read_again(llm, missing[0])
        return table

    def _table(self, llm: OverridableTokens) -> Logits:
        rows = llm.n_ctx() if self.logits_all else self._opened.runtime.context.params.n_batch
        return self._scores.table(rows, llm.n_vocab())

    def _read_again(self, llm: OverridableTokens, first: int) -> None:
        """Evaluates the tokens in memory once more from one on, for their rows."""
        before, tokens = self._n_back, self.state().tokens[first : llm.n_tokens]
        llm.n_tokens = first
        try:
            self.eval(llm, tokens)
        except BaseException:
            self._n_back = before  # as inside of a request's callback, which may not evaluate
            raise

    def eval_tokens(self, llm: OverridableTokens) -> deque[int]:
        """The ids in memory."""
        return deque(self.state().tokens[: llm.n_tokens], maxlen=llm.n_ctx())

    def eval_logits(self, llm: OverridableTokens) -> deque[list[float]]:
        """The valid rows of `scores`: all tokens with logits_all, else the last one."""
        if self.logits_all:
            return deque(llm._scores.tolist(), maxlen=llm.n_ctx())
        return deque([self._row(llm, None).tolist()] if llm.n_tokens else [], maxlen=1)

    def load_state(self, state: LlamaState) -> None:
        """Restores a saved state."""
        self._opened.load_state(state)
        self._n_back = None

    def eval(self, llm: OverridableTokens, tokens: Sequence[int]) -> None:
        """Reads tokens after those in memory."""
        if not len(tokens):
            return
        runtime = self._opened.runtime
        with runtime.runner.visit() as state:
            n_before = llm.n_tokens
            held = state.tokens[:n_before]
            # One beyond the context is enough to know: there may be any number.
            prompt = [*held, *islice(tokens, llm.n_ctx() + 1)]
            if len(prompt) > llm.n_ctx():
                raise ContextFullError(
                    f"{len(held) + len(tokens)} tokens do not fit the context of {llm.n_ctx()}; "
                    "reset() begins a new text, and a larger n_ctx has room for longer ones"
                )
            self._table(llm)
            self._scores.begin(prompt, self._opened.adapters)
            if self.logits_all:
                for at, row in self._rows_of(state, prompt, n_before):
                    self._scores.put(at, row)
            else:
                self._scores.put(len(prompt) - 1, self._read(state, prompt))
            self._n_back = None  # a call that was refused leaves it
            runtime.context.pause_threads()

    def _read(self, state: SequenceState, prompt: Sequence[int]) -> Logits:
        """Reads a sequence to the end of a prompt; returns its last token's logits, [n_vocab]."""
        runtime = self._opened.runtime
        run = SequenceRun(state, prompt, adapters=self._opened.adapters)
        runtime.round.begin(run)
        while run.n_missing:
            for _, step in runtime.round.step([run]):
                if step.error is not None:
                    raise step.error
        assert run.ready_row is not None
        return np.array(runtime.context.logits(run.ready_row))

    def _rows_of(
        self, state: SequenceState, prompt: Sequence[int], max_held: int
    ) -> Iterator[tuple[int, Logits]]:
        """Reads a prompt; yields (position, row [n_vocab]), without max_held held ones at most."""
        runtime = self._opened.runtime
        context = runtime.context
        run = SequenceRun(state, prompt, adapters=self._opened.adapters, max_held=max_held)
        runtime.round.begin(run)
        runtime.round.use_adapters(run.adapters)
        # The drafter is not shown these rows: it forgets, and reads the text again when asked to.
        runtime.round.drafter.truncate(state.seq_id, 0)
        width = min(context.n_ubatch, context.n_batch)
        if n_outputs := context.params.n_outputs_max:
            # As many as the draft's length leaves room for: no more than are what each is alone,
            # or a prompt's log-probabilities would depend on that length.
            width = min(width, n_outputs, FEW_ROWS)
        batch = Batch(width)
        while state.n_decoded < len(prompt):
            at = state.n_decoded
            part = prompt[at : at + width]
            batch.clear()
            batch.extend(part, at, state.seq_id, output_all=True)
            context.decode(batch)
            state.n_decoded = at + len(part)
            yield from ((at + i, context.logits(i)) for i in range(len(part)))

    def prompt_logprobs(self, prompt: Sequence[int], n_top: int) -> list[TokenLogprob | None]:
        """The log-probability of each prompt token given those before it; None for the first."""
        runtime = self._opened.runtime
        entries: list[TokenLogprob | None] = [None]
        with runtime.runner.visit(oldest=True) as state:
            runtime.round.sequences.put_away(state)
            for at, row in self._rows_of(state, prompt, 0):
                if at + 1 < len(prompt):
                    entries.append(token_logprob(row, prompt[at + 1], n_top))
        return entries

    def sample(self, llm: OverridableTokens, idx: int | None, options: RequestOptions) -> int:
        """Samples a token after the tokens in memory, or after its first idx + 1 tokens."""
        row = self._row(llm, idx)
        ids = llm._input_ids
        for processor in options.processors:
            row = np.asarray(processor(ids, row), dtype=np.float32)
        model = self._opened.model
        params = options.sampler_params(
            model.vocab, seed=self._opened.seeds.draw(), last_n=llm.last_n_tokens_size
        )
        sampler = Sampler(model, params)
        try:
            guided = guided_sampler(model, sampler, options.guide)
            return (guided or sampler).sample_row(row)
        finally:
            sampler.close()

    def _row(self, llm: OverridableTokens, idx: int | None) -> Logits:
        n = llm.n_tokens
        if n == 0:
            raise ArgumentError("no tokens are in memory to sample from: call eval() first")
        state = self.state()
        self._scores.keep(state.tokens[: state.n_decoded], state.adapters)
        at = n - 1 if idx is None else idx if idx >= 0 else n + idx
        if at == n - 1:
            if (last := self._scores.newest(at)) is None:
                # A request, a saved state, or going back: the last token is read once more.
                self._read_again(llm, at)
                last = self._scores.newest(at)
                if last is None:
                    raise BusyError(
                        "another thread changed the text in memory meanwhile: read logits and "
                        "evaluate in one thread"
                    )
            return np.array(last)
        if not self.logits_all or not 0 <= at < n:
            raise ArgumentError(
                f"idx={idx!r}: the logits of tokens before the last are kept with "
                f"logits_all=True only, and there are {n} tokens"
            )
        return np.array(llm.scores[at])

    def generate(
        self, llm: OverridableTokens, tokens: Sequence[int], options: RequestOptions, *, reset: bool
    ) -> Generator[int, Sequence[int] | None, None]:
        """Yields the tokens after a prompt; with reset=False after the memory's tokens too."""
        check_fits(self._opened.model.vocab, tokens, llm.n_ctx())
        prompt = list(tokens) if reset else [*self.state().tokens[: llm.n_tokens], *tokens]
        generation = self.generation(llm, prompt, options, by_token=True)
        try:
            for piece in generation:
                for token in piece.tokens:
                    if (yield token) is not None:
                        raise UnsupportedError(
                            "tokens cannot be sent into generate(); eval() reads them"
                        )
                if piece.finish_reason == "stop" and (end := generation.end_token) is not None:
                    yield end
        finally:
            generation.close()

    def generation(
        self,
        llm: OverridableTokens,
        tokens: Sequence[int],
        request: RequestOptions,
        *,
        by_token: bool = False,
    ) -> Generation:
        """Prepares a request. It draws its seed now, in the order of the calls."""
        if request.n > 1:
            raise ArgumentError(
                f"n={request.n}: a generation has one answer; create_completion() and "
                "create_chat_completion() give several, or make a generation for each"
            )
        seed = self._opened.seeds.draw() if request.seed is None else None
        self._n_back = None
        return Generation(
            self._opened.runtime, tokens, request, seed=seed, last_n=llm.last_n_tokens_size,
            by_token=by_token, adapters=self._opened.adapters,
        )  # fmt: skip


def options_of_sampling(**keywords: Any) -> RequestOptions:
    """The options of sample() and generate(), which have no token limit."""
    return RequestOptions(max_tokens=None, **keywords)


def logits_to_logprobs(logits: npt.ArrayLike, axis: int = -1) -> Logits:
    """Log-softmax along an axis, [...] float32; minus infinity stays."""
    rows = np.asarray(logits, dtype=np.float32)
    peak = np.max(rows, axis=axis, keepdims=True)
    shifted = rows - np.where(np.isfinite(peak), peak, 0)
    with np.errstate(divide="ignore"):
        log_sum = np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))
    return np.asarray(shifted - log_sum, dtype=np.float32)
