"""A draft model that copies: where the text repeats itself, what followed there needs no model.

A small head reads the text through one layer of attention and loses the thread of a long copy; an
index of the text's own n-grams never does. So a text that ends as it ended before is drafted by
prompt lookup, and any other by the model. Its calls are saved then as well: the model gets the rows
of several rounds at once, when it is next asked.

Where the model is asked, n-grams have a say too, if it listens: those of the text that are shorter
than what is copied, and those of a table that was counted with the model (ngram_table.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pyllama_spec.drafters.base import (
    AdvisedDrafter,
    AttachedDrafter,
    Draft,
    Drafter,
    Features,
    ResumingDrafter,
    SavingDrafter,
    Vote,
)
from pyllama_spec.drafters.ngram_table import MAX_CONTEXT, NgramTable
from pyllama_spec.drafters.prompt_lookup import PromptLookup
from pyllama_spec.drafters.saved_state import pack, unpack
from pyllama_spec.engine.checks import count
from pyllama_spec.engine.context import Context

# With fewer, chance is right as often as the model; with more, copies are found late.
MIN_NGRAM = 5
# How much others count where the head's distribution counts 1: the table, and what followed in the
# text after as many tokens as the last ones. Chosen, as MIN_NGRAM was, by the tokens per round on
# the prompts of bench/dev_prompts.jsonl; a half more or less of each is worth 0.03 there at most.
_TABLE_WEIGHT = 0.4
_TEXT_WEIGHTS = {2: 0.15, 3: 0.3, 4: 0.6}
# How far back short n-grams are looked for.
_REACH = 1 << 15


class DraftModel(Drafter, AttachedDrafter, ResumingDrafter, SavingDrafter, Protocol):
    """A drafter with a model of its own."""


class WithLookup:
    """Proposes what followed where the text ended as it does now; elsewhere asks a draft model.

    Args:
        drafter: the draft model. It is closed with this.
        min_ngram: how many tokens have to be the same.
        table: what follows the last few tokens as a rule, if the draft model came with it.

    Raises:
        ArgumentError: min_ngram is below 1.

    """

    def __init__(
        self, drafter: DraftModel, min_ngram: int = MIN_NGRAM, table: NgramTable | None = None
    ) -> None:
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
        self.table = table
        # The end of the text that is being drafted for.
        self._text = np.zeros(0, dtype=np.int32)
        self._advised = drafter if isinstance(drafter, AdvisedDrafter) else None

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
        if self._advised is None:
            return self.drafter.propose(seq, pending, n)
        # For this call alone: otherwise the two would keep each other, and their memory, alive.
        self._advised.adviser = self._votes
        try:
            return self.drafter.propose(seq, pending, n)
        finally:
            self._advised.adviser = None

    def _votes(self, seq: int, drafted: Sequence[int]) -> list[Vote]:
        """What n-grams say of the token after the text and what has been drafted behind it."""
        if not drafted:
            self._text = self._lookup.newest(seq, _REACH)
        tail = [*self._text[-MAX_CONTEXT:].tolist(), *drafted][-MAX_CONTEXT:]
        votes = []
        if self.table is not None:
            found = self.table.find(tail)
            if found is not None:
                votes.append(Vote(*found, _TABLE_WEIGHT))
        followed = _what_followed(self._text, tail)
        if followed is not None:
            token, n_same = followed
            votes.append(Vote(token, 1.0, _TEXT_WEIGHTS[n_same]))
        return votes

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


def _what_followed(text: npt.NDArray[np.int32], tail: Sequence[int]) -> tuple[int, int] | None:
    """What followed in a text where it last ended like this, in as many tokens as can be.

    Args:
        text: [n] the text.
        tail: the tokens to look for, the last one last. They may be the end of the text itself.

    Returns:
        The token, and how many of the last ones were the same: 2, 3 or 4; None for fewer.

    """
    if len(tail) < 2 or len(text) < 3:
        return None
    # Where such a place ends; behind the last token of the text there is nothing yet.
    ends = 1 + np.flatnonzero((text[1:-1] == tail[-1]) & (text[:-2] == tail[-2]))
    n_same = 2
    while len(ends) and n_same < min(len(tail), max(_TEXT_WEIGHTS)):
        longer = ends[ends >= n_same]
        longer = longer[text[longer - n_same] == tail[-1 - n_same]]
        if not len(longer):
            break
        ends, n_same = longer, n_same + 1
    return (int(text[ends[-1] + 1]), n_same) if len(ends) else None
