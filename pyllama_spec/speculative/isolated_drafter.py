"""Isolates a drafter's failures: the round and the other sequences continue."""

from __future__ import annotations

import contextlib
import inspect
import traceback
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from operator import index
from pathlib import Path
from types import CodeType
from typing import Any, Literal, NamedTuple, TypeVar

from pyllama_spec.drafters.attributes import attribute, check_proposes
from pyllama_spec.drafters.base import (
    NO_DRAFT,
    Committed,
    Draft,
    Drafter,
    DraftRequest,
    SequenceErrors,
)
from pyllama_spec.engine.checks import boolean, count, instance, integer
from pyllama_spec.engine.distribution import Distribution
from pyllama_spec.errors import ArgumentError, shown, warn
from pyllama_spec.speculative.draft_bound import drafter_bound
from pyllama_spec.speculative.stats import plural

_PACKAGE = Path(__file__).parents[1]
# The two forms of what a drafter is called for: for one sequence, and for several.
_ONE = {"propose": "propose_one", "commit": "commit_one"}


class Blame(NamedTuple):
    """The drafter that an error is attributed to; place is None where Python knows no line."""

    author: str
    module: str
    place: tuple[str, int] | None


def blame(drafter: Drafter, what: str, error: Exception) -> Blame:
    """Attributes an error to the drafter, or to the wrapped drafter or callable inside."""
    frames = [
        (frame.filename, frame.lineno or 1)
        for frame in traceback.extract_tb(error.__traceback__)
        if not _is_ours(frame.filename)
    ]
    chain = chain_of(drafter)
    one, code = next(
        ((one, code) for one in chain for code in _codes(one, what)), (chain[-1], None)
    )
    named: Any = one if hasattr(one, "__qualname__") else type(one)
    module = str(named.__module__)
    author = f"{module}.{named.__qualname__}"
    if code is None:
        return Blame(author, module, frames[-1] if frames else None)
    # The innermost line of the author's own file: an error of a library has its cause there.
    own = [frame for frame in frames if frame[0] == code.co_filename]
    place = (own or frames or [(code.co_filename, code.co_firstlineno)])[-1]
    return Blame(author, module, place)


def chain_of(drafter: Drafter) -> list[object]:
    """The drafter and those it wraps, from the outside to the inside."""
    chain: list[object] = [drafter]
    while isinstance(chain[-1], Drafter):
        one = chain[-1].passes_on_to()
        while isinstance(one, partial):
            one = one.func
        if one is None:
            break
        chain.append(one)
    return chain


def _codes(one: object, what: str) -> list[CodeType]:
    """The code objects of the methods that may have been called, in Python outside this package."""
    methods: list[object]
    if isinstance(one, Drafter):
        methods = [getattr(one, name, None) for name in (what, _ONE.get(what, what))]
    else:
        methods = [one, inspect.getattr_static(type(one), "__call__", None)]
    codes = [
        getattr(inspect.unwrap(method), "__code__", None) for method in methods if callable(method)
    ]
    return [c for c in codes if isinstance(c, CodeType) and not _is_ours(c.co_filename)]


def _is_ours(file: str) -> bool:
    return _PACKAGE in Path(file).parents


_T = TypeVar("_T")

# After so many drafts of a text without a single id of the vocabulary the drafter counts as failed.
_MAX_FOREIGN = 3
# What a failure of these methods costs: the text that the drafter knows, and no draft.
_IS_TOLD_AGAIN = ("save", "restore", "end_request")
# Characters of a reason that a warning has.
_MAX_REASON = 500
# Characters of an error's message in results.
_MAX_ERROR = 2000
# A match that is longer than any text.
_MOST_MATCH = 2**31
# Probabilities of float32 may be rounded to a little more than 1.
_MOST = 1.0 + 1e-4


class DrafterFailure(Exception):  # noqa: N818 - it is a record, never raised
    """The error that disabled a drafter."""

    def __init__(self, reason: str, error: Exception, what: str) -> None:
        super().__init__(reason)
        self.reason, self.error, self.what = reason, error, what


