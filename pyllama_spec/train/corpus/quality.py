"""The quality filter for training text: no loops, no duplicates."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

# Small models at temperature 0 fall into loops. Their first turns are kept, since a draft has to
# learn to follow them; the rest is cut off.
_NGRAM = 4
_WINDOW = 64
_MIN_DISTINCT = 0.5
# The least share of new n-grams in a text that is kept.
_MIN_DISTINCT_WHOLE = 0.2
# Near-equal answers: of the hashes of all 5-grams the 16 smallest (bottom-k sketch, Broder 1997);
# as many in common as here are nearly the same text.
_SHINGLE = 5
_SKETCH = 16
_SAME = 12


def distinct_ratio(tokens: Sequence[int]) -> float:
    """The share of 4-grams without an earlier occurrence; 1 for text without repetition."""
    grams = list(zip(*(tokens[i:] for i in range(_NGRAM)), strict=False))
    return len(set(grams)) / len(grams) if grams else 1.0


def ends_in_loop(tokens: Sequence[int]) -> bool:
    """Whether fewer than half of the 4-grams of the last 64 tokens are distinct."""
    end = tokens[-_WINDOW:]
    return len(end) == _WINDOW and distinct_ratio(end) < _MIN_DISTINCT


def is_repetitive(tokens: Sequence[int]) -> bool:
    """Whether too large a part of the text is repeated."""
    return distinct_ratio(tokens) < _MIN_DISTINCT_WHOLE


def fingerprint(tokens: Iterable[int]) -> bytes:
    """A short hash of exactly these tokens."""
    return hashlib.blake2b(np.array(list(tokens), dtype="<u4").tobytes(), digest_size=8).digest()


def _sketch(tokens: Sequence[int]) -> tuple[bytes, ...]:
    n = max(len(tokens) - _SHINGLE + 1, 1)
    return tuple(sorted({fingerprint(tokens[i : i + _SHINGLE]) for i in range(n)})[:_SKETCH])


class Seen:
    """The prompts and answers so far."""

    def __init__(self) -> None:
        self._prompts: set[bytes] = set()
        self._by_hash: dict[bytes, list[int]] = {}
        self._n_answers = 0

    def has_prompt(self, tokens: Sequence[int]) -> bool:
        """Whether this prompt was recorded."""
        return fingerprint(tokens) in self._prompts

    def has_answer_like(self, tokens: Sequence[int]) -> bool:
        """Whether an answer was recorded that shares at least 12 of 16 sampled 5-grams."""
        sketch = _sketch(tokens)
        shared = Counter(number for h in sketch for number in self._by_hash.get(h, ()))
        need = min(_SAME, len(sketch))
        return any(n >= need for n in shared.values())

    def note(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """Records a prompt and an answer."""
        self._prompts.add(fingerprint(prompt))
        for h in _sketch(answer):
            self._by_hash.setdefault(h, []).append(self._n_answers)
        self._n_answers += 1
