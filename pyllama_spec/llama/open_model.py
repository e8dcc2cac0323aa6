"""An open model: the parts that requests share, its saved states, its close()."""

from __future__ import annotations

import contextlib
import os
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pyllama_spec.drafters import Drafter
from pyllama_spec.engine import Adapter, Batch, Model
from pyllama_spec.engine.checks import instance, real
from pyllama_spec.engine.closeable import Closeable
from pyllama_spec.engine.context import FEW_ROWS, Settings, first_difference
from pyllama_spec.errors import (
    ArgumentError,
    ContextFullError,
    PyllamaSpecError,
    UnsupportedError,
)
from pyllama_spec.requests.options import RequestOptions, check_seed
from pyllama_spec.requests.run import Request, Run
from pyllama_spec.requests.runner import Runner, Runtime
from pyllama_spec.requests.samplers import TokenLogprob, token_logprob
from pyllama_spec.requests.stream import Generation, Stream
from pyllama_spec.speculative import Adapters, SavedSequence, SequenceRun, SequenceState

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LlamaState:
    """The state that Llama.save_state() returns: the tokens and the engine's memory.

    Attributes:
        tokens: the ids; the last one may not be decoded yet.
        n_decoded: the number of them that the memory holds.
        memory: the engine's bytes.
        drafter: the drafter's bytes, if it saved any.
        seed: the position in the model's stream of seeds.
        model: a digest of the model's files and keys.
        n_given: the number of tokens in the memory that were given to the caller; None for all.
        settings: the other settings that the memory depends on, by name: types of the KV cache,
            positions, adapters and their scales.
        checksum: of all fields but the bytes; a state that was pickled keeps that of its origin.
    """

    tokens: tuple[int, ...]
    n_decoded: int
    memory: bytes
    drafter: bytes | None
    seed: int | None
    model: str
    n_given: int | None
    settings: Settings
    checksum: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "checksum", self.computed_checksum())

    def computed_checksum(self) -> int:
        """CRC-32 of all fields but the bytes, which have their own."""
        rest = (self.tokens, self.n_decoded, self.seed, self.model, self.n_given, self.settings)
        return zlib.crc32(repr(rest).encode())

    def __repr__(self) -> str:
        return f"<LlamaState: {self.n_tokens} tokens, {self.llama_state_size} bytes>"

    @property
    def input_ids(self) -> npt.NDArray[np.intc]:
        """[n_tokens] ids of the text."""
        return np.array(self.tokens[: self.n_tokens], dtype=np.intc)

    @property
    def llama_state(self) -> bytes:
        """The engine's memory as bytes."""
        return self.memory

    @property
    def n_tokens(self) -> int:
        """The number of tokens."""
        return self.n_decoded if self.n_given is None else min(self.n_given, self.n_decoded)

    @property
    def llama_state_size(self) -> int:
        """The size of the engine's memory in bytes."""
        return len(self.memory) + len(self.drafter or b"")

    @property
    def owner(self) -> str:
        """A digest of model and settings: states fit each other if theirs are equal."""
        return owner_of(self.model, self.settings)


def owner_of(model: str, settings: Settings) -> str:
    """See LlamaState.owner."""
    import hashlib  # loads a library of its own

    return hashlib.sha256(repr((model, settings)).encode()).hexdigest()[:32]


class SeedStream:
    """Derives a seed per request from the model's seed, so equal requests differ.

    The same model's seed and the same requests in the same order give the same texts; several
    threads have no order.
    """

    def __init__(self, seed: int | None) -> None:  # None or -1: a random place
        self._lock = threading.Lock()
        self.begin(seed)

    def begin(self, seed: int | None) -> None:
        """Restarts the stream from a seed."""
        checked = check_seed(seed)
        # None: requests draw their own.
        self.state: int | None = None if checked == -1 else checked

    def draw(self) -> int | None:
        """Draws the next request's seed."""
        with self._lock:
            if self.state is None:
                return None
            import random  # not for a model without a seed

            # The engine's 2**32 - 1 means "any"; the sampler takes one less for it.
            self.state = random.Random(self.state).getrandbits(32)
            return self.state


def _pairs(adapters: Any) -> list[tuple[Any, Any]]:
    try:
        return [(one, scale) for one, scale in adapters]
    except (TypeError, ValueError):
        raise ArgumentError(
            "adapters", adapters, "pairs of a file or an Adapter and its scale"
        ) from None


# The model of a call in an event loop, and its adapters at the time of the call.
_PINNED: ContextVar[tuple[OpenModel, Adapters] | None] = ContextVar("_PINNED", default=None)


