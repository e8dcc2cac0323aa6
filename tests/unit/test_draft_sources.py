"""The record separates the drafts of each source, and lists the important one first."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pyllama_spec.cli.generate import figure_lines
from pyllama_spec.drafters import Draft
from pyllama_spec.llama.responses import Result
from pyllama_spec.speculative import SpeculationStats, Timing
from pyllama_spec.speculative.controller.base import DraftDecision, Span
from pyllama_spec.speculative.stats import SOURCES, SourceCounts, sources_in_words

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


def test_what_a_user_reads_first_is_first() -> None:
    said = _stats(*SOURCES).as_dict()
    assert list(said)[:12] == [
        "drafter", "state", "tokens_per_round", "acceptance_rate", "rounds", "proposed", "drafted",
        "accepted", "by_source", "reason_off", "disabled_since", "note",
    ]  # fmt: skip
    assert json.loads(json.dumps(said, allow_nan=False)) == said


@pytest.mark.parametrize(
    ("sources", "words"),
    [
        ((), ""), (("model",), ""), (("copy",), "copy 8 of 8"),
        (("model", "copy"), "model 1 of 3, copy 8 of 8"),
        (("prediction", "grammar"), "prediction 6 of 9, grammar 3 of 3"),
    ],
)  # fmt: skip
def test_a_head_with_copies_is_told_from_its_copies(sources: tuple[str, ...], words: str) -> None:
    """On the terminal and in a notebook, accepted copies are not shown as the head's work."""
    stats = _stats(*sources)
    assert sources_in_words(stats.as_dict()["by_source"]) == words
    shown = Result({"speculation": stats.as_dict(), "usage": {"completion_tokens": 9}})
    for said in ("\n".join(figure_lines(stats, Timing())), shown._repr_html_()):
        assert f"{stats.accepted} of {stats.drafted} drafted tokens accepted" in said
        if words:
            assert words in said
        else:
            assert not any(f"{name} " in said for name in SOURCES if name != "model")


def test_counts_are_added_while_another_thread_counts() -> None:
    class Growing(dict[str, SourceCounts]):
        """Gets a source whenever it is iterated, as from a round that ends meanwhile."""

        def __getitem__(self, name: str) -> SourceCounts:
            self.setdefault(SOURCES[-1], SourceCounts(1, 2, 2, 1))
            return super().__getitem__(name)

    running, total = SpeculationStats(), SpeculationStats()
    running.by_source = Growing(model=SourceCounts(1, 4, 3, 2))
    total.add(running)
    assert total.by_source["model"] == SourceCounts(1, 4, 3, 2)
    assert total.forced == 2
