"""A head beside a lookup: copies where the text repeats, and a head that gets every row."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pyllama_spec import Llama
from pyllama_spec.drafters import (
    Committed,
    Draft,
    Drafter,
    DraftRequest,
    Eagle3,
    LookupFirst,
    PromptLookup,
    SequenceErrors,
    TokenPrior,
)
from pyllama_spec.errors import ArgumentError
from pyllama_spec.speculative import SequenceState, SpeculativeLoop
from tests.eagle3_tools import Permuted, ask, cold_proposal, head, target_context
from tests.models import model_path, perm_continuation, perm_next
from tests.oracles import generate, prompt_tokens, sampled, tiny
from tests.scripted import proposed, told

# High enough that drafts of a random head, and copies by one token, are rejected at every depth.
PARAMS = sampled(5, temperature=1.5)


def opened(drafter: LookupFirst, kind: str = "llama", **params: int) -> SpeculativeLoop:
    """A loop on a tiny target."""
    assert isinstance(drafter.drafter, Eagle3)
    return SpeculativeLoop(target_context(tiny(kind), drafter.drafter, **params), drafter)


def eager() -> LookupFirst:
    """A lookup that copies after one repeated token, so that both kinds of rounds occur."""
    return LookupFirst(head(), 1)


def check_head_says_the_same(loop: SpeculativeLoop, seq: SequenceState) -> None:
    """O3: the head's ids and probabilities are those of one that was given the text in a piece."""
    drafter = loop.drafter._drafter
    assert isinstance(drafter, LookupFirst)
    assert isinstance(drafter.drafter, Eagle3)
    assert loop.drafter.failure(seq.seq_id) is None
    assert drafter.n_lookups > 0
    expected = cold_proposal(tiny("llama"), drafter.drafter, seq.tokens)
    # Asked directly: what it makes of advice is another matter.
    assert ask(drafter.drafter, seq.seq_id, seq.tokens) == expected
    check_lookup_says_the_same(drafter, seq)


def check_lookup_says_the_same(drafter: LookupFirst, seq: SequenceState) -> None:
    """A lookup that knows nothing but the text copies the same, or nothing as well."""
    fresh = PromptLookup(drafter.max_draft, max_ngram=1, min_ngram=1)
    fresh.commit(told(seq.tokens))
    ids = proposed(fresh, seq.tokens, 8)
    got = drafter.propose([DraftRequest(seq.seq_id, seq.tokens, 8)])[0]
    assert list(got.ids) == ids or (not ids and got.probabilities is not None)


def test_both_kinds_of_rounds() -> None:
    drafter = eager()
    loop, seq = opened(drafter), SequenceState()
    run = generate(loop, seq, prompt_tokens(30), 120, PARAMS)
    assert 10 < drafter.n_lookups < run.stats.rounds - 10
    assert run.stats.accepted < run.stats.drafted / 2
    check_head_says_the_same(loop, seq)


@pytest.mark.parametrize("n_ubatch", [1, 7, 32])
@pytest.mark.parametrize("cut", [0, 1, 3, 30, 60])
def test_a_prompt_that_shares_a_prefix(n_ubatch: int, cut: int) -> None:
    loop, seq = opened(eager(), n_ubatch=n_ubatch), SequenceState()
    run = generate(loop, seq, prompt_tokens(45), 40, PARAMS)
    kept = run.text[: len(run.text) - cut]
    generate(loop, seq, kept + prompt_tokens(3, seed=8), 12, PARAMS)
    check_head_says_the_same(loop, seq)


def test_a_fork() -> None:
    loop = opened(eager(), n_ctx=1024, n_seq_max=3)
    first = SequenceState()
    run = generate(loop, first, prompt_tokens(40), 35, PARAMS)
    for seq_id, size in ((1, 60), (2, 44)):
        seq = loop.fork(first, seq_id)
        generate(loop, seq, run.text[:size] + prompt_tokens(4, seed=seq_id), 25, PARAMS)
        check_head_says_the_same(loop, seq)
    generate(loop, first, run.text + prompt_tokens(4, seed=5), 25, PARAMS)
    check_head_says_the_same(loop, first)


