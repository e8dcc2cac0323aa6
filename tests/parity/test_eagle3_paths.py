"""O3: a head says the same after a text, number by number, whatever way led there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pyllama_spec.drafters import (
    Committed,
    DraftRequest,
    Eagle3,
    SequenceErrors,
    Vote,
    model_drafter,
)
from pyllama_spec.engine import Batch, Context
from pyllama_spec.errors import ArgumentError, OutOfMemoryError
from pyllama_spec.speculative import SequenceState, SpeculativeLoop
from tests.eagle3_tools import (
    ask,
    cold_proposal,
    damaged_states,
    head,
    proposal,
    target_context,
    warm_proposal,
)
from tests.models import model_path
from tests.oracles import generate, prompt_tokens, sampled, tiny
from tests.scripted import told
from tests.tampering import interrupt_decode

# Sampling at a high temperature: drafts of a random head are rejected at every depth.
PARAMS = sampled(5, temperature=1.5)
HEADS: dict[str, dict[str, Any]] = {
    "plain": {},
    "eagle3.1": {"fc_norm": True, "norm_output": True, "n_draft_vocab": 200},
    "two layers": {"n_layer": 2, "qk_norm": True, "target_layers": (0, 2, 4)},
}


def opened(drafter: Eagle3, **params: Any) -> SpeculativeLoop:
    """A loop on a random llama."""
    return SpeculativeLoop(target_context(tiny("llama"), drafter, **params), drafter)


def check_says_the_same(loop: SpeculativeLoop, seq: SequenceState) -> None:
    """Ids and probabilities of eight steps are bit for bit those of a head that begins anew."""
    drafter = loop.drafter._drafter
    assert isinstance(drafter, Eagle3)
    assert loop.drafter.failure(seq.seq_id) is None
    expected = cold_proposal(tiny("llama"), drafter, seq.tokens)
    assert len(expected.ids) == 8
    assert warm_proposal(loop, seq) == expected
    assert warm_proposal(loop, seq) == expected, "asked again"


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("n_ubatch", [1, 3, 7, 32])
def test_ubatches(kind: str, n_ubatch: int) -> None:
    loop = opened(head(**HEADS[kind]), n_ubatch=n_ubatch)
    for size in (1, 2, 31, 32, 33, 64):
        seq = SequenceState()
        loop.target.memory.clear()
        loop.drafter.truncate(0, 0)
        generate(loop, seq, prompt_tokens(size, seed=size), 9, PARAMS)
        check_says_the_same(loop, seq)


@pytest.mark.parametrize("kind", HEADS)
def test_rounds_with_rejections(kind: str) -> None:
    loop, seq = opened(head(**HEADS[kind])), SequenceState()
    run = generate(loop, seq, prompt_tokens(30), 120, PARAMS)
    assert run.stats.accepted < run.stats.drafted / 2
    check_says_the_same(loop, seq)


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("cut", [0, 1, 2, 3, 9, 30, 33, 60, 74])
def test_a_prompt_that_shares_a_prefix(kind: str, cut: int) -> None:
    loop, seq = opened(head(**HEADS[kind])), SequenceState()
    run = generate(loop, seq, prompt_tokens(45), 30, PARAMS)
    kept = run.text[: len(run.text) - cut]
    generate(loop, seq, kept + prompt_tokens(3, seed=8), 12, PARAMS)
    check_says_the_same(loop, seq)
    # Cut where the pair of the next token must not stay, since another token follows now.
    shorter = seq.tokens[: max(len(kept) - 2, 1)]
    generate(loop, seq, shorter + prompt_tokens(5, seed=9), 12, PARAMS)
    check_says_the_same(loop, seq)


def test_the_same_prompt_again() -> None:
    loop, seq = opened(head()), SequenceState()
    for _ in range(3):
        generate(loop, seq, prompt_tokens(45), 20, PARAMS)
        check_says_the_same(loop, seq)


@pytest.mark.parametrize("kv_unified", [False, True], ids=["streams", "unified"])
def test_interleaved_sequences(kv_unified: bool) -> None:
    loop = opened(head(), n_ctx=1024, n_seq_max=4, kv_unified=kv_unified)
    seqs = [SequenceState(i) for i in range(4)]
    texts = [prompt_tokens(5 + 11 * i, seed=i) for i in range(4)]
    for turn in range(3):
        for seq, text in zip(seqs, texts, strict=True):
            run = generate(loop, seq, text, 7 + turn, PARAMS)
            text[:] = run.text + prompt_tokens(2, seed=turn)
    for seq in seqs:
        drafter = loop.drafter._drafter
        assert isinstance(drafter, Eagle3)
        expected = cold_proposal(tiny("llama"), drafter, seq.tokens)
        got = warm_proposal(loop, seq)
        assert got.ids == expected.ids
        # In a unified cache masked cells of other sequences are summed over.
        near = pytest.approx(expected.probabilities, rel=1e-2)
        assert got == expected or (kv_unified and got.probabilities == near)


def test_a_fork() -> None:
    loop = opened(head(), n_ctx=1024, n_seq_max=3)
    first = SequenceState()
    run = generate(loop, first, prompt_tokens(40), 25, PARAMS)
    for seq_id, size in ((1, 60), (2, 44)):
        seq = loop.fork(first, seq_id)
        generate(loop, seq, run.text[:size] + prompt_tokens(4, seed=seq_id), 15, PARAMS)
        check_says_the_same(loop, seq)
    generate(loop, first, run.text + prompt_tokens(4, seed=5), 15, PARAMS)
    check_says_the_same(loop, first)
    with pytest.raises(ArgumentError, match="onto itself"):
        loop.fork(first, 0)


@pytest.mark.parametrize("n_rounds", [1, 4, 9])
def test_save_and_restore(n_rounds: int) -> None:
    """The state goes into other contexts, with rounds of the first one in between."""
    loop, seq = opened(head()), SequenceState()
    generate(loop, seq, prompt_tokens(40), 4 * n_rounds, PARAMS)
    saved, state = loop.target.memory.save(), loop.drafter.save(0)
    assert state is not None
    expected = warm_proposal(loop, seq)
    generate(loop, seq, prompt_tokens(50, seed=4), 20, PARAMS)
    other = opened(head())
    for into in (loop, other):
        into.target.memory.restore(0, saved)
        into.drafter.restore(0, state)
        there = SequenceState(0, *restored(expected_tokens(state), len(expected_tokens(state)) - 1))
        assert warm_proposal(into, there) == expected
        generate(into, there, [*there.tokens, 3, 4], 12, PARAMS)
        check_says_the_same(into, there)


def expected_tokens(state: bytes) -> list[int]:
    """The tokens of a drafter's saved state."""
    drafter = head()
    with target_context(tiny("llama"), drafter) as context:
        drafter.attach(context)
        drafter.restore(0, state)
        return list(drafter.memory_or_fail().of(0).tokens)


