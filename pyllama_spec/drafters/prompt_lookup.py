"""Prompt lookup: copies the tokens after an earlier occurrence of the last tokens.

The idea is that of Saxena's "prompt lookup decoding" (2023): answers repeat the prompt and
themselves. Here every n-gram of the committed tokens is indexed when its token is committed, so
that a proposal costs a handful of dictionary look-ups however long the text has become.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pyllama_spec.drafters.base import NO_DRAFT, Committed, Draft, Drafter, DraftRequest
from pyllama_spec.engine.checks import count
from pyllama_spec.errors import ArgumentError

NGram = tuple[int, ...]
# Matches this long hardly ever end; comparing further costs time.
_MAX_MATCH = 24

# Each size is an entry per token of the text.
_MAX_NGRAM = 1024


@dataclass(slots=True)
class _History:
    """The tokens of one sequence and where its n-grams ended last."""

    tokens: array[int] = field(default_factory=lambda: array("i"))
    n_indexed: int = 0
    # For each size: the n-gram -> index of the token after its last occurrence.
    after: dict[NGram, int] = field(default_factory=dict)
    # What each insertion replaced, so that truncate() can undo it: (n-gram, old index or -1).
    replaced: list[list[tuple[NGram, int]]] = field(default_factory=list)

    def index_up_to(self, end: int, sizes: Sequence[int]) -> None:
        """Indexes the n-grams that end before `end`, each pointing at the token after it."""
        tokens, after = self.tokens, self.after
        for stop in range(self.n_indexed + 1, end + 1):
            undo: list[tuple[NGram, int]] = []
            for size in sizes:
                if size <= stop:
                    gram = tuple(tokens[stop - size : stop])
                    undo.append((gram, after.get(gram, -1)))
                    after[gram] = stop
            self.replaced.append(undo)
        self.n_indexed = max(self.n_indexed, end)

    def truncate(self, n_keep: int) -> None:
        """Removes the tokens from n_keep on, and their entries of the index."""
        del self.tokens[n_keep:]
        # An n-gram that ends at the last kept token points after it, at a token that is gone.
        while self.n_indexed > max(n_keep - 1, 0):
            for gram, old in reversed(self.replaced.pop()):
                if old < 0:
                    del self.after[gram]
                else:
                    self.after[gram] = old
            self.n_indexed -= 1


class PromptLookup(Drafter):
    """Proposes the tokens after an earlier occurrence of the text's longest repeated suffix.

    The defaults are those with which a copy task is fastest on a CPU: a verify batch of 8 rows is
    still cheap there, and suffixes of two tokens are found too often by chance.

    Args:
        max_draft: the maximum number of tokens of a draft.
        max_ngram: the longest suffix that is looked up; it is tried first.
        min_ngram: the shortest suffix that is looked up.

    Raises:
        ArgumentError: the sizes are not 1 <= min_ngram <= max_ngram, or max_draft is below 1.
    """

    name = "prompt-lookup"
    has_lookup = is_lookup = True

    def __init__(self, max_draft: int = 7, *, max_ngram: int = 6, min_ngram: int = 3) -> None:
        max_ngram = count(max_ngram, "max_ngram", 1, _MAX_NGRAM)
        min_ngram = count(min_ngram, "min_ngram", 1)
        if min_ngram > max_ngram:
            raise ArgumentError("min_ngram", min_ngram, f"at most `max_ngram={max_ngram}`")
        self.max_draft = count(max_draft, "max_draft", 1)
        self._sizes = tuple(range(max_ngram, min_ngram - 1, -1))
        self._sequences: defaultdict[int, _History] = defaultdict(_History)

    def tokens(self, seq: int) -> list[int]:
        """The tokens of a sequence."""
        return list(self._sequences[seq].tokens)

    def newest(self, seq: int, n: int) -> npt.NDArray[np.int32]:
        """A copy of the last n tokens of a sequence."""
        return np.array(self._sequences[seq].tokens[-n:], dtype=np.int32)

    def commit_one(self, done: Committed) -> None:
        """Appends and indexes tokens."""
        history = self._sequences[done.seq]
        history.tokens.extend(done.tokens)
        # N-grams that end with the last token have nothing after them yet.
        history.index_up_to(len(history.tokens) - 1, self._sizes)

    def note_miss(self, seq: int, at: int) -> None:
        """Ignores a draft model's miss."""

    def propose_one(self, request: DraftRequest) -> Draft:
        """Proposes the tokens after the text's longest repeated suffix.

        A continuation that reaches the end of the text continues with its own beginning, so that a
        repetition with a short period is proposed at full length.
        """
        history = self._sequences[request.seq]
        tokens = history.tokens
        n = min(max(request.n_requested, request.n_lookup), self.max_draft)
        for size in self._sizes:
            if size >= len(tokens) or n < 1:
                continue
            start = history.after.get(tuple(tokens[-size:]))
            if start is not None:
                ids = tokens[start : start + n].tolist()
                period = len(tokens) - start
                while len(ids) < n:
                    ids.append(ids[len(ids) - period])
                return Draft(ids, match_length=_match_length(tokens, start, size))
        return NO_DRAFT

    def truncate(self, seq: int, n_keep: int) -> None:
        """Forgets all but the first n_keep tokens, so that no request sees another one's text."""
        self._sequences[seq].truncate(n_keep)

    def copy(self, seq: int, to: int) -> None:
        """Starts `to` with the tokens of `seq`."""
        tokens = self._sequences[seq].tokens
        self._sequences[to] = _History()
        self.commit_one(Committed(to, tokens, 0))

    def close(self) -> None:
        """Frees the index."""
        self._sequences.clear()


def _match_length(tokens: array[int], start: int, size: int) -> int:
    """The number of equal tokens before `start` and the text's end; at least `size` are equal.

    At most _MAX_MATCH.
    """
    end = len(tokens)
    longest = min(_MAX_MATCH, start)
    while size < longest and tokens[start - size - 1] == tokens[end - size - 1]:
        size += 1
    return size
