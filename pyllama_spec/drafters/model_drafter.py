"""A drafter with a model of its own, which runs beside the target on its threads."""

from __future__ import annotations

import contextlib
import math
import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from pyllama_spec.drafters.base import Committed, Drafter, DraftRequest, TokenPrior
from pyllama_spec.drafters.lookup_first import MIN_NGRAM, LookupFirst
from pyllama_spec.drafters.ngram_table import NgramTable
from pyllama_spec.drafters.options import DraftOptions
from pyllama_spec.drafters.output_part import DraftIds, Step, reduced_output
from pyllama_spec.drafters.saved_state import fingerprint
from pyllama_spec.engine.checks import count, instance, real
from pyllama_spec.engine.closeable import closed_on_failure
from pyllama_spec.engine.context import Context
from pyllama_spec.engine.distribution import Distribution
from pyllama_spec.engine.model import Model, Progress
from pyllama_spec.engine.model_info import NgramArrays
from pyllama_spec.errors import (
    ArgumentError,
    EngineError,
    ModelLoadError,
    OutOfMemoryError,
    PyllamaSpecError,
    RemoteError,
)
from pyllama_spec.gguf.sizes import (
    MainType,
    block_bytes,
    bytes_per_token,
    main_type,
    tensor_bytes,
)


class _HasTokens(Protocol):
    tokens: list[int]


class DraftMemory(Protocol):
    """The tokens and rows that a draft's context was fed, by sequence."""

    context: Context
    n_calls: int

    def of(self, seq: int) -> _HasTokens:
        """The memory of a sequence."""

    def commit(self, done: Sequence[Committed]) -> None:
        """Records tokens."""

    def n_unread(self, seq: int) -> int:
        """See Drafter.n_unread."""

    def resume_at(self, seq: int, n_keep: int) -> int:
        """See Drafter.resume_at."""

    def truncate(self, seq: int, n_keep: int) -> None:
        """See Drafter.truncate."""

    def copy(self, seq: int, to: int) -> None:
        """See Drafter.copy."""

    def save(self, seq: int, fingerprint: str) -> bytes:
        """The state of a sequence, for restore() with an equal fingerprint."""

    def restore(self, seq: int, data: bytes, fingerprint: str) -> int:
        """Restores a state of save(); returns the number of tokens."""


_Memory = TypeVar("_Memory", bound=DraftMemory)


class _HasSeq(Protocol):
    @property
    def seq(self) -> int: ...


_Item = TypeVar("_Item", bound=_HasSeq)


