"""The record separates the drafts of each source."""

from __future__ import annotations

from typing import Any

import pytest

from pyllama_spec.drafters import Draft
from pyllama_spec.speculative import SpeculationStats
from pyllama_spec.speculative.controller.base import DraftDecision, Span
from pyllama_spec.speculative.stats import SOURCES

# For each source: proposed, verified and accepted tokens of its rounds.
DRAFTS = {
    "model": [(4, 3, 1), (2, 0, 0)],
    "copy": [(8, 8, 8)],
    "prediction": [(5, 5, 2), (5, 4, 4)],
    "memory": [(6, 2, 0)],
    "grammar": [(3, 3, 3)],
}


def _span(source: str, n_proposed: int, n_verified: int) -> Span:
    is_copy = source in ("copy", "prediction", "memory")
    draft = Draft(
        [1] * n_proposed, match_length=5 * is_copy, is_remembered=source == "memory"
    )  # fmt: skip
    span = Span(0, 0, draft=draft, is_predicted=source == "prediction")
    if source != "grammar":
        span.decision, span.asked_of = DraftDecision(8), "drafter"
    span.verify(n_verified)
    return span


def _stats(*sources: str) -> SpeculationStats:
    stats = SpeculationStats(drafter="a head")
    for source in sources:
        for n_proposed, n_verified, n_accepted in DRAFTS[source]:
            stats.count_round(_span(source, n_proposed, n_verified), n_accepted)
    stats.count_round(Span(0, 0), 0)
    return stats


@pytest.mark.parametrize("sources", [(), ("model",), ("memory", "copy"), SOURCES])
def test_each_source_has_its_counts_and_its_rate(sources: tuple[str, ...]) -> None:
    stats = _stats(*sources)
    by_source: dict[str, Any] = stats.as_dict()["by_source"]
    assert list(by_source) == [name for name in SOURCES if name in sources]
    for name, said in by_source.items():
        proposed, drafted, accepted = map(sum, zip(*DRAFTS[name], strict=True))
        assert said == {
            "rounds": len(DRAFTS[name]), "proposed": proposed, "drafted": drafted,
            "accepted": accepted, "acceptance_rate": accepted / drafted,
        }  # fmt: skip
    for count in ("proposed", "drafted", "accepted"):
        assert sum(said[count] for said in by_source.values()) == getattr(stats, count)


def test_the_counts_of_requests_are_added_and_stay_their_own() -> None:
    one, other, total = _stats("model"), _stats("model", "copy"), SpeculationStats()
    total.add(one)
    total.add(other)
    assert total.by_source["model"].proposed == 12
    assert total.by_source["copy"].accepted == 8
    assert one.by_source["model"].proposed == 6, "a sum changes none of its parts"


def test_a_source_whose_drafts_were_not_worth_verifying_has_a_rate_of_0() -> None:
    stats = SpeculationStats(drafter="a head")
    stats.count_round(_span("model", 4, 0), 0)
    assert stats.as_dict()["by_source"]["model"]["acceptance_rate"] == 0.0
