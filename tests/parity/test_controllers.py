"""With any controller, the text equals plain decoding, and drafters are told all tokens.

Sessions (test_sessions.py) draw profit, off, fixed and random controllers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from pyllama_spec.drafters import (
    Committed,
    DFlash,
    Draft,
    Drafter,
    DraftRequest,
    LookupFirst,
    NoDrafter,
    PromptLookup,
)
from pyllama_spec.engine import SamplerParams
from pyllama_spec.speculative import (
    Controller,
    SequenceState,
    SpeculativeLoop,
)
from pyllama_spec.speculative.controller import DraftDecision, Span, Spent
from tests.eagle3_tools import head, target_context
from tests.models import model_path
from tests.oracles import GREEDY, generate, prompt_tokens, sampled, tiny, tiny_context
from tests.scripted import Perfect


class Whims(Controller):
    """Asks, ends and cuts as its coins fall, and notes that it is told the truth."""

    name = "whims"

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.told: dict[int, list[int]] = {}
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
            self.told.setdefault(span.seq, []).extend(span.tokens)
            self.spans.append(span)


DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "prompt-lookup": lambda: PromptLookup(min_ngram=1),
    "eagle3": lambda: LookupFirst(head(), 2),
    "dflash": lambda: LookupFirst(DFlash(model_path("dflash")), 2),
}
PARAMS = sampled(5, temperature=1.2)


@pytest.mark.parametrize("kind", DRAFTERS)
@pytest.mark.parametrize("params", [GREEDY, PARAMS], ids=["greedy", "hot"])
def test_one_sequence(kind: str, params: SamplerParams) -> None:
    prompt = prompt_tokens(12) * 3
    plain = SpeculativeLoop(tiny_context(tiny("llama")), NoDrafter())
    expected = generate(plain, SequenceState(), prompt, 90, params)
    controller, drafter = Whims(1), DRAFTERS[kind]()
    loop = SpeculativeLoop(target_context(tiny("llama"), drafter), drafter, None, controller)
    seq = SequenceState()
    run = generate(loop, seq, prompt, 90, params)
    assert run.tokens == expected.tokens
    assert not loop.drafter.failures
    assert controller.told[0] == run.tokens[1:]
    assert any(s.n_verified < len(s.draft.ids) for s in controller.spans)
    # And again, behind what was drafted and not verified.
    more = [*seq.tokens, *prompt_tokens(4, seed=3)]
    again = generate(loop, seq, more, 40, params)
    fresh = SpeculativeLoop(tiny_context(tiny("llama")), NoDrafter())
    assert again.tokens == generate(fresh, SequenceState(), more, 40, params).tokens


def test_what_is_cut_is_not_verified() -> None:
    """Two tokens of perfect drafts of eight are verified: three tokens per round."""

    class Two(Controller):
        def verify_lengths(self, spans: Sequence[Span]) -> Sequence[int]:
            return [2] * len(spans)

    prompt = prompt_tokens(12)
    plain = SpeculativeLoop(tiny_context(tiny("llama")), NoDrafter())
    reference = generate(plain, SequenceState(), prompt, 40, GREEDY).text
    loop = SpeculativeLoop(tiny_context(tiny("llama")), Perfect(reference), None, Two())
    run = generate(loop, SequenceState(), prompt, 40, GREEDY)
    assert run.text == reference
    assert run.stats.verified_histogram[2] == run.stats.rounds == 13
    assert run.stats.drafted == run.stats.accepted == 26
    assert run.stats.proposed > 90


@pytest.mark.parametrize("where", ["decide", "stop_of", "verify_lengths", "learn"])
def test_a_controller_that_fails(where: str) -> None:

    class Broken(Controller):
        def __init__(self) -> None:
            self.is_broken = True

        def _called(self, name: str) -> None:
            if self.is_broken and name == where:
                self.is_broken = False
                raise RuntimeError("broken")

        def decide(self, spans: Sequence[Span]) -> Sequence[DraftDecision]:
            self._called("decide")
            return super().decide(spans)

        def stop_of(self, span: Span) -> Callable[[float], bool] | None:
            self._called("stop_of")
            return None

        def verify_lengths(self, spans: Sequence[Span]) -> Sequence[int]:
            self._called("verify_lengths")
            return super().verify_lengths(spans)

        def learn(self, spans: Sequence[Span], spent: Spent) -> None:
            self._called("learn")

    prompt = prompt_tokens(12)
    plain = SpeculativeLoop(tiny_context(tiny("llama")), NoDrafter())
    reference = generate(plain, SequenceState(), prompt, 30, GREEDY).text
    loop = SpeculativeLoop(tiny_context(tiny("llama")), Perfect(reference), None, Broken())
    seq = SequenceState()
    with pytest.raises(RuntimeError, match="broken"):
        generate(loop, seq, prompt, 30, GREEDY)
    assert generate(loop, seq, prompt, 30, GREEDY).text == reference


def test_a_chain_ends_where_it_is_told_to() -> None:
    drafter = head()
    loop = SpeculativeLoop(target_context(tiny("llama"), drafter), drafter)
    seq = SequenceState()
    generate(loop, seq, prompt_tokens(30), 10, PARAMS)
    seen: list[float] = []

    def stop(p: float) -> bool:
        seen.append(p)
        return len(seen) == 3

    n_calls = drafter.n_calls
    draft: Draft = drafter.propose([DraftRequest(0, seq.tokens, 8, None, stop)])[0]
    assert len(draft.ids) == 3
    assert list(draft.probabilities or ()) == seen
    assert drafter.n_calls == n_calls + 3


def test_a_copy_may_be_longer_than_a_block() -> None:
    """The controller asks for a block of one, or a copy of four."""
    drafter = LookupFirst(DFlash(model_path("dflash")), 2)
    loop = SpeculativeLoop(target_context(tiny("llama"), drafter), drafter)
    seq = SequenceState()
    generate(loop, seq, prompt_tokens(9) * 3, 4, GREEDY)
    text = list(seq.tokens)
    rows = [loop.target.layer_input(layer)[:1] for layer in drafter.target_layers]
    for more, lookup_only in (([250, 251], False), (text[:3], True)):
        for token in more:
            at = len(text)
            loop.drafter.commit([Committed(0, [token], at, rows, at - 1)])
            text.append(token)
        request = DraftRequest(0, text, 1, n_lookup=4)
        draft = loop.drafter.propose([request])[0]
        assert len(draft.ids) == (4 if draft.match_length else 1)
        assert (draft.match_length > 0) == lookup_only


def test_a_copy_says_how_long_its_match_is() -> None:
    lookup = PromptLookup(min_ngram=2)
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 50, 3, 4, 5, 6, 7, 8, 9, 10]
    for n, expected in ((19, 8), (13, 2), (16, 5)):
        lookup.truncate(0, 0)
        lookup.commit([Committed(0, text[:n], 0)])
        assert lookup.propose([DraftRequest(0, text[:n], 3)])[0].match_length == expected