class ModelDrafter(Drafter, Generic[_Memory]):
    """The common part of drafters with a model: the model, its context, and the fed tokens.

    Attributes:
        can_be_target: whether the draft may lie in the target's own file.
    """

    can_be_target = False

    def __init__(
        self,
        model: Model | str | os.PathLike[str] | None,
        name: str,
        kind: str,
        *,
        n_ctx: int | None = None,
        p_min: float = 0.0,
        n_output: int | None = None,
        n_gpu_layers: int = 0,
        devices: Sequence[str] | None = None,
        rpc_servers: Sequence[str] | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.name = name
        self.p_min = real(p_min, "p_min", 0.0)
        self._n_ctx = None if n_ctx is None else count(n_ctx, "n_ctx", 1)
        self._n_output = None if n_output is None else count(n_output, "n_output", 0)
        self._draft_ids: DraftIds | None = None
        self._told_choice = ""
        if model is not None or not self.can_be_target:
            instance(model, (Model, str, os.PathLike), "model", "give a Model or a path")
        self._owns_model = not isinstance(model, (Model, type(None)))
        self._model = model if isinstance(model, Model) else None
        if self._owns_model:
            self._model = self.load(
                model, n_gpu_layers=n_gpu_layers, devices=devices, rpc_servers=rpc_servers,
                progress=progress,
            )  # fmt: skip
        if self._model is not None:
            self._check_kind(self._model, kind)
        self.target_layers = self.layers_read()
        self._target: Context | None = None
        self._memory: _Memory | None = None
        self._is_lost = False
        self._n_features = 0
        self._fingerprint = ""  # what tells its saved states from those of another draft

    def load(self, path: Any, **how: Any) -> Model:
        """Loads the model of a draft that is given as a path."""
        return Model(path, **how)

    def _check_kind(self, model: Model, kind: str) -> None:
        why = self.why_not(model, kind)
        if why:
            self.close()
            raise ArgumentError(f"{model.path.name} {why}")

    def why_not(self, model: Model, kind: str) -> str:
        """The reason why this drafter cannot use a model; "" if it can."""
        arch = model.info.arch
        return "" if arch == self.name else f"is of kind {arch!r}, not {kind}"

    def layers_read(self) -> tuple[int, ...]:
        """The target layers whose inputs the draft reads."""
        return self.model.target_layers

    @property
    def model(self) -> Model:
        """The draft model."""
        if self._model is None:
            raise ArgumentError(f"the drafter {self.name!r} is not attached to a target yet")
        return self._model

    def ngram_arrays(self) -> NgramArrays | None:
        """The n-gram table's arrays in the draft's file; see Model.ngram_arrays()."""
        return None if self._model is None else self._model.ngram_arrays()

    def check(self, target: Model) -> None:
        """Raises with the first difference if the draft was made for another target."""
        try:
            self.model.check_draft_of(target)
        except ArgumentError as error:
            raise ArgumentError(
                f"{error}; give a draft that was made for this target, or "
                'draft="suffix", which fits every model'
            ) from None

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
        """Opens the draft's context, with open_context(), and the object that tracks it."""

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

    def choose_among_part(self, context: Context, target: Context, step: Step) -> None:
        """Limits the draft's choice to a part of the vocabulary, if asked for or cheaper."""
        with closed_on_failure(context):
            self._draft_ids = reduced_output(context, self._n_output, target.model, step)

    @property
    def n_choices(self) -> int:
        """The number of ids that the draft chooses among.

        All of the model's where it has a smaller vocabulary of its own (d2t) and uses no part.
        """
        ids = self._draft_ids
        return ids.n_slots if ids and ids.in_use else self.model.info.n_vocab

    def _see(self, ids: Iterable[int]) -> None:
        if self._draft_ids is None:
            return
        try:
            self._draft_ids.see(ids)
        except OSError as error:
            self._choose_among_all(str(error))

    def _count(self, done: Sequence[Committed]) -> None:
        """Switches to all ids where too many of a text have no slot, and back, unless n_output."""
        ids = self._draft_ids
        if ids is None or self._n_output is not None:
            return
        for one in done:
            ids.count(one.tokens[len(one.tokens) - one.n_chosen :])
        if ids.is_too_small:
            ids.leave()
            self._tell_choice(
                f"among all ids: a part of them did not have {ids.missing:.0%} of what the target "
                "chose"
            )
        elif ids.fits_again:
            try:
                ids.use_again()
            except (OSError, OutOfMemoryError) as error:
                self._choose_among_all(str(error))
            else:
                self._tell_choice("among a part of the ids again")

    def _choose_among_all(self, reason: str) -> None:
        self._draft_ids = None
        self.memory_or_fail().context.draft_output(0)
        self._tell_choice(f"among all ids: {reason}")

    def _tell_choice(self, text: str) -> None:
        """Replaces the remark about the ids that the draft chooses among."""
        before, self._told_choice = self._told_choice, f"the draft chooses {text}"
        if before and before in self.note:
            self.note = self.note.replace(before, self._told_choice)
        else:
            self.add_note(self._told_choice)

    def memory_or_fail(self) -> _Memory:
        """The object that tracks the draft's context."""
        if self._is_lost:
            raise RemoteError(
                "a server with the draft's layers was lost; open the draft again, for a new Llama"
            )
        if self._memory is None:
            raise ArgumentError("the draft is not attached to a target: call attach() first")
        return self._memory

    @property
    def context(self) -> Context | None:
        """The draft's context; None before attach()."""
        return None if self._memory is None else self._memory.context

    @property
    def n_calls(self) -> int:
        """The number of the draft's decodes since attach()."""
        return 0 if self._memory is None else self._memory.n_calls

    def commit(self, done: Sequence[Committed]) -> None:
        """Notes tokens and their rows. Feeds those of a prompt; others wait for propose().

        It can choose the tokens from now on, where it chooses among a part of the vocabulary.
        """
        self._count(done)
        self._see(chain.from_iterable(one.tokens for one in done))
        self.memory_or_fail().commit(done)

    def can_draft(self, request: DraftRequest) -> bool:
        """Whether tokens are requested and there is a row to draft from."""
        return request.n_requested >= 1 and len(self.memory_or_fail().of(request.seq).tokens) >= 2

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
            self._see(memory.of(seq).tokens)
        return n

    def add_note(self, text: str) -> None:
        """Adds a remark to results, once; "" for none."""
        if text and text not in self.note:
            self.note = f"{self.note}; {text}" if self.note else text

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


def add_lookup(draft: ModelDrafter[Any], options: DraftOptions) -> Drafter:
    """Adds lookups and n-grams to the draft, unless options.lookup is 0."""
    match_length = MIN_NGRAM if options.lookup is None else options.lookup
    if not match_length:
        return draft
    with closed_on_failure(draft):
        try:
            arrays = draft.ngram_arrays()
            table = None if arrays is None else NgramTable(*arrays, draft.model.info.n_vocab)
        except ArgumentError as error:
            raise ModelLoadError(f"{draft.model.path}: {error}") from None
        lookup = None
        if options.memory is not None:
            from pyllama_spec.drafters.suffix import copies_beside

            lookup = copies_beside(draft.max_draft, match_length, options.memory)
    return LookupFirst(draft, match_length, table, lookup, draft.name)


def passed(
    items: Sequence[_Item], can_go_on: Callable[[_Item], bool], errors: dict[int, Exception]
) -> list[_Item]:
    """The sequences that can continue; records an exception for its sequence alone."""
    out: list[_Item] = []
    for item in items:
        try:
            if can_go_on(item):
                out.append(item)
        except Exception as error:  # noqa: BLE001, PERF203 - such as NaN, or a prior that fails
            errors[item.seq] = error
    return out


# Below so many bits drafts were measured to be right less often: heads of 4 bits for a fifteenth of
# the tokens that they are at 8.
FEW_BITS = 6


def step_share(draft: Model, target: Model) -> float:
    """The cost of a drafted token relative to a target row, by the weights that each reads.

    Where weights are read from memory as fast as they come, that is the ratio of their times; a
    type that is expensive to unpack makes it larger.
    """
    return weight_bytes(draft)[0] / max(weight_bytes(target)[0], 1)


def head_share(head: Model, target: Model, n_choices: int | None = None) -> float:
    """The cost of a head's step relative to a target row, by the weights that each reads.

    0 if it is unknown, such as when a table cannot be read.
    """
    info = head.info
    try:
        sizes, of_target = tensor_bytes(head.path), tensor_bytes(target.path)
    except ModelLoadError:
        return 0.0
    first = info.n_layer if info.n_heads else 0
    n = block_bytes(sizes, head.metadata, first=first) / max(info.n_heads, 1)
    if not any(name.endswith(".shared_head_head.weight") for name in sizes):
        tied = of_target.get("token_embd.weight", 0)
        whole = sizes.get("output.weight", of_target.get("output.weight", tied))
        n += whole * (1.0 if n_choices is None else n_choices / info.n_vocab)
    return n / max(weight_bytes(target)[0], 1)


def weight_bytes(model: Model) -> tuple[int, str]:
    """Bytes of weights per plain token, and where the number comes from, in words."""
    metadata = model.metadata
    if int(metadata.get("split.count", "0")) > 1:
        return model.info.size_bytes, "the size of all weights: the file is split"
    try:
        n = bytes_per_token(tensor_bytes(model.path), metadata)
    except ModelLoadError:
        return model.info.size_bytes, "the size of all weights: the file's table is unreadable"
    return n, "tensors that a decode of one token reads: no looked-up embeddings, no idle experts"


def type_of_weights(model: Model) -> MainType | None:
    """The type of most weights; None if the file does not tell."""
    try:
        return main_type(model.path)
    except ModelLoadError:
        return None


def note_of_few_bits(what: str, kind: str, bits: float, less: str) -> str:
    """A remark on a draft with low-bit weights, for results; "" for others."""
    if bits >= FEW_BITS:
        return ""
    return f"the weights of {what} are {kind}: below {FEW_BITS} bits {less}"


@dataclass(slots=True)
class Choice:
    """The draft model's candidates for one position.

    Attributes:
        ids: the likeliest tokens, as ids of the target, likeliest first.
        p: their probabilities in the model's own distribution.
        row: float32, further outputs for the token: see Context.draft_candidates().
        drawn_from: if the token was drawn at random, its distribution. `p` is then the probability
            of the likeliest token, which does not depend on the drawn one.
    """

    ids: Sequence[int]
    p: Sequence[float]
    row: npt.NDArray[np.float32]
    drawn_from: Distribution | None = None

    @property
    def candidates(self) -> list[tuple[int, float]]:
        """The tokens with their probabilities."""
        return list(zip(self.ids, self.p, strict=True))


def choose(choice: Choice, prior: TokenPrior | None, drafted: Sequence[int]) -> tuple[int, float]:
    """The token to draft and its probability.

    With a prior it is the likeliest of a linear mixture, of which the model's distribution is known
    at its likeliest tokens: another one is hardly ever chosen.
    """
    token, p = choice.ids[0], choice.p[0]
    if math.isnan(p):
        raise EngineError("the draft computed NaN: the target's rows or its own weights are NaN")
    # A token that was drawn stays what it is: others have no say in it.
    votes = () if prior is None or choice.drawn_from is not None else prior(drafted)
    if not votes:
        return token, p
    scores = dict(zip(choice.ids, choice.p, strict=True))
    for vote in votes:
        scores[vote.token] = scores.get(vote.token, 0.0) + vote.weight * vote.p
    # Among equals the model's own choice.
    best = max(scores, key=lambda id_: (scores[id_], id_ == token))
    return best, scores[best] / (1.0 + sum(vote.weight for vote in votes))
