"""A lookup before a draft model: copies where the text repeats itself, without the model.

A small head reads the text through one layer of attention and loses the thread of a long copy; an
index of the text's own n-grams never does. So where the text's last tokens occurred before, the
draft is a copy (suffix/), if that is more likely right than wrong; else the model drafts. Its calls
are saved too: the model gets the rows of several rounds at once with its next draft.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from pyllama_spec.drafters.base import (
    Committed,
    Draft,
    Drafter,
    DraftRequest,
    SequenceErrors,
    overrides,
)
from pyllama_spec.drafters.draft_memory import pack, unpack
from pyllama_spec.engine import Context, Model
from pyllama_spec.engine.checks import count, instance

_T = TypeVar("_T")


class _OfTheInner:
    """An attribute or method of the wrapped drafter, until the wrapper has its own."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, wrapper: DrafterWrapper | None, owner: type) -> Any:
        # There is no __set__(): an attribute that the wrapper sets itself comes first.
        return getattr(Drafter if wrapper is None else wrapper.drafter, self._name)


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

    def __init__(self, drafter: Drafter) -> None:
        instance(drafter, Drafter, "drafter", "open_draft(path) gives that of a file")
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


for _name in (
    "name", "target_layers", "max_draft", "is_stepwise", "step_share", "has_lookup", "is_lookup",
    "wants_head", "draws_tokens", "truncate", "begin_request", "end_request", "copy", "can_copy",
    "check", "attach", "attached_to", "n_unread", "resume_at", "save", "restore", "describe",
    "is_closed", "close",
):  # fmt: skip
    setattr(DrafterWrapper, _name, _OfTheInner(_name))


def _alone(seq: int, call: Callable[[], _T]) -> _T:
    """Calls a method that takes a list for one sequence, and raises that sequence's own error."""
    try:
        return call()
    except SequenceErrors as failed:
        if seq not in failed.errors:
            raise
        error = failed.errors[seq]
    raise error


# With fewer, a copy is right as often as the model; with more, repetitions are found late.
MIN_NGRAM = 5


class LookupFirst(DrafterWrapper):
    """Proposes a lookup hit where there is one; elsewhere asks the draft model.

    Args:
        drafter: the draft model; close() closes it too.
        min_ngram: the number of tokens that have to be equal.
        remembers, store: see Suffix.

    Raises:
        ArgumentError: min_ngram is below 1.
    """

    has_lookup = True

    def __init__(
        self,
        drafter: Drafter,
        min_ngram: int = MIN_NGRAM,
        remembers: bool = True,
        store: str | os.PathLike[str] | None = None,
    ) -> None:
        from pyllama_spec.drafters.suffix import copies_beside

        super().__init__(drafter)
        self.name = f"{drafter.name}+copies"
        self.min_ngram = count(min_ngram, "min_ngram", 1)
        self._lookup = copies_beside(drafter.max_draft, self.min_ngram, remembers, store)

    def check(self, target: Model) -> None:
        """Checks the model and the lookup."""
        self.drafter.check(target)
        self._lookup.check(target)

    def attach(self, target: Context) -> None:
        """Attaches the model and the lookup."""
        self.drafter.attach(target)
        self._lookup.attach(target)

    def begin_request(self, seq: int, *, remember: bool, user: str) -> None:
        """Begins the request in the model and the lookup."""
        self._lookup.begin_request(seq, remember=remember, user=user)
        self.drafter.begin_request(seq, remember=remember, user=user)

    def end_request(self, seq: int) -> None:
        """Ends the request in the model and the lookup."""
        self._lookup.end_request(seq)
        self.drafter.end_request(seq)

    def commit_one(self, done: Committed) -> None:
        """See commit()."""
        self.commit((done,))

    def commit(self, done: Sequence[Committed]) -> None:
        """Commits to both."""
        self._lookup.commit(done)
        self.drafter.commit(done)

    def propose_one(self, request: DraftRequest) -> Draft:
        """See propose()."""
        return self.propose((request,))[0]

    def propose(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        """Lookup hits where there are any; the model drafts all other requests together."""
        drafts = [self._lookup.propose_one(request) for request in requests]
        others = [i for i, r in enumerate(requests) if not drafts[i].ids and not r.lookup_only]
        if not others:
            return drafts
        asked = [requests[i] for i in others]
        try:
            model_drafts = self.drafter.propose(asked)
        except Exception as error:  # it knows nothing of the lookup hits, which continue
            lookups = {requests[i].seq: draft for i, draft in enumerate(drafts) if draft.ids}
            failed, of_model = {request.seq: error for request in asked}, {}
            if isinstance(error, SequenceErrors):
                failed, of_model = error.errors, error.drafts
            raise SequenceErrors(failed, {**of_model, **lookups}) from error
        for i, draft in zip(others, model_drafts, strict=True):
            drafts[i] = draft
        return drafts

    def truncate(self, seq: int, n_keep: int) -> None:
        """Truncates the sequence in both."""
        self._lookup.truncate(seq, n_keep)
        self.drafter.truncate(seq, n_keep)

    def copy(self, seq: int, to: int) -> None:
        """Copies the sequence in both."""
        self._lookup.copy(seq, to)
        self.drafter.copy(seq, to)

    def save(self, seq: int) -> bytes | None:
        """The state of both for a sequence; None if the model has none to save."""
        state = self.drafter.save(seq)
        if state is None:
            return None
        tokens = np.array(self._lookup.tokens(seq), dtype="<i4")
        return pack({}, [state, tokens.tobytes()])

    def restore(self, seq: int, data: bytes) -> int:
        """Restores a state of save()."""
        self._lookup.truncate(seq, 0)
        _, parts = unpack(data)
        n = self.drafter.restore(seq, parts[0])
        tokens = np.frombuffer(parts[1], dtype="<i4").tolist()[:n]
        self._lookup.commit_one(Committed(seq, tokens, 0))
        return n

    def describe(self) -> dict[str, Any]:
        """The model's facts, and the lookup's."""
        found = {**self.drafter.describe(), "lookup": self.min_ngram}
        store = self._lookup.describe().get("store")
        return found if store is None else {**found, "store": store}

    def close(self) -> None:
        """Closes the model and the lookup."""
        self._lookup.close()
        self.drafter.close()