def restored(tokens: list[int], n_decoded: int) -> tuple[list[int], int]:
    """The fields of a SequenceState."""
    return tokens, n_decoded


@pytest.mark.parametrize("at", [0, 10, 40, -1])
def test_a_damaged_state_is_refused(at: int) -> None:
    drafter = head()
    loop, seq = opened(drafter), SequenceState()
    run = generate(loop, seq, prompt_tokens(20), 8, PARAMS)
    states = damaged_states(drafter, at)
    for bad in states:
        with pytest.raises(ArgumentError):
            drafter.restore(0, bad)
    # Through the loop it is a reason to begin anew, and no failure of the next request.
    loop.drafter.restore(0, states[0])
    generate(loop, seq, [*run.text, 1], 10, PARAMS)
    check_says_the_same(loop, seq)


def test_a_state_of_another_head_is_refused() -> None:
    loop, seq = opened(head()), SequenceState()
    generate(loop, seq, prompt_tokens(20), 8, PARAMS)
    state = loop.drafter.save(0)
    assert state is not None
    other = head(seed=5)
    opened(other)
    with pytest.raises(ArgumentError, match="another draft"):
        other.restore(0, state)


@pytest.mark.parametrize("cut", [1, 20, 80, 150])
def test_a_prefix_shorter_than_what_a_window_forgot(cut: int) -> None:
    """Where the head would have nothing left to go on with, the target makes the rows again."""
    drafter = head(max_draft=4, n_ctx=24)
    loop, seq = opened(drafter), SequenceState()
    text = generate(loop, seq, prompt_tokens(120), 60, PARAMS).text
    prompt = text[: len(text) - cut] + prompt_tokens(2, seed=8)
    run = generate(loop, seq, prompt, 1, PARAMS)
    assert run.stats.reason_off is None
    context = open_context(drafter)
    assert context is not None
    first, last = context.memory.positions(0)
    assert last - first >= 10


