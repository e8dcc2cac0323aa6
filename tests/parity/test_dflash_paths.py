"""O3: a DFlash draft says the same after a text, number by number, whatever way led there.

What is compared is the proposal and, behind it, the block itself: logits, candidates and
confidences of every slot, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pyllama_spec.drafters import DFlash, DraftRequest, SequenceErrors, Vote
from pyllama_spec.engine import Batch
from pyllama_spec.errors import ArgumentError
from pyllama_spec.speculative import SequenceState, SpeculativeLoop
from tests.dflash_tools import KINDS, Bench, Rows, block_of, cold_block, draft, opened, warm_block
from tests.eagle3_tools import Proposal, damaged_states, proposal, target_context
from tests.models import model_path
from tests.oracles import generate, prompt_tokens, sampled, tiny
from tests.tampering import interrupt_decode
from tests.tiers import release_except

# Sampling at a high temperature: drafts of random weights are rejected at every place.
PARAMS = sampled(5, temperature=1.5)
DRAFTS: dict[str, dict[str, Any]] = {
    **KINDS,
    "causal, reduced": {"causal": True, "n_draft_vocab": 200},
    "a sliding layer": {"sliding_window": 6, "window_pattern": (True, False)},
}


def check_says_the_same(loop: SpeculativeLoop, seq: SequenceState, target: str = "llama") -> None:
    """Every block length: what a draft says that begins anew; and nothing of a block is left."""
    drafter = loop.drafter._drafter
    assert isinstance(drafter, DFlash)
    failure = loop.drafter.failure(seq.seq_id)
    assert failure is None, failure
    for n in (drafter.max_draft, 2):
        expected = cold_block(tiny(target), drafter, seq.tokens, n)
        assert len(expected[0].ids) == n
        for again in (False, True):
            got = warm_block(loop, seq, n)
            assert got[0] == expected[0], again
            assert got[1].is_equal_to(expected[1]), again
            check_no_slots(drafter, seq)


def check_no_slots(drafter: DFlash, seq: SequenceState) -> None:
    """The draft remembers rows of decoded tokens alone, and all of them."""
    assert drafter.context is not None
    last = drafter.context.memory.positions(seq.seq_id)[1]
    assert last == seq.n_decoded - 1 == len(seq.tokens) - 2


@pytest.mark.parametrize("kind", release_except(DRAFTS, ("dflash", "dspark")))
@pytest.mark.parametrize("n_ubatch", [1, 3, 7, 32])
def test_ubatches(kind: str, n_ubatch: int) -> None:
    loop = opened(draft(**DRAFTS[kind]), n_ubatch=n_ubatch)
    for size in (1, 2, 31, 33, 64):
        seq = SequenceState()
        loop.target.memory.clear()
        loop.drafter.truncate(0, 0)
        generate(loop, seq, prompt_tokens(size, seed=size), 9, PARAMS)
        check_says_the_same(loop, seq)


@pytest.mark.parametrize("n_batch", [1, 5, 13])
def test_a_prompt_in_parts(n_batch: int) -> None:
    loop, seq = opened(draft(), n_batch=n_batch, n_ubatch=n_batch), SequenceState()
    generate(loop, seq, prompt_tokens(50), 9, PARAMS)
    check_says_the_same(loop, seq)


@pytest.mark.parametrize("kind", release_except(DRAFTS, ("dflash", "dspark")))
def test_rounds_with_rejections(kind: str) -> None:
    loop, seq = opened(draft(**DRAFTS[kind])), SequenceState()
    run = generate(loop, seq, prompt_tokens(30), 120, PARAMS)
    assert run.stats.accepted < run.stats.drafted / 2
    check_says_the_same(loop, seq)


@pytest.mark.parametrize("target", ["qwen3moe", "gemma3", "qwen35", "lfm2"])
def test_other_targets(target: str) -> None:
    """Scaled embeddings, positions of M-RoPE, and a state that cannot lose a token."""
    options: dict[str, Any] = {
        "target": model_path(target),
        "own_embedding": False,
        "own_output": False,
    }
    loop = opened(draft(**options), target, n_rs_seq=10)
    seq = SequenceState()
    run = generate(loop, seq, prompt_tokens(30), 60, PARAMS)
    assert 0 < run.stats.drafted > run.stats.accepted
    check_says_the_same(loop, seq, target)


@pytest.mark.parametrize("kind", release_except(DRAFTS, ("dflash", "dspark")))
@pytest.mark.parametrize("cut", release_except((0, 1, 2, 9, 33, 60, 74), (1, 60)))
def test_a_prompt_that_shares_a_prefix(kind: str, cut: int) -> None:
    loop, seq = opened(draft(**DRAFTS[kind])), SequenceState()
    run = generate(loop, seq, prompt_tokens(45), 30, PARAMS)
    kept = run.text[: len(run.text) - cut]
    generate(loop, seq, kept + prompt_tokens(3, seed=8), 12, PARAMS)
    check_says_the_same(loop, seq)
    shorter = seq.tokens[: max(len(kept) - 2, 1)]
    generate(loop, seq, shorter + prompt_tokens(5, seed=9), 12, PARAMS)
    check_says_the_same(loop, seq)


def test_the_same_prompt_again() -> None:
    loop, seq = opened(draft()), SequenceState()
    for _ in range(3):
        generate(loop, seq, prompt_tokens(45), 20, PARAMS)
        check_says_the_same(loop, seq)


@pytest.mark.parametrize("kind", release_except(DRAFTS, ("dflash", "dspark")))
@pytest.mark.parametrize("kv_unified", [False, True], ids=["streams", "unified"])
def test_interleaved_sequences(kind: str, kv_unified: bool) -> None:
    drafter = draft(**DRAFTS[kind])
    loop = opened(drafter, n_ctx=1024, n_seq_max=4, kv_unified=kv_unified)
    seqs = [SequenceState(i) for i in range(4)]
    texts = [prompt_tokens(5 + 11 * i, seed=i) for i in range(4)]
    for turn in range(3):
        for seq, text in zip(seqs, texts, strict=True):
            run = generate(loop, seq, text, 7 + turn, PARAMS)
            text[:] = run.text + prompt_tokens(2, seed=turn)
    for seq in seqs:
        expected = cold_block(tiny("llama"), drafter, seq.tokens, 5)
        got = warm_block(loop, seq, 5)
        check_no_slots(drafter, seq)
        assert got[0].ids == expected[0].ids
        if kv_unified:  # masked cells of other sequences are summed over
            near = pytest.approx(expected[0].probabilities, rel=1e-2)
            assert got[0].probabilities == near
        else:
            assert got[0] == expected[0]
            assert got[1].is_equal_to(expected[1])


@pytest.mark.parametrize("kind", release_except(DRAFTS, ("dflash", "dspark")))
def test_a_fork(kind: str) -> None:
    loop, first = opened(draft(**DRAFTS[kind]), n_ctx=512, n_seq_max=2), SequenceState()
    run = generate(loop, first, prompt_tokens(30), 20, PARAMS)
    second = loop.fork(first, 1)
    check_says_the_same(loop, second)
    generate(loop, second, run.text[:40] + prompt_tokens(4, seed=4), 15, PARAMS)
    generate(loop, first, run.text + prompt_tokens(4, seed=5), 15, PARAMS)
    for seq in (first, second):
        check_says_the_same(loop, seq)


@pytest.mark.parametrize("kind", release_except(DRAFTS, ("dflash", "dspark")))
@pytest.mark.parametrize("n_rounds", [1, 9])
def test_save_and_restore(kind: str, n_rounds: int) -> None:
    """The state goes into other contexts, with rounds of the first one in between."""
    loop, seq = opened(draft(**DRAFTS[kind])), SequenceState()
    run = generate(loop, seq, prompt_tokens(40), 4 * n_rounds, PARAMS)
    saved, state = loop.target.memory.save(), loop.drafter.save(0)
    assert state is not None
    expected = warm_block(loop, seq, 5)
    generate(loop, seq, prompt_tokens(50, seed=4), 20, PARAMS)
    for into in (loop, opened(draft(**DRAFTS[kind]))):
        into.target.memory.restore(0, saved)
        into.drafter.restore(0, state)
        there = SequenceState(0, run.text, len(run.text) - 1)
        got = warm_block(into, there, 5)
        assert got[0] == expected[0]
        assert got[1].is_equal_to(expected[1])
        generate(into, there, [*there.tokens, 3, 4], 12, PARAMS)
        check_says_the_same(into, there)


@pytest.mark.parametrize("at", [0, 10, 40, -1])
def test_a_damaged_state_is_refused(at: int) -> None:
    drafter = draft()
    loop, seq = opened(drafter), SequenceState()
    run = generate(loop, seq, prompt_tokens(20), 8, PARAMS)
    states = damaged_states(drafter, at)
    for bad in states:
        with pytest.raises(ArgumentError):
            drafter.restore(0, bad)
    loop.drafter.restore(0, states[0])
    generate(loop, seq, [*run.text, 1], 10, PARAMS)
    check_says_the_same(loop, seq)


def test_a_state_of_another_draft_is_refused() -> None:
    loop, seq = opened(draft()), SequenceState()
    generate(loop, seq, prompt_tokens(20), 8, PARAMS)
    state = loop.drafter.save(0)
    assert state is not None
    for options in ({"seed": 5}, KINDS["dspark"], {"causal": True}, {"block_size": 5}):
        other = draft(**options)
        opened(other)
        with pytest.raises(ArgumentError, match="another draft"):
            other.restore(0, state)


@pytest.mark.parametrize("kind", KINDS)
def test_a_causal_block_has_causal_prefixes(kind: str) -> None:
    """Where no slot sees a later one, a short block says what the long one says there."""
    loop, seq = opened(draft(causal=True, **KINDS[kind])), SequenceState()
    generate(loop, seq, prompt_tokens(30), 20, PARAMS)
    whole = warm_block(loop, seq, 5)
    assert whole[1].logits is not None
    for n in (4, 3, 2, 1):
        short = warm_block(loop, seq, n)
        assert short[0].ids == whole[0].ids[:n]
        assert short[0].probabilities == whole[0].probabilities[:n]
        assert short[1].candidates == whole[1].candidates[:n]
        assert np.array_equal(short[1].logits, whole[1].logits[:n])  # type: ignore[arg-type]


def test_a_block_that_sees_both_ways_has_not() -> None:
    loop, seq = opened(draft()), SequenceState()
    generate(loop, seq, prompt_tokens(30), 20, PARAMS)
    whole, short = warm_block(loop, seq, 5), warm_block(loop, seq, 3)
    assert short[0].probabilities != whole[0].probabilities[:3]


def several_texts(drafter: DFlash, n: int = 4) -> tuple[SpeculativeLoop, list[SequenceState]]:
    """A loop whose drafter knows some texts, each with a pending token."""
    loop = opened(drafter, n_ctx=256 * n, n_seq_max=n)
    seqs = [SequenceState(i) for i in range(n)]
    for seq in seqs:
        generate(loop, seq, prompt_tokens(9 + 8 * seq.seq_id, seed=seq.seq_id), 5, PARAMS)
    return loop, seqs


@pytest.mark.parametrize("kind", release_except(DRAFTS, ("dflash", "dspark")))
def test_drafts_of_several_sequences_are_those_of_each_alone(kind: str) -> None:
    """Equal lengths, one block for each; who asks for less gets the beginning of it."""
    drafter = draft(**DRAFTS[kind])
    _, seqs = several_texts(drafter)
    for order in ([0, 1, 2, 3], [3, 1], [2]):
        for lengths in ([5] * 4, [5, 3, 1, 4], [2, 2, 2, 2], [1, 1, 1, 1]):
            asked = [DraftRequest(i, seqs[i].tokens, lengths[i]) for i in order]
            found = drafter.propose(asked)
            longest = max(request.n_requested for request in asked)
            for request, given in zip(asked, found, strict=True):
                alone, _ = block_of(drafter, request.seq, request.tokens, longest)
                assert proposal(given).ids == alone.ids[: request.n_requested]
                assert proposal(given).probabilities == alone.probabilities[: request.n_requested]
                assert given.candidates is not None
                assert len(given.candidates) == request.n_requested


def test_what_fails_for_one_sequence_costs_the_others_no_draft() -> None:
    drafter = draft()
    _, seqs = several_texts(drafter, 3)
    expected = [block_of(drafter, seq.seq_id, seq.tokens, 5)[0] for seq in seqs]

    def breaks_off(drafted: Sequence[int]) -> Sequence[Vote]:
        if len(drafted) == 3:
            raise LookupError("no more advice")
        return ()

    requests = [DraftRequest(seq.seq_id, seq.tokens, 5) for seq in seqs]
    for bad, error in (
        (requests[1]._replace(prior=breaks_off), LookupError),
        (requests[1]._replace(tokens=[*seqs[1].tokens, 3]), ArgumentError),
    ):
        with pytest.raises(SequenceErrors) as caught:
            drafter.propose([requests[0], bad, requests[2]])
        assert {seq: type(e) for seq, e in caught.value.errors.items()} == {1: error}
        drafts = {seq: proposal(given) for seq, given in caught.value.drafts.items()}
        assert drafts == {0: expected[0], 2: expected[2]}
    assert [proposal(given) for given in drafter.propose(requests)] == expected


@pytest.mark.parametrize("is_before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("at", release_except((1, 2, 3, 4, 9, 20), (2, 3)))
def test_an_interrupt_in_the_draft(at: int, is_before: bool) -> None:
    """Rows count as fed once they are: Ctrl-C leaves no hole, and no slot of a block."""
    drafter = draft()
    loop, seq = opened(drafter, n_ubatch=16), SequenceState()
    interrupt_decode(drafter.memory_or_fail(), at, is_before=is_before)
    with pytest.raises(KeyboardInterrupt):
        generate(loop, seq, prompt_tokens(45), 40, PARAMS)
    text = prompt_tokens(45) if at < 4 else seq.tokens
    run = generate(loop, seq, [*text, 5, 6], 12, PARAMS)
    assert run.stats.reason_off is None
    check_says_the_same(loop, seq)


@pytest.mark.parametrize("window", [8, 30, 64])
def test_a_window(window: int) -> None:
    """What a draft with a window says is what one says that was given the window alone."""
    drafter = draft(n_ctx=window)
    loop, seq = opened(drafter), SequenceState()
    generate(loop, seq, prompt_tokens(90), 40, PARAMS)
    got = warm_block(loop, seq, 5)[0]
    assert drafter.context is not None
    first, last = drafter.context.memory.positions(0)
    assert 0 < first <= last + 2 - window * 3 // 4
    expected = block_after(drafter, seq.tokens, first)
    # The window's cells are reused, so that sums over them have another order.
    assert got.ids == expected.ids
    assert got.probabilities == pytest.approx(expected.probabilities, rel=1e-3)


def block_after(drafter: DFlash, text: Sequence[int], first: int) -> Proposal:
    """What a draft says that is given the rows of a text from a position on."""
    parts: list[list[Rows]] = []
    with target_context(tiny("llama"), drafter) as context:
        batch = Batch(len(text))
        for i in range(0, len(text) - 1, 64):
            batch.clear()
            batch.extend(text[i : min(i + 64, len(text) - 1)], i)
            context.decode(batch)
            parts.append([context.layer_input(layer).copy() for layer in drafter.target_layers])
    whole = [np.concatenate(layer)[first:] for layer in zip(*parts, strict=True)]
    with Bench(drafter.model.path) as bench:
        bench.inject(np.concatenate(whole, axis=1), first)
        found = bench.guess(text[-1], 5, len(text) - 1)
    return Proposal(tuple(found.ids), tuple(found.probabilities))


@pytest.mark.parametrize("kind", KINDS)
def test_a_sliding_window_is_all_that_is_kept(kind: str) -> None:
    """No layer sees what was forgotten: it says the same as with all rows."""
    drafter = draft(sliding_window=24, **KINDS[kind])
    loop, seq = opened(drafter), SequenceState()
    for prompt, n in ((prompt_tokens(20), 30), (prompt_tokens(150, seed=2), 60)):
        generate(loop, seq, prompt, n, PARAMS)
        got, expected = warm_block(loop, seq, 5), cold_block(tiny("llama"), drafter, seq.tokens, 5)
        assert drafter.context is not None
        first, last = drafter.context.memory.positions(0)
        assert first > 0
        assert 23 <= last + 1 - first <= 24 * 8 // 7 + 9
        assert got[0].ids == expected[0].ids
        assert got[0].probabilities == pytest.approx(expected[0].probabilities, rel=1e-3)


@pytest.mark.parametrize("cut", [1, 20, 80, 150])
def test_a_prefix_shorter_than_what_a_window_forgot(cut: int) -> None:
    drafter = draft(sliding_window=24)
    loop, seq = opened(drafter), SequenceState()
    run = generate(loop, seq, prompt_tokens(120), 60, PARAMS)
    # After a small cut a few rows may be missing, until as many came. After a large one, when all
    # would be, the target makes them again.
    kept = run.text[: len(run.text) - cut]
    run = generate(loop, seq, kept + prompt_tokens(30 if cut < 24 else 2, seed=8), 3, PARAMS)
    assert run.stats.reason_off is None
    got, expected = warm_block(loop, seq, 5), cold_block(tiny("llama"), drafter, seq.tokens, 5)
    assert got[0].ids == expected[0].ids
    assert got[0].probabilities == pytest.approx(expected[0].probabilities, rel=1e-3)


def test_p_min_ends_a_draft_early() -> None:
    drafter = draft()
    loop, seq = opened(drafter), SequenceState()
    generate(loop, seq, prompt_tokens(40), 10, PARAMS)
    whole = warm_block(loop, seq, 5)[0]
    drafter.p_min = limit = sorted(whole.probabilities)[2]
    n_sure = next(i for i, p in enumerate(whole.probabilities) if p < limit)
    cut = warm_block(loop, seq, 5)[0]
    assert (cut.ids, cut.probabilities) == (whole.ids[:n_sure], whole.probabilities[:n_sure])


@pytest.mark.parametrize("kind", ["dspark", "dspark, no anchor"])
def test_p_min_counts_confidences(kind: str) -> None:
    drafter = draft(**KINDS[kind])
    loop, seq = opened(drafter), SequenceState()
    generate(loop, seq, prompt_tokens(40), 10, PARAMS)
    found, block = warm_block(loop, seq, 5)
    assert block.confidences is not None
    assert list(found.probabilities) == block.confidences != block.probabilities
    other = draft(**KINDS[kind], confidence=False)
    loop, seq = opened(other), SequenceState()
    generate(loop, seq, prompt_tokens(40), 10, PARAMS)
    found, block = warm_block(loop, seq, 5)
    assert block.confidences is None
    assert list(found.probabilities) == block.probabilities


def test_the_draft_of_a_path_is_closed_and_one_of_a_model_is_not() -> None:
    first = draft()
    with first, DFlash(first.model) as second:
        second.close()
        assert not first.model.is_closed
    assert first.is_closed
    first.close()
