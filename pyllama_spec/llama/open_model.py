"""Opens a target and its drafter; the parts that requests share, saved states, close()."""

from __future__ import annotations

import contextlib
import os
import threading
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from pyllama_spec.chat.template import check_form
from pyllama_spec.drafters import Draft, Drafter, DraftRequest, PromptLookup
from pyllama_spec.drafters.base import NO_DRAFT, name_of_code
from pyllama_spec.drafters.registry import (
    check_draft,
    is_draft,
    known_drafts,
    make_drafter_for,
    open_before,
    wants_head,
)
from pyllama_spec.engine import (
    Adapter,
    Batch,
    Context,
    ContextParams,
    Model,
)
from pyllama_spec.engine.checks import count, instance, real
from pyllama_spec.engine.closeable import Closeable, closed_on_failure
from pyllama_spec.engine.context import FEW_ROWS, Settings, first_difference
from pyllama_spec.engine.media import PlacedRows
from pyllama_spec.engine.model import Progress, check_arguments
from pyllama_spec.engine.rpc import set_rpc_timeout
from pyllama_spec.errors import (
    ArgumentError,
    ContextFullError,
    OutOfMemoryError,
    UnsupportedError,
    both_given,
)
from pyllama_spec.llama.open_options import OpenOptions
from pyllama_spec.requests.options import RequestOptions, check_seed
from pyllama_spec.requests.run import Request, Run, TokenLogprob, token_logprob
from pyllama_spec.requests.runner import Runner, Runtime
from pyllama_spec.speculative import (
    Adapters,
    Controller,
    Round,
    SavedSequence,
    SequenceRun,
    SequenceState,
    make_controller,
)
from pyllama_spec.speculative.row_timing import measure_rows
from pyllama_spec.terminal import ProgressBar

Logits = npt.NDArray[np.float32]
_WITH_TARGET = "open the target as `model_path`, and give this file as `draft`"
# Told how far it is, 0.0 to 1.0, while a file is loaded in this context; what it raises ends that.
WATCH: ContextVar[Progress | None] = ContextVar("WATCH", default=None)
# The model of a with_adapters() block, and the adapters of its requests.
_OF_BLOCK: ContextVar[tuple[OpenModel, Adapters] | None] = ContextVar("_OF_BLOCK", default=None)


def progress_for(path: str | os.PathLike[str], verbose: bool) -> Progress | None:
    """A progress bar for a load, on a terminal or as WATCH; None for no one."""
    watch, bar = WATCH.get(), ProgressBar(f"loading {Path(path).name}") if verbose else None
    if watch is None or bar is None:
        return watch or bar

    def both(fraction: float) -> None:
        bar(fraction)
        watch(fraction)

    return both


def check_target(model: Model) -> None:
    """Refuses models that cannot generate text alone."""
    info, why, remedy, setup = model.info, "", "", ""
    if info.is_head_alone:
        why, remedy = "holds an MTP head alone: it needs its target", _WITH_TARGET
    elif info.n_target_layers or is_draft(info.arch):
        why, remedy = "is a draft: it needs its target", _WITH_TARGET
    elif model.is_encoder:
        why = "is an encoder: it does not generate text"
        setup = "`embedding=True` gives its embeddings"
    elif info.has_encoder:
        why = "has an encoder; only decoders are supported by this version"
    elif info.is_diffusion:
        why = "is a diffusion model; those are not supported by this version"
    if why:
        raise UnsupportedError(f"{model.path.name} ({info.arch}) {why}", remedy=remedy, setup=setup)


def why_not_generating(model: Model, vocab_only: bool, embedding: bool) -> str:
    """The reason why a model is opened without generation; "" if it can generate."""
    if vocab_only:
        return "the model was opened with vocab_only=True, without its weights; open it without"
    if embedding and model.is_encoder:
        return (
            f"{model.path.name} ({model.info.arch}) is an encoder: it does not generate text; "
            "embed() gives its embeddings"
        )
    return ""


def open_model(options: OpenOptions, *, load_mtp: bool = False) -> Model:
    """Opens the model of Llama's keywords, with its file's MTP head if wanted."""
    if options.rpc_timeout is not None:
        set_rpc_timeout(options.rpc_timeout)
    path = options.model_path
    return Model(
        path, **options.model_arguments(), load_mtp=load_mtp,
        progress=progress_for(path, options.verbose),
    )  # fmt: skip


def check_options(options: OpenOptions) -> None:
    """Checks all options that need no file, before a file is opened."""
    options.check()
    controller = make_controller(options.controller, options.p_min)
    options.context_params()
    check_arguments(**options.model_arguments())
    check_form(options.chat_format, options.chat_template)
    drafts = options.draft_options(progress=None, is_adaptive=controller.wants_costs)
    if options.draft_model is None:
        check_draft(options.draft, drafts)


