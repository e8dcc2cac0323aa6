"""An open model, apart from generating: its vocabulary, its state, its end."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from pyllama_spec.drafters import Drafter
from pyllama_spec.engine import Context, Model
from pyllama_spec.engine.checks import shown
from pyllama_spec.engine.closeable import Closeable
from pyllama_spec.errors import ArgumentError, UnsupportedError
from pyllama_spec.llama.tokenizer import LlamaTokenizer, VocabTexts
from pyllama_spec.requests.generation import Runtime
from pyllama_spec.requests.options import check_seed


@dataclass(frozen=True, slots=True)
class LlamaState:
    """What Llama.save_state() gives: the tokens of the conversation and the engine's memory.

    Attributes:
        tokens: ids, the last of them perhaps not decoded yet.
        n_decoded: how many of them the memory holds.
        memory: the engine's bytes.
        drafter: the drafter's, if it has any.
        seed: where the model's stream of seeds stood.
        model: a hash of what the file says of itself; "" in states from before this was there.
        n_given: how many of those in the memory the text has that was given; None for all.

    """

    tokens: tuple[int, ...]
    n_decoded: int
    memory: bytes
    drafter: bytes | None = None
    seed: int | None = None
    model: str = ""
    n_given: int | None = None

    def __setstate__(self, values: Sequence[Any]) -> None:
        """Of a pickle, which may be older than the last fields."""
        for i, one in enumerate(fields(self)):
            object.__setattr__(self, one.name, values[i] if i < len(values) else one.default)

    @property
    def input_ids(self) -> npt.NDArray[np.intc]:
        """[n_tokens] ids of the text."""
        return np.array(self.tokens[: self.n_tokens], dtype=np.intc)

    @property
    def llama_state(self) -> bytes:
        """The engine's memory."""
        return self.memory

    @property
    def n_tokens(self) -> int:
        """How many these are."""
        return self.n_decoded if self.n_given is None else min(self.n_given, self.n_decoded)

    @property
    def llama_state_size(self) -> int:
        """Bytes that it takes."""
        return len(self.memory) + len(self.drafter or b"")


class SeedStream:
    """Draws a seed for each request from the model's own: equal requests give different texts.

    The same model's seed and the same requests in the same order give the same texts; several
    threads have no order.

    Args:
        seed: where it begins; None or -1 for anywhere.

    Attributes:
        state: where it is; None where requests are given no seed at all, and draw their own.

    """

    def __init__(self, seed: int | None) -> None:
        self._lock = threading.Lock()
        self.begin(seed)

    def begin(self, seed: int | None) -> None:
        """Starts again from a seed.

        Raises:
            ArgumentError: it is no seed.

        """
        checked = check_seed(seed)
        self.state: int | None = None if checked == -1 else checked

    def draw(self) -> int | None:
        """The next request's."""
        with self._lock:
            if self.state is None:
                return None
            import random  # not for a model without a seed

            # The engine's 2**32 - 1 means "any"; the sampler takes one less for it.
            self.state = random.Random(self.state).getrandbits(32)
            return self.state


