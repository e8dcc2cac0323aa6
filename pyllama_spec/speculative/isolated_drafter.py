"""Disables a drafter that fails: the round and the other sequences continue."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Sequence
from operator import index
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from pyllama_spec.drafters.base import (
    NO_DRAFT,
    Committed,
    Draft,
    Drafter,
    DraftRequest,
    SequenceErrors,
)
from pyllama_spec.errors import ArgumentError, warn
from pyllama_spec.speculative.draft_bound import drafter_bound

_T = TypeVar("_T")

_PACKAGE = Path(__file__).parents[1]
# After so many drafts of a text without a single id of the vocabulary the drafter has failed.
_MAX_FOREIGN = 3
# Characters of an error's message in results, and in a warning.
_MAX_ERROR, _MAX_WARNING = 2000, 500


class DrafterFailure(NamedTuple):
    """The error that disabled a drafter."""

    reason: str
    error: Exception

    @property
    def place(self) -> str:
        """The innermost line outside of this package that failed; "" where there is none."""
        frames = traceback.extract_tb(self.error.__traceback__)
        others = [frame for frame in frames if _PACKAGE not in Path(frame.filename).parents]
        return f" ({Path(others[-1].filename).name}, line {others[-1].lineno})" if others else ""


class IsolatedDrafter:
    """Passes calls to a drafter, and disables it for a sequence in which it fails.

    It fails if it raises, proposes what is no draft, or only ids outside of the vocabulary; behind
    others these are cut off. After a failure nothing is asked of it for that sequence until its
    next prompt, where it starts from scratch.
    """

    def __init__(self, drafter: Drafter, n_vocab: int) -> None:
        self._drafter = drafter
        self._n_vocab = n_vocab
        self._failures: dict[int, DrafterFailure] = {}
        # How many tokens of each sequence it has been told. After a failure a sequence is absent
        # until its next prompt: what came in between would leave a hole.
        self._n_known: dict[int, int] = {}
        # Drafts of each sequence that began with an id outside of the vocabulary; absent after one
        # that did not.
        self._n_foreign: dict[int, int] = {}
        # Sequences whose begin_request() failed: the drafter does not know whose text it is told.
        self._unbegun: set[int] = set()
        self._has_warned = False
        self.name, self.note = drafter.name, drafter.note
        # The layer inputs to give it.
        self.target_layers = tuple(drafter.target_layers)
        self.is_stepwise, self.draws_tokens = drafter.is_stepwise, drafter.draws_tokens
        self.has_lookup, self.is_lookup = drafter.has_lookup, drafter.is_lookup
        # Others are told the tokens of a copy again.
        self.copies = drafter.can_copy
        self._mark = _mark(drafter)
        # Whether the drafter needs commits: that of plain decoding does not.
        self.listens = drafter_bound(drafter).max_draft > 0 or bool(self.target_layers)

    def __repr__(self) -> str:
        return repr(self._drafter)

    def failure(self, seq: int) -> DrafterFailure | None:
        """The error that disabled the drafter for a sequence; None while it is enabled."""
        return self._failures.get(seq) if self._failures else None

    @property
    def has_failed(self) -> bool:
        """Whether the drafter is disabled for any sequence."""
        return bool(self._failures)

    def resume_at(self, seq: int, n_keep: int, tokens: Sequence[int]) -> int:
        """How many of the first n_keep tokens the target need not decode again for the drafter."""
        if seq in self._unbegun:
            return n_keep
        self._failures.pop(seq, None)
        self._n_foreign[seq] = 0
        known = self._n_known.setdefault(seq, 0)
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
            self._failures.pop(seq, None)
            self._unbegun.discard(seq)
            self._call(
                seq,
                "begin_request",
                lambda: self._drafter.begin_request(seq, remember=remember, user=user),
            )
            if seq in self._failures:
                self._unbegun.add(seq)

    def end_request(self, seq: int) -> None:
        """See Drafter.end_request."""
        if self.listens:
            self._call(seq, "end_request", lambda: self._drafter.end_request(seq))

    def n_unread(self, seq: int) -> int:
        """See Drafter.n_unread."""
        return self._call(seq, "n_unread", lambda: index(self._drafter.n_unread(seq))) or 0

    def save(self, seq: int) -> bytes | None:
        """The drafter's state for restore(); None if it has none.

        A drafter without it is told the tokens again, and the target decodes them again where the
        drafter wants its rows.
        """

        def save() -> bytes | None:
            state = self._drafter.save(seq)
            return None if state is None else self._mark + bytes(memoryview(state))

        return self._call(seq, "save", save) if seq in self._n_known else None

    def restore(self, seq: int, state: bytes | None, n_tokens: int) -> None:
        """Restores a state of save(); the drafter is told the tokens again if that fails.

        The state of another kind of drafter is not passed on. A state that the drafter refuses is
        not a failure: the tokens are committed again.
        """
        if state is None or seq in self._unbegun:
            return

        def restore() -> int | None:
            if not state.startswith(self._mark):
                return None
            try:
                n = self._drafter.restore(seq, state[len(self._mark) :])
            except ArgumentError:  # of another draft, or damaged
                return None
            return _up_to(n, n_tokens)

        self._failures.pop(seq, None)
        n = self._call(seq, "restore", restore)
        if n is not None:
            self._n_known[seq] = n
        else:
            self._n_known.pop(seq, None)

    def catch_up(self, seq: int, tokens: Sequence[int]) -> None:
        """Commits the tokens that the drafter lacks, after restore() in the middle of a text.

        A drafter that wants rows which are gone is disabled until the next prompt.
        """
        if seq in self._unbegun:
            return
        if self._n_known.get(seq, 0) >= len(tokens) or not self.listens:
            self._failures.pop(seq, None)
        elif self.target_layers:  # a failure of restore() is the reason
            self._n_known.pop(seq, None)
        else:
            self.resume_at(seq, len(tokens), tokens)

    def truncate(self, seq: int, n_keep: int) -> None:
        """See Drafter.truncate."""
        self._call(seq, "truncate", lambda: self._drafter.truncate(seq, n_keep))
        if seq in self._n_known:
            self._n_known[seq] = min(self._n_known[seq], n_keep)

    def copy(self, seq: int, to: int) -> None:
        """See Drafter.copy."""
        self._n_known.pop(to, None)
        if to in self._unbegun:
            return
        self._failures.pop(to, None)
        if not self.copies:
            self._call(to, "truncate", lambda: self._drafter.truncate(to, 0))
        elif seq in self._n_known:
            self._call(seq, "copy", lambda: self._drafter.copy(seq, to))
            if seq in self._n_known:
                self._n_known[to] = self._n_known[seq]

    def commit(self, done: Sequence[Committed]) -> None:
        """See Drafter.commit."""
        known = self._n_known
        notices = [c for c in done if c.seq in known]
        if not notices:
            return
        seqs = [c.seq for c in notices]
        try:
            self._drafter.commit(notices)
        except SequenceErrors as error:
            self._fail_some("commit", error, seqs)
        except Exception as error:  # noqa: BLE001 - the text does not depend on a drafter
            self._fail("commit", error, *seqs)
        for c in notices:
            if c.seq in known:
                known[c.seq] += len(c.tokens)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """A draft for each request: at most the requested number of ids, all in the vocabulary."""
        asked = [r for r in requests if r.seq in self._n_known]
        drafts: dict[int, Draft] = {}
        if asked:
            seqs = [r.seq for r in asked]
            try:
                drafts = dict(zip(seqs, self._drafter.propose(asked), strict=True))
            except SequenceErrors as error:
                self._fail_some("propose", error, seqs)
                drafts = error.drafts
            except Exception as error:  # noqa: BLE001 - the text does not depend on a drafter
                self._fail("propose", error, *seqs)
        return [self._checked(r, drafts.get(r.seq, NO_DRAFT)) for r in requests]

    def _checked(self, request: DraftRequest, draft: Draft) -> Draft:
        """The draft, at most as long as it was requested, with ids that exist."""
        if draft is NO_DRAFT or request.seq not in self._n_known:  # or it has just failed
            return NO_DRAFT
        try:
            if not hasattr(draft, "ids"):
                raise TypeError(f"it gave {type(draft).__name__}, not a Draft")
            n = request.n_requested
            draft = draft.first(max(n, request.n_lookup) if draft.match_length else n)
            # A copy, of ints: the drafter may go on writing to its own list, or it is NumPy's.
            ids = [*map(index, draft.ids)]
            if ids and not 0 <= min(ids) <= max(ids) < self._n_vocab:
                draft = draft.first(self._n_valid(request.seq, ids))
                ids = ids[: len(draft.ids)]
            if ids:
                self._n_foreign.pop(request.seq, None)
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

    def _n_valid(self, seq: int, ids: Sequence[int]) -> int:
        """How many ids there are before one outside of the vocabulary.

        Raises if all drafts of the text began with one: the drafter costs as much as it did before,
        and gives nothing.
        """
        n = next(i for i, token in enumerate(ids) if not 0 <= token < self._n_vocab)
        if not n and seq in self._n_foreign:
            self._n_foreign[seq] += 1
            if self._n_foreign[seq] >= _MAX_FOREIGN:
                raise ValueError(
                    f"{_MAX_FOREIGN} drafts, and each began with an id outside of 0 .. "
                    f"{self._n_vocab - 1}, the last one with {ids[0]}: it is made for another "
                    "vocabulary"
                )
        return n

    def asked_of(self, seq: int, *, asks_model: bool) -> Literal["", "copies", "drafter"]:
        """Who is asked for a draft of a sequence: see Span.asked_of."""
        if seq not in self._n_known:
            return ""
        return "drafter" if asks_model or self.is_lookup else "copies"

    def _call(self, seq: int, what: str, call: Callable[[], _T]) -> _T | None:
        if self.failure(seq) is not None:
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
        failure = DrafterFailure(f"the drafter {why}", error)
        for seq in seqs:
            self._failures[seq] = failure
            self._n_known.pop(seq, None)
        if not self._has_warned:
            self._has_warned = True
            # A text without drafts looks like any other. A filter may make the warning an error.
            with contextlib.suppress(UserWarning):
                warn(
                    f"the drafter {self.name} is disabled until the next prompt of its sequence: "
                    f"it {why[:_MAX_WARNING]}{failure.place}. The text continues without it. This "
                    "is said once; Llama.generate_steps(...).record.stats.reason_off_error has "
                    "the traceback (docs/drafters.md)"
                )


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
