"""A draft's figures report the calls that really happened; what a grammar forces is apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pyllama_spec.drafters import Draft, Drafter, DraftRequest, LookupFirst
from pyllama_spec.speculative import Controller, SequenceState, SpeculationStats, SpeculativeLoop
from pyllama_spec.speculative.controller import DraftDecision, Span
from pyllama_spec.speculative.stats import SourceCounts
from tests.faces.tools import GREEDY as GREEDY_OPTIONS
from tests.faces.tools import PROMPT, open_tiny
from tests.models import model_path
from tests.oracles import generate, prompt_tokens, tiny, tiny_context
from tests.scripted import Wrong


class Counting(Drafter):
    """Proposes what a function gives for its n-th call, from 1."""

    name = "counting"

    def __init__(self, answer: Callable[[int], Draft]) -> None:
        self.answer, self.n_calls = answer, 0

    def propose_one(self, request: DraftRequest) -> Draft:
        self.n_calls += 1
        return self.answer(self.n_calls)


class CopiesAfter(Controller):
    name = "copies"

    def __init__(self, n: int) -> None:
        self.n = n

    def decide(self, spans: Sequence[Span]) -> Sequence[DraftDecision]:
        self.n -= 1
        return [DraftDecision(span.max_draft, lookup_only=self.n < 0) for span in spans]

    def reason_off(self, seq: int) -> str | None:
        return "the model is off" if self.n < 0 else None


def run(
    drafter: Drafter, controller: Controller | None = None, prompt: Sequence[int] = ()
) -> SpeculationStats:
    loop = SpeculativeLoop(tiny_context(tiny("llama")), drafter, None, controller)
    stats = generate(loop, SequenceState(), list(prompt) or prompt_tokens(9), 30).stats
    assert stats.rounds > 2
    return stats


@pytest.mark.parametrize("n", [0, 1, 4])
def test_rounds_of_copies_alone_are_told_from_the_models(n: int) -> None:
    """The text has no repetition of that length, so the model is called whenever it is asked."""
    model = Counting(lambda _: Draft([7]))
    stats = run(LookupFirst(model, 200), CopiesAfter(n))
    assert stats.asked >= stats.rounds - 1  # in the last one there is room for no draft
    assert stats.asked - stats.asked_copies == model.n_calls == n
    assert (stats.as_dict()["note"] is None) == (n > 0 or not stats.drafted)


def test_a_drafter_is_not_asked_where_the_prediction_answers() -> None:
    with open_tiny() as llm:
        plain = llm.generate_steps(PROMPT, max_tokens=40, **GREEDY_OPTIONS).read_all()
    drafter = Wrong([*PROMPT, *plain.tokens])
    with open_tiny(drafter) as llm:
        options = {**GREEDY_OPTIONS, "prediction": plain.text}
        stats = llm.generate_steps(PROMPT, max_tokens=40, **options).read_all().stats
    assert stats.asked_copies > 0
    assert stats.asked - stats.asked_copies == drafter.n_proposals


GRAMMARS = {
    "all forced": 'root ::= "a sentence without any choice"',
    "forced between": 'root ::= "the answer is " [0-9] [0-9] " and nothing else" [a-c]',
    "nothing forced": "root ::= [a-m] [a-m] [a-m] [a-m] [a-m] [a-m] [a-m] [a-m]",
}
DRAFTS: dict[str, Any] = {
    "grammar": lambda: "grammar",
    "prompt-lookup": lambda: "prompt-lookup",
    "wrong": lambda: Wrong(()),
    "eagle3": lambda: model_path("eagle3"),
}


@pytest.mark.parametrize("grammar", GRAMMARS)
@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("controller", ["fixed", "off"])
def test_no_more_is_verified_than_was_proposed(draft: str, grammar: str, controller: str) -> None:
    with open_tiny() as plain, open_tiny(DRAFTS[draft](), controller=controller) as llm:
        expected = plain(PROMPT, grammar=GRAMMARS[grammar], max_tokens=60, temperature=0.0)
        generation = llm.generate_steps(
            PROMPT, grammar=GRAMMARS[grammar], max_tokens=60, temperature=0.0
        )
        record = generation.read_all()
    assert record.text == expected["choices"][0]["text"]
    stats, counts = record.stats, record.stats.as_dict()
    assert 0 <= stats.accepted <= stats.drafted <= stats.proposed
    forced = stats.by_source.get("grammar", SourceCounts())
    assert (forced.drafted > 0) == (grammar != "nothing forced")
    assert forced.accepted <= forced.drafted <= stats.drafted
    assert counts["drafted_by"]["nobody"] == stats.rounds
    assert counts["drafted_by"]["grammar"] == forced.accepted
    assert sum(counts["drafted_by"].values()) == stats.accepted + stats.rounds
    by_source = stats.by_source.values()
    assert sum(one.proposed for one in by_source) == stats.proposed
    assert sum(one.drafted for one in by_source) == stats.drafted
    assert stats.asked <= stats.rounds - forced.rounds, "for what is forced nobody was asked"
