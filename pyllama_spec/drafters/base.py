"""The interface of drafters: a drafter proposes tokens, and learns which were accepted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from pyllama_spec.drafters.draws import TokenDraws
from pyllama_spec.engine import Context, Model
from pyllama_spec.engine.closeable import Closeable
from pyllama_spec.engine.media import MediaRows
from pyllama_spec.engine.sampler import Distribution
from pyllama_spec.errors import PyllamaSpecError

# One array per target layer, in the order of Drafter.target_layers.  # [n_rows, n_embd] float32
Features = Sequence[npt.NDArray[np.float32]]


class Draft(NamedTuple):
    """Proposed tokens.

    Attributes:
        ids: the proposed next tokens, in order; empty for no proposal.
        probabilities: [len(ids)] the drafter's probability of each token, or None. For a lookup hit
            the controller uses them instead of match_length.
        match_length: for a lookup hit, the number of tokens before the copied place that equal the
            end of the text; 0 for other drafts.
        is_remembered: whether a lookup hit is copied from another text.
        distributions: [len(ids)] if the ids were drawn with DraftRequest.draws, the distribution of
            each one, given those before it; else None. `probabilities` then has the probability of
            the likeliest id at each position.
    """

    ids: Sequence[int] = ()
    probabilities: Sequence[float] | None = None
    match_length: int = 0
    is_remembered: bool = False
    distributions: Sequence[Distribution] | None = None

    def first(self, n: int) -> Draft:
        """The first n tokens of the draft."""
        if len(self.ids) <= n:
            return self
        p, drawn = self.probabilities, self.distributions
        return self._replace(
            ids=self.ids[:n],
            probabilities=None if p is None else p[:n],
            distributions=None if drawn is None else drawn[:n],
        )


NO_DRAFT = Draft()


# Called once for each drafted token, in order, with its probability: whether the draft ends there.
DraftStop = Callable[[float], bool]


class TokenView(Sequence[int]):
    """A read-only view of a sequence's tokens. It always shows the newest; a slice is a list."""

    __slots__ = ("_tokens",)

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = tokens

    @overload
    def __getitem__(self, i: int) -> int: ...

    @overload
    def __getitem__(self, i: slice) -> list[int]: ...

    def __getitem__(self, i: int | slice) -> int | list[int]:
        return self._tokens[i]

    def __len__(self) -> int:
        return len(self._tokens)

    def __iter__(self) -> Iterator[int]:
        return iter(self._tokens)


