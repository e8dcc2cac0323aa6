"""The drafters' base: methods to override, and failures that stay with their sequence."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pyllama_spec.drafters import (
    Committed,
    Draft,
    Drafter,
    DraftRequest,
    TokenView,
)
from pyllama_spec.engine import Context, Sampler, SamplerParams
from pyllama_spec.speculative import Round, SequenceRun, SequenceState
from tests.drafters.tools import N_TOKENS, PROMPTS, OnlyProposeOne, plain_texts
from tests.faces.tools import GREEDY, open_tiny
from tests.oracles import tiny, tiny_context


def side_by_side(context: Context, drafter: Drafter) -> list[SequenceRun]:
    round_, greedy = Round(context, drafter), SamplerParams(temperature=0)
    runs = [
        SequenceRun(SequenceState(i), prompt, Sampler(context.model, greedy), N_TOKENS)
        for i, prompt in enumerate(PROMPTS)
    ]
    for run in runs:
        round_.begin(run)
    while going := [run for run in runs if not run.is_over]:
        round_.step(going)
    assert not any(run.has_failed for run in runs)
    return runs


def three_sequences() -> Context:
    return tiny_context(tiny("llama"), n_ctx=768, n_seq_max=3)


class ListForms(OnlyProposeOne):
    """The same with the list forms, noting what comes in one call."""

    name = "lists"

    def __init__(self, texts: Sequence[Sequence[int]]) -> None:
        super().__init__(texts)
        self.asked: list[list[int]] = []
        self.told: list[list[int]] = []
        self.known: dict[int, list[int]] = {}

    def propose(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        self.asked.append([request.seq for request in requests])
        for request in requests:
            assert self.known[request.seq] == list(request.tokens)
            assert 1 <= request.n_requested <= self.max_draft
        return [super(ListForms, self).propose_one(request) for request in requests]

    def propose_one(self, request: DraftRequest) -> Draft:
        raise AssertionError("propose_one() beside propose()")

    def commit(self, done: Sequence[Committed]) -> None:
        self.told.append([one.seq for one in done])
        for one in done:
            tokens = self.known.setdefault(one.seq, [])
            assert one.start == len(tokens)
            tokens.extend(one.tokens)


def test_a_class_with_propose_one_alone() -> None:
    texts = plain_texts()
    with open_tiny(OnlyProposeOne(texts)) as llm:
        for prompt, text in zip(PROMPTS, texts, strict=True):
            steps = llm.generate_steps(prompt, max_tokens=N_TOKENS, **GREEDY)
            assert [token for piece in steps for token in piece.tokens] == text[len(prompt) :]
            stats = steps.record.stats
            assert (stats.drafter, stats.reason_off) == ("OnlyProposeOne", None)
            assert stats.accepted == stats.drafted > N_TOKENS / 2


def test_a_class_with_the_list_forms() -> None:
    texts = plain_texts()
    drafter = ListForms(texts)
    with three_sequences() as context:
        runs = side_by_side(context, drafter)
    assert [run.state.tokens for run in runs] == texts
    assert [run.stats.reason_off for run in runs] == [None] * 3
    assert [run.stats.drafter for run in runs] == ["lists"] * 3
    assert all(run.stats.accepted == run.stats.drafted > N_TOKENS / 2 for run in runs)
    assert [drafter.known[i] for i in range(3)] == texts
    assert [0, 1, 2] in drafter.asked, "one call for all sequences of a round"
    assert [0, 1, 2] in [sorted(seqs) for seqs in drafter.told]


def test_a_view_shows_the_newest_tokens() -> None:
    tokens = [1, 2, 3]
    view = TokenView(tokens)
    tokens.append(4)
    assert (len(view), view[-1], view[1:3], list(view)) == (4, 4, [2, 3], [1, 2, 3, 4])
    part = view[:2]
    assert isinstance(part, list)
    part.append(9)
    assert tokens == [1, 2, 3, 4]
    assert not hasattr(view, "append")
    with pytest.raises(TypeError):
        view[0] = 5  # type: ignore[index]
