"""Drafts only the text that a request's grammar forces."""

from __future__ import annotations

from collections.abc import Sequence

from pyllama_spec.drafters.base import NO_DRAFT, Committed, Draft, Drafter, DraftRequest


class GrammarOnly(Drafter):
    """Proposes nothing; the round itself drafts the text that a grammar forces.

    Args:
        max_draft: the maximum number of tokens of a draft.

    """

    name = "grammar"

    def __init__(self, max_draft: int = 8) -> None:
        super().__init__()
        self.max_draft = max_draft

    def propose(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        """Proposes nothing."""
        return [NO_DRAFT] * len(requests)

    def commit(self, done: Sequence[Committed]) -> None:
        """Ignores the tokens."""
