"""EAGLE-3: a small head that drafts from the target's hidden rows (arXiv 2503.01840).

At position P the head reads the token x[P+1] and the row of x[P], its *pair*:

    position        0          1          2          3
    token         x[1]       x[2]       x[3]       x[4] = pending
    row of        x[0]       x[1]       x[2]       x[3]        from the target, as features
                                                     |
                                                     +-> first drafted token d[1], row h[1]
    then            4: (d[1], h[1]) -> d[2], h[2]    5: (d[2], h[2]) -> ...

Which pairs stay in its memory, and what a draft costs: drafters/chain.py.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyllama_spec.drafters.base import Drafter
from pyllama_spec.drafters.chain import ChainDrafter, ChainMemory
from pyllama_spec.drafters.model_drafter import add_lookup
from pyllama_spec.drafters.options import DraftOptions, FileOptions
from pyllama_spec.drafters.row_memory import SequenceMemory
from pyllama_spec.engine.batch import Batch
from pyllama_spec.engine.context import Context
from pyllama_spec.engine.model import Model

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Eagle3Memory(ChainMemory):
    """The pairs of all sequences, in a head's context.

    A sequence's n_fed may be as many as it has tokens: then the last pair was fed with the token
    `ahead`, which truncate() has removed.
    """

    def n_ready(self, s: SequenceMemory) -> int:
        """The complete pairs: a row needs the token after it."""
        return len(s.tokens) - 1

    def put(self, batch: Batch, seq: int, s: SequenceMemory, n: int, is_read: bool) -> None:
        """Adds each row with the token after it."""
        first = s.n_fed
        batch.extend(
            s.tokens[first + 1 : first + n + 1], first, seq,
            rows=[s.rows.view(first, first + n)], output_last=is_read,
        )  # fmt: skip

    def meet(self, seq: int, s: SequenceMemory, tokens: Sequence[int]) -> None:
        """Drops the pair that truncate() left at the end if the text continues differently."""
        if tokens and s.n_fed and s.n_fed == len(s.tokens) and s.ahead != tokens[0]:
            self.roll_back(seq, s, len(s.tokens) - 1)
        s.ahead = None

    def known(self, s: SequenceMemory, n_keep: int) -> int:
        """How many of the first n_keep tokens have rows here; the next pair needs the last row.

        Where that row is gone, the target has to make it again.
        """
        n_keep = min(n_keep, len(s.tokens))
        is_held = s.rows.holds(n_keep - 1) and s.rows.start <= s.n_fed
        if n_keep == 0 or is_held or (n_keep - 1 in s.pinned and n_keep - 1 <= s.n_fed):
            return n_keep
        # The last token's own pair, with the row before it, stays in the memory.
        return min(n_keep - 1, s.n_fed)


# Tokens that a head drafts per round by default: each costs a decode of its own.
_MAX_DRAFT = 4
# And with a controller that ends drafts where they do not pay.
_MAX_ADAPTIVE = 8


class Eagle3(ChainDrafter[Eagle3Memory]):
    """Drafts with an EAGLE-3 head, in a chain.

    Args:
        model: the head, or the path of its GGUF (docs/eagle3.md).
        max_draft: the maximum number of tokens of a draft.
        options: see FileOptions.

    Raises:
        ModelLoadError: the file cannot be read, or its parts contradict each other.
        ArgumentError: the file is not an EAGLE-3 head, or a number is out of range.
    """

    def __init__(
        self,
        model: Model | str | os.PathLike[str],
        max_draft: int = 4,
        **options: Unpack[FileOptions],
    ) -> None:
        super().__init__(model, "eagle3", "an EAGLE-3 draft", max_draft=max_draft, **options)

    def open_memory(self, target: Context) -> Eagle3Memory:
        """Opens room for as many pairs as the target has tokens, and for guesses after them."""
        context, n_window = self.open_head(target)
        return Eagle3Memory(context, self._n_features, n_window)


def open_eagle3(path: Path, options: DraftOptions) -> Drafter:
    """Opens a head, with lookups and n-grams beside it unless options.lookup is 0."""
    head = Eagle3(path, options.length(_MAX_DRAFT, _MAX_ADAPTIVE), **options.of_file())
    return add_lookup(head, options)
