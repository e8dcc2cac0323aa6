"""Disables a drafter that fails: the round and the other sequences continue."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from operator import index
from typing import Any, Literal

from pyllama_spec.drafters.base import (
    NO_DRAFT,
    Committed,
    Draft,
    Drafter,
    DraftRequest,
    SequenceErrors,
)
from pyllama_spec.engine import Context
from pyllama_spec.errors import ArgumentError, warn

# Characters of an error's message in results, and in a warning.
_MAX_ERROR, _MAX_WARNING = 2000, 500


class IsolatedDrafter:
    """Passes calls to a drafter, and disables it for a sequence in which it raises.

    Then nothing is asked of it for that sequence until its next prompt, where it starts from
    scratch. Ids outside of the vocabulary, and what follows them in a draft, are cut off.

    Attributes:
        failures: why the drafter is disabled, and what it raised, by sequence.
        target_layers: the layer inputs to give it.
        copies: whether it can copy a sequence; to others the tokens are committed again.
        listens: whether it needs commits: that of plain decoding does not.
    """

    def __init__(self, drafter: Drafter, target: Context) -> None:
        missing = set(drafter.target_layers) - set(target.target_layers)
        if missing:
            raise ArgumentError(
                "draft", problem=f"reads the inputs of layers {sorted(missing)} ({drafter.name!r})",
                remedy=f"open the target's context with `target_layers={drafter.target_layers}`",
            )  # fmt: skip
        drafter.attach(target)  # before its numbers are read: it may learn some of the target
        self._drafter, self._n_vocab = drafter, target.model.info.n_vocab
        # The number of each text's tokens that were committed to it; absent after a failure, until
        # the next prompt: what came in between would leave a hole.
        self._n_known: dict[int, int] = {}
        self.failures: dict[int, tuple[str, Exception]] = {}
        self._has_warned = False
        self.name, self.note = drafter.name, drafter.note
        self.target_layers = tuple(drafter.target_layers)
        self.draws_tokens, self.is_lookup = drafter.draws_tokens, drafter.is_lookup
        self.copies = drafter.can_copy
        self._mark = _mark(drafter)
        self.listens = drafter.max_draft > 0 or bool(self.target_layers)

    def __repr__(self) -> str:
        return repr(self._drafter)

    def begin_request(self, seq: int, *, remember: bool, user: str) -> None:
        """See Drafter.begin_request. What failed in the request before is forgotten."""
        if self.listens:
            self.failures.pop(seq, None)
            self._call("begin_request", seq, remember=remember, user=user)

    def end_request(self, seq: int) -> None:
        """See Drafter.end_request."""
        if self.listens:
            self._call("end_request", seq)

    def resume_at(self, seq: int, n_keep: int, tokens: Sequence[int]) -> int:
        """How many of the first n_keep tokens the target need not decode again for the drafter."""
        if seq in self.failures:
            return n_keep
        known = self._n_known.setdefault(seq, 0)
        if known < n_keep:
            # A failure may have left it with more tokens than recorded.
            self.truncate(seq, known)
            if not self.target_layers:
                self.commit([Committed(seq, tokens[known:n_keep], known)])
                return n_keep
            n_keep = known  # rows of the rest are gone: the target has to make them again
        n = self._call("resume_at", seq, n_keep)
        return n_keep if n is None else min(n, n_keep)

    def n_unread(self, seq: int) -> int:
        """See Drafter.n_unread."""
        return self._call("n_unread", seq) or 0

    def save(self, seq: int) -> bytes | None:
        """The drafter's state for restore(); None if it has none.

        To a drafter without it the tokens are committed again, and the target decodes them again
        where the drafter wants its rows.
        """
        state = self._call("save", seq) if seq in self._n_known else None
        return None if state is None else self._mark + bytes(state)

    def restore(self, seq: int, state: bytes | None, n_tokens: int) -> None:
        """Restores a state of save(); if that fails, the tokens are committed again.

        The state of another kind of drafter is not passed on.
        """
        if state is None or seq in self.failures:
            return
        self._n_known.pop(seq, None)
        if not state.startswith(self._mark):
            return
        try:
            n = self._drafter.restore(seq, state[len(self._mark) :])
            self._n_known[seq] = min(n, n_tokens)
        except ArgumentError:  # of another draft, or damaged
            pass
        except Exception as error:  # noqa: BLE001 - the text does not depend on a drafter
            self._fail("restore", error, seq)

    def truncate(self, seq: int, n_keep: int) -> None:
        """See Drafter.truncate."""
        self._call("truncate", seq, n_keep)
        if seq in self._n_known:
            self._n_known[seq] = min(self._n_known[seq], n_keep)

    def copy(self, seq: int, to: int) -> None:
        """See Drafter.copy."""
        self._n_known.pop(to, None)
        if not self.copies:
            self._call("truncate", to, 0)
        elif seq in self._n_known and to not in self.failures:
            self._call("copy", seq, to)
            if seq in self._n_known:
                self._n_known[to] = self._n_known[seq]

    def commit(self, done: Sequence[Committed]) -> None:
        """See Drafter.commit."""
        known = self._n_known
        notices = [c for c in done if c.seq in known]
        if not notices:
            return
        try:
            self._drafter.commit(notices)
        except SequenceErrors as error:
            self._fail_some("commit", error, [c.seq for c in notices])
        except Exception as error:  # noqa: BLE001 - the text does not depend on a drafter
            self._fail("commit", error, *(c.seq for c in notices))
        for c in notices:
            if c.seq in known:
                known[c.seq] += len(c.tokens)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """A draft for each request: at most the requested number of ids, all in the vocabulary."""
        asked = [r for r in requests if r.seq in self._n_known]
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
        if draft is NO_DRAFT or request.seq not in self._n_known:  # or it has just failed
            return NO_DRAFT
        try:
            n = request.n_requested
            draft = draft.first(max(n, request.n_lookup) if draft.match_length else n)
            # A copy, of ints: the drafter may go on writing to its own list, or it is NumPy's.
            ids = [*map(index, draft.ids)]
            if ids and not 0 <= min(ids) <= max(ids) < self._n_vocab:
                n = next(i for i, token in enumerate(ids) if not 0 <= token < self._n_vocab)
                draft, ids = draft.first(n), ids[:n]
            p, drawn_from = draft.probabilities, draft.distributions
            is_drawn = request.draws is not None and request.draws.verifies_all
            return draft._replace(
                ids=ids, probabilities=None if p is None else [*map(float, p)],
                distributions=drawn_from if is_drawn else None,
            )  # fmt: skip
        except Exception as error:  # noqa: BLE001 - what it gave is not a draft
            self._fail("propose", error, request.seq)
            return NO_DRAFT

    def asked_of(self, seq: int, *, asks_model: bool) -> Literal["", "copies", "drafter"]:
        """Who is asked for a draft of a sequence: see Span.asked_of."""
        if seq not in self._n_known:
            return ""
        return "drafter" if asks_model or self.is_lookup else "copies"

    def _call(self, method: str, seq: int, *args: int, **options: Any) -> Any:
        """Calls a method for a sequence; None after a failure of its request, and at one."""
        if seq in self.failures:
            return None
        try:
            return getattr(self._drafter, method)(seq, *args, **options)
        except Exception as error:  # noqa: BLE001 - the text does not depend on a drafter
            self._fail(method, error, seq)
            return None

    def _fail_some(self, method: str, error: SequenceErrors, seqs: Sequence[int]) -> None:
        """Records a failure of the sequences that the error names; of all if it names none."""
        for seq in [seq for seq in seqs if seq in error.errors] or seqs:
            self._fail(method, error.errors.get(seq, error), seq)

    def _fail(self, method: str, error: Exception, *seqs: int) -> None:
        said = " ".join(str(error).split())[:_MAX_ERROR]
        why = f"failed in {method}(): {type(error).__name__}" + (f": {said}" if said else "")
        for seq in seqs:
            self.failures[seq] = f"the drafter {why}", error
            self._n_known.pop(seq, None)
        if not self._has_warned:
            self._has_warned = True
            # A text without drafts looks like any other. A filter may make the warning an error.
            with contextlib.suppress(UserWarning):
                warn(
                    f"the drafter {self.name} is disabled until the next prompt of its sequence: "
                    f"it {why[:_MAX_WARNING]}. The text continues without it. This is said once; "
                    "Llama.generate_steps(...).record.stats.reason_off_error has the traceback "
                    "(docs/drafters.md)"
                )


def _mark(drafter: Drafter) -> bytes:
    """The beginning of a drafter's saved states: its class and those of the drafters inside it."""
    kinds: list[str] = []
    one: object = drafter
    while isinstance(one, Drafter):
        kinds.append(f"{type(one).__module__}.{type(one).__qualname__}")
        one = one.passes_on_to()
    return "/".join(kinds).encode("utf-8", "backslashreplace") + b"\0"