@pytest.mark.parametrize("window", [8, 30, 64])
def test_a_window(window: int) -> None:
    """What a head with a window says is what a head says that was given the window alone."""
    drafter, layers = head(max_draft=4, n_ctx=window), (1, 2, 3)
    loop, seq = opened(drafter), SequenceState()
    generate(loop, seq, prompt_tokens(90), 40, PARAMS)
    ask(drafter, 0, seq.tokens, 1)
    assert drafter.context is not None
    first = drafter.context.memory.positions(0)[0]
    assert first > 0
    got = ask(drafter, 0, seq.tokens, 4)
    with Context(tiny("llama"), n_ctx=256, target_layers=layers, n_threads=1) as context:
        fresh = head(max_draft=4)
        fresh.attach(context)
        rows = feed(context, seq.tokens[:-1])
        # Pairs from `first` on: the sequence is given with everything before it skipped.
        state = fresh.memory_or_fail().of(0)
        state.tokens[:] = seq.tokens[: first + 1]
        state.rows.append(first, [row[first : first + 1] for row in rows])
        state.n_fed = state.first = first
        rest = [row[first + 1 :] for row in rows]
        fresh.commit([Committed(0, seq.tokens[first + 1 : -1], first + 1, rest, first + 1)])
        fresh.commit(told(seq.tokens[-1:], len(seq.tokens) - 1))
        expected = ask(fresh, 0, seq.tokens, 4)
        # The window's cells are reused, so that sums over them have another order.
        assert got.ids == expected.ids
        assert got.probabilities == pytest.approx(expected.probabilities, rel=1e-3)


def feed(context: Context, tokens: list[int]) -> list[Any]:
    """The layer inputs of a text."""
    batch = Batch(len(tokens))
    batch.extend(tokens, 0)
    context.decode(batch)
    return [context.layer_input(layer).copy() for layer in context.target_layers]


def test_p_min_ends_a_draft_early() -> None:
    drafter = head()
    loop, seq = opened(drafter), SequenceState()
    generate(loop, seq, prompt_tokens(40), 10, PARAMS)
    whole = warm_proposal(loop, seq)
    limit = sorted(whole.probabilities)[3]
    drafter.p_min = limit
    n_sure = next(i for i, p in enumerate(whole.probabilities) if p < limit)
    cut = warm_proposal(loop, seq)
    assert (cut.ids, cut.probabilities) == (whole.ids[:n_sure], whole.probabilities[:n_sure])


def test_the_head_of_a_path_is_closed_and_one_of_a_model_is_not() -> None:
    first = Eagle3(model_path("eagle3"))
    with first, Eagle3(first.model) as second:
        second.close()
        assert not first.model.is_closed
    assert first.is_closed
    first.close()


