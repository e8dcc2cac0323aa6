"""Token-level calls of a Llama, as in llama-cpp-python: eval, sample, generate, scores, states."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from pyllama_spec.chat.prompts import check_fits
from pyllama_spec.engine import Sampler
from pyllama_spec.engine.checks import integer
from pyllama_spec.errors import ArgumentError, BusyError, ContextFullError, UnsupportedError
from pyllama_spec.llama.caches import longest_token_prefix
from pyllama_spec.llama.open_model import LlamaState, Logits, OpenModel
from pyllama_spec.requests.job import guided_sampler
from pyllama_spec.requests.options import LogitsProcessor, RequestOptions, StoppingCriterion
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


class TokenCalls:
    """The token-level calls of Llama, for programs with their own loop, and its saved states.

    They call each other through `self`: what a subclass overrides counts. None of them runs beside
    a request.
    """

    last_n_tokens_size: int
    _opened: OpenModel
    _logits_all: bool
    _score_table: ScoreTable

    def n_ctx(self) -> int:
        """The maximum number of tokens of prompt and text together."""
        return self._opened.runtime.context.n_ctx_seq

    def n_vocab(self) -> int:
        """The size of the vocabulary."""
        return self._opened.model.info.n_vocab

    # ---- the state of the conversation

    def set_seed(self, seed: int | None) -> None:
        """Restarts the seed stream, from which requests without a seed draw."""
        self._opened.seeds.begin(seed)

    def reset(self) -> None:
        """Forgets the text. Never necessary: texts do not depend on it."""
        self._opened.reset()

    def save_state(self) -> LlamaState:
        """Saves the last request's text for load_state() of this or an equal Llama.

        Waits in line for a place without a request.

        Raises:
            BusyError: called by a callback of a running request.

        """
        return self._opened.save_state()

    def load_state(self, state: LlamaState) -> None:
        """Restores a saved state; the next request with its prefix does not read that again.

        Raises:
            ArgumentError: the state is damaged or of another model or settings. What the model
                held before may be forgotten then.
            ContextFullError: the state has more tokens than n_ctx.
            BusyError: called by a callback of a running request.

        """
        self._opened.load_state(state)

    # ---- token by token

    @property
    def n_tokens(self) -> int:
        """The number of tokens in memory of the last text. Set it lower to go back."""
        n, n_back = self._opened.latest().n_held, self._opened.n_back
        return n if n_back is None else min(n_back, n)

    @n_tokens.setter
    def n_tokens(self, n: int) -> None:
        n_held = self._opened.latest().n_held
        n = integer(n, "n_tokens")
        if not 0 <= n <= n_held:
            raise ArgumentError("n_tokens", n, f"0 to {n_held}, the tokens that are held")
        self._opened.n_back = n

    @property
    def input_ids(self) -> npt.NDArray[np.intc]:
        """A copy of [n_ctx] ids, of which the first n_tokens are valid."""
        ids = np.zeros(self.n_ctx(), dtype=np.intc)
        tokens = self._opened.latest().tokens[: self.n_tokens]
        ids[: len(tokens)] = tokens
        return ids

    @property
    def _input_ids(self) -> npt.NDArray[np.intc]:
        return self.input_ids[: self.n_tokens]

    @property
    def scores(self) -> Logits:
        """Logits: [n_ctx, n_vocab] with logits_all, else [n_batch, n_vocab].

        Row i is that of token i; the first n_tokens rows count. Without logits_all only that of the
        last token is sure to be there, and only if n_batch is large enough. After a request or
        load_state() the rows are missing: reading this evaluates those tokens once more.

        Raises:
            BusyError: rows are missing, and a callback of a running request asks for them.

        """
        table, state, n = self._table(), self._opened.latest(), self.n_tokens
        self._score_table.keep(state.tokens[: state.n_decoded], state.adapters)
        first = 0 if self._logits_all else max(n - 1, 0)
        missing = (at for at in range(first, n) if at < len(table))
        again = next((at for at in missing if not self._score_table.has(at)), None)
        if again is not None:
            self._read_again(again)
        return table

    def _table(self) -> Logits:
        n_batch = self._opened.runtime.context.params.n_batch
        return self._score_table.table(
            self.n_ctx() if self._logits_all else n_batch, self.n_vocab()
        )

    def _read_again(self, first: int) -> None:
        """Evaluates the tokens in memory once more from one on, for their rows."""
        before, tokens = self._opened.n_back, self._opened.latest().tokens[first : self.n_tokens]
        self.n_tokens = first
        try:
            TokenCalls.eval(self, tokens)
        except BaseException:
            self._opened.n_back = before  # as in a request's callback, which may not evaluate
            raise

    @property
    def _scores(self) -> Logits:
        return self.scores[: self.n_tokens, :]

    @property
    def eval_tokens(self) -> deque[int]:
        """The ids in memory."""
        return deque(self._opened.latest().tokens[: self.n_tokens], maxlen=self.n_ctx())

    @property
    def eval_logits(self) -> deque[list[float]]:
        """The valid rows of `scores`: all tokens with logits_all, else the last one."""
        if self._logits_all:
            return deque(self._scores.tolist(), maxlen=self.n_ctx())
        return deque([self._row(None).tolist()] if self.n_tokens else [], maxlen=1)

    def eval(self, tokens: Sequence[int]) -> None:
        """Reads tokens after those in memory.

        Raises:
            ContextFullError: the tokens do not fit.
            ArgumentError: an id is outside the vocabulary.
            BusyError: called by a callback of a running request.

        """
        if not len(tokens):
            return
        opened, table = self._opened, self._score_table
        with opened.runtime.runner.visit() as state:
            n_before = self.n_tokens
            held = state.tokens[:n_before]
            # One beyond the context is enough to know: there may be any number.
            prompt = [*held, *islice(tokens, self.n_ctx() + 1)]
            if len(prompt) > self.n_ctx():
                raise ContextFullError(
                    n_tokens=len(held) + len(tokens), n_ctx=self.n_ctx(),
                    remedy="begin a new text with reset()", setup="choose a larger `n_ctx`",
                )  # fmt: skip
            self._table()
            table.begin(prompt, opened.adapters)
            if self._logits_all:
                for at, row in opened.rows_of(state, prompt, n_before):
                    table.put(at, row)
            else:
                table.put(len(prompt) - 1, opened.last_row_of(state, prompt))
            opened.n_back = None  # a call that was refused leaves it
            opened.runtime.context.pause_threads()

    # fmt: off
    def sample(  # noqa: D417 - the like share a line
        self, top_k: int = 40, top_p: float = 0.95, min_p: float = 0.05, typical_p: float = 1.0,
        temp: float = 0.80, repeat_penalty: float = 1.0, frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0, tfs_z: float = 1.0, mirostat_mode: int = 0,
        mirostat_eta: float = 0.1, mirostat_tau: float = 5.0, penalize_nl: bool = True,
        logits_processor: Any = None, grammar: Any = None, idx: int | None = None,
    ) -> int:
        # fmt: on
        """Samples a token after the tokens in memory, whichever call read them.

        Args:
            idx: the token to sample after, from 0; None for the last one. Others need logits_all.
            penalize_nl: no effect: the engine no longer has this exception.
            top_k, top_p, min_p, typical_p, temp, repeat_penalty, frequency_penalty,
                presence_penalty, tfs_z, mirostat_mode, mirostat_eta, mirostat_tau,
                logits_processor, grammar: as of a request.

        Raises:
            ArgumentError: nothing was read yet, or there is no row at idx.

        """
        options = RequestOptions(
            max_tokens=None, top_k=top_k, top_p=top_p, min_p=min_p, typical_p=typical_p,
            temperature=temp, repeat_penalty=repeat_penalty, frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty, tfs_z=tfs_z, mirostat_mode=mirostat_mode,
            mirostat_eta=mirostat_eta, mirostat_tau=mirostat_tau,
            logits_processor=logits_processor, grammar=grammar,
        )  # fmt: skip
        row, ids, model = self._row(idx), self._input_ids, self._opened.model
        for processor in options.processors:
            row = np.asarray(processor(ids, row), dtype=np.float32)
        params = options.sampler_params(
            model.vocab, seed=self._opened.seeds.draw(), last_n=self.last_n_tokens_size
        )
        sampler = Sampler(model, params)
        try:
            return (guided_sampler(model, sampler, options.guide) or sampler).sample_row(row)
        finally:
            sampler.close()

    def _row(self, idx: int | None) -> Logits:
        n, table = self.n_tokens, self._score_table
        if n == 0:
            raise ArgumentError(problem="no tokens are in memory to sample from", remedy="call "
            "eval() first")
        state = self._opened.latest()
        table.keep(state.tokens[: state.n_decoded], state.adapters)
        at = n - 1 if idx is None else idx if idx >= 0 else n + idx
        if at == n - 1:
            if table.newest(at) is None:
                # A request, a saved state, or going back: the last token is read once more.
                self._read_again(at)
            if (last := table.newest(at)) is None:
                raise BusyError(
                    "another thread changed the text in memory meanwhile: read logits and "
                    "evaluate in one thread"
                )
            return np.array(last)
        if not self._logits_all or not 0 <= at < n:
            raise ArgumentError(
                "idx", idx, f"the last of {n} tokens", "`logits_all=True` keeps the logits of "
                "the others"
            )
        return np.array(self.scores[at])

    # fmt: off
    def generate(  # noqa: D417 - the like share a line
        self, tokens: Sequence[int], top_k: int = 40, top_p: float = 0.95, min_p: float = 0.05,
        typical_p: float = 1.0, temp: float = 0.80, repeat_penalty: float = 1.0, reset: bool = True,
        frequency_penalty: float = 0.0, presence_penalty: float = 0.0, tfs_z: float = 1.0,
        mirostat_mode: int = 0, mirostat_tau: float = 5.0, mirostat_eta: float = 0.1,
        penalize_nl: bool = True,
        logits_processor: LogitsProcessor | Sequence[LogitsProcessor] | None = None,
        stopping_criteria: StoppingCriterion | Sequence[StoppingCriterion] | None = None,
        grammar: Any = None,
    ) -> Generator[int, Sequence[int] | None, None]:
        # fmt: on
        """Yields the tokens after a prompt, drafted where that is faster.

        Stops after an end token, which it yields too, and at the end of the context.

        Args:
            tokens: the ids of the prompt.
            reset: whether to start a new text; False continues after the tokens in memory.
            penalize_nl: no effect: the engine no longer has this exception.
            top_k, top_p, min_p, typical_p, temp, repeat_penalty, frequency_penalty,
                presence_penalty, tfs_z, mirostat_mode, mirostat_tau, mirostat_eta,
                logits_processor, stopping_criteria, grammar: as of a request.

        Raises:
            ContextFullError: the prompt leaves no room for a token.
            UnsupportedError: a token was sent into the generator.

        """
        options = RequestOptions(
            max_tokens=None, top_k=top_k, top_p=top_p, min_p=min_p, typical_p=typical_p,
            temperature=temp, repeat_penalty=repeat_penalty, frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty, tfs_z=tfs_z, mirostat_mode=mirostat_mode,
            mirostat_eta=mirostat_eta, mirostat_tau=mirostat_tau,
            logits_processor=logits_processor, stopping_criteria=stopping_criteria, grammar=grammar,
        )  # fmt: skip
        check_fits(self._opened.model.vocab, tokens, self.n_ctx())
        held = [] if reset else self._opened.latest().tokens[: self.n_tokens]
        generation = self._opened.generation(
            [*held, *tokens], options, last_n=self.last_n_tokens_size, by_token=True
        )
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

    @staticmethod
    def logits_to_logprobs(logits: npt.ArrayLike, axis: int = -1) -> Logits:
        """Log-softmax along an axis, [...] float32; minus infinity stays."""
        rows = np.asarray(logits, dtype=np.float32)
        peak = np.max(rows, axis=axis, keepdims=True)
        shifted = rows - np.where(np.isfinite(peak), peak, 0)
        with np.errstate(divide="ignore"):
            log_sum = np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))
        return np.asarray(shifted - log_sum, dtype=np.float32)

    @staticmethod
    def longest_token_prefix(a: Sequence[int], b: Sequence[int]) -> int:
        """The length of the common prefix of two token lists."""
        return longest_token_prefix(a, b)
