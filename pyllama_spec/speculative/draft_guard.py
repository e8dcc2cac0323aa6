"""A drafter as the loop wants it: one that cannot fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pyllama_spec.drafters.base import Drafter, Features, ResumingDrafter, SavingDrafter


class GuardedDrafter:
    """Passes calls on to a drafter, and turns it off where it fails.

    Ids that it may not propose are cut off here: a drafter of the user's, or one for another
    vocabulary, then costs acceptance and not the process. After a failure nothing is asked of it
    until the next prompt, where it starts again from nothing.
    """

    def __init__(self, drafter: Drafter, n_vocab: int) -> None:
        self._drafter = drafter
        self._n_vocab = n_vocab
        self._failure: str | None = None
        self._disabled: str | None = None
        # How many tokens of each sequence it has been given. After a failure a sequence is absent
        # until its next prompt: what came in between would leave a hole.
        self._n_known: dict[int, int] = {}
        self.name = drafter.name

    @property
    def reason_off(self) -> str | None:
        """Why nothing is asked of the drafter; None while it is on."""
        return self._disabled or self._failure

    @property
    def target_layers(self) -> tuple[int, ...]:
        """The layer inputs to give it: none while it is off."""
        return () if self.reason_off else tuple(self._drafter.target_layers)

    def disable(self, reason: str) -> None:
        """Turns it off for good."""
        self._disabled = reason

    def resume_at(self, seq: int, n_keep: int, tokens: Sequence[int]) -> int:
        """How many of the first n_keep tokens the target need not decode again for the drafter.

        Args:
            seq: the sequence.
            n_keep: how many tokens the target could keep.
            tokens: those tokens.

        """
        self._failure = None
        known = self._n_known.setdefault(seq, 0)
        if self.reason_off:
            return n_keep
        if known >= n_keep:
            return self._resume_at(seq, n_keep)
        # A failure, of this sequence or another one, may have left it with more than that.
        self.truncate(seq, known)
        if self.target_layers:
            # Rows of the rest are gone: the target has to make them again.
            return self._resume_at(seq, known)
        self.begin(seq, tokens[known:n_keep], ())
        return n_keep

    def _resume_at(self, seq: int, n_keep: int) -> int:
        if not isinstance(self._drafter, ResumingDrafter):
            return n_keep
        try:
            return min(max(int(self._drafter.resume_at(seq, n_keep)), 0), n_keep)
        except Exception as error:  # noqa: BLE001 - the text does not depend on a drafter
            self._fail("resume_at", error)
            return n_keep

    def save(self, seq: int) -> bytes | None:
        """What restore() needs to go on with the sequence; None if the drafter has no such thing.

        A drafter without it is told the tokens again, and the target decodes them again where the
        drafter wants its rows.
        """
        if self.reason_off or not isinstance(self._drafter, SavingDrafter):
            return None
        try:
            return bytes(self._drafter.save(seq)) if seq in self._n_known else None
        except Exception as error:  # noqa: BLE001 - the text does not depend on a drafter
            self._fail("save", error)
            return None

    def restore(self, seq: int, state: bytes | None) -> None:
        """Puts back what save() gave; what cannot be put back is begun anew at the next prompt."""
        if state is None or self._disabled or not isinstance(self._drafter, SavingDrafter):
            return
        try:
            self._n_known[seq] = self._drafter.restore(seq, state)
        except Exception as error:  # noqa: BLE001 - the text does not depend on a drafter
            self._fail("restore", error)

    def truncate(self, seq: int, n_keep: int) -> None:
        """See Drafter.truncate."""
        self._call("truncate", self._drafter.truncate, seq, n_keep)
        if seq in self._n_known:
            self._n_known[seq] = min(self._n_known[seq], n_keep)

    def begin(self, seq: int, tokens: Sequence[int], features: Features) -> None:
        """See Drafter.begin."""
        if seq in self._n_known and self._call("begin", self._drafter.begin, seq, tokens, features):
            self._n_known[seq] += len(tokens)

    def commit(self, seq: int, tokens: Sequence[int], features: Features) -> None:
        """See Drafter.commit."""
        if seq in self._n_known and self._call(
            "commit", self._drafter.commit, seq, tokens, features
        ):
            self._n_known[seq] += len(tokens)

    def copy(self, seq: int, to: int) -> None:
        """See Drafter.copy."""
        self._n_known.pop(to, None)
        if seq in self._n_known and self._call("copy", self._drafter.copy, seq, to):
            self._n_known[to] = self._n_known[seq]

    def propose(self, seq: int, pending: int, n: int) -> list[int]:
        """At most n ids of the vocabulary; nothing while the drafter is off."""
        if self.reason_off is not None or seq not in self._n_known:
            return []
        ids: list[int] = []
        try:
            for token in self._drafter.propose(seq, pending, n).ids[:n]:
                if not 0 <= token < self._n_vocab:
                    break
                ids.append(int(token))
        except Exception as error:  # noqa: BLE001 - the text does not depend on a drafter
            self._fail("propose", error)
            return []
        return ids

    def _call(self, what: str, method: Callable[..., None], *args: Any) -> bool:
        if self.reason_off is not None:
            return False
        try:
            method(*args)
        except Exception as error:  # noqa: BLE001 - the text does not depend on a drafter
            self._fail(what, error)
            return False
        return True

    def _fail(self, what: str, error: Exception) -> None:
        self._failure = f"the drafter failed in {what}(): {type(error).__name__}: {error}"
        self._n_known.clear()
