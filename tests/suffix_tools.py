"""Helpers for tests of the suffix drafter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pyllama_spec.drafters import Committed, DraftRequest, Suffix

# A sequence that no test generates on.
_ASIDE = 10_000


def tell(drafter: Suffix, tokens: Sequence[int], seq: int = 0, **about: Any) -> None:
    """A request with this text begins; it does not end yet."""
    drafter.begin_request(seq, **about)
    drafter.truncate(seq, 0)
    drafter.commit_one(Committed(seq, list(tokens), 0))


def teach(drafter: Suffix, texts: Iterable[Sequence[int]], **about: Any) -> None:
    """Requests with these texts begin and end."""
    for text in texts:
        tell(drafter, text, _ASIDE, **about)
        drafter.end_request(_ASIDE)


def knowing(*texts: Sequence[int], max_draft: int = 8) -> Suffix:
    """A drafter that has seen these texts in earlier requests."""
    drafter = Suffix(max_draft)
    teach(drafter, texts)
    return drafter


def proposal(drafter: Suffix, tokens: Sequence[int], n: int = 8, seq: int = 0) -> list[int]:
    """The proposal after a text that it was told on a sequence."""
    return list(drafter.propose_one(DraftRequest(seq, list(tokens), n)).ids)