def open_pair(
    draft: object, options: OpenOptions, controller: Controller
) -> tuple[Model, Drafter, float]:
    """Opens the target and the drafter of Llama's `draft=`."""
    file = draft if isinstance(draft, (str, os.PathLike)) else ""
    draft_options = options.draft_options(
        progress=progress_for(file, options.verbose), is_adaptive=controller.wants_costs
    )
    # Faults of a draft are reported before the target is loaded.
    begin = perf_counter()
    drafter = open_before(draft, options.model_path, draft_options)
    draft_s = perf_counter() - begin
    with closed_on_failure(None if drafter is draft else drafter):
        is_head = wants_head(draft if drafter is None else drafter, options.model_path)
        model = open_model(options, load_mtp=is_head)
    if drafter is None:
        begin = perf_counter()
        with closed_on_failure(model):
            drafter = make_drafter_for(model, draft, draft_options)
        draft_s = perf_counter() - begin
    return model, drafter, draft_s


def open_runtime(
    model: Model,
    params: ContextParams,
    drafter: Drafter,
    n_draft: int | None,
    n_parallel: int = 1,
    controller: Controller | None = None,
    *,
    wants_rows: bool = False,
    max_waiting: int | None = None,
    store_bytes: int | None = None,
    acceptance: str = "exact",
) -> Runtime:
    """Opens a target's context, drafter and runner."""
    check_target(model)
    drafter.check(model)
    _check_is_free(drafter)
    max_draft = min(drafter.max_draft, params.n_batch - 1)
    max_draft = max_draft if n_draft is None else min(max_draft, n_draft)
    n_ctx = (params.n_ctx or model.info.n_ctx_train) * n_parallel
    params = replace(
        params,
        n_ctx=n_ctx,
        n_seq_max=n_parallel,
        n_rs_seq=_n_snapshots(model, max_draft, min(params.n_batch, params.n_ubatch, n_ctx)),
        # Logits of the pending token and the draft, and of no prompt: a row is a vocabulary wide.
        n_outputs_max=0 if wants_rows else min(n_parallel * (max_draft + 1), params.n_batch),
        target_layers=drafter.target_layers,
    )
    with _named_sizes(model, params):
        context = Context(model, params)
    with closed_on_failure(context):
        begin = perf_counter()
        round_ = Round(context, drafter, n_draft, controller, store_bytes=store_bytes)
        if controller is not None and controller.wants_costs and round_.max_draft:
            with _named_sizes(model, params):
                controller.learn_costs(measure_rows(context, 1 + round_.max_draft))
        runner = Runner(model, round_, max_waiting, attach_s=perf_counter() - begin)
        return Runtime(model, context, round_, runner, acceptance)


def _check_is_free(drafter: Drafter) -> None:
    """Raises unless the drafter may be attached to another target."""
    attached = drafter.attached_to
    if attached is not None and not attached.is_closed:
        raise ArgumentError(
            "draft", problem=f"drafts for another open model ({drafter.name!r})",
            remedy="close that one, or make a drafter for each",
        )  # fmt: skip


@contextlib.contextmanager
def _named_sizes(model: Model, params: ContextParams) -> Iterator[None]:
    """Has an error for want of memory name the keywords of Llama() that need less."""
    try:
        yield
    except OutOfMemoryError as error:
        more = ["n_parallel"] * (params.n_seq_max > 1) + ["n_draft"] * (params.n_rs_seq > 0)
        raise error.of(f"the KV cache of {model.path.name}", ["n_ctx", *more, "n_batch"]) from None


