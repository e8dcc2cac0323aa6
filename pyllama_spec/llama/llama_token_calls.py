"""Token-level calls of a Llama, as in llama-cpp-python."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pyllama_spec.llama import low_level
from pyllama_spec.llama.caches import longest_token_prefix
from pyllama_spec.llama.llama_facts import LlamaFacts
from pyllama_spec.llama.low_level import LowLevel
from pyllama_spec.llama.open_model import LlamaState
from pyllama_spec.llama.overridable import Logits
from pyllama_spec.requests.options import LogitsProcessor, StoppingCriterion


class LlamaTokenCalls(LlamaFacts):
    """The token-level calls of Llama, for programs with their own loop, and its saved states.

    LowLevel does the work; here are the signatures, the defaults and the documentation.
    """

    last_n_tokens_size: int
    _low_level: LowLevel

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
        self._low_level.load_state(state)

    # ---- token by token

    @property
    def n_tokens(self) -> int:
        """The number of tokens in memory of the last text. Set it lower to go back."""
        return self._low_level.n_tokens

    @n_tokens.setter
    def n_tokens(self, n: int) -> None:
        self._low_level.n_tokens = n

    @property
    def input_ids(self) -> npt.NDArray[np.intc]:
        """A copy of [n_ctx] ids, of which the first n_tokens are valid."""
        return self._low_level.input_ids(self)

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
        return self._low_level.scores(self)

    @property
    def _scores(self) -> Logits:
        return self.scores[: self.n_tokens, :]

    @property
    def eval_tokens(self) -> deque[int]:
        """The ids in memory."""
        return self._low_level.eval_tokens(self)

    @property
    def eval_logits(self) -> deque[list[float]]:
        """The valid rows of `scores`: all tokens with logits_all, else the last one."""
        return self._low_level.eval_logits(self)

    @property
    def _logits_all(self) -> bool:
        return self._low_level.logits_all

    def eval(self, tokens: Sequence[int]) -> None:
        """Reads tokens after those in memory.

        Raises:
            ContextFullError: the tokens do not fit.
            ArgumentError: an id is outside the vocabulary.
            BusyError: called by a callback of a running request.

        """
        self._low_level.eval(self, tokens)

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
        options = low_level.options_of_sampling(
            top_k=top_k, top_p=top_p, min_p=min_p, typical_p=typical_p, temperature=temp,
            repeat_penalty=repeat_penalty, frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty, tfs_z=tfs_z, mirostat_mode=mirostat_mode,
            mirostat_eta=mirostat_eta, mirostat_tau=mirostat_tau,
            logits_processor=logits_processor, grammar=grammar,
        )  # fmt: skip
        return self._low_level.sample(self, idx, options)

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
        options = low_level.options_of_sampling(
            top_k=top_k, top_p=top_p, min_p=min_p, typical_p=typical_p, temperature=temp,
            repeat_penalty=repeat_penalty, frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty, tfs_z=tfs_z, mirostat_mode=mirostat_mode,
            mirostat_eta=mirostat_eta, mirostat_tau=mirostat_tau,
            logits_processor=logits_processor, stopping_criteria=stopping_criteria, grammar=grammar,
        )  # fmt: skip
        yield from self._low_level.generate(self, tokens, options, reset=reset)

    @staticmethod
    def logits_to_logprobs(logits: npt.ArrayLike, axis: int = -1) -> Logits:
        """Log-softmax along an axis, [...] float32; minus infinity stays."""
        return low_level.logits_to_logprobs(logits, axis)

    @staticmethod
    def longest_token_prefix(a: Sequence[int], b: Sequence[int]) -> int:
        """The length of the common prefix of two token lists."""
        return longest_token_prefix(a, b)
