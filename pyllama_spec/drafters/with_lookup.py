"""A draft model that copies: where the text repeats itself, what followed there needs no model.

A small head reads the text through one layer of attention and loses the thread of a long copy; an
index of the text's own n-grams never does. So a text that ends as it ended before is drafted by
prompt lookup, and any other by the model. Its calls are saved then as well: the model gets the rows
of several rounds at once, when it is next asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from pyllama_spec.drafters.base import (
    AttachedDrafter,
    Draft,
    Drafter,
    Features,
    ResumingDrafter,
    SavingDrafter,
)
from pyllama_spec.drafters.prompt_lookup import PromptLookup
from pyllama_spec.drafters.saved_state import pack, unpack
from pyllama_spec.engine.checks import count
from pyllama_spec.engine.context import Context

# With fewer, chance is right as often as the model; with more, copies are found late.
MIN_NGRAM = 5


class DraftModel(Drafter, AttachedDrafter, ResumingDrafter, SavingDrafter, Protocol):
    """A drafter with a model of its own."""


class WithLookup:
    """Proposes what followed where the text ended as it does now; elsewhere asks a draft model.

    Args:
        drafter: the draft model. It is closed with this.
        min_ngram: how many tokens have to be the same.

    Raises:
        ArgumentError: min_ngram is below 1.

    """

    def __init__(self, drafter: DraftModel, min_ngram: int = MIN_NGRAM) -> None:
        self.drafter = drafter
        self.min_ngram = count(min_ngram, "min_ngram", 1)
        self.name = drafter.name
        self.target_layers = drafter.target_layers
        self.max_draft = drafter.max_draft
        # One size: among places that end alike the newest is as good as the one that does so for
        # longest, and an index of four sizes takes a kilobyte per token.
        self._lookup = PromptLookup(drafter.max_draft, max_ngram=min_ngram, min_ngram=min_ngram)
        # Proposals that were copied, for who asks where they come from.
        self.n_copied = 0

    def attach(self, target: Context) -> None:
        """See Eagle3.attach."""
        self.drafter.attach(target)

    def begin(self, seq: int, tokens: Sequence[int], features: Features) -> None:
        """Tells both."""
        self.drafter.begin(seq, tokens, features)
        self._lookup.begin(seq, tokens, ())

    def commit(self, seq: int, tokens: Sequence[int], features: Features) -> None:
        """Tells both."""
        self.drafter.commit(seq, tokens, features)
        self._lookup.commit(seq, tokens, ())

    def propose(self, seq: int, pending: int, n: int) -> Draft:
        """A copy if there is one, else what the model drafts."""
        copy = self._lookup.propose(seq, pending, n)
        if copy.ids:
            self.n_copied += 1
            return copy
        return self.drafter.propose(seq, pending, n)

    def resume_at(self, seq: int, n_keep: int) -> int:
        """As the model can: a lookup needs the tokens alone."""
        return self.drafter.resume_at(seq, n_keep)

    def truncate(self, seq: int, n_keep: int) -> None:
        """Tells both."""
        self.drafter.truncate(seq, n_keep)
        self._lookup.truncate(seq, n_keep)

    def copy(self, seq: int, to: int) -> None:
        """Tells both."""
        self.drafter.copy(seq, to)
        self._lookup.copy(seq, to)

    def save(self, seq: int) -> bytes:
        """What both know of a sequence."""
        tokens = np.array(self._lookup.tokens(seq), dtype="<i4")
        return pack({}, [self.drafter.save(seq), tokens.tobytes()])

    def restore(self, seq: int, data: bytes) -> int:
        """Puts back what save() gave.

        Returns:
            The number of tokens that both know of the sequence now.

        Raises:
            ArgumentError: the state is damaged, or of another draft. Nothing is known of the
                sequence then.

        """
        self._lookup.truncate(seq, 0)
        _, parts = unpack(data)
        n = self.drafter.restore(seq, parts[0])
        self._lookup.begin(seq, np.frombuffer(parts[1], dtype="<i4").tolist()[:n], ())
        return n

    @property
    def is_closed(self) -> bool:
        """Whether close() was called."""
        return bool(getattr(self.drafter, "is_closed", False))

    def close(self) -> None:
        """Closes the model and frees the index."""
        self._lookup.close()
        self.drafter.close()
