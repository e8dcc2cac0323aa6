"""A head beside a lookup: copies where the text repeats, and a head that gets every row.

A head with advice takes the likeliest token of the mixture, and the text never changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from pyllama_spec import Llama
from pyllama_spec.drafters import (
    Draft,
    DraftRequest,
    Eagle3,
    LookupFirst,
    PromptLookup,
    lookup_first,
)
from pyllama_spec.engine import Model
from pyllama_spec.speculative import SequenceState, SpeculativeLoop
from tests.eagle3_tools import Says, ask, head, ngram_arrays, ngram_table, target_context
from tests.models import Eagle3Config, model_path, perm_continuation, perm_next
from tests.models.eagle3 import eagle3_tensors, write_eagle3
from tests.oracles import forked, generate, prompt_tokens, sampled, tiny
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


@pytest.mark.parametrize("n_ubatch", [7, 32])
def test_forks_states_and_shared_prefixes(n_ubatch: int) -> None:
    loop = opened(eager(), n_ctx=1024, n_seq_max=3, n_ubatch=n_ubatch)
    first = SequenceState()
    run = generate(loop, first, prompt_tokens(40), 35, PARAMS)
    saved, state = loop.target.memory.save(), loop.drafter.save(0)
    for seq_id, size in ((1, 60), (2, 44)):
        seq = forked(loop, first, seq_id)
        generate(loop, seq, run.text[:size] + prompt_tokens(4, seed=seq_id), 25, PARAMS)
        check_head_says_the_same(loop, seq)
    generate(loop, first, run.text[:-3] + prompt_tokens(4, seed=5), 25, PARAMS)
    check_head_says_the_same(loop, first)
    other = opened(eager(), n_ctx=1024, n_seq_max=3, n_ubatch=n_ubatch)
    other.target.memory.restore(0, saved)
    other.drafter.restore(0, state, len(run.text))
    there = SequenceState(0, list(run.text), len(run.text) - 1)
    generate(other, there, [*run.text, 3, 4], 30, PARAMS)
    check_head_says_the_same(other, there)


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


def test_what_the_table_knows_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The head gets rows without information, so every accepted token is from the table."""
    monkeypatch.setattr(lookup_first, "_TABLE_WEIGHT", 100.0)
    following = perm_next()
    table = ngram_table({(t,): (int(n), 1.0) for t, n in enumerate(following)})
    blind = ROW_DRAFTS["eagle3"].faulty("Permuted")
    loop = SpeculativeLoop(target_context(tiny("perm"), blind), LookupFirst(blind, 30, table))
    run = generate(loop, SequenceState(), [3, 7], 26)
    assert [step.n_accepted for step in run.steps] == [0, *[4] * 5]
    without = SpeculativeLoop(target_context(tiny("perm"), blind), LookupFirst(blind, 30))
    assert generate(without, SequenceState(), [3, 7], 26).stats.accepted == 0


def test_what_followed_in_the_text_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """After two to four repeated tokens, the text's own advice outweighs every head."""
    monkeypatch.setattr(lookup_first, "_TEXT_WEIGHTS", {2: 100.0, 3: 100.0, 4: 100.0})
    text = [7, *perm_continuation(7, 39, perm_next())]
    blind = ROW_DRAFTS["eagle3"].faulty("Permuted")
    loop = SpeculativeLoop(target_context(tiny("perm"), blind), LookupFirst(blind, 39))
    run = generate(loop, SequenceState(), [*text, 200, 7], 26)
    assert run.tokens == text[1:27]
    # After the first token two are the same; a draft is never of the text's own newest tokens.
    assert [step.n_accepted for step in run.steps] == [0, *[4] * 5]


def with_table(path: Path, says: Says) -> Path:
    cfg = Eagle3Config(output_scale=0.1)
    return write_eagle3(path, cfg, {**eagle3_tensors(cfg), **ngram_arrays(says)})


def test_a_file_brings_its_table(tmp_path: Path) -> None:
    path = with_table(tmp_path / "head.gguf", {(t,): (t ^ 1, 1.0) for t in range(320)})
    arrays = Model(path).ngram_arrays()
    assert arrays is not None
    assert [a.dtype for a in arrays] == [np.uint32, np.int32, np.int8]
    with Llama(
        model_path("llama"), draft=path, controller="fixed", n_threads=1, verbose=False
    ) as llm:
        drafter = llm._runtime.round.drafter._drafter
        assert isinstance(drafter, LookupFirst)
        assert drafter.table is not None
        assert len(drafter.table) == 320
        assert drafter.table.find((17,)) == (16, 1.0)
        result = llm.create_completion([1, 2, 3], max_tokens=30, temperature=0)
        assert result["speculation"]["reason_off"] is None
        tokens = llm._runtime.runner.latest().tokens
        last = tokens[-1]
        # A head that is sure of nothing goes along with a table that is.
        assert proposed(drafter, tokens, 4) == [last ^ 1, last, last ^ 1, last]
