"""An open model, apart from generating: its vocabulary, its state, its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyllama_spec.drafters import Drafter
from pyllama_spec.engine import Context, Model
from pyllama_spec.engine.closeable import Closeable
from pyllama_spec.errors import ArgumentError
from pyllama_spec.generation.generation import Runtime


@dataclass(frozen=True, slots=True)
class LlamaState:
    """What Llama.save_state() gives: the tokens of the conversation and the engine's memory.

    Attributes:
        tokens: ids, the last of them perhaps not decoded yet.
        n_decoded: how many of them the memory holds.
        memory: the engine's bytes.
        drafter: the drafter's, if it has any.

    """

    tokens: tuple[int, ...]
    n_decoded: int
    memory: bytes
    drafter: bytes | None = None


class OpenModel(Closeable):
    """What Llama does beside generating.

    Args:
        runtime: what generations use.
        own_drafter: a drafter to close with the model, if any.

    """

    def __init__(self, runtime: Runtime, own_drafter: Drafter | None) -> None:
        self._runtime = runtime
        self._own_drafter = own_drafter

    def tokenize(self, text: str | bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """Token ids of a text.

        Args:
            text: UTF-8.
            add_bos: put in what the model wants around a text, such as its BOS token.
            special: read the names of control tokens as those tokens.

        """
        vocab = self._runtime.model.vocab
        return vocab.tokenize(text, add_special=add_bos, parse_special=special)

    def detokenize(self, tokens: Sequence[int], *, special: bool = False) -> bytes:
        """The bytes of a run of tokens; control tokens are empty unless `special`.

        Raises:
            ArgumentError: an id is outside the vocabulary.

        """
        return self._runtime.model.vocab.detokenize(tokens, special=special)

    def n_ctx(self) -> int:
        """How many tokens prompt and text may have together."""
        return self._runtime.context.n_ctx_seq

    def n_vocab(self) -> int:
        """The size of the vocabulary."""
        return self._runtime.model.info.n_vocab

    def token_bos(self) -> int | None:
        """The id of the BOS token; None if the model has none."""
        return self._runtime.model.vocab.bos

    def token_eos(self) -> int | None:
        """The id of the EOS token; None if the model has none."""
        return self._runtime.model.vocab.eos

    @property
    def metadata(self) -> dict[str, str]:
        """The file's keys and values as text."""
        return self._runtime.model.metadata

    @property
    def model(self) -> Model:
        """The engine's model, for programs that go deeper."""
        return self._runtime.model

    @property
    def context(self) -> Context:
        """The engine's context. Using it while a generation runs is the caller's own risk."""
        return self._runtime.context

    @property
    def drafter_name(self) -> str:
        """What the statistics call the drafter."""
        return self._runtime.round.drafter.name

    @property
    def n_parallel(self) -> int:
        """How many requests are computed side by side."""
        return self._runtime.context.n_seq_max

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
            return LlamaState(tuple(sequence.tokens), sequence.n_decoded, memory, drafter)

    def load_state(self, state: LlamaState) -> None:
        """Goes back to a saved state; the next request with that beginning does not read it again.

        Raises:
            ArgumentError: the state is damaged or of another model or settings. What the model
                held before is forgotten then.
            BusyError: every place has a request running.

        """
        if not isinstance(state, LlamaState):
            raise ArgumentError(f"load_state takes what save_state gave, not {state!r:.60}")
        runtime = self._runtime
        with runtime.runner.exclusive():
            runtime.runner.latest()  # raises where there is no place
            sequence = runtime.runner.idle()[0]
            runtime.round.forget(sequence)
            if state.n_decoded:
                runtime.context.memory.restore(sequence.seq_id, state.memory)
            sequence.tokens[:] = state.tokens
            sequence.n_decoded = state.n_decoded
            runtime.round.drafter.restore(sequence.seq_id, state.drafter)
            runtime.runner.note_latest(sequence)

    def cancel(self) -> None:
        """Ends what runs, from any thread: it raises CancelledError within one decode.

        Requests that wait for a place are not touched; with none running nothing happens.
        """
        self._runtime.runner.cancel()

    def close(self) -> None:
        """Frees the model. Requests in other threads are cancelled first. May be called twice.

        Raises:
            BusyError: called by a callback of a running generation.

        """
        runtime = self._runtime
        if runtime.runner.close():
            runtime.context.close()
            runtime.model.close()
            if self._own_drafter is not None:
                self._own_drafter.close()
