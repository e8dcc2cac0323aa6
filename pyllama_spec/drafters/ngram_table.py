"""An n-gram table beside a draft's head: the likeliest next token by the last few tokens.

A head of one layer learns slowly what a count knows at once: that "as" follows "as well". The
table holds, for contexts of one to five tokens, the likeliest next one and its probability; its
entry is one vote among others (lookup_first.py). docs/eagle3.md has the format.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from pyllama_spec.errors import ArgumentError

MAX_CONTEXT = 5
# Odd numbers near 2^64 divided by the golden ratio, and by its square: Knuth's multiplicative hash.
_STEP = 0x9E3779B97F4A7C15
_FINAL = 0x61C8864680B583EB
_MASK = (1 << 64) - 1
# Probabilities are kept in 1/127.
P_SCALE = 127.0


def context_keys(newest_first: Iterable[int]) -> list[int]:
    """The keys of the contexts that end with the same token, shortest first.

    A key is the upper half of a 64-bit hash, a polynomial in the ids plus one.
    """
    keys, h = [], 0
    for token in newest_first:
        h = (h * _STEP + token + 1) & _MASK
        keys.append(((h * _FINAL) & _MASK) >> 32)
    return keys


def extend_hashes(
    hashes: npt.NDArray[np.uint64], tokens: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    """Extends the hashes of many contexts by one earlier token: context_keys() for arrays."""
    out: npt.NDArray[np.uint64] = hashes * np.uint64(_STEP) + tokens + np.uint64(1)
    return out


def keys_of(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint32]:
    """The keys of hashes."""
    mixed: npt.NDArray[np.uint64] = hashes * np.uint64(_FINAL)
    keys: npt.NDArray[np.uint32] = (mixed >> np.uint64(32)).astype(np.uint32)
    return keys


class NgramTable:
    """A table of n-gram contexts and their likeliest next tokens.

    Args:
        keys: [n] uint32, rising: the keys of the contexts.
        ids: [n] int32: the likeliest next token of each context.
        p: [n] int8: its probability in 1/127.
        n_vocab: the size of the target's vocabulary.
    """

    def __init__(
        self,
        keys: npt.NDArray[np.uint32],
        ids: npt.NDArray[np.int32],
        p: npt.NDArray[np.int8],
        n_vocab: int,
    ) -> None:
        if not keys.shape == ids.shape == p.shape or keys.ndim != 1:
            raise ArgumentError(
                problem=f"the n-gram table is damaged: {keys.shape} keys, {ids.shape} ids, "
                f"{p.shape} probabilities"
            )
        if bool((keys[1:] <= keys[:-1]).any()):
            raise ArgumentError(problem="the n-gram table is damaged: its keys do not rise")
        bad = ids[(ids < 0) | (ids >= n_vocab)]
        if len(bad):
            raise ArgumentError(
                problem=f"the n-gram table proposes token {bad[0]}, and the target's vocabulary "
                f"has {n_vocab}; it was made for another target, or is damaged"
            )
        if bool((p < 0).any()):
            raise ArgumentError(problem="the n-gram table is damaged: a probability is below 0")
        # A number of another type would have the whole array converted at every look-up.
        self.keys = np.ascontiguousarray(keys, dtype=np.uint32)
        self.ids, self.p = ids, p

    def __len__(self) -> int:
        return len(self.keys)

    def find(self, tokens: Sequence[int]) -> tuple[int, float] | None:
        """The entry of the longest known context that the tokens end with."""
        if not len(self.keys) or not tokens:
            return None
        keys = np.array(context_keys(tokens[: -MAX_CONTEXT - 1 : -1]), dtype=np.uint32)
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        known = np.flatnonzero(self.keys[at] == keys)
        if not len(known):
            return None
        i = at[known[-1]]
        return int(self.ids[i]), float(self.p[i]) / P_SCALE
