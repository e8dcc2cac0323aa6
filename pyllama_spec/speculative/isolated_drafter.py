"""Disables a drafter that fails: the round and the other sequences continue."""

from __future__ import annotations

import contextlib
import traceback
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Literal, TypeVar

from pyllama_spec.drafters.base import (
    NO_DRAFT,
    Committed,
    Draft,
    Drafter,
    DraftRequest,
    SequenceErrors,
)
from pyllama_spec.errors import ArgumentError, warn

_T = TypeVar("_T")

_PACKAGE = Path(__file__).parents[1]
# After so many drafts of a text without a single id of the vocabulary the drafter has failed.
_MAX_FOREIGN = 3
# Characters of an error's message in results, and in a warning.
_MAX_ERROR, _MAX_WARNING = 2000, 500


@dataclass(slots=True)
class DrafterSequence:
    """What the drafter knows of one sequence.

    Attributes:
        n_known: the number of the text's tokens that were committed to it; None after a failure,
            until the next prompt: what came in between would leave a hole.
        reason, error: why the drafter is disabled; "" and None while it is not.
        n_foreign: the number of its drafts that began with an id outside of the vocabulary; None
            once one did not.
        is_begun: whether its begin_request() succeeded; else it does not know whose text this is.
    """

    n_known: int | None = None
    reason: str = ""
    error: Exception | None = None
    n_foreign: int | None = None
    is_begun: bool = True


