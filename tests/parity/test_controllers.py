"""With any controller, the text equals plain decoding, and what happened is told and counted.

Sessions (test_sessions.py) draw profit, off, fixed and random controllers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from pyllama_spec.drafters import (
    DFlash,
    Drafter,
    LookupFirst,
)
from pyllama_spec.speculative import Controller, SequenceState, SpeculativeLoop
from pyllama_spec.speculative.controller import DraftDecision, Span, Spent
from tests.eagle3_tools import head, target_context
from tests.models import model_path
from tests.oracles import generate, prompt_tokens, run_once, sampled, tiny, tiny_context
from tests.scripted import Perfect

PARAMS = sampled(5, temperature=1.2)


class Whims(Controller):
    """Asks, ends and cuts as its coins fall, and notes that it is told the truth."""

    name = "whims"

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.told: list[int] = []
        self.spans: list[Span] = []

    def decide(self, spans: Sequence[Span]) -> Sequence[DraftDecision]:
        return [self._decision(span.max_draft) for span in spans]

    def _decision(self, n: int) -> DraftDecision:
        n_requested = self.rng.choice([0, 1, n, n, n + 3])
        return DraftDecision(n_requested, lookup_only=self.rng.random() < 0.2)

    def stop_of(self, span: Span) -> Callable[[float], bool] | None:
        return lambda p: self.rng.random() < 0.3 or p != p

    def verify_lengths(self, spans: Sequence[Span]) -> Sequence[int]:
        return [self.rng.randrange(len(span.draft.ids) + 1) for span in spans]

    def learn(self, spans: Sequence[Span], spent: Spent) -> None:
        assert min(spent.draft_s, spent.verify_s, spent.rest_s) >= 0.0
        for span in spans:
            self.told += span.tokens
            self.spans.append(span)


@pytest.mark.parametrize("make", [head, lambda: DFlash(model_path("dflash"))])
def test_a_controller_is_told_every_token(make: Callable[[], Drafter]) -> None:
    prompt = prompt_tokens(12) * 3
    with tiny_context(tiny("llama")) as context:
        expected = run_once(context, None, prompt, 90, PARAMS)
    controller, drafter = Whims(1), LookupFirst(make(), 2)
    loop = SpeculativeLoop(target_context(tiny("llama"), drafter), drafter, None, controller)
    run = generate(loop, SequenceState(), prompt, 90, PARAMS)
    assert run.tokens == expected.tokens
    assert not loop.drafter.failures
    assert controller.told == run.tokens[1:]
    assert any(s.n_verified < len(s.draft.ids) for s in controller.spans)


def perfect_loop(controller: Controller, n: int) -> tuple[SpeculativeLoop, list[int], list[int]]:
    """A loop whose drafts are right, its prompt, and the text."""
    prompt = prompt_tokens(12)
    reference = run_once(tiny_context(tiny("llama")), None, prompt, n).text
    loop = SpeculativeLoop(tiny_context(tiny("llama")), Perfect(reference), None, controller)
    return loop, prompt, reference


def test_what_is_cut_is_not_verified() -> None:
    """Two tokens of perfect drafts of eight are verified: three tokens per round."""

    class Two(Controller):
        def verify_lengths(self, spans: Sequence[Span]) -> Sequence[int]:
            return [2] * len(spans)

    loop, prompt, reference = perfect_loop(Two(), 40)
    run = generate(loop, SequenceState(), prompt, 40)
    assert run.text == reference
    assert run.stats.accepted_histogram[2] == run.stats.rounds == 13
    assert run.stats.drafted == run.stats.accepted == 26
    assert run.stats.proposed > 90
