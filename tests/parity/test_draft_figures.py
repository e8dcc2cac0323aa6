"""A draft's figures report the calls that really happened, counted in the drafters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from pyllama_spec.drafters import Draft, Drafter, DraftRequest, LookupFirst
from pyllama_spec.speculative import Controller, SequenceState, SpeculationStats, SpeculativeLoop
from pyllama_spec.speculative.controller import DraftDecision, Span
from tests.faces.tools import GREEDY as GREEDY_OPTIONS
from tests.faces.tools import PROMPT, open_tiny
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
    """Asks the drafter itself in the first n rounds, and for copies alone from then on."""

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


@pytest.mark.parametrize("n_before", [0, 1, 5])
@pytest.mark.parametrize("controller", [None, CopiesAfter(2)], ids=["fixed", "copies"])
def test_a_drafter_that_failed_is_asked_no_more(
    n_before: int, controller: CopiesAfter | None
) -> None:
    def fails(n: int) -> Draft:
        if n > n_before:
            raise ValueError("broken")
        return Draft([7, 7])

    drafter = Counting(fails)
    stats = run(drafter, controller)
    assert stats.state == "disabled"
    assert stats.asked == drafter.n_calls == n_before + 1
    assert sum(counts.n_requested > 0 for counts in stats.round_counts) == n_before + 1
    assert len(stats.round_counts) == stats.rounds


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
