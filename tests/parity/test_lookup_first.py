"""A head beside a lookup: copies where the text repeats, and a head that gets every row."""

from __future__ import annotations

from collections.abc import Sequence

from pyllama_spec.drafters import (
    Draft,
    DraftRequest,
    Eagle3,
    LookupFirst,
    PromptLookup,
)
from pyllama_spec.speculative import SequenceState, SpeculativeLoop
from tests.eagle3_tools import ask, head, target_context
from tests.models import perm_continuation, perm_next
from tests.oracles import generate, prompt_tokens, sampled, tiny
from tests.row_drafts import ROW_DRAFTS
from tests.scripted import proposed, told

# High enough that drafts of a random head, and copies by one token, are rejected at every depth.
PARAMS = sampled(5, temperature=1.5)
KIND = ROW_DRAFTS["eagle3"]


def opened(drafter: LookupFirst, kind: str = "llama", **params: int) -> SpeculativeLoop:
    assert isinstance(drafter.drafter, Eagle3)
    return SpeculativeLoop(target_context(tiny(kind), drafter.drafter, **params), drafter)


class Counted(LookupFirst):
    """Counts the drafts that were looked up."""

    n_lookups = 0

    def propose(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        drafts = super().propose(requests)
        self.n_lookups += sum(draft.match_length > 0 for draft in drafts)
        return drafts


def eager() -> Counted:
    """A lookup that copies after one repeated token, so that both kinds of rounds occur."""
    return Counted(head(), 1)


def check_head_says_the_same(loop: SpeculativeLoop, seq: SequenceState) -> None:
    """O3: the head's ids and probabilities are those of one that was given the text in a piece."""
    drafter = loop.drafter._drafter
    assert isinstance(drafter, Counted)
    assert isinstance(drafter.drafter, Eagle3)
    assert seq.seq_id not in loop.drafter.failures
    assert drafter.n_lookups > 0
    expected = KIND.cold(tiny("llama"), drafter.drafter, seq.tokens, 8).proposal
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


def test_copies_are_accepted_where_a_text_repeats() -> None:
    """The head gets rows without information, so every accepted token was copied."""
    blind = KIND.faulty("Permuted")
    drafter = Counted(blind, 5)
    before = [7, *perm_continuation(7, 30, perm_next())]
    loop = SpeculativeLoop(target_context(tiny("perm"), blind), drafter)
    run = generate(loop, SequenceState(), [*before, 200, 7], 26)
    assert run.tokens == before[1:27]
    # The prompt's last token is the first of five that have to be the same.
    assert [step.n_accepted for step in run.steps] == [0, 0, 0, 0, *[4] * 4, 1]
    assert drafter.n_lookups == 5
