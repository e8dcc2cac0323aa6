"""Helpers for tests of the suffix drafter."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

from pyllama_spec.drafters import Committed, DraftRequest, Suffix

# A sequence that no test generates on.
_ASIDE = 10_000


def fresh(seed: int, n: int = 60) -> list[int]:
    """A text without repetitions of its own, and of no other one's tokens in a row."""
    return random.Random(seed).sample(range(1000, 30000), n)


def tell(drafter: Suffix, tokens: Sequence[int], seq: int = 0, **about: Any) -> None:
    """A request with this text begins; it does not end yet."""
    drafter.begin_request(seq, **about)
    drafter.truncate(seq, 0)
    drafter.commit_one(Committed(seq, list(tokens), 0))


def teach(drafter: Suffix, texts: Iterable[Sequence[int]], **about: Any) -> None:
    for text in texts:
        tell(drafter, text, _ASIDE, **about)
        drafter.end_request(_ASIDE)


def knowing(*texts: Sequence[int], max_draft: int = 8) -> Suffix:
    drafter = Suffix(max_draft)
    teach(drafter, texts)
    return drafter


def proposal(drafter: Suffix, tokens: Sequence[int], n: int = 8, seq: int = 0) -> list[int]:
    return list(drafter.propose_one(DraftRequest(seq, list(tokens), n)).ids)