@pytest.mark.parametrize("n_tokens", [4, 16, 36])
def test_save_and_restore(n_tokens: int) -> None:
    loop, seq = opened(eager()), SequenceState()
    generate(loop, seq, prompt_tokens(40), n_tokens, PARAMS)
    saved, state, text = loop.target.memory.save(), loop.drafter.save(0), list(seq.tokens)
    assert state is not None
    generate(loop, seq, prompt_tokens(50, seed=4), 20, PARAMS)
    other = opened(eager())
    for into in (loop, other):
        into.target.memory.restore(0, saved)
        into.drafter.restore(0, state, len(text))
        there = SequenceState(0, list(text), len(text) - 1)
        generate(into, there, [*text, 3, 4], 30, PARAMS)
        check_head_says_the_same(into, there)


def test_copies_are_accepted_where_a_text_repeats() -> None:
    """The head gets rows without information, so every accepted token was copied."""
    blind = Permuted(model_path("perm_eagle3"), 4)
    drafter = LookupFirst(blind, 5)
    before = [7, *perm_continuation(7, 30, perm_next())]
    loop = SpeculativeLoop(target_context(tiny("perm"), blind), drafter)
    run = generate(loop, SequenceState(), [*before, 200, 7], 26)
    assert run.tokens == before[1:27]
    # The prompt's last token is the first of five that have to be the same.
    assert [step.n_accepted for step in run.steps] == [0, 0, 0, 0, *[4] * 4, 1]
    assert drafter.n_lookups == 5


def test_the_head_is_asked_where_nothing_repeats() -> None:
    priors: list[TokenPrior | None] = []

    class Watched(Eagle3):
        def propose(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
            priors.extend(request.prior for request in requests)
            return super().propose(requests)

    drafter = LookupFirst(Watched(model_path("eagle3"), 8), 5)
    loop, seq = opened(drafter), SequenceState()
    generate(loop, seq, prompt_tokens(30), 10, PARAMS)
    assert drafter.n_lookups == 0
    priors.clear()
    expected = cold_proposal(tiny("llama"), head(), seq.tokens)
    assert ask(drafter, 0, seq.tokens) == expected
    # No two tokens of it stood before either, so that nobody has a say but the head.
    assert len(priors) == 1
    assert priors[0] is not None
    assert list(priors[0](())) == []


@pytest.mark.parametrize("is_named", [False, True], ids=["of all", "of one"])
def test_a_copy_needs_no_head(is_named: bool) -> None:
    """A failure of the head does not affect sequences that did not ask it."""

    class Failing(Drafter):
        def propose(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
            assert [request.seq for request in requests] == [1, 2]
            if is_named:
                raise SequenceErrors({1: ValueError("broken")}, {2: Draft([9])})
            raise ValueError("broken")

    drafter, texts = LookupFirst(Failing(), 2), [[1, 2, 3, 1, 2], [1, 2, 3], [4, 5, 6]]
    drafter.commit([Committed(i, text, 0) for i, text in enumerate(texts)])
    with pytest.raises(SequenceErrors, match="broken") as caught:
        drafter.propose([DraftRequest(i, text, 2) for i, text in enumerate(texts)])
    drafts = {seq: list(draft.ids) for seq, draft in caught.value.drafts.items()}
    errors = {seq: type(error) for seq, error in caught.value.errors.items()}
    if is_named:
        assert (drafts, errors) == ({0: [3, 1], 2: [9]}, {1: ValueError})
    else:
        assert (drafts, errors) == ({0: [3, 1]}, {1: ValueError, 2: ValueError})


def test_what_llama_opens() -> None:
    path = model_path("eagle3", output_scale=0.1)
    for lookup, min_ngram in ((None, 5), (3, 3), (0, None)):
        with Llama(model_path("llama"), draft=path, lookup=lookup, n_threads=1) as llm:
            drafter = llm._runtime.round.drafter._drafter
            assert (drafter.min_ngram if isinstance(drafter, LookupFirst) else None) == min_ngram
            assert drafter.name == "eagle3"
        assert isinstance(drafter, (Eagle3, LookupFirst))
        assert drafter.is_closed


@pytest.mark.parametrize("draft", [None, "none", "prompt-lookup", PromptLookup()])
def test_lookup_is_for_drafts_of_files(draft: str | Drafter | None) -> None:
    with pytest.raises(
        ArgumentError, match=r"lookup=\d+ applies to a draft that is given as a file"
    ):
        Llama(model_path("llama"), draft=draft, lookup=5)
