"""Llama token by token, as llama-cpp-python has it: eval, sample, generate, scores."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pyllama_spec.engine import Batch, Sampler
from pyllama_spec.engine.checks import integer
from pyllama_spec.errors import ArgumentError, ContextFullError, UnsupportedError
from pyllama_spec.llama.caches import longest_token_prefix
from pyllama_spec.llama.open_model import LlamaState, OpenModel
from pyllama_spec.requests.generation import Generation
from pyllama_spec.requests.job import guided_sampler
from pyllama_spec.requests.logprobs import TokenLogprob, token_logprob
from pyllama_spec.requests.options import LogitsProcessor, RequestOptions, StoppingCriterion
from pyllama_spec.speculative import SequenceRun, SequenceState

Logits = npt.NDArray[np.float32]


class LowLevel(OpenModel):
    """What programs use that drive the model themselves. None of it runs beside a request."""

    _logits_all = False
    # Of the last token that eval() computed, and of all of them where logits_all asks for it.
    _last_logits: Logits | None = None
    _all_logits: Logits | None = None

    # Where the next eval() goes on, if that is before the end of what the memory holds.
    _n_back: int | None = None

    @property
    def n_tokens(self) -> int:
        """How many tokens the memory holds of the last text. May be set lower, to go back."""
        n = self._state().n_held
        return n if self._n_back is None else min(self._n_back, n)

    @n_tokens.setter
    def n_tokens(self, n: int) -> None:
        held = self._state().n_held
        n = integer(n, "n_tokens")
        if not 0 <= n <= held:
            raise ArgumentError(f"n_tokens={n} is outside 0 .. {held}, what there is")
        self._n_back, self._last_logits = n, None

    @property
    def input_ids(self) -> npt.NDArray[np.intc]:
        """[n_ctx] ids, of which the first n_tokens count; a copy."""
        ids = np.zeros(self.n_ctx(), dtype=np.intc)
        tokens = self._state().tokens[: self.n_tokens]
        ids[: len(tokens)] = tokens
        return ids

    @property
    def _input_ids(self) -> npt.NDArray[np.intc]:
        return self.input_ids[: self.n_tokens]

    @property
    def scores(self) -> Logits:
        """Logits of eval(): [n_ctx, n_vocab] with logits_all, else [n_batch, n_vocab].

        Row i is that of token i. Without logits_all only the row of the last token is there.
        """
        if self._all_logits is None:
            rows = self.n_ctx() if self._logits_all else self._runtime.context.params.n_batch
            self._all_logits = np.zeros((rows, self.n_vocab()), dtype=np.float32)
        return self._all_logits

    @property
    def _scores(self) -> Logits:
        return self.scores[: self.n_tokens, :]

    @property
    def eval_tokens(self) -> deque[int]:
        """The ids that the memory holds."""
        return deque(self._state().tokens[: self.n_tokens], maxlen=self.n_ctx())

    @property
    def eval_logits(self) -> deque[list[float]]:
        """The rows of `scores` that count: of all tokens with logits_all, else the last one."""
        rows = self._scores if self._logits_all else self._scores[-1:]
        return deque(rows.tolist(), maxlen=self.n_ctx() if self._logits_all else 1)

    def load_state(self, state: LlamaState) -> None:
        """See OpenModel."""
        self._last_logits = self._n_back = None
        super().load_state(state)

    def _state(self) -> SequenceState:
        return self._runtime.runner.latest()

    def eval(self, tokens: Sequence[int]) -> None:
        """Reads tokens behind those that the memory holds.

        Raises:
            ContextFullError: they do not fit.
            ArgumentError: an id is outside the vocabulary.
            BusyError: a request is running.

        """
        if not len(tokens):
            return
        runtime = self._runtime
        with runtime.runner.exclusive():
            state = runtime.runner.latest()
            prompt = [*state.tokens[: self.n_tokens], *tokens]
            self._n_back = None
            if len(prompt) > self.n_ctx():
                raise ContextFullError(
                    f"{len(prompt)} tokens do not fit the context of {self.n_ctx()}; reset() "
                    "begins a new text, and a larger n_ctx has room for longer ones"
                )
            if self._logits_all:
                for at, row in self._rows_of(state, prompt):
                    self.scores[at] = row
                    self._last_logits = np.array(row)
            else:
                self._last_logits = self._read(state, prompt)
                if len(prompt) <= len(self.scores):
                    self.scores[len(prompt) - 1] = self._last_logits
            runtime.context.pause_threads()

    def _read(self, state: SequenceState, prompt: Sequence[int]) -> Logits:
        """Brings a sequence to the end of a prompt; the logits of its last token, [n_vocab]."""
        runtime = self._runtime
        run = SequenceRun(state, prompt)
        runtime.round.begin(run)
        while run.n_missing:
            for _, step in runtime.round.step([run]):
                if step.error is not None:
                    raise step.error
        assert run.ready_row is not None
        return np.array(runtime.context.logits(run.ready_row))

    def _rows_of(self, state: SequenceState, prompt: Sequence[int]) -> Iterator[tuple[int, Logits]]:
        """Reads a prompt; a row, [n_vocab], for each token that the memory did not hold."""
        runtime = self._runtime
        context, run = runtime.context, SequenceRun(state, prompt)
        runtime.round.begin(run)
        # The drafter is not shown these rows: it forgets, and reads the text again when asked to.
        runtime.round.drafter.truncate(state.seq_id, 0)
        n_outputs = context.params.n_outputs_max or context.n_batch
        width = min(context.n_ubatch, n_outputs, context.n_batch)
        batch = Batch(width)
        while state.n_decoded < len(prompt):
            at = state.n_decoded
            part = prompt[at : at + width]
            batch.clear()
            batch.extend(part, at, state.seq_id, output_all=True)
            context.decode(batch)
            state.n_decoded = at + len(part)
            yield from ((at + i, context.logits(i)) for i in range(len(part)))

    def _prompt_logprobs(self, prompt: Sequence[int], n_top: int) -> list[TokenLogprob | None]:
        """Of each token of a prompt given those before it; None for the first."""
        runtime = self._runtime
        out: list[TokenLogprob | None] = [None]
        with runtime.runner.exclusive():
            state = runtime.runner.idle()[0]
            runtime.round.forget(state)
            for at, row in self._rows_of(state, prompt):
                if at + 1 < len(prompt):
                    out.append(token_logprob(row, prompt[at + 1], n_top))
        return out

    def sample(  # noqa: D417 - the like share a line
        self,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        temp: float = 0.80,
        repeat_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_eta: float = 0.1,
        mirostat_tau: float = 5.0,
        penalize_nl: bool = True,
        logits_processor: Any = None,
        grammar: Any = None,
        idx: int | None = None,
    ) -> int:
        """A token that may follow what the memory holds, whoever read it.

        Args:
            idx: behind which token, counted from 0; None for the last one. Others need logits_all.
            penalize_nl: nothing: the engine has no such exception any more.
            top_k, top_p, min_p, typical_p, temp, repeat_penalty, frequency_penalty,
                presence_penalty, tfs_z, mirostat_mode, mirostat_eta, mirostat_tau,
                logits_processor, grammar: as of a request.

        Raises:
            ArgumentError: nothing was read yet, or there is no row at idx.

        """
        options = self._options(
            top_k=top_k, top_p=top_p, min_p=min_p, typical_p=typical_p, temperature=temp,
            repeat_penalty=repeat_penalty, frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty, tfs_z=tfs_z, mirostat_mode=mirostat_mode,
            mirostat_eta=mirostat_eta, mirostat_tau=mirostat_tau,
            logits_processor=logits_processor, grammar=grammar,
        )  # fmt: skip
        row = self._row(idx)
        ids = self._input_ids
        for processor in options.processors:
            row = np.asarray(processor(ids, row), dtype=np.float32)
        params = options.sampler_params(
            self._open.vocab, seed=self._seeds.draw(), last_n=self.last_n_tokens_size
        )
        sampler = Sampler(self._open, params)
        try:
            guided = guided_sampler(self._open, sampler, options.guide)
            return (guided or sampler).sample_row(row)
        finally:
            sampler.close()

    def _row(self, idx: int | None) -> Logits:
        n = self.n_tokens
        if n == 0:
            raise ArgumentError("there is nothing to sample from: eval() some tokens before")
        if self._last_logits is None:
            # A request, a saved state, or going back: the last token is read once more.
            last = self._state().tokens[n - 1]
            self.n_tokens = n - 1
            self.eval([last])
            assert self._last_logits is not None
        if idx is None or idx in (n - 1, -1):
            return np.array(self._last_logits)
        at = idx if idx >= 0 else n + idx
        if not self._logits_all or not 0 <= at < n:
            raise ArgumentError(
                f"idx={idx!r}: rows of other tokens than the last are kept with logits_all=True, "
                f"and of the {n} that were read"
            )
        return np.array(self.scores[at])

    @staticmethod
    def _options(**keywords: Any) -> RequestOptions:
        return RequestOptions(max_tokens=None, **keywords)

    def generate(  # noqa: D417 - the like share a line
        self,
        tokens: Sequence[int],
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        temp: float = 0.80,
        repeat_penalty: float = 1.0,
        reset: bool = True,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        penalize_nl: bool = True,
        logits_processor: LogitsProcessor | Sequence[LogitsProcessor] | None = None,
        stopping_criteria: StoppingCriterion | Sequence[StoppingCriterion] | None = None,
        grammar: Any = None,
    ) -> Generator[int, Sequence[int] | None, None]:
        """Token by token what follows a prompt, drafted where that is faster.

        It ends behind a token that ends a text, which is given too, and at the context's end.

        Args:
            tokens: the prompt.
            reset: begin a new text; False goes on behind what the memory holds.
            penalize_nl: nothing: the engine has no such exception any more.
            top_k, top_p, min_p, typical_p, temp, repeat_penalty, frequency_penalty,
                presence_penalty, tfs_z, mirostat_mode, mirostat_tau, mirostat_eta,
                logits_processor, stopping_criteria, grammar: as of a request.

        Raises:
            ContextFullError: the prompt leaves no room for a token.
            UnsupportedError: a token was sent into the generator.

        """
        options = self._options(
            top_k=top_k, top_p=top_p, min_p=min_p, typical_p=typical_p, temperature=temp,
            repeat_penalty=repeat_penalty, frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty, tfs_z=tfs_z, mirostat_mode=mirostat_mode,
            mirostat_eta=mirostat_eta, mirostat_tau=mirostat_tau,
            logits_processor=logits_processor, stopping_criteria=stopping_criteria, grammar=grammar,
        )  # fmt: skip
        prompt = list(tokens) if reset else [*self._state().tokens[: self.n_tokens], *tokens]
        generation = self._generation(prompt, options, by_token=True)
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
        """How many tokens two texts have in common at their beginning."""
        return longest_token_prefix(a, b)

    def _generation(
        self, tokens: Sequence[int], request: RequestOptions, *, by_token: bool = False
    ) -> Generation:
        seed = self._seeds.draw() if request.seed is None else None
        self._last_logits = self._n_back = None
        return Generation(
            self._runtime, tokens, request, seed=seed, last_n=self.last_n_tokens_size,
            by_token=by_token,
        )  # fmt: skip