class OpenModel(Closeable):
    """What Llama does beside generating.

    Args:
        model: the target.
        runtime: what generations use; None for a model that is open without.
        why_not: what a request is told then.
        own_drafter: a drafter to close with the model, if any.
        seed: where the model's stream of seeds begins.

    Attributes:
        last_n_tokens_size: how many past tokens penalties see, of requests that do not say.

    """

    def __init__(
        self,
        model: Model,
        runtime: Runtime | None,
        why_not: str = "",
        own_drafter: Drafter | None = None,
        seed: int | None = None,
    ) -> None:
        self._open, self._generating, self._why_not = model, runtime, why_not
        self._own_drafter = own_drafter
        self._seeds = SeedStream(seed)
        self._texts = VocabTexts(model.vocab)
        self.last_n_tokens_size = 64

    def __repr__(self) -> str:
        name = type(self).__name__
        if self._open.is_closed or self._generating is None:
            return f"<{name} of {self._open!r}>"
        runtime = self._generating
        drafter, n_ctx = runtime.round.drafter, runtime.context.n_ctx_seq
        draft = "no draft" if drafter.name == "none" else f"draft {drafter!r}"
        return f"<{name} of {self._open!r}, n_ctx={n_ctx}, {draft}>"

    @property
    def _runtime(self) -> Runtime:
        if self._generating is None:
            raise UnsupportedError(self._why_not)
        return self._generating

    def tokenize(self, text: str | bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """Token ids of a text.

        Args:
            text: UTF-8.
            add_bos: put in what the model wants around a text, such as its BOS token.
            special: read the names of control tokens as those tokens.

        """
        return self._texts.tokenize(text, add_bos, special)

    def detokenize(
        self,
        tokens: Sequence[int],
        prev_tokens: Sequence[int] | None = None,
        special: bool = False,
    ) -> bytes:
        """The bytes of a run of tokens; control tokens are empty unless `special`.

        At the beginning of a text, which a BOS token says, the space is left out that vocabularies
        of SentencePiece put before a first word.

        Raises:
            ArgumentError: an id is outside the vocabulary.

        """
        return self._texts.detokenize(tokens, prev_tokens, special)

    def n_ctx(self) -> int:
        """How many tokens prompt and text may have together."""
        return self._runtime.context.n_ctx_seq

    def n_vocab(self) -> int:
        """The size of the vocabulary."""
        return self._open.info.n_vocab

    def n_embd(self) -> int:
        """The width of the model's rows, and of its embeddings."""
        return self._open.info.n_embd

    def token_bos(self) -> int:
        """The id of the BOS token; -1 if the model has none."""
        return _or_none(self._open.vocab.bos)

    def token_eos(self) -> int:
        """The id of the EOS token; -1 if the model has none."""
        return _or_none(self._open.vocab.eos)

    def token_nl(self) -> int:
        """The id of a line's end; -1 if the model has none."""
        return _or_none(self._open.vocab.special("nl"))

    def tokenizer(self) -> LlamaTokenizer:
        """The vocabulary as an object of its own."""
        return LlamaTokenizer(self)

    @property
    def tokenizer_(self) -> LlamaTokenizer:
        """The same, under the name of llama-cpp-python's attribute."""
        return self.tokenizer()

    @property
    def metadata(self) -> dict[str, str]:
        """The file's keys and values as text."""
        return self._open.metadata

    @property
    def model(self) -> Model:
        """The engine's model, for programs that go deeper."""
        return self._open

    @property
    def context(self) -> Context:
        """The engine's context. Using it while a generation runs is the caller's own risk."""
        return self._runtime.context

    @property
    def _is_recurrent(self) -> bool:
        return self._open.info.is_recurrent

    @property
    def _is_hybrid(self) -> bool:
        return self._open.info.is_hybrid

    @property
    def _ctx(self) -> SimpleNamespace:
        return SimpleNamespace(ctx=self._open if self._generating is None else self.context)

    @property
    def drafter_name(self) -> str:
        """What the statistics call the drafter."""
        return self._runtime.round.drafter.name

    @property
    def n_parallel(self) -> int:
        """How many requests are computed side by side."""
        return self._runtime.context.n_seq_max

    def set_seed(self, seed: int | None) -> None:
        """Starts the model's stream of seeds again, from which requests without one draw."""
        self._seeds.begin(seed)

    def reset(self) -> None:
        """Forgets what was read and generated. Nothing needs it: texts do not depend on it."""
        runtime = self._runtime
        with runtime.runner.exclusive():
            for sequence in runtime.runner.idle():
                runtime.round.forget(sequence)

    def save_state(self) -> LlamaState:
        """What the last request read and generated, for load_state() of this or an equal Llama.

        Raises:
            BusyError: every place has a request running.

        """
        runtime = self._runtime
        with runtime.runner.exclusive():
            sequence = runtime.runner.latest()
            memory = runtime.context.memory.save(sequence.seq_id)
            drafter = runtime.round.drafter.save(sequence.seq_id)
            tokens = tuple(sequence.tokens)
            seed = self._seeds.state
            return LlamaState(
                tokens, sequence.n_decoded, memory, drafter, seed, self._open.identity,
                sequence.n_given,
            )  # fmt: skip

    def load_state(self, state: LlamaState) -> None:
        """Goes back to a saved state; the next request with that beginning does not read it again.

        Raises:
            ArgumentError: the state is damaged or of another model or settings. What the model
                held before may be forgotten then.
            BusyError: every place has a request running.

        """
        if not isinstance(state, LlamaState):
            raise ArgumentError(f"load_state takes what save_state gave, not {shown(state)}")
        # Shapes may be equal, and the engine looks at nothing else.
        if state.model and state.model != self._open.identity:
            raise ArgumentError(
                "the state is of another model, or of one with other kv_overrides, than "
                f"{self._open.path.name}: read the text again"
            )
        runtime = self._runtime
        with runtime.runner.exclusive():
            runtime.runner.latest()  # raises where there is no place
            sequence = runtime.runner.idle()[0]
            runtime.round.forget(sequence)
            if state.n_decoded:
                runtime.context.memory.restore(sequence.seq_id, state.memory)
            sequence.tokens[:] = state.tokens
            sequence.n_decoded, sequence.n_given = state.n_decoded, state.n_given
            runtime.round.drafter.restore(sequence.seq_id, state.drafter)
            runtime.runner.note_latest(sequence)
            self._seeds.state = state.seed

    def cancel(self) -> None:
        """Ends what runs, from any thread: it raises CancelledError within one decode.

        Requests that wait for a place are not touched; with none running nothing happens.
        """
        if self._generating is not None:
            self._generating.runner.cancel()

    def close(self) -> None:
        """Frees the model. Requests in other threads are cancelled first. May be called twice.

        Raises:
            BusyError: called by a callback of a running generation.

        """
        runtime = self._generating
        if runtime is None:
            self._open.close()
        elif runtime.runner.close():
            if runtime.on_close is not None:
                # Of a controller of the caller's own: nothing of it keeps a model open.
                with contextlib.suppress(Exception):
                    runtime.on_close()
            runtime.context.close()
            runtime.model.close()
            if self._own_drafter is not None:
                self._own_drafter.close()


def _or_none(token: int | None) -> int:
    return -1 if token is None else token
