"""Where a copy went wrong, and where it may go on: a name that is another one now, a new number.

Behind a difference no n-gram is found until some tokens are equal again, though the text often goes
on as the copied one does. So the place of the difference is kept for a while, and the copy is taken
up again there: behind the next tokens that are equal, and before there are any, behind as many
tokens as the last such difference had. How likely that is has been learnt like all else
(chances.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyllama_spec.drafters.suffix.memory import Source
from pyllama_spec.drafters.suffix.token_index import TokenIndex

# A difference is given up where the text has gone on for so long without the copy.
_MAX_GAP = 12
# The copied text may have so many tokens more there than this one.
_REACH = 12
# Equal tokens behind a difference: more of them are found as any match is.
_MAX_AGAIN = 3


class Lengths(NamedTuple):
    """How many tokens a difference has in the copied text, and how many in this one."""

    there: int = 1
    here: int = 1


class Gap(NamedTuple):
    """A difference between a text and the one that it was copied from.

    Attributes:
        source: where that is; None for the text itself.
        at: the index of the token there that did not come.
        begin: the index of the one that came instead, in the text.

    """

    source: Source | None
    at: int
    begin: int


class Again(NamedTuple):
    """Where a copy may go on.

    Attributes:
        at: the index of the token there.
        n_equal: how many tokens before it are equal, of those behind the difference.
        lengths: of the difference, if that is so.

    """

    at: int
    n_equal: int
    lengths: Lengths


def again(gap: Gap, index: TokenIndex, text: Sequence[int], last: Lengths) -> Again | None:
    """Where the copy may go on.

    Args:
        gap: the difference.
        index: of what it was copied from. The place may be of one that was there before.
        text: the tokens of the text from the difference on.
        last: of the difference before.

    Returns:
        None where there is nothing to go on with, or the difference has become too long.

    """
    n = len(text)
    if not 0 < n <= _MAX_GAP:
        return None
    new = list(text)
    there: list[int] = index.tokens[gap.at : min(gap.at + n + _REACH, index.n)].tolist()
    for n_equal in range(min(n, _MAX_AGAIN), 0, -1):
        ending = new[n - n_equal :]
        for end in range(n_equal, len(there)):
            if there[end - n_equal : end] == ending:
                return Again(gap.at + end, n_equal, Lengths(end - n_equal, n - n_equal))
    skipped = last.there if last.here == n else n
    if skipped >= len(there):
        return None
    return Again(gap.at + skipped, 0, Lengths(skipped, n))