class IsolatedDrafter:
    """Passes calls to a drafter, and disables it for a sequence in which it fails.

    It fails if it raises, proposes what is no draft, or only ids outside of the vocabulary; after
    others these are cut off. After a failure nothing is asked of it for that sequence until its
    next prompt, where it starts from scratch.
    """

    def __init__(self, drafter: Drafter, n_vocab: int) -> None:
        self._drafter = drafter
        self._n_vocab = n_vocab
        self._sequences: defaultdict[int, DrafterSequence] = defaultdict(DrafterSequence)
        # Whether it has failed at all.
        self.has_failed = False
        self._has_warned = False
        self.name, self.note = drafter.name, drafter.note
        # The layer inputs to give it.
        self.target_layers = tuple(drafter.target_layers)
        self.is_stepwise, self.draws_tokens = drafter.is_stepwise, drafter.draws_tokens
        self.has_lookup, self.is_lookup = drafter.has_lookup, drafter.is_lookup
        # To others the tokens of a copy are committed again.
        self.copies = drafter.can_copy
        self._mark = _mark(drafter)
        # Whether the drafter needs commits: that of plain decoding does not.
        self.listens = drafter.max_draft > 0 or bool(self.target_layers)

    def __repr__(self) -> str:
        return repr(self._drafter)

    def failure(self, seq: int) -> DrafterSequence | None:
        """What is known of a sequence for which the drafter is disabled; None while it is not."""
        if not self.has_failed:
            return None
        state = self._sequences[seq]
        return state if state.error is not None else None

    def resume_at(self, seq: int, n_keep: int, tokens: Sequence[int]) -> int:
        """How many of the first n_keep tokens the target need not decode again for the drafter."""
        state = self._sequences[seq]
        if not state.is_begun:
            return n_keep
        _enable(state)
        state.n_foreign = 0
        known = state.n_known = state.n_known or 0
        if known >= n_keep:
            return self._resume_at(seq, n_keep)
        # A failure may have left it with more tokens than recorded.
        self.truncate(seq, known)
        if self.target_layers:
            # Rows of the rest are gone: the target has to make them again.
            return self._resume_at(seq, known)
        self.commit([Committed(seq, tokens[known:n_keep], known)])
        return n_keep

    def _resume_at(self, seq: int, n_keep: int) -> int:
        n = self._call(
            seq, "resume_at", lambda: _up_to(self._drafter.resume_at(seq, n_keep), n_keep)
        )
        return n_keep if n is None else n

    def begin_request(self, seq: int, *, remember: bool, user: str) -> None:
        """See Drafter.begin_request. What failed in the request before is forgotten."""
        if self.listens:
            state = self._sequences[seq]
            _enable(state)

            def begin() -> bool:
                self._drafter.begin_request(seq, remember=remember, user=user)
                return True

            state.is_begun = self._call(seq, "begin_request", begin) is True

    def end_request(self, seq: int) -> None:
        """See Drafter.end_request."""
        if self.listens:
            self._call(seq, "end_request", lambda: self._drafter.end_request(seq))

    def n_unread(self, seq: int) -> int:
        """See Drafter.n_unread."""
        return self._call(seq, "n_unread", lambda: index(self._drafter.n_unread(seq))) or 0

    def save(self, seq: int) -> bytes | None:
        """The drafter's state for restore(); None if it has none.

        To a drafter without it the tokens are committed again, and the target decodes them again
        where the drafter wants its rows.
        """

        def save() -> bytes | None:
            state = self._drafter.save(seq)
            return None if state is None else self._mark + bytes(memoryview(state))

        return self._call(seq, "save", save) if self._sequences[seq].n_known is not None else None

    def restore(self, seq: int, state: bytes | None, n_tokens: int) -> None:
        """Restores a state of save(); if that fails, the tokens are committed again.

        The state of another kind of drafter is not passed on. A state that the drafter refuses is
        not a failure: the tokens are committed again.
        """
        known = self._sequences[seq]
        if state is None or not known.is_begun:
            return

        def restore() -> int | None:
            if not state.startswith(self._mark):
                return None
            try:
                n = self._drafter.restore(seq, state[len(self._mark) :])
            except ArgumentError:  # of another draft, or damaged
                return None
            return _up_to(n, n_tokens)

        _enable(known)
        known.n_known = self._call(seq, "restore", restore)

    def catch_up(self, seq: int, tokens: Sequence[int]) -> None:
        """Commits the tokens that the drafter lacks, after restore() in the middle of a text.

        A drafter that wants rows which are gone is disabled until the next prompt.
        """
        state = self._sequences[seq]
        if not state.is_begun:
            return
        if (state.n_known or 0) >= len(tokens) or not self.listens:
            _enable(state)
        elif self.target_layers:  # a failure of restore() is the reason
            state.n_known = None
        else:
            self.resume_at(seq, len(tokens), tokens)

    def truncate(self, seq: int, n_keep: int) -> None:
        """See Drafter.truncate."""
        self._call(seq, "truncate", lambda: self._drafter.truncate(seq, n_keep))
        state = self._sequences[seq]
        if state.n_known is not None:
            state.n_known = min(state.n_known, n_keep)

    def copy(self, seq: int, to: int) -> None:
        """See Drafter.copy."""
        source, copied = self._sequences[seq], self._sequences[to]
        copied.n_known = None
        if not copied.is_begun:
            return
        _enable(copied)
        if not self.copies:
            self._call(to, "truncate", lambda: self._drafter.truncate(to, 0))
        elif source.n_known is not None:
            self._call(seq, "copy", lambda: self._drafter.copy(seq, to))
            copied.n_known = source.n_known

    def commit(self, done: Sequence[Committed]) -> None:
        """See Drafter.commit."""
        notices = [c for c in done if self._sequences[c.seq].n_known is not None]
        if not notices:
            return
        try:
            self._drafter.commit(notices)
        except SequenceErrors as error:
            self._fail_some("commit", error, [c.seq for c in notices])
        except Exception as error:  # noqa: BLE001 - the text does not depend on a drafter
            self._fail("commit", error, *(c.seq for c in notices))
        for c in notices:
            state = self._sequences[c.seq]
            if state.n_known is not None:
                state.n_known += len(c.tokens)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """A draft for each request: at most the requested number of ids, all in the vocabulary."""
        asked = [r for r in requests if self._sequences[r.seq].n_known is not None]
        drafts: dict[int, Draft] = {}
        if asked:
            try:
                answers = zip(asked, self._drafter.propose(asked), strict=True)
                drafts = {r.seq: draft for r, draft in answers}
            except SequenceErrors as error:
                self._fail_some("propose", error, [r.seq for r in asked])
                drafts = error.drafts
            except Exception as error:  # noqa: BLE001 - the text does not depend on a drafter
                self._fail("propose", error, *(r.seq for r in asked))
        return [self._checked(r, drafts.get(r.seq, NO_DRAFT)) for r in requests]

    def _checked(self, request: DraftRequest, draft: Draft) -> Draft:
        """The draft, at most as long as it was requested, with ids that exist."""
        state = self._sequences[request.seq]
        if draft is NO_DRAFT or state.n_known is None:  # or it has just failed
            return NO_DRAFT
        try:
            if not hasattr(draft, "ids"):
                raise TypeError(f"it gave {type(draft).__name__}, not a Draft")
            n = request.n_requested
            draft = draft.first(max(n, request.n_lookup) if draft.match_length else n)
            # A copy, of ints: the drafter may go on writing to its own list, or it is NumPy's.
            ids = [*map(index, draft.ids)]
            if ids and not 0 <= min(ids) <= max(ids) < self._n_vocab:
                draft = draft.first(self._n_valid(state, ids))
                ids = ids[: len(draft.ids)]
            if ids:
                state.n_foreign = None
            p, drawn_from = draft.probabilities, draft.distributions
            if p is not None:
                p = [min(float(one), 1.0) for one in p]  # of float32, it may be a little more
            # Controllers calculate with them, and what they raise would end the requests.
            if draft.match_length < 0 or not all(one >= 0.0 for one in p or ()):
                raise ValueError("match_length or a probability of a draft is not a number from 0")
            for name, column in (("probabilities", p), ("distributions", drawn_from)):
                if column is not None and len(column) != len(ids):
                    raise ValueError(f"a draft of {len(ids)} tokens has {len(column)} {name}")
            is_drawn = request.draws is not None and request.draws.verifies_all
            drawn_from = drawn_from if is_drawn else None
            return draft._replace(
                ids=ids, probabilities=p, distributions=drawn_from,
                match_length=index(draft.match_length), is_remembered=bool(draft.is_remembered),
            )  # fmt: skip
        except Exception as error:  # noqa: BLE001 - what it gave is not a draft
            self._fail("propose", error, request.seq)
            return NO_DRAFT

    def _n_valid(self, state: DrafterSequence, ids: Sequence[int]) -> int:
        """How many ids there are before one outside of the vocabulary.

        Raises if all drafts of the text began with one: the drafter costs as much as it did before,
        and gives nothing.
        """
        n = next(i for i, token in enumerate(ids) if not 0 <= token < self._n_vocab)
        if not n and state.n_foreign is not None:
            state.n_foreign += 1
            if state.n_foreign >= _MAX_FOREIGN:
                raise ValueError(
                    f"{_MAX_FOREIGN} drafts, and each began with an id outside of 0 .. "
                    f"{self._n_vocab - 1}, the last one with {ids[0]}: it is made for another "
                    "vocabulary"
                )
        return n

    def asked_of(self, seq: int, *, asks_model: bool) -> Literal["", "copies", "drafter"]:
        """Who is asked for a draft of a sequence: see Span.asked_of."""
        if self._sequences[seq].n_known is None:
            return ""
        return "drafter" if asks_model or self.is_lookup else "copies"

    def _call(self, seq: int, what: str, call: Callable[[], _T]) -> _T | None:
        if self._sequences[seq].error is not None:
            return None
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - the text does not depend on a drafter
            self._fail(what, error, seq)
            return None

    def _fail_some(self, what: str, error: SequenceErrors, seqs: Sequence[int]) -> None:
        """Records a failure of the sequences that the error names; of all if it names none."""
        for seq in [seq for seq in seqs if seq in error.errors] or seqs:
            self._fail(what, error.errors.get(seq, error), seq)

    def _fail(self, what: str, error: Exception, *seqs: int) -> None:
        said = " ".join(str(error).split())[:_MAX_ERROR]
        why = f"failed in {what}(): {type(error).__name__}" + (f": {said}" if said else "")
        self.has_failed = True
        for seq in seqs:
            state = self._sequences[seq]
            state.reason, state.error, state.n_known = f"the drafter {why}", error, None
        if not self._has_warned:
            self._has_warned = True
            # A text without drafts looks like any other. A filter may make the warning an error.
            with contextlib.suppress(UserWarning):
                warn(
                    f"the drafter {self.name} is disabled until the next prompt of its sequence: "
                    f"it {why[:_MAX_WARNING]}{_place(error)}. The text continues without it. This "
                    "is said once; Llama.generate_steps(...).record.stats.reason_off_error has "
                    "the traceback (docs/drafters.md)"
                )


def _enable(state: DrafterSequence) -> None:
    """Ends what a failure did."""
    state.reason, state.error = "", None


def _place(error: Exception) -> str:
    """The innermost line outside of this package that failed; "" where there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    others = [frame for frame in frames if _PACKAGE not in Path(frame.filename).parents]
    return f" ({Path(others[-1].filename).name}, line {others[-1].lineno})" if others else ""


def _mark(drafter: Drafter) -> bytes:
    """The beginning of a drafter's saved states: its class and those of the drafters inside it."""
    kinds: list[str] = []
    one: object = drafter
    while isinstance(one, Drafter):
        kinds.append(f"{type(one).__module__}.{type(one).__qualname__}")
        one = one.passes_on_to()
    return "/".join(kinds).encode("utf-8", "backslashreplace") + b"\0"


def _up_to(n: int, most: int) -> int:
    """A number of the text's first tokens that a drafter knows."""
    if not 0 <= index(n) <= most:
        raise ValueError(f"it returned {n!r:.40}, which is no number of the text's {most} tokens")
    return index(n)