class IsolatedDrafter:
    """Passes calls to a drafter, and disables it for a sequence in which it fails.

    Ids that it may not propose are cut off here: a drafter of the user's, or one for another
    vocabulary, then costs acceptance and not the process. After a failure nothing is asked of it
    for that sequence until its next prompt, where it starts from scratch.
    """

    def __init__(
        self,
        drafter: Drafter,
        n_vocab: int,
        lend: Callable[[str | None], None] = lambda _: None,
    ) -> None:
        check_proposes(drafter)
        self._drafter = drafter
        # Called with the borrower of the target, then with None: a drafter may only read it.
        self.name: str = attribute(drafter, "name")
        self._lend, self._borrower = lend, f"the drafter {self.name}"
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
        self.note: str = attribute(drafter, "note")
        # The layer inputs to give it.
        self.target_layers: tuple[int, ...] = attribute(drafter, "target_layers")
        self.is_stepwise: bool = attribute(drafter, "is_stepwise")
        self.has_lookup: bool = attribute(drafter, "has_lookup")
        self.is_lookup: bool = attribute(drafter, "is_lookup")
        self.draws_tokens: bool = attribute(drafter, "draws_tokens")
        # Others are told the tokens of a copy again.
        self.copies: bool = attribute(drafter, "can_copy")
        self._mark = _mark(drafter)
        # Whether the drafter needs commits: that of plain decoding does not.
        self.listens = drafter_bound(drafter).max_draft > 0 or bool(self.target_layers)

    def __repr__(self) -> str:
        return repr(self._drafter)

    def failure(self, seq: int) -> DrafterFailure | None:
        """The error that disabled the drafter for a sequence; None while it is enabled."""
        return self._failures.get(seq) if self._failures else None

    def failure_in_full(self, seq: int) -> str | None:
        """What failure() says, with the drafter's name and the place in its code."""
        failure = self.failure(seq)
        if failure is None:
            return None
        why = failure.reason[:_MAX_REASON].removeprefix("the drafter ")
        where, _ = _place(self._drafter, failure.what, failure.error)
        return f"the drafter {self.name} {why} ({where})"

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
        def resume() -> int:
            n = integer(self._drafter.resume_at(seq, n_keep), "the result of resume_at()")
            if not 0 <= n <= n_keep:
                raise ValueError(
                    f"resume_at() returned {shown(n)} for a text of {n_keep} tokens: return how "
                    "many of its first tokens the drafter still knows"
                )
            return n

        n = self._call(seq, "resume_at", resume)
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

        def n_unread() -> int:
            return count(self._drafter.n_unread(seq), "the result of n_unread()")

        return self._call(seq, "n_unread", n_unread) or 0

    def save(self, seq: int) -> bytes | None:
        """The drafter's state for restore(); None if it has none.

        A drafter without it is told the tokens again, and the target decodes them again where the
        drafter wants its rows.
        """

        def save() -> bytes | None:
            state = self._drafter.save(seq)
            if state is None:
                return None
            instance(state, (bytes, bytearray, memoryview), "the result of save()")
            return b"".join((self._mark, state))

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
            n = integer(n, "the result of restore()")
            if not 0 <= n <= n_tokens:
                raise ValueError(
                    f"restore() returned {shown(n)}, and the saved text has {n_tokens} tokens: "
                    "return how many of its first tokens the drafter knows now"
                )
            return n

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
        notices = [c for c in done if self._is_on(c.seq)]
        if not notices:
            return
        try:
            self._lend(self._borrower)
            self._drafter.commit(notices)
        except SequenceErrors as failed:
            self._blame("commit", failed, [c.seq for c in notices])
        except Exception as error:  # noqa: BLE001 - the text does not depend on a drafter
            for c in notices:
                self._fail(c.seq, "commit", error)
        finally:
            self._lend(None)
        for c in notices:
            if c.seq in known:
                known[c.seq] += len(c.tokens)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """A draft for each request: at most the requested number of ids, all in the vocabulary."""
        open_requests = [r for r in requests if self._is_on(r.seq)]
        if not open_requests:
            return [NO_DRAFT] * len(requests)
        try:
            self._lend(self._borrower)
            proposed = self._drafter.propose(open_requests)
            _check_one_each(proposed, len(open_requests))
            if len(requests) == 1:
                return [self._checked(proposed[0], requests[0])]
            drafts = dict(zip([r.seq for r in open_requests], proposed, strict=True))
        except SequenceErrors as failed:
            self._blame("propose", failed, [r.seq for r in open_requests])
            drafts = failed.drafts
        except Exception as error:  # noqa: BLE001 - the text does not depend on a drafter
            for r in open_requests:
                self._fail(r.seq, "propose", error)
            return [NO_DRAFT] * len(requests)
        finally:
            self._lend(None)
        return [self._checked_of(r, drafts.get(r.seq, NO_DRAFT)) for r in requests]

    def _checked_of(self, request: DraftRequest, draft: Draft) -> Draft:
        if not self._is_on(request.seq):  # not asked, or it has just failed
            return NO_DRAFT
        try:
            return self._checked(draft, request)
        except Exception as error:  # noqa: BLE001 - what it gave is not a draft
            self._fail(request.seq, "propose", error)
            return NO_DRAFT

    def _checked(self, draft: Draft, request: DraftRequest) -> Draft:
        """The draft, cut at the requested length and before the first id outside the vocabulary."""
        if draft is NO_DRAFT:  # as in most rounds of a text that is only looked up
            return draft
        try:
            n = request.n_requested
            if draft.match_length:
                n = max(n, request.n_lookup)
            # A copy: the drafter may continue writing to its own list, and what is verified must be
            # what is compared.
            ids = _ids(draft.ids, n)
            match_length, p = draft.match_length, draft.probabilities
        except AttributeError:
            raise TypeError(f"expected Draft(ids), not {draft!r:.60}") from None
        for i, token in enumerate(ids):
            if type(token) is not int:  # of NumPy, say
                ids[i] = token = _index(token, f"ids[{i}]")
            if not 0 <= token < self._n_vocab:
                if i == 0:
                    self._note_foreign(request.seq, token)
                del ids[i:]
                break
        if ids:
            self._n_foreign.pop(request.seq, None)
        match_length = _match_length(match_length, draft.is_remembered)
        # Controllers calculate with them: a value that is not a number fails here, as the drafter's
        # fault.
        if p is not None:
            p = _probabilities(p, len(ids))
        if draft.candidates is not None:
            _check_candidates(draft.candidates, len(ids))
        is_drawn = request.draws is not None and request.draws.verifies_all
        drawn_from = _distributions(draft, len(ids))
        return draft.first(len(ids))._replace(
            ids=ids,
            probabilities=p,
            match_length=match_length,
            distributions=drawn_from if is_drawn else None,
        )

    def _note_foreign(self, seq: int, token: int) -> None:
        """Counts a draft without any valid id, in a text without other drafts.

        Raises at too many: such a drafter costs as much as it did before, and gives nothing.
        """
        if seq not in self._n_foreign:
            return
        self._n_foreign[seq] += 1
        if self._n_foreign[seq] >= _MAX_FOREIGN:
            raise ValueError(
                f"{_MAX_FOREIGN} drafts, and each began with an id outside of 0 .. "
                f"{self._n_vocab - 1}, the last one with {token}: it is made for another vocabulary"
            )

    def asked_of(self, seq: int, *, asks_model: bool) -> Literal["", "copies", "drafter"]:
        """Who is asked for a draft of a sequence: see Span.asked_of."""
        if not self._is_on(seq):
            return ""
        return "drafter" if asks_model or self.is_lookup else "copies"

    def _is_on(self, seq: int) -> bool:
        return seq in self._n_known

    def _call(self, seq: int, what: str, call: Callable[[], _T]) -> _T | None:
        if self.failure(seq) is not None:
            return None
        try:
            self._lend(self._borrower)
            return call()
        except Exception as error:  # noqa: BLE001 - the text does not depend on a drafter
            self._fail(seq, what, error)
            return None
        finally:
            self._lend(None)

    def _blame(self, what: str, failed: SequenceErrors, seqs: Sequence[int]) -> None:
        """Records which drafter failed; all that were asked if the error names none of them."""
        named = [seq for seq in seqs if seq in failed.errors]
        for seq in named or seqs:
            self._fail(seq, what, failed.errors.get(seq, failed))

    def _fail(self, seq: int, what: str, error: Exception) -> None:
        said = " ".join(str(error).split())[:_MAX_ERROR]
        said = f": {said}" if said else ""
        why = f"failed in {what}(): {type(error).__name__}{said}"
        self._failures[seq] = DrafterFailure(f"the drafter {why}", error, what)
        self._n_known.pop(seq, None)
        if not self._has_warned:
            self._has_warned = True
            _warn(self._drafter, self.name, why, what, error)


