"""Prompt lookup: copies the tokens after an earlier occurrence of the last tokens.

The idea is that of Saxena's "prompt lookup decoding" (2023): answers repeat the prompt and
themselves. A search of the whole text takes microseconds, less than an index of it.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pyllama_spec.drafters.base import (
    NO_DRAFT,
    Committed,
    Draft,
    Drafter,
    DraftRequest,
    n_common_ids,
)
from pyllama_spec.engine.checks import count
from pyllama_spec.errors import ArgumentError

Ids = npt.NDArray[np.int32]
# Matches this long hardly ever end; comparing further costs time.
_MAX_MATCH = 24
_MAX_NGRAM = 1024


def newest_match(text: Ids, tail: Sequence[int] | Ids, most: int) -> tuple[int, int]:
    """The newest place of a text whose tokens before it equal the end of `tail` for longest.

    Returns:
        The index of the token that follows there, and the number of equal tokens, at most `most`;
        (0, 0) for no place.
    """
    n, most = 0, min(most, len(tail))
    ends = longer = np.flatnonzero(text[:-1] == tail[-1]) if most else np.zeros(0, int)
    while len(longer):
        ends, n = longer, n + 1
        if n == most:
            break
        longer = ends[ends >= n]
        longer = longer[text[longer - n] == tail[-1 - n]]
    return (int(ends[-1]) + 1, n) if n else (0, 0)


class PromptLookup(Drafter):
    """Proposes the tokens after an earlier occurrence of the text's longest repeated suffix.

    The defaults are those with which a copy task is fastest on a CPU: a verify batch of 8 rows is
    still cheap there, and suffixes of two tokens are found too often by chance.

    Args:
        max_draft: the maximum number of tokens of a draft.
        max_ngram: the longest suffix that is looked up.
        min_ngram: the shortest suffix that is looked up.

    Raises:
        ArgumentError: the sizes are not 1 <= min_ngram <= max_ngram, or max_draft is below 1.
    """

    name = "prompt-lookup"
    has_lookup = is_lookup = True

    def __init__(self, max_draft: int = 7, *, max_ngram: int = 6, min_ngram: int = 3) -> None:
        self._max_ngram = count(max_ngram, "max_ngram", 1, _MAX_NGRAM)
        self._min_ngram = count(min_ngram, "min_ngram", 1)
        if min_ngram > max_ngram:
            raise ArgumentError("min_ngram", min_ngram, f"at most `max_ngram={max_ngram}`")
        self.max_draft = count(max_draft, "max_draft", 1)
        self._texts: defaultdict[int, array[int]] = defaultdict(lambda: array("i"))

    def tokens(self, seq: int) -> list[int]:
        """The tokens of a sequence."""
        return self._texts[seq].tolist()

    def commit_one(self, done: Committed) -> None:
        """Appends tokens."""
        self._texts[done.seq].extend(done.tokens)

    def propose_one(self, request: DraftRequest) -> Draft:
        """Proposes the tokens after the text's longest repeated suffix.

        A continuation that reaches the end of the text continues with its own beginning, so that a
        repetition with a short period is proposed at full length.
        """
        tokens = self._texts[request.seq]
        n = min(max(request.n_requested, request.n_lookup), self.max_draft)
        if n < 1 or not tokens:
            return NO_DRAFT
        text = np.frombuffer(tokens, np.int32)
        start, n_found = newest_match(text, text[-self._max_ngram :], self._max_ngram)
        if n_found < self._min_ngram:
            return NO_DRAFT
        ids = tokens[start : start + n].tolist()
        period = len(tokens) - start
        while len(ids) < n:
            ids.append(ids[len(ids) - period])
        before = text[max(start - _MAX_MATCH, 0) : start]
        return Draft(ids, match_length=max(n_common_ids(before[::-1], text[::-1]), n_found))

    def truncate(self, seq: int, n_keep: int) -> None:
        """Forgets all but the first n_keep tokens, so that no request sees another one's text."""
        del self._texts[seq][n_keep:]

    def copy(self, seq: int, to: int) -> None:
        """Starts `to` with the tokens of `seq`."""
        self._texts[to] = self._texts[seq][:]

    def close(self) -> None:
        """Frees the texts."""
        self._texts.clear()