class OpenModel(Closeable):
    """A model, its runtime and its close()."""

    def __init__(
        self,
        model: Model,
        generating: Runtime | None,
        why_not: str = "",
        own_drafter: Drafter | None = None,
        seed: int | None = None,
    ) -> None:
        self.model, self.generating, self._why_not = model, generating, why_not
        self.runner = Runner(model, None) if generating is None else generating.runner
        self._own_drafter = own_drafter
        self.seeds = SeedStream(seed)
        # LoRA adapters of the requests from here on, each with its scale.
        self._adapters: Adapters = ()
        # Where the next eval() continues, if that is before the end of what the memory holds.
        self.n_back: int | None = None

    @property
    def adapters(self) -> Adapters:
        """The adapters of new requests; in a pinned call, those at its start."""
        pinned = _PINNED.get()
        return pinned[1] if pinned is not None and pinned[0] is self else self._adapters

    def pin(self) -> None:
        """Fixes the current adapters for the calls of this thread or task."""
        _PINNED.set((self, self.adapters))

    @contextlib.contextmanager
    def with_adapters(self, adapters: Sequence[tuple[Adapter, float]]) -> Iterator[None]:
        """Sets the adapters within the block, for this thread or task alone."""
        pairs = _pairs(adapters)
        for adapter, scale in pairs:
            instance(adapter, Adapter, "adapter", "load one with Adapter(llm.model, path)")
            real(scale, "the scale")
        before = _PINNED.set((self, tuple((one, float(scale)) for one, scale in pairs)))
        try:
            yield
        finally:
            _PINNED.reset(before)

    @property
    def runtime(self) -> Runtime:
        """The runtime that requests use; raises if the model is closed."""
        if self.generating is None:
            raise UnsupportedError(self._why_not)
        return self.generating

    @property
    def failure(self) -> PyllamaSpecError | None:
        """The error that left the model unusable; None for none, or after the user's close()."""
        if self.model.is_closed:
            return self.model.refusal
        return None if self.generating is None else self.generating.context.failure

    def describe(self, name: str) -> str:
        """The repr of the model's owner, under a class name."""
        if self.model.is_closed or self.generating is None:
            return f"<{name} of {self.model!r}>"
        round_, n_ctx = self.generating.round, self.generating.context.n_ctx_seq
        draft = "no draft" if round_.drafter.name == "none" else f"draft {round_.drafter!r}"
        if draft != "no draft" and not round_.max_draft:
            draft += f" disabled by {round_.max_draft_reason}"
        n = self.generating.context.n_seq_max
        return f"<{name} of {self.model!r}, n_ctx={n_ctx}, n_parallel={n}, {draft}>"

    @property
    def drafter_name(self) -> str:
        """The drafter's name in the statistics."""
        return self.runtime.round.drafter.name

    @property
    def memory_bytes(self) -> int:
        """Bytes of weights and KV caches, the draft's included, the embeddings' not."""
        n = self.model.info.size_bytes
        if self.generating is not None:
            n += self.generating.context.memory_bytes
        if self._own_drafter is not None:
            about = self._own_drafter.describe()
            n += about.get("size_bytes", 0) + about.get("memory_bytes", 0)
        return n

    def set_adapters(
        self, adapters: Sequence[tuple[str | os.PathLike[str] | Adapter, float]]
    ) -> None:
        """Sets the adapters of later requests; empties the idle sequences."""
        loaded = [
            (one if isinstance(one, Adapter) else Adapter(self.model, one), scale)
            for one, scale in _pairs(adapters)
        ]
        runtime, before = self.runtime, self._adapters
        with runtime.runner.exclusive():
            # They are put in now to have them checked; each decode has those of its requests.
            runtime.context.set_adapters(loaded)
            self._adapters = tuple((adapter, float(scale)) for adapter, scale in loaded)
            if self._adapters != before:
                for sequence in runtime.runner.idle():
                    runtime.round.sequences.put_away(sequence)

    # ---- requests, and rows of logits

    def generation(
        self,
        tokens: Sequence[int],
        request: RequestOptions,
        *,
        last_n: int,
        by_token: bool = False,
    ) -> Generation:
        """Prepares a request. It draws its seed now, in the order of the calls."""
        if request.n > 1:
            raise ArgumentError(
                "n", request.n, "1, as a generation has one answer",
                "create_completion() and create_chat_completion() give several",
            )  # fmt: skip
        seed = self.seeds.draw() if request.seed is None else None
        self.n_back = None
        asked = Request(tuple(tokens), request, seed, last_n, by_token, self.adapters)
        runtime = self.runtime
        run = Run(runtime.model, runtime.context, asked, runtime.acceptance)
        return Stream(runtime.runner, [run])

    def last_row_of(self, state: SequenceState, prompt: Sequence[int]) -> Logits:
        """Reads a sequence to the end of a prompt; returns its last token's logits, [n_vocab]."""
        runtime = self.runtime
        run = SequenceRun(state, prompt, adapters=self.adapters)
        runtime.round.begin(run)
        while run.n_missing:
            for _, step in runtime.round.step([run]):
                if step.error is not None:
                    raise step.error
        assert run.ready_row is not None
        return np.array(runtime.context.logits(run.ready_row))

    def rows_of(
        self, state: SequenceState, prompt: Sequence[int], max_held: int
    ) -> Iterator[tuple[int, Logits]]:
        """Reads a prompt; yields (position, row [n_vocab]), without max_held held ones at most."""
        runtime = self.runtime
        context = runtime.context
        run = SequenceRun(state, prompt, adapters=self.adapters, max_held=max_held)
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
        runtime = self.runtime
        entries: list[TokenLogprob | None] = [None]
        with runtime.runner.visit(oldest=True) as state:
            runtime.round.sequences.put_away(state)
            for at, row in self.rows_of(state, prompt, 0):
                if at + 1 < len(prompt):
                    entries.append(token_logprob(row, prompt[at + 1], n_top))
        return entries

    # ---- states

    def reset(self) -> None:
        """Forgets the text."""
        runtime = self.runtime
        with runtime.runner.exclusive():
            for sequence in runtime.runner.idle():
                runtime.round.sequences.forget(sequence)
            runtime.round.sequences.clear()

    def state_of(self, sequence: SequenceState) -> LlamaState:
        """The state of a sequence. The caller has exclusive use of it."""
        saved = self.runtime.round.sequences.save(sequence)
        return LlamaState(
            saved.tokens, saved.n_decoded, saved.memory, saved.drafter, self.seeds.state,
            self.model.identity, saved.n_given, self.runtime.context.settings(saved.adapters),
        )  # fmt: skip

    def restore(self, sequence: SequenceState, state: LlamaState, adapters: Adapters) -> None:
        """Restores a sequence's state; its content before is kept for other prompts.

        The caller has exclusive use of it. After an error it is empty.
        """
        saved = SavedSequence(
            state.tokens, state.n_decoded, state.n_given, state.memory, state.drafter, adapters
        )
        self.runtime.round.sequences.put_away(sequence)
        self.runtime.round.sequences.restore(sequence, saved)

    @property
    def owner(self) -> str:
        """The owner that a state needs to be loaded now; see LlamaState.owner."""
        return owner_of(self.model.identity, self.runtime.context.settings(self.adapters))

    def _misfit(self, state: LlamaState, adapters: Adapters) -> str | None:
        """The reason why a state's numbers cannot belong to this model; None if they fit.

        Shapes may be equal, and the engine looks at nothing else.
        """
        name = self.model.path.name
        if state.model != self.model.identity:
            return (
                "the state is of another model, or of one with other weights or kv_overrides, than "
                f"{name}"
            )
        ours = self.runtime.context.settings(adapters)
        difference = first_difference(state.settings, ours)
        return difference and f"the state was computed by {name} with {difference}"

    def load_state(self, state: LlamaState) -> None:
        """Restores a saved state; the next request with its prefix does not read that again."""
        if not isinstance(state, LlamaState):
            raise ArgumentError("state", state, "a result of save_state()")
        if state.checksum != state.computed_checksum():
            raise ArgumentError(
                "state", problem="is damaged (its checksum differs)", remedy="read the text again"
            )
        adapters = self.adapters
        misfit = self._misfit(state, adapters)
        if misfit is not None:
            raise ArgumentError("state", problem=misfit, remedy="read the text again")
        runtime = self.runtime
        n_ctx = runtime.context.n_ctx_seq
        if state.n_decoded > n_ctx:
            # The engine rounds the size of its KV cache up, and refuses only what exceeds that.
            raise ContextFullError(
                " by the state", n_tokens=state.n_decoded, n_ctx=n_ctx, param="state",
                remedy="read a shorter text", setup="open the model with a larger `n_ctx`",
            )  # fmt: skip
        with runtime.runner.visit(oldest=True) as sequence:
            self.restore(sequence, state, adapters)
            runtime.runner.note_latest(sequence)
            self.seeds.state, self.n_back = state.seed, None

    def close(self, close_others: Callable[[], None] = lambda: None) -> None:
        """See Llama.close(); `close_others` closes the model's other contexts."""
        if not self.runner.close():
            return
        with contextlib.ExitStack() as stack:
            stack.callback(self._free)
            close_others()

    def _free(self) -> None:
        runtime = self.generating
        if runtime is not None:
            if runtime.on_close is not None:
                # A caller's own controller must not keep the model open.
                with contextlib.suppress(Exception):
                    runtime.on_close()
            runtime.context.close()
        self.model.close()
        if self._own_drafter is not None:
            self._own_drafter.close()
