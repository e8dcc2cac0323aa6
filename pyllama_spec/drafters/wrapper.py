"""A base for drafters that wrap another one, override some calls and pass on the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pyllama_spec.drafters.base import (
    Committed,
    Draft,
    Drafter,
    DraftRequest,
    SequenceErrors,
    overrides,
)
from pyllama_spec.engine.checks import instance
from pyllama_spec.engine.context import Context
from pyllama_spec.engine.model import Model

_T = TypeVar("_T")


class _OfTheInner:
    """An attribute of the wrapped drafter, until the wrapper sets its own."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, wrapper: DrafterWrapper | None, owner: type) -> Any:
        # There is no __set__(): an attribute that the wrapper sets itself comes first.
        return getattr(Drafter if wrapper is None else wrapper.drafter, self._name)


def _of_the_inner() -> Any:
    return _OfTheInner()


class DrafterWrapper(Drafter):
    """Passes every call on to another drafter; a subclass overrides what it changes.

    Of propose_one() and propose(), and of commit_one() and commit(), override one form, whichever
    the drafter inside has: `super().propose_one(request)` asks it in the form that it has. The
    attributes are those of the drafter inside, as they are now, unless the subclass sets its own.

        class Halved(DrafterWrapper):
            def propose_one(self, request: DraftRequest) -> Draft:
                n = (request.n_requested + 1) // 2
                return super().propose_one(request._replace(n_requested=n))

        llm = Llama("model.gguf", draft=Halved(open_draft("draft.gguf")))

    Args:
        drafter: the one inside. close() closes it.

    Attributes:
        drafter: see above.

    Raises:
        ArgumentError: it is not a Drafter.
    """

    name: str = _of_the_inner()
    target_layers: tuple[int, ...] = _of_the_inner()
    max_draft: int = _of_the_inner()
    is_stepwise: bool = _of_the_inner()
    step_share: float = _of_the_inner()
    has_lookup: bool = _of_the_inner()
    is_lookup: bool = _of_the_inner()
    wants_head: bool = _of_the_inner()
    draws_tokens: bool = _of_the_inner()

    def __init__(self, drafter: Drafter) -> None:
        instance(drafter, Drafter, "drafter", "; open_draft(path) gives that of a file")
        self.drafter = drafter

    @property
    def note(self) -> str:
        """The wrapped drafter's remark."""
        return self.drafter.note

    @note.setter
    def note(self, text: str) -> None:
        self.drafter.note = text

    def passes_on_to(self) -> object:
        """The wrapped drafter."""
        return self.drafter

    def propose_one(self, request: DraftRequest) -> Draft:
        """The wrapped drafter's proposal for one sequence, from either of its methods."""
        return _alone(request.seq, lambda: self.drafter.propose((request,)))[0]

    def propose(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        """Asks the wrapped drafter, by propose_one() if a subclass overrides that."""
        if overrides(self, "propose_one", DrafterWrapper):
            return super().propose(requests)
        return self.drafter.propose(requests)

    def commit_one(self, done: Committed) -> None:
        """Tells the wrapped drafter the result of a decode for one sequence."""
        _alone(done.seq, lambda: self.drafter.commit((done,)))

    def commit(self, done: Sequence[Committed]) -> None:
        """Tells the wrapped drafter the results, by commit_one() if a subclass overrides that."""
        if overrides(self, "commit_one", DrafterWrapper):
            super().commit(done)
        else:
            self.drafter.commit(done)

    def truncate(self, seq: int, n_keep: int) -> None:
        """See Drafter."""
        self.drafter.truncate(seq, n_keep)

    def begin_request(self, seq: int, *, remember: bool, user: str) -> None:
        """See Drafter."""
        self.drafter.begin_request(seq, remember=remember, user=user)

    def end_request(self, seq: int) -> None:
        """See Drafter."""
        self.drafter.end_request(seq)

    def copy(self, seq: int, to: int) -> None:
        """See Drafter."""
        self.drafter.copy(seq, to)

    @property
    def can_copy(self) -> bool:
        """Whether the wrapped drafter can copy."""
        return self.drafter.can_copy

    def check(self, target: Model) -> None:
        """See Drafter."""
        self.drafter.check(target)

    def attach(self, target: Context) -> None:
        """See Drafter."""
        self.drafter.attach(target)

    @property
    def attached_to(self) -> Context | None:
        """See Drafter."""
        return self.drafter.attached_to

    def n_unread(self, seq: int) -> int:
        """See Drafter."""
        return self.drafter.n_unread(seq)

    def resume_at(self, seq: int, n_keep: int) -> int:
        """See Drafter."""
        return self.drafter.resume_at(seq, n_keep)

    def save(self, seq: int) -> bytes | None:
        """See Drafter."""
        return self.drafter.save(seq)

    def restore(self, seq: int, data: bytes) -> int:
        """See Drafter."""
        return self.drafter.restore(seq, data)

    def describe(self) -> dict[str, Any]:
        """See Drafter."""
        return self.drafter.describe()

    @property
    def is_closed(self) -> bool:
        """See Drafter."""
        return self.drafter.is_closed

    def close(self) -> None:
        """Closes the wrapped drafter."""
        self.drafter.close()


def _alone(seq: int, call: Callable[[], _T]) -> _T:
    """Calls a method that takes a list for one sequence, and raises that sequence's own error."""
    try:
        return call()
    except SequenceErrors as failed:
        if seq not in failed.errors:
            raise
        error = failed.errors[seq]
    raise error