def n_common_ids(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> int:
    """The length of the common prefix of two arrays."""
    n = min(len(a), len(b))
    differs = np.flatnonzero(a[:n] != b[:n])
    return int(differs[0]) if len(differs) else n


class DraftRequest(NamedTuple):
    """A request for a draft for one sequence.

    Attributes:
        seq: number of the sequence.
        tokens: the prompt and all committed tokens. The last one is pending: the target has not
            decoded it. An id below 0 is a row of a picture.
        n_requested: the maximum number of tokens to propose, at least 1.
        stop: says where the draft ends, for drafters that draft one token at a time; None to draft
            n_requested tokens.
        lookup_only: whether only drafts without a model call are wanted; for drafters with
            has_lookup.
        n_lookup: the maximum length of a lookup hit, if that is more than n_requested; else 0.
        draws: the random numbers to draw tokens with, for a request that accepts by rejection
            sampling or draws by shared noise; None to draft the likeliest tokens. For drafters with
            draws_tokens; drafts that are not drawn are correct too. See drafters/draws.py.
    """

    seq: int
    tokens: TokenView | list[int]
    n_requested: int
    stop: DraftStop | None = None
    lookup_only: bool = False
    n_lookup: int = 0
    draws: TokenDraws | None = None


class Committed(NamedTuple):
    """The result of one target decode for one sequence.

    Attributes:
        seq: number of the sequence.
        tokens: the next tokens after those passed before, at positions `start`, start + 1, ...
            Rejected tokens are never passed.
        start: the position of the first token.
        features: the target's rows at the decoded positions first_row, first_row + 1, ..., for each
            target layer. They are views that the next decode overwrites: copy what you keep. For a
            prompt they are the tokens' own. After a round they begin one position before `start`,
            since the formerly pending token has its row now, and the last token, which is pending,
            has none yet. () if none are wanted, or if all rows of the tokens were passed before.
        first_row: see features.
        is_border: whether another prompt may continue differently after these tokens; then keep the
            rows that are needed to resume there.
        n_chosen: how many of the tokens, counted from the end, the target chose in this request;
            those before them were given. 0 if that is no longer known.
        media: if the tokens are rows of a picture, with ids below 0, the rows themselves; None
            where only their ids are known.
    """

    seq: int
    tokens: Sequence[int]
    start: int
    features: Features = ()
    first_row: int = 0
    is_border: bool = False
    n_chosen: int = 0
    media: MediaRows | None = None


def name_of_code(code: object) -> str:
    """The default name of a drafter or controller: its class's or function's name."""
    while isinstance(code, partial):
        code = code.func
    name: str = getattr(code, "__name__", None) or type(code).__name__
    return "custom" if name in ("none", "<lambda>") else name  # "none" is the name of no drafter


class NameOfClass:
    """The `name` of a class that sets none, and of its objects: name_of_code() of the class."""

    def __get__(self, one: object, owner: type) -> str:
        # There is no __set__(): a name that a class or an object sets itself comes first.
        return name_of_code(owner)


def name_of_class() -> Any:
    """A NameOfClass, typed as the str that reading it gives."""
    return NameOfClass()


class SequenceErrors(PyllamaSpecError):  # noqa: N818 - several of them
    """Some sequences of one call failed; the others did not.

    Attributes:
        errors: the exception of each sequence that failed.
        drafts: the drafts of the other sequences, from propose().
    """

    def __init__(
        self, errors: Mapping[int, Exception], drafts: Mapping[int, Draft] | None = None
    ) -> None:
        super().__init__("; ".join(f"sequence {seq}: {error}" for seq, error in errors.items()))
        self.errors = dict(errors)
        self.drafts = dict(drafts or {})


class Drafter(Closeable):
    """Proposes continuations. The round does not depend on its kind, and it never imports the loop.

    A simple drafter overrides propose_one(), which gets the text so far, and nothing else. One with
    a state overrides commit_one() and truncate() as well. One that computes all sequences of a
    round at once overrides the list forms, propose() and commit(), instead. All other methods have
    defaults.

    What the round guarantees, per sequence:

    - commit() passes every token once and in order: those of the prompt, part by part, then those
      of each round, the accepted ones and the target's own;
    - propose() is called when all committed tokens have been passed;
    - there is nothing to undo after a rejection: rejected tokens are never passed;
    - truncate() says that only the first n_keep tokens remain, before commit() continues there.

    An id outside of the vocabulary ends a draft. An exception disables the drafter for that
    sequence until its next prompt. The text continues without it; the result says why in
    `reason_off`, and the exception itself is in `reason_off_error`. A list form that knows which
    sequences failed raises SequenceErrors; any other exception of a list form disables the drafter
    for all sequences of the call.

    Attributes:
        name: its name in the statistics; by default that of its class: see name_of_code().
        target_layers: the target layers whose inputs it needs; () for none.
        max_draft: the maximum number of tokens of a draft; check() may set it by the target.
        is_stepwise: whether each drafted token is a step with a cost, after which the drafter asks
            DraftRequest.stop; else the cost of a draft depends on the requested number of tokens.
        step_share: for a stepwise drafter, the cost of a drafted token in rows of the target, if it
            is known before the first one; else 0. It may be known only after attach().
        has_lookup: whether it can also draft without a model call, and obeys
            DraftRequest.lookup_only.
        is_lookup: whether no draft of it needs a model call. Results do not call such a drafter
            disabled while only lookups are asked for.
        wants_head: whether it drafts with the MTP head in the target's file, which must then be
            loaded: Model(load_mtp=True).
        draws_tokens: whether it knows the distribution of its tokens, and obeys DraftRequest.draws.
        note: a remark in results, such as why draft="auto" chose it; "" for none.
    """

    name: str = name_of_class()
    target_layers: tuple[int, ...] = ()
    max_draft: int = 8
    is_stepwise: bool = False
    step_share: float = 0.0
    has_lookup: bool = False
    is_lookup: bool = False
    wants_head: bool = False
    draws_tokens: bool = False
    note: str = ""

    # ---- drafting

    def propose_one(self, request: DraftRequest) -> Draft:
        """At most request.n_requested tokens that may follow the last one."""
        raise NotImplementedError(f"{type(self).__name__} has no propose_one()")

    def propose(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        """A draft for each request, in their order."""
        if len(requests) == 1:
            return (self.propose_one(requests[0]),)
        drafts: dict[int, Draft] = {}
        errors: dict[int, Exception] = {}
        for request in requests:
            try:
                drafts[request.seq] = self.propose_one(request)
            except Exception as error:  # noqa: BLE001, PERF203 - it is this sequence's alone
                errors[request.seq] = error
        if errors:
            raise SequenceErrors(errors, drafts)
        return [drafts[request.seq] for request in requests]

    # ---- the outcome

    def commit_one(self, done: Committed) -> None:
        """Notes the result of a target decode for one sequence."""

    def commit(self, done: Sequence[Committed]) -> None:
        """Notes the results of a target decode."""
        if len(done) == 1:
            self.commit_one(done[0])
            return
        errors: dict[int, Exception] = {}
        for one in done:
            try:
                self.commit_one(one)
            except Exception as error:  # noqa: BLE001, PERF203 - it is this sequence's alone
                errors[one.seq] = error
        if errors:
            raise SequenceErrors(errors)

    def truncate(self, seq: int, n_keep: int) -> None:
        """Forgets all but the first n_keep tokens of the sequence."""

    # ---- requests, for drafters that learn from one for another

    def begin_request(self, seq: int, *, remember: bool, user: str) -> None:
        """Called when a request begins on the sequence, before resume_at() and truncate().

        Args:
            seq: number of the sequence, which still has the text of the request before.
            remember: whether its text may be kept for later requests.
            user: the user who made the request; "" if that was not given. Text of one user must not
                be proposed to another one, unless they share a named store.
        """

    def end_request(self, seq: int) -> None:
        """Called when a request has ended; not if it was dropped: then begin_request() follows."""

    def copy(self, seq: int, to: int) -> None:
        """Lets the sequence `to` begin as a copy of `seq`."""

    @property
    def can_copy(self) -> bool:
        """Whether copy() copies. If not, commit() repeats the copied tokens."""
        return overrides(self, "copy", Drafter)

    # ---- the target it computes beside

    def check(self, target: Model) -> None:
        """Raises if the drafter cannot draft for this target. Called before anything is opened.

        Raises:
            ArgumentError: it was made for another target; the message names the first difference.
        """

    def attach(self, target: Context) -> None:
        """Called by the round before anything else. May be called again."""

    @property
    def attached_to(self) -> Context | None:
        """The target that the drafter is bound to while that one is open; None for none."""
        return None

    def n_unread(self, seq: int) -> int:
        """The number of the sequence's tokens that it has to process before its next draft.

        For drafters that do not process a text as it is committed: that draft takes longer, and
        its time says nothing about the cost of drafts.
        """
        return 0

    # ---- a state that outlasts a request

    def resume_at(self, seq: int, n_keep: int) -> int:
        """How many of the first n_keep tokens it resumes after; commit() repeats the rest."""
        return n_keep

    def save(self, seq: int) -> bytes | None:
        """The state of a sequence, for restore(); None if the drafter needs the tokens again."""
        return None

    def restore(self, seq: int, data: bytes) -> int:
        """Restores a state of save(); returns the number of tokens that it now knows.

        Only bytes of its own class are passed. An ArgumentError, for bytes that it cannot use, is
        not reported: commit() repeats the tokens.
        """
        return 0

    # ---- for people

    def passes_on_to(self) -> object:
        """The wrapped drafter, to which this one passes calls; None for none."""
        return None

    def describe(self) -> dict[str, Any]:
        """Facts for `doctor`: sizes, layers, the file; {} for none."""
        return {}

    def __repr__(self) -> str:
        file = ""
        with contextlib.suppress(PyllamaSpecError):  # closed
            path = self.describe().get("path")
            file = "" if path is None else f" {Path(path).name!r}"
        state = ", closed" if self.is_closed else ""
        return f"<{type(self).__name__}{file}: {self.name}, max_draft={self.max_draft}{state}>"

    @property
    def is_closed(self) -> bool:
        """Whether close() was called, for drafters that cannot be used after it."""
        return False

    def close(self) -> None:
        """Frees its resources. May be called twice."""


def overrides(drafter: Drafter, method: str, base: type[Drafter]) -> bool:
    """Whether a drafter or its class overrides a method of the base."""
    return getattr(getattr(drafter, method), "__func__", None) is not getattr(base, method)


class NoDrafter(Drafter):
    """Proposes nothing: a round with it is plain decoding."""

    def __init__(self, name: str = "none", max_draft: int = 0) -> None:
        self.name, self.max_draft = name, max_draft

    def propose(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        """Proposes nothing."""
        return [NO_DRAFT] * len(requests)

    def commit(self, done: Sequence[Committed]) -> None:
        """Ignores the tokens."""
