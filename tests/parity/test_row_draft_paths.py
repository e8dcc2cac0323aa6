"""O3: a draft that reads rows says the same after a text, bit for bit, on every path.

The contract of every kind in tests/row_drafts.py. For DFlash alone see test_dflash_paths.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from pyllama_spec.drafters import DraftRequest
from pyllama_spec.errors import ArgumentError
from pyllama_spec.speculative import SequenceState, SpeculativeLoop
from tests.eagle3_tools import Proposal, proposal
from tests.oracles import generate, prompt_tokens, sampled
from tests.row_drafts import (
    PLAIN,
    ROW_DRAFTS,
    VARIANTS,
    AnyDrafter,
    Reading,
    each_kind,
    marked,
    memory_of,
)
from tests.tampering import interrupt_decode
from tests.tiers import release_except

# Sampling at a high temperature: drafts of random weights are rejected at every place.
PARAMS = sampled(5, temperature=1.5)
QUICK_VARIANTS = (
    *PLAIN, ("eagle3", "eagle3.1"), ("eagle3", "two layers"), ("dflash", "dspark"),
    ("draft-model", "qwen35"), ("draft-model", "mamba"),
)  # fmt: skip

each_variant = pytest.mark.parametrize(
    ("name", "variant"), [marked(*one, is_release=one not in QUICK_VARIANTS) for one in VARIANTS]
)


def opened(name: str, variant: str = "", **params: Any) -> tuple[SpeculativeLoop, SequenceState]:
    """A loop on its target with a draft of random weights, and an empty sequence."""
    kind = ROW_DRAFTS[name]
    return kind.loop(kind.random(variant), **params), SequenceState()


@each_variant
@pytest.mark.parametrize("n_ubatch", [1, 3, 7, 32])
def test_ubatches(name: str, variant: str, n_ubatch: int) -> None:
    loop, _ = opened(name, variant, n_ubatch=n_ubatch)
    for size in (1, 2, 31, 32, 33, 64):
        seq = SequenceState()
        loop.target.memory.clear()
        loop.drafter.truncate(0, 0)
        generate(loop, seq, prompt_tokens(size, seed=size), 9, PARAMS)
        ROW_DRAFTS[name].check_says_the_same(loop, seq)


@each_variant
@pytest.mark.parametrize("cut", release_except((0, 1, 2, 3, 9, 30, 33, 60, 74), (0, 1, 33, 60)))
def test_a_prompt_that_shares_a_prefix(name: str, variant: str, cut: int) -> None:
    loop, seq = opened(name, variant)
    run = generate(loop, seq, prompt_tokens(45), 30, PARAMS)
    kept = run.text[: len(run.text) - cut]
    generate(loop, seq, kept + prompt_tokens(3, seed=8), 12, PARAMS)
    ROW_DRAFTS[name].check_says_the_same(loop, seq)
    # Cut where the row of the next token must not stay, since another token follows now.
    shorter = seq.tokens[: max(len(kept) - 2, 1)]
    generate(loop, seq, shorter + prompt_tokens(5, seed=9), 12, PARAMS)
    ROW_DRAFTS[name].check_says_the_same(loop, seq)


@each_variant
@pytest.mark.parametrize("kv_unified", [False, True], ids=["streams", "unified"])
def test_interleaved_sequences(name: str, variant: str, kv_unified: bool) -> None:
    kind = ROW_DRAFTS[name]
    loop, _ = opened(name, variant, n_ctx=1024, n_seq_max=4, kv_unified=kv_unified)
    seqs = [SequenceState(i) for i in range(4)]
    texts = [prompt_tokens(5 + 11 * i, seed=i) for i in range(4)]
    for turn in range(3):
        for seq, text in zip(seqs, texts, strict=True):
            run = generate(loop, seq, text, 7 + turn, PARAMS)
            text[:] = run.text + prompt_tokens(2, seed=turn)
    drafter: Any = loop.drafter._drafter
    for seq in seqs:
        expected = kind.cold(loop.target.model, drafter, seq.tokens, kind.lengths[0])
        got = kind.read(drafter, seq.seq_id, seq.tokens, kind.lengths[0])
        kind.check_memory(drafter, seq)
        if kv_unified:  # masked cells of other sequences are summed over
            near = pytest.approx(expected.proposal.probabilities, rel=1e-2)
            assert got.proposal.ids == expected.proposal.ids
            assert got.proposal.probabilities == near
        else:
            got.check_equal(expected)


@each_variant
@pytest.mark.parametrize("n_rounds", [1, 4, 9])
def test_save_and_restore(name: str, variant: str, n_rounds: int) -> None:
    """The state is restored in other contexts, with rounds of the first one in between."""
    kind = ROW_DRAFTS[name]
    loop, seq = opened(name, variant)
    run = generate(loop, seq, prompt_tokens(40), 4 * n_rounds, PARAMS)
    saved, state = loop.target.memory.save(), loop.drafter.save(0)
    assert state is not None
    n = kind.lengths[0]
    expected = kind.read(loop.drafter._drafter, 0, seq.tokens, n)
    generate(loop, seq, prompt_tokens(50, seed=4), 20, PARAMS)
    for into in (loop, opened(name, variant)[0]):
        into.target.memory.restore(0, saved)
        into.drafter.restore(0, state, len(run.text))
        there = SequenceState(0, list(run.text), len(run.text) - 1)
        kind.read(into.drafter._drafter, 0, there.tokens, n).check_equal(expected)
        generate(into, there, [*there.tokens, 3, 4], 12, PARAMS)
        kind.check_says_the_same(into, there)


@each_kind
def test_a_state_of_another_draft_is_refused(name: str) -> None:
    kind = ROW_DRAFTS[name]
    loop, seq = opened(name)
    generate(loop, seq, prompt_tokens(20), 8, PARAMS)
    state = loop.drafter.save(0)
    assert state is not None
    others = [kind.other(), *(kind.random(variant) for variant in kind.variants if variant)]
    for draft in others:
        kind.loop(draft)
        with pytest.raises(ArgumentError, match=r"another draft|not a drafter's state"):
            draft.restore(0, state)


def several_texts(
    name: str, variant: str = "", n: int = 3
) -> tuple[AnyDrafter, list[SequenceState]]:
    kind = ROW_DRAFTS[name]
    drafter = kind.random(variant)
    loop = kind.loop(drafter, n_ctx=256 * n, n_seq_max=n)
    seqs = [SequenceState(i) for i in range(n)]
    for seq in seqs:
        generate(loop, seq, prompt_tokens(9 + 8 * seq.seq_id, seed=seq.seq_id), 5, PARAMS)
    return drafter, seqs


@each_variant
def test_drafts_of_several_sequences_are_those_of_each_alone(name: str, variant: str) -> None:
    """A shorter request gets the beginning of what the longest one would."""
    kind = ROW_DRAFTS[name]
    drafter, seqs = several_texts(name, variant)
    n = kind.lengths[0]
    for order in ((0, 1, 2), (2, 0), (1,)):
        for lengths in ([n] * 3, [n - 2, n, 1], [2] * 3, [1] * 3):
            asked = [DraftRequest(i, seqs[i].tokens, lengths[i]) for i in order]
            longest, n_calls = max(request.n_requested for request in asked), drafter.n_calls
            found = drafter.propose(asked)
            if name == "dflash":  # a block, before it once the rows that wait
                assert drafter.n_calls - n_calls <= 2
            elif name != "draft-model":
                assert drafter.n_calls == n_calls + longest
            for request, draft in zip(asked, found, strict=True):
                alone = kind.read(drafter, request.seq, request.tokens, longest).proposal
                n_asked = request.n_requested
                wanted = Proposal(alone.ids[:n_asked], alone.probabilities[:n_asked])
                Reading(proposal(draft), rtol=kind.rtol).check_equal(Reading(wanted))


@each_kind
@pytest.mark.parametrize("is_before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("at", release_except((1, 2, 3, 4, 9, 20), (2, 3, 9)))
def test_an_interrupt_in_the_draft(name: str, at: int, is_before: bool) -> None:
    """Rows count as fed once they are: Ctrl-C at a decode of the draft leaves no gap."""
    loop, seq = opened(name, n_ubatch=16)
    drafter: Any = loop.drafter._drafter
    interrupt_decode(memory_of(drafter), at, is_before=is_before)
    with pytest.raises(KeyboardInterrupt):
        generate(loop, seq, prompt_tokens(45), 40, PARAMS)
    # The same prompt, or what came of it until then.
    text = prompt_tokens(45) if at < 4 else seq.tokens
    run = generate(loop, seq, [*text, 5, 6], 12, PARAMS)
    assert run.stats.reason_off is None
    ROW_DRAFTS[name].check_says_the_same(loop, seq)


@each_kind
def test_p_min_ends_a_draft_early(name: str) -> None:
    kind = ROW_DRAFTS[name]
    loop, seq = opened(name)
    drafter: Any = loop.drafter._drafter
    generate(loop, seq, prompt_tokens(40), 10, PARAMS)
    n = kind.lengths[0]
    whole = kind.read(drafter, 0, seq.tokens, n).proposal
    drafter.p_min = limit = sorted(whole.probabilities)[n // 2]
    n_sure = next(i for i, p in enumerate(whole.probabilities) if p < limit)
    cut = kind.read(drafter, 0, seq.tokens, n).proposal
    assert (cut.ids, cut.probabilities) == (whole.ids[:n_sure], whole.probabilities[:n_sure])