@pytest.mark.parametrize("is_before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("at", [1, 2, 3, 4, 9, 20])
def test_an_interrupt_in_the_head(at: int, is_before: bool) -> None:
    """Pairs count as fed once they are: Ctrl-C at a decode of the head leaves no hole there."""
    drafter = head()
    loop, seq = opened(drafter, n_ubatch=16), SequenceState()
    interrupt_decode(drafter.memory_or_fail(), at, is_before=is_before)
    with pytest.raises(KeyboardInterrupt):
        generate(loop, seq, prompt_tokens(45), 40, PARAMS)
    # The same prompt, or what came of it until then.
    text = prompt_tokens(45) if at < 4 else seq.tokens
    run = generate(loop, seq, [*text, 5, 6], 12, PARAMS)
    assert run.stats.reason_off is None
    check_says_the_same(loop, seq)


def three_texts(drafter: Eagle3) -> tuple[SpeculativeLoop, list[SequenceState]]:
    """A loop whose drafter knows three texts, each with a pending token."""
    loop = opened(drafter, n_ctx=768, n_seq_max=3)
    seqs = [SequenceState(i) for i in range(3)]
    for seq in seqs:
        generate(loop, seq, prompt_tokens(9 + 8 * seq.seq_id, seed=seq.seq_id), 5, PARAMS)
    return loop, seqs


def test_drafts_of_several_sequences_are_those_of_each_alone() -> None:
    drafter = head()
    _, seqs = three_texts(drafter)
    n_calls = drafter.n_calls
    found = drafter.propose([DraftRequest(seq.seq_id, seq.tokens, 8 - seq.seq_id) for seq in seqs])
    assert drafter.n_calls == n_calls + 8, "as many calls as the longest draft has tokens"
    for seq, draft in zip(seqs, found, strict=True):
        assert proposal(draft) == ask(drafter, seq.seq_id, seq.tokens, 8 - seq.seq_id)
        assert draft.candidates is not None
        assert [place[0] for place in draft.candidates] == list(
            zip(draft.ids, draft.probabilities or (), strict=True)
        )


def test_what_fails_for_one_sequence_costs_the_others_no_draft() -> None:
    drafter = head()
    _, seqs = three_texts(drafter)
    expected = [ask(drafter, seq.seq_id, seq.tokens) for seq in seqs]

    def breaks_off(drafted: Sequence[int]) -> Sequence[Vote]:
        if len(drafted) == 3:
            raise LookupError("no more advice")
        return ()

    requests = [DraftRequest(seq.seq_id, seq.tokens, 8) for seq in seqs]
    for bad, error in (
        (requests[1]._replace(prior=breaks_off), LookupError),
        (requests[1]._replace(tokens=[*seqs[1].tokens, 3]), ArgumentError),
    ):
        with pytest.raises(SequenceErrors) as caught:
            drafter.propose([requests[0], bad, requests[2]])
        assert {seq: type(e) for seq, e in caught.value.errors.items()} == {1: error}
        drafts = {seq: proposal(draft) for seq, draft in caught.value.drafts.items()}
        assert drafts == {0: expected[0], 2: expected[2]}
    # And it is none the worse for it.
    found = drafter.propose(requests)
    assert [proposal(draft) for draft in found] == expected


def test_a_head_that_could_not_be_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not attached then, neither to the new target nor to the old one."""

    def no_memory(*args: Any, **params: Any) -> Context:
        raise OutOfMemoryError("none left")

    drafter = head()
    loop, other = opened(drafter), target_context(tiny("llama"), drafter)
    with monkeypatch.context() as patched:
        patched.setattr(model_drafter, "Context", no_memory)
        patched.setattr(model_drafter, "instance", lambda *args: None)
        with pytest.raises(OutOfMemoryError):
            drafter.attach(other)
    assert open_context(drafter) is None
    for target in (other, loop.target):
        drafter.attach(target)
        assert open_context(drafter) is not None
    loop, seq = SpeculativeLoop(loop.target, drafter), SequenceState()
    generate(loop, seq, prompt_tokens(20), 9, PARAMS)
    check_says_the_same(loop, seq)


def open_context(drafter: Eagle3) -> Context | None:
    """The head's context, which is open if there is one."""
    assert drafter.context is None or not drafter.context.is_closed
    return drafter.context
