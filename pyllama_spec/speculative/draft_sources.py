"""Counts a text's drafts by source: the model, a copy, the grammar and others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyllama_spec.speculative.controller.base import Span

# In the order in which figures name them.
SOURCES = ("model", "copy", "prediction", "memory", "grammar")


@dataclass(slots=True)
class SourceCounts:
    """The counts of one source.

    Attributes:
        rounds: the number of rounds with a draft of this source; a round has at most one draft.
        proposed: the number of tokens of these drafts.
        drafted: the number of those tokens that the target verified.
        accepted: the number of those that equal the target's own choice.
    """

    rounds: int = 0
    proposed: int = 0
    drafted: int = 0
    accepted: int = 0

    def add(self, other: SourceCounts) -> None:
        """Adds the counts of another request."""
        self.rounds += other.rounds
        self.proposed += other.proposed
        self.drafted += other.drafted
        self.accepted += other.accepted

    def as_dict(self) -> dict[str, int | float]:
        """The counts and the rate for JSON; the rate is 0 if nothing was verified."""
        rate = self.accepted / self.drafted if self.drafted else 0.0
        return {
            "rounds": self.rounds, "proposed": self.proposed, "drafted": self.drafted,
            "accepted": self.accepted, "acceptance_rate": rate,
        }  # fmt: skip


def source_of(span: Span) -> str:
    """The source of a span's draft: one of SOURCES, or "nobody" without a proposal."""
    if not span.draft.ids:
        return "nobody"
    if span.is_forced:
        return "grammar"
    if span.is_predicted:
        return "prediction"
    if not span.draft.match_length:
        return "model"
    return "memory" if span.draft.is_remembered else "copy"


def add_sources(sums: dict[str, SourceCounts], more: Mapping[str, SourceCounts]) -> None:
    """Adds the counts of another request, which another thread may still update."""
    for name in SOURCES:  # not items(): a source may be added meanwhile
        if name in more:
            sums.setdefault(name, SourceCounts()).add(more[name])


def sources_as_dict(by_source: Mapping[str, SourceCounts]) -> dict[str, dict[str, int | float]]:
    """The counts of each source, in the order of SOURCES, for JSON."""
    return {name: by_source[name].as_dict() for name in SOURCES if name in by_source}


def sources_in_words(by_source: Mapping[str, Mapping[str, Any]]) -> str:
    """Accepted of drafted tokens by source: "copy 26 of 28, model 2 of 12"."""
    verified = {name: one for name, one in by_source.items() if one["drafted"]}
    if not verified.keys() - {"model"}:
        return ""
    return ", ".join(
        f"{name} {one['accepted']} of {one['drafted']}" for name, one in verified.items()
    )