def _mark(drafter: Drafter) -> bytes:
    """The beginning of a drafter's saved states: its class and those of the drafters inside it."""
    kinds = [f"{type(one).__module__}.{type(one).__qualname__}" for one in chain_of(drafter)]
    return "/".join(kinds).encode("utf-8", "backslashreplace") + b"\0"


def _place(drafter: Drafter, what: str, error: Exception) -> tuple[str, Blame]:
    """The code that failed: its file and line, or its name where Python knows none."""
    found = blame(drafter, what, error)
    if found.place is None:
        return found.author, found
    return f"{Path(found.place[0]).name}, line {found.place[1]}", found


def _warn(drafter: Drafter, name: str, why: str, what: str, error: Exception) -> None:
    """Warns that a drafter failed: a text without drafts looks like any other."""
    # A warning may raise, as filters say. The text depends on neither.
    with contextlib.suppress(Exception):
        where, (_, module, place) = _place(drafter, what, error)
        if what in _IS_TOLD_AGAIN:
            outcome = "is told the tokens again, at the next prompt at the latest"
            more = "The text does not change. This is said once"
        else:
            outcome = "is disabled until the next prompt of its sequence"
            more = (
                "The text continues without it. This is said once; "
                "Llama.generate_steps(...).record.stats.reason_off_error has the traceback"
            )
        message = (
            f"the drafter {name} {outcome}: it {why[:_MAX_REASON]} ({where}). {more} "
            "(docs/drafters.md)"
        )
        if place is None:
            warn(message)
        else:
            warnings.warn_explicit(message, UserWarning, *place, module)


