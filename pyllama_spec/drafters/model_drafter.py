"""A drafter with a model of its own, which runs beside the target on its threads.

It drafts one token after another: a memory (draft_memory.py) computes the candidates for each, and
here one of them is chosen. n drafted tokens are n calls of the model, however many sequences draft
together, or one call for a draft that computes a block at once.
"""

from __future__ import annotations

import contextlib
import os
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pyllama_spec.drafters.base import (
    NO_DRAFT,
    Committed,
    Draft,
    Drafter,
    DraftRequest,
    SequenceErrors,
)
from pyllama_spec.drafters.draft_memory import Chain, DraftMemory, fingerprint, passed
from pyllama_spec.drafters.lookup_first import MIN_NGRAM, LookupFirst
from pyllama_spec.drafters.options import DraftOptions, FileOptions
from pyllama_spec.drafters.output_part import DraftIds
from pyllama_spec.engine.checks import count, instance, real
from pyllama_spec.engine.closeable import closed_on_failure
from pyllama_spec.engine.context import Context
from pyllama_spec.engine.model import Model
from pyllama_spec.errors import (
    ArgumentError,
    OutOfMemoryError,
    PyllamaSpecError,
    RemoteError,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

_Memory = TypeVar("_Memory", bound=DraftMemory)


class ModelDrafter(Drafter, Generic[_Memory]):
    """Drafts with a model: the model, its context, and what the context was fed.

    Args:
        model: the model, or the path of its GGUF.
        max_draft: the maximum number of tokens of a draft; None for the kind's own number.
        options: see FileOptions.

    Raises:
        ModelLoadError: the file cannot be read, or its parts contradict each other.
        ArgumentError: the file is of another kind, or a number is out of range.

    Attributes:
        lengths: the kind's own numbers of tokens: with a fixed length, and with a controller.
        loads_head: whether a file is loaded with its MTP head.
    """

    is_stepwise = True
    lengths: tuple[int, int]
    loads_head = False

    def __init__(
        self,
        model: Model | str | os.PathLike[str] | None,
        max_draft: int | None = None,
        **options: Unpack[FileOptions],
    ) -> None:
        n_ctx, n_output = options.pop("n_ctx", None), options.pop("n_output", None)
        self.max_draft = self.lengths[0] if max_draft is None else count(max_draft, "max_draft", 1)
        self.p_min = real(options.pop("p_min", 0.0), "p_min", 0.0)
        self._n_ctx = None if n_ctx is None else count(n_ctx, "n_ctx", 1)
        self._n_output = None if n_output is None else count(n_output, "n_output", 0)
        self._draft_ids: DraftIds | None = None
        self._target: Context | None = None
        self._memory: _Memory | None = None
        self._is_lost = False
        self._n_features = 0
        self._fingerprint = ""  # distinguishes its saved states from those of another draft
        self._owns_model = not isinstance(model, (Model, type(None)))
        how: dict[str, Any] = {**options, "load_mtp": self.loads_head}
        self._model = model if isinstance(model, (Model, type(None))) else Model(model, **how)
        if self._model is not None:
            with closed_on_failure(self):
                self.check_kind(self._model)
                self.target_layers = self._model.target_layers

    @classmethod
    def open(cls, path: Any, options: DraftOptions) -> Drafter:
        """Opens a draft, with lookups beside it unless options.lookup is 0."""
        draft = cls(path, options.length(*cls.lengths), **options.of_file())
        n = MIN_NGRAM if options.lookup is None else options.lookup
        if not n:
            return draft
        with closed_on_failure(draft):
            lookup = LookupFirst(draft, n, options.remembers, options.memory)
            lookup.name = draft.name
            return lookup

    @abstractmethod
    def check_kind(self, model: Model) -> None:
        """Raises unless a model is one that this drafter runs."""

    @property
    def model(self) -> Model:
        """The draft model."""
        if self._model is None:
            raise ArgumentError("draft", self.name, problem="is not attached to a target yet")
        return self._model

    def check(self, target: Model) -> None:
        """Raises with the first difference if the draft was made for another target."""
        try:
            self.model.check_draft_of(target)
        except ArgumentError as error:
            raise ArgumentError(
                "draft", problem=f"does not fit: {error}",
                remedy='give a draft that was made for this target, or `draft="suffix"`, which '
                'fits every model',
            ) from None  # fmt: skip

    @property
    def attached_to(self) -> Context | None:
        """The target whose threads the draft shares."""
        return self._target

    def attach(self, target: Context) -> None:
        """Opens the draft's context, which shares the target's threads.

        Opens none if a server with the draft's layers was lost: their addresses, sent over the
        target's new connection, would have the new server close it.
        """
        instance(target, Context, "target")
        self.check(target.model)
        if self._memory is not None:
            if self._target is target:
                return
            self._is_lost = self._is_lost or self._has_lost_layers(self._memory.context)
            self._memory.context.close()
            self._target = self._memory = None  # also where the next one cannot be opened
        if self._is_lost:
            self._target, self._draft_ids = target, None
            return
        self._n_features = sum(map(target.model.row_width, self.target_layers))
        # Once: it reads all metadata, which takes longer than to save a short text, and `train` may
        # give the file's name to another draft while this one is open.
        self._fingerprint = fingerprint(self.model, self._n_features)
        self._memory = self.open_memory(target)
        self._target = target

    def _has_lost_layers(self, context: Context) -> bool:
        """Whether a server with the draft's own layers was lost."""
        is_remote = any("[" in device for device in context.model.placement)
        is_own = is_remote and context.model is self._model
        return is_own and context.find_failure() and isinstance(context.failure, RemoteError)

    @abstractmethod
    def open_memory(self, target: Context) -> _Memory:
        """Opens the draft's context, with open_context(), and the memory that computes in it."""

    def open_context(
        self, target: Context, n_window: int, n_guesses: int, n_batch: int, n_outputs: int,
        *, n_lanes: int = 1, is_head: bool = False,
    ) -> Context:  # fmt: skip
        """Opens a context of the draft beside the target's."""
        params = target.params
        n_ctx = n_window * params.n_seq_max
        if params.kv_unified:  # together they have no more tokens than the target has room for
            n_ctx = min(n_ctx, target.n_ctx_seq)
        n = params.n_seq_max
        try:
            return Context(
                self.model, target=target, n_ctx=(n_ctx + n_guesses * n) * n_lanes,
                n_batch=n_batch, n_ubatch=n_batch, n_seq_max=n * n_lanes, n_outputs_max=n_outputs,
                kv_unified=params.kv_unified, n_threads=target.n_threads,
                flash_attn=params.flash_attn, type_k=params.type_k, type_v=params.type_v,
                offload_kqv=params.offload_kqv, is_window=True, is_head=is_head,
            )  # fmt: skip
        except OutOfMemoryError as error:
            what = f"{self.model.path.name}: the memory of the draft for {n} x {n_window} tokens"
            smaller = ["draft_n_ctx", "n_ctx"] + ["n_parallel"] * (n > 1)
            raise error.of(what, smaller) from None

    def memory_or_fail(self) -> _Memory:
        """The memory that computes in the draft's context."""
        if self._is_lost:
            raise RemoteError(
                "a server with the draft's layers was lost; open the draft again, for a new Llama"
            )
        if self._memory is None:
            raise ArgumentError(
                "draft", problem="is not attached to a target", remedy="call attach() first"
            )
        return self._memory

    @property
    def context(self) -> Context | None:
        """The draft's context; None before attach()."""
        return None if self._memory is None else self._memory.context

    @property
    def n_calls(self) -> int:
        """The number of the draft's decodes since attach()."""
        return 0 if self._memory is None else self._memory.n_calls

    @property
    def n_choices(self) -> int:
        """The number of ids that the draft chooses among.

        All of the model's where it has a smaller vocabulary of its own (d2t) and uses no part.
        """
        ids = self._draft_ids
        return self.model.info.n_vocab if ids is None else ids.n_slots

    # ---- drafting

    def can_draft(self, request: DraftRequest) -> bool:
        """Whether tokens are requested and there is a row to draft from."""
        return request.n_requested >= 1 and len(self.memory_or_fail().tokens(request.seq)) >= 2

    def propose(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        """Feeds what was committed since the last draft, then drafts for all sequences together."""
        memory = self.memory_or_fail()
        errors: dict[int, Exception] = {}
        chains = [Chain(r) for r in passed(requests, self.can_draft, errors)]
        if chains:
            memory.ask(chains, min(max(c.request.n_requested for c in chains), self.max_draft))
            self.draft(chains, errors)
        drafts = {
            c.seq: Draft(c.ids, c.p, distributions=c.drawn_from or None)
            for c in chains
            if c.seq not in errors
        }
        if errors:
            raise SequenceErrors(errors, drafts)
        return [drafts.get(request.seq, NO_DRAFT) for request in requests]

    def draft(self, chains: list[Chain], errors: dict[int, Exception]) -> None:
        """Drafts the tokens of chains whose first choice is known; notes errors by sequence."""
        self.go_on(passed(chains, self.extend, errors), errors)

    def go_on(self, going: list[Chain], errors: dict[int, Exception]) -> None:
        """Drafts the next tokens of the continuing chains; notes errors by sequence."""
        memory = self.memory_or_fail()
        while going:
            memory.step(going)
            going = passed(going, self.extend, errors)

    def extend(self, chain: Chain) -> bool:
        """Appends the chosen token to the draft; returns whether to draft another one."""
        choice, request, ids = chain.choice, chain.request, chain.ids
        if choice is None or not choice.ids:
            return False
        token, p = choice.best()
        if p < self.p_min:
            return False
        ids.append(token)
        chain.p.append(p)
        if choice.drawn_from is not None:
            chain.drawn_from.append(choice.drawn_from)
        if request.stop is not None and request.stop(p):
            return False
        return len(ids) < request.n_requested and len(ids) < self.max_draft

    # ---- the text

    def commit(self, done: Sequence[Committed]) -> None:
        """Notes tokens and their rows. Feeds those of a prompt; others wait for propose().

        It can choose the tokens from now on, where it chooses among a part of the vocabulary.
        """
        if self._draft_ids is not None:
            self._use_ids(lambda ids: ids.commit(done))
        self.memory_or_fail().commit(done)

    def _use_ids(self, use: Callable[[DraftIds], str | None]) -> None:
        """Uses the part of the vocabulary; gives it up with a note if that says why, or fails."""
        assert self._draft_ids is not None
        try:
            why = use(self._draft_ids)
        except (OSError, OutOfMemoryError) as error:
            why = str(error)
        if why:
            self._draft_ids = None
            self.memory_or_fail().context.draft_output(0)
            text = f"the draft chooses among all ids: {why}"
            self.note = f"{self.note}; {text}" if self.note else text

    def n_unread(self, seq: int) -> int:
        """The tokens that a small model has not processed, or a paused head's waiting rows."""
        return self.memory_or_fail().n_unread(seq)

    def resume_at(self, seq: int, n_keep: int) -> int:
        """How many of the first n_keep tokens the target may keep: those whose rows are here."""
        return self.memory_or_fail().resume_at(seq, n_keep)

    def truncate(self, seq: int, n_keep: int) -> None:
        """Keeps the part of the first n_keep tokens."""
        if self._memory is not None:
            self._memory.truncate(seq, n_keep)

    def copy(self, seq: int, to: int) -> None:
        """Starts `to` as a copy of `seq`."""
        self.memory_or_fail().copy(seq, to)

    def save(self, seq: int) -> bytes:
        """The state of a sequence, for restore() of a draft with the same file and settings."""
        return self.memory_or_fail().save(seq, self._fingerprint)

    def restore(self, seq: int, data: bytes) -> int:
        """Restores a state of save()."""
        memory = self.memory_or_fail()
        n = memory.restore(seq, data, self._fingerprint)
        if self._draft_ids is not None:
            self._use_ids(lambda ids: ids.see(memory.tokens(seq)))
        return n

    # ---- for people

    def describe(self) -> dict[str, Any]:
        """The draft's file, sizes, devices, number of choices, and target layers."""
        info = self.model.info
        return {
            "path": str(self.model.path),
            "architecture": info.arch,
            "n_params": info.n_params,
            "size_bytes": info.size_bytes,
            "memory_bytes": 0 if self._memory is None else self._memory.context.memory_bytes,
            "n_layer": info.n_layer,
            "n_embd": info.n_embd,
            "n_output": self.n_choices,
            "placement": self.model.placement,
            "target_layers": list(self.target_layers),
            "reads": f"the inputs of layers {', '.join(map(str, self.target_layers))}",
        }

    @property
    def is_closed(self) -> bool:
        """Whether close() was called."""
        return self._owns_model and self._model is not None and self._model.is_closed

    def close(self) -> None:
        """Frees the draft's context, and the model if it was given as a path."""
        with contextlib.suppress(PyllamaSpecError, AttributeError):
            if self._memory is not None:
                self._memory.context.close()
        self._target = self._memory = None
        if self._owns_model and self._model is not None:
            self._model.close()
