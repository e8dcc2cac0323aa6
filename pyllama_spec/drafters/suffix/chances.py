"""The chance that a copied token is right, by match length and by its earlier continuations.

A drafter that only knows that two texts were alike for eight tokens cannot say how likely the
ninth is: that depends on the owner's texts. So the drafter counts. A kind of copy that
was never seen starts with Laplace's rule of succession: what held m times holds again with
chance (m + 1) / (m + 2). That is too high where little has held: three equal tokens are often
equal by chance, and after a difference no token is known to be equal.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

_MATCH_EDGES = (4, 5, 6, 7, 8, 10, 13, 17, 22, 32, 48)
# How many places there are that have the same beginning, and the share that continues this way.
_PLACE_EDGES = (2, 4, 9)
_SHARE_EDGES = (0.26, 0.45, 0.6, 0.8, 0.999)
# For a resumed copy: bins of the equal tokens after the difference, and of its length.
_EQUAL_EDGES = (1, 2, 3, 4, 6, 9, 14, 22)
_GAP_EDGES = (1, 2, 4)
# Beyond the cells of matches.
_GAP_CELLS = 1 << 16
# A kind's prior weighs as many observations as this; one counts half after 128 more.
_PRIOR = 4.0
_KEEP = 0.5 ** (1 / 128)
_LOW, _HIGH = 0.01, 0.995
# On the traces and mixed prompts of benchmarks/ 100 of 174 copies of the text itself were right
# after three equal tokens, and 79 of 654 after none.
_BEHIND_THREE, _BEHIND_NONE = 0.6, 0.15
# After so few equal tokens a place in another text is weaker evidence than one in this text.
_OF_OTHERS = 0.8


class CopyKind(NamedTuple):
    """The features of a copied token before it is verified.

    Attributes:
        match_length: the number of equal tokens before it, drafted ones included.
        n_places: the number of places whose text equals the draft up to here.
        n_agree: the number of those places with this token.
        is_own: whether the copy is from the text itself.
        n_gap: for a copy that resumed after a difference, the number of tokens in the text there;
            None for a match.

    """

    match_length: int
    n_places: int
    n_agree: int
    is_own: bool
    n_gap: int | None = None


class Chances:
    """Counts of right copied tokens by kind, over all the drafter's texts."""

    def __init__(self) -> None:
        # By cell: how many there were, and how many of them were right, both faded.
        self._seen: dict[int, tuple[float, float]] = {}

    def chance(self, kind: CopyKind) -> float:
        """The chance of a token of this kind, given that those before it are right."""
        cell, prior = _cell(kind)
        n, right = self._seen.get(cell, (0.0, 0.0))
        p = (right + _PRIOR * prior) / (n + _PRIOR)
        return _LOW if p < _LOW else _HIGH if p > _HIGH else p

    def learn(self, kinds: Sequence[CopyKind], n_right: int) -> None:
        """Learns from the outcome of a draft.

        Args:
            kinds: the facts of the draft's tokens that have been compared with the text.
            n_right: the number of correct ones, from the first on.

        """
        for i, kind in enumerate(kinds[: n_right + 1]):
            cell, _ = _cell(kind)
            n, right = self._seen.get(cell, (0.0, 0.0))
            self._seen[cell] = (n * _KEEP + 1.0, right * _KEEP + (i < n_right))


@lru_cache(maxsize=1 << 13)
def _cell(kind: CopyKind) -> tuple[int, float]:
    """The cell that counts a kind, and the prior chance of a cell without counts."""
    m, share = kind.match_length, kind.n_agree / kind.n_places
    if kind.n_gap is not None:
        cell = bisect_right(_EQUAL_EDGES, m) * 8 + bisect_right(_GAP_EDGES, kind.n_gap)
        prior = (m + 1.0) / (m + 2.0) * _OF_OTHERS if m else _BEHIND_NONE
        return _GAP_CELLS + 2 * cell + kind.is_own, prior
    cell = bisect_right(_MATCH_EDGES, m)
    cell = cell * 8 + bisect_right(_PLACE_EDGES, kind.n_places)
    cell = cell * 8 + bisect_right(_SHARE_EDGES, share)
    others = 1.0 if kind.is_own else 1.0 - (1.0 - _OF_OTHERS) * 3 / max(m, 3)
    prior = (m + 1.0) / (m + 2.0) if m > 3 else _BEHIND_THREE
    return 2 * cell + kind.is_own, prior * share * others