def _ids(given: Sequence[int], n: int) -> list[int]:
    """At most the first n ids of a draft, in a list of its own."""
    try:
        ids = iter(given)
    except TypeError:
        raise TypeError(f"ids={given!r:.60} of a draft is not a list of ints") from None
    return list(islice(ids, n))


def _match_length(match_length: object, is_remembered: object) -> int:
    """The match_length of a draft, checked with what says whose text was copied."""
    n = match_length if type(match_length) is int else _index(match_length, "match_length")
    if not 0 <= n <= _MOST_MATCH:
        what = "below 0" if n < 0 else f"above {_MOST_MATCH}"
        raise ValueError(f"match_length={shown(n)} of a draft is {what}")
    if is_remembered is not False and is_remembered is not True:
        boolean(is_remembered, "a draft's is_remembered")
    return n


def _index(value: object, name: str) -> int:
    """An int of a draft, of Python or NumPy."""
    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError:
        kind = type(value).__name__
        raise TypeError(f"{name}={value!r:.60} of a draft is a {kind}, not an int") from None


def _check_one_each(proposed: Sequence[Draft], n: int) -> None:
    """Raises unless propose() returned a draft for each of n requests."""
    remedy = "return a list with one Draft for each request"
    # A Draft has a length too: it is a tuple with names.
    if hasattr(proposed, "ids") or not hasattr(proposed, "__len__"):
        raise TypeError(f"propose() returned {proposed!r:.60}; {remedy}")
    if len(proposed) != n:
        raise ValueError(
            f"propose() returned {plural(len(proposed), 'draft')} for {plural(n, 'request')}; "
            f"{remedy}"
        )


def _probabilities(given: Sequence[float], n: int) -> list[float]:
    """The first n of a draft's probabilities."""
    p = [float(one) for one in islice(given, n)]
    if len(p) < n:
        raise ValueError(f"a draft of {n} tokens has {len(p)} probabilities; give one each")
    for i, one in enumerate(p):
        if not 0.0 <= one <= 1.0:  # nor is NaN
            if not 1.0 < one <= _MOST:
                raise ValueError(f"probabilities[{i}]={one} of a draft is not from 0 to 1")
            p[i] = 1.0
    return p


def _check_candidates(given: Sequence[Sequence[tuple[int, float]]], n: int) -> None:
    """Raises unless there are candidates for each of n tokens."""
    if len(given) < n:
        raise ValueError(f"a draft of {n} tokens has candidates for {len(given)}; give all")
    for i, place in enumerate(islice(given, n)):
        try:
            wrong = next((one for one in place if not _is_candidate(*one)), None)
        except (TypeError, ValueError):
            raise TypeError(
                f"candidates[{i}] of a draft is not a list of (token, probability): {place!r:.60}"
            ) from None
        if wrong is not None:
            raise ValueError(
                f"candidates[{i}] of a draft has {wrong!r:.60}; a candidate is a token, from 0, "
                "with its probability, from 0 to 1"
            )


def _is_candidate(token: int, p: float) -> bool:
    return 0.0 <= p <= _MOST and index(token) >= 0


def _distributions(draft: Draft, n: int) -> list[Distribution] | None:
    """The distributions of a draft's first n ids; None if they were not drawn."""
    if draft.distributions is None:
        return None
    found = list(islice(draft.distributions, n))
    if len(found) < n:
        raise ValueError(f"a draft of {n} tokens has {len(found)} distributions; give one each")
    for one in found:
        instance(one, Distribution, "a distribution of a draft")
    return found