def _n_snapshots(model: Model, max_draft: int, n_ubatch: int) -> int:
    """The number of snapshots of a recurrent state in the target's context.

    A verify batch has at most as many rows as are equal to single ones, and the engine requires a
    physical batch larger than that.
    """
    info = model.info
    # Without a rollback the round turns the drafter off, and the result says why.
    if max_draft == 0 or not info.has_recurrent_state or not info.can_roll_back:
        return 0
    return max(min(max_draft + 1, FEW_ROWS, n_ubatch - 2), 0)


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
        """The adapters of new requests."""
        of_block = _OF_BLOCK.get()
        return of_block[1] if of_block and of_block[0] is self else self._adapters

    @contextlib.contextmanager
    def with_adapters(self, adapters: Sequence[tuple[Adapter, float]]) -> Iterator[None]:
        """Sets the adapters within the block, for this thread or task alone."""
        pairs = _pairs(adapters)
        for adapter, scale in pairs:
            instance(adapter, Adapter, "adapter", "load one with Adapter(llm.model, path)")
            real(scale, "the scale")
        before = _OF_BLOCK.set((self, tuple((one, float(scale)) for one, scale in pairs)))
        try:
            yield
        finally:
            _OF_BLOCK.reset(before)

    @property
    def runtime(self) -> Runtime:
        """The runtime that requests use; raises if the model is closed."""
        if self.generating is None:
            raise UnsupportedError(self._why_not)
        return self.generating

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

    def run(
        self,
        tokens: Sequence[int],
        request: RequestOptions,
        *,
        last_n: int,
        by_token: bool = False,
        media: tuple[PlacedRows, ...] = (),
    ) -> Run:
        """Prepares a request. It draws its seed now, in the order of the calls."""
        seed = self.seeds.draw() if request.seed is None else None
        self.n_back = None
        asked = Request(tuple(tokens), request, seed, last_n, by_token, self.adapters, media)
        runtime = self.runtime
        return Run(runtime.model, runtime.context, asked, runtime.acceptance)

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
        runtime.round.use_adapters(run)
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
        round_ = self.runtime.round
        round_.sequences.put_away(sequence)
        # No later request copies from it: it may be of another user than the last request here.
        round_.drafter.begin_request(sequence.seq_id, remember=False, user="")
        round_.sequences.restore(sequence, saved)

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
            return f"is of another model, or of one with other weights or kv_overrides, than {name}"
        ours = self.runtime.context.settings(adapters)
        difference = first_difference(state.settings, ours)
        return difference and f"was computed by {name} with {difference}"

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
            runtime.context.close()
        self.model.close()
        if self._own_drafter is not None:
            self._own_drafter.close()


Ids = npt.NDArray[np.intc]
# What one draft may have at most; a verify batch is exact up to 32 rows.
_MAX_DRAFT = 16


class LlamaDraftModel(ABC):
    """The interface of llama-cpp-python's draft models."""

    @abstractmethod
    def __call__(self, input_ids: Ids, /, **kwargs: Any) -> Ids:
        """Proposes any number of ids after the ids so far."""


class LlamaPromptLookupDecoding(LlamaDraftModel):
    """Copies the tokens after an earlier occurrence of the text's last tokens.

    Given as Llama(draft_model=...) it is pyllama_spec.PromptLookup.
    """

    def __init__(self, max_ngram_size: int = 2, num_pred_tokens: int = 10) -> None:
        self.max_ngram_size = count(max_ngram_size, "max_ngram_size", 1)
        self.num_pred_tokens = count(num_pred_tokens, "num_pred_tokens", 1)

    @staticmethod
    def find_candidate_pred_tokens(
        input_ids: Ids, max_ngram_size: int, num_pred_tokens: int
    ) -> Ids:
        """The ids after the first place that ends like the text: [<= num_pred_tokens]."""
        ids = np.asarray(input_ids)
        for n in range(min(max_ngram_size, len(ids) - 1), 0, -1):
            windows = np.lib.stride_tricks.sliding_window_view(ids, n)
            for at in np.nonzero((windows == ids[-n:]).all(axis=1))[0]:
                candidates = ids[at + n : at + n + num_pred_tokens]
                if len(candidates):
                    return candidates
        return np.array([], dtype=np.intc)

    def __call__(self, input_ids: Ids, /, **kwargs: Any) -> Ids:
        """See LlamaDraftModel."""
        return self.find_candidate_pred_tokens(input_ids, self.max_ngram_size, self.num_pred_tokens)


class _Called(Drafter):
    """A drafter that calls the user's draft model."""

    max_draft = _MAX_DRAFT

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._model = model
        self.name = name_of_code(model)

    def propose_one(self, request: DraftRequest) -> Draft:
        """The draft model's ids after the ids so far."""
        ids = np.array(request.tokens[:], dtype=np.intc)
        tokens = [int(token) for token in self._model(ids)[: request.n_requested]]
        return Draft(tokens) if tokens else NO_DRAFT


def drafter_of(draft_model: object, draft: object = None) -> Drafter:
    """The drafter for a draft model of llama-cpp-python."""
    if draft is not None:
        raise both_given("draft", "draft_model")
    if isinstance(draft_model, Drafter):
        return draft_model
    if isinstance(draft_model, LlamaPromptLookupDecoding):
        n = min(draft_model.num_pred_tokens, _MAX_DRAFT)
        return PromptLookup(max_ngram=draft_model.max_ngram_size, min_ngram=1, max_draft=n)
    if hasattr(draft_model, "create_completion"):
        # It can be called, and gives an answer in place of ids.
        raise ArgumentError("draft_model", problem="takes no open model", remedy=known_drafts())
    if callable(draft_model) and not isinstance(draft_model, type):
        return _Called(draft_model)
    raise ArgumentError(
        "draft_model", draft_model, "a LlamaPromptLookupDecoding() or a LlamaDraftModel",
        '`draft` takes "prompt-lookup", a path or a Drafter',
    )  # fmt: skip
