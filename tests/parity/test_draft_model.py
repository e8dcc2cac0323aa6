"""A draft model has read the text, however the sequence got there.

A copy of the target drafts exactly the target's tokens, so that every drafted token is accepted
unless the copy read something else than the text. A model with other weights must say the same
after each path as after reading the text from nothing.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyllama_spec import Llama
from pyllama_spec.drafters import Committed, Draft, Drafter, DraftRequest, SequenceErrors, Vote
from pyllama_spec.drafters.lookup_first import LookupFirst
from pyllama_spec.drafters.small_model import SmallModel, VocabMap
from pyllama_spec.engine import Batch, quantize
from pyllama_spec.errors import ArgumentError, CancelledError
from pyllama_spec.speculative import ProfitController, Round, SequenceState, SpeculativeLoop
from pyllama_spec.speculative.controller.base import ControllerLimits, DraftDecision, Span, Spent
from pyllama_spec.speculative.controller.round_costs import RoundCosts
from tests.eagle3_tools import Proposal, ask, damaged_states, proposal, target_context
from tests.models import STATES, model_path, perm_continuation, perm_next
from tests.oracles import (
    LoopRun,
    cancel_at,
    generate,
    prompt_tokens,
    run_once,
    sampled,
    tiny,
    tiny_context,
)
from tests.tampering import interrupt_decode, interrupt_guess
from tests.tiers import release_except
from tests.traffic import Request, Traffic

ARCHS = ("llama", "qwen3moe", "gemma3", *STATES)
QUICK = ("llama", "gemma3", "qwen35", "mamba")
HOT = sampled(5, temperature=1.5)
SUCCESSOR = perm_next()

each_arch = pytest.mark.parametrize("arch", release_except(ARCHS, QUICK))


def draft_of(arch: str, max_draft: int = 4, **own: Any) -> SmallModel:
    """A drafter with a tiny model; n_ctx and p_min are its own, the rest is the builder's."""
    n_ctx, p_min = own.pop("n_ctx", None), own.pop("p_min", 0.0)
    return SmallModel(model_path(arch, **own), max_draft, n_ctx=n_ctx, p_min=p_min)


def loop_of(arch: str, drafter: SmallModel, **params: Any) -> SpeculativeLoop:
    """A loop on a tiny target."""
    return SpeculativeLoop(target_context(tiny(arch), drafter, n_rs_seq=10, **params), drafter)


def check_all_right(run: LoopRun) -> None:
    """Every drafted token was accepted."""
    assert run.stats.reason_off is None
    assert run.stats.drafted > 0
    assert run.stats.accepted == run.stats.drafted


# ---- a copy of the target


def along_a_conversation(arch: str, make: Callable[[], SmallModel]) -> None:
    """A text that is continued, also from before its end, and the same again."""
    loop, seq = loop_of(arch, make()), SequenceState()
    run = generate(loop, seq, prompt_tokens(21), 25)
    check_all_right(run)
    for cut in (0, 1, 4, 17, 26, 40):
        kept = run.text[: len(run.text) - cut]
        for prompt in (kept, [*kept, 7, 8], [*kept, 7, 8]):
            check_all_right(generate(loop, seq, prompt, 12))
        run = generate(loop, seq, prompt_tokens(21), 25)


def along_batches(arch: str, make: Callable[[], SmallModel]) -> None:
    """Prompts around the sizes of batches."""
    for n_ubatch in (12, 32):
        loop = loop_of(arch, make(), n_batch=32, n_ubatch=n_ubatch)
        for size in (1, 2, 11, 12, 13, 31, 32, 33, 65):
            check_all_right(generate(loop, SequenceState(), prompt_tokens(size, seed=size), 9))


def along_forks(arch: str, make: Callable[[], SmallModel]) -> None:
    """Copies that go on from the text, and from before its end."""
    loop, first = loop_of(arch, make(), n_ctx=1024, n_seq_max=4), SequenceState()
    run = generate(loop, first, prompt_tokens(21), 20)
    for i in range(1, 4):
        seq = loop.fork(first, i)
        check_all_right(generate(loop, seq, [*run.text[: 42 - i], 7], 12))
    check_all_right(generate(loop, first, [*run.text, 7], 12))


def along_saved_states(arch: str, make: Callable[[], SmallModel]) -> None:
    """Saved, then others, then there again and in another context."""
    # Of a sliding window a state holds what the window does.
    params = {"swa_full": not tiny(arch).info.n_swa}
    loop, seq = loop_of(arch, make(), **params), SequenceState()
    run = generate(loop, seq, prompt_tokens(21), 14)
    saved, state = loop.target.memory.save(), loop.drafter.save(0)
    assert state is not None
    generate(loop, seq, prompt_tokens(31, seed=5), 9)
    for into in (loop, loop_of(arch, make(), **params)):
        into.target.memory.restore(0, saved)
        into.drafter.restore(0, state, len(run.text))
        there = SequenceState(0, list(run.text), len(run.text) - 1)
        n_read = memory_of(into).n_read
        check_all_right(generate(into, there, [*run.text, 3], 12))
        assert memory_of(into).n_read - n_read < 30, "the text was not read again"


def along_shared_rounds(arch: str, make: Callable[[], SmallModel]) -> None:
    """Several sequences in one decode, of which each has another length left."""
    for n_seqs in (1, 3, 8):
        requests = [
            Request(tuple(prompt_tokens(9 + 5 * i % 20, seed=i)), 5 + 11 * i % 27, arrival=i // 2)
            for i in range(2 * n_seqs)
        ]
        drafter = make()
        with tiny_context(tiny(arch), n_ctx=128 * n_seqs, n_seq_max=n_seqs, n_batch=256) as context:
            texts = [plain(arch, request) for request in requests]
            traffic = Traffic(Round(context, drafter), requests, texts, n_seqs)
            answers = traffic.serve()
            traffic.check()
        assert all(answer.stats.reason_off is None for answer in answers)
        drafted = sum(answer.stats.drafted for answer in answers)
        accepted = sum(answer.stats.accepted for answer in answers)
        assert accepted == drafted > 5 * n_seqs
        drafter.close()


def plain(arch: str, request: Request) -> list[int]:
    """A request's text without a draft."""
    with tiny_context(tiny(arch)) as context:
        return run_once(context, None, request.prompt, request.max_tokens).tokens


PATHS = (
    along_a_conversation, along_batches, along_forks, along_saved_states, along_shared_rounds,
)  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
@each_arch
def test_a_copy_of_the_target_is_always_right(
    arch: str, path: Callable[[str, Callable[[], SmallModel]], None]
) -> None:
    path(arch, lambda: draft_of(arch))


class Deaf(SmallModel):
    """Misses the last token of what it is told."""

    def commit(self, done: Sequence[Committed]) -> None:
        """Hears another one."""
        super().commit(
            [c._replace(tokens=[*c.tokens[:-1], (c.tokens[-1] + 1) % 256]) for c in done]
        )

    def can_draft(self, request: DraftRequest) -> bool:
        """Whether tokens are requested, whatever text it has."""
        return request.n_requested > 0


@pytest.mark.parametrize("path", PATHS)
def test_each_path_sees_a_draft_that_reads_another_text(
    path: Callable[[str, Callable[[], SmallModel]], None],
) -> None:
    with pytest.raises(AssertionError):
        path("llama", lambda: Deaf(model_path("llama"), 4))


# ---- a model of its own weights


def cold(drafter: SmallModel, tokens: Sequence[int], n: int) -> Proposal:
    """The draft of a model that reads a text from nothing."""
    with (
        SmallModel(drafter.model, drafter.max_draft) as fresh,
        target_context(tiny("llama"), fresh) as context,
    ):
        fresh.attach(context)
        fresh.commit([Committed(0, tokens, 0)])
        return ask(fresh, 0, tokens, n)


def memory_of(loop: SpeculativeLoop) -> Any:
    """The memory of a loop's drafter."""
    drafter: Any = loop.drafter._drafter
    return drafter.memory_or_fail()


def check_says_the_same(loop: SpeculativeLoop, seq: SequenceState) -> None:
    """Ids, and probabilities but for the width of batches, are those of one that begins anew."""
    drafter: Any = loop.drafter._drafter
    assert loop.drafter.failure(seq.seq_id) is None
    expected = cold(drafter, seq.tokens, 4)
    assert len(expected.ids) == 4
    for _ in range(2):
        got = ask(drafter, seq.seq_id, seq.tokens, 4)
        assert got.ids == expected.ids
        assert got.probabilities == pytest.approx(expected.probabilities, rel=1e-4)


@each_arch
def test_after_rejections_and_cuts(arch: str) -> None:
    loop, seq = loop_of("llama", draft_of(arch, seed=9)), SequenceState()
    run = generate(loop, seq, prompt_tokens(21), 60, HOT)
    assert run.stats.accepted < run.stats.drafted / 2
    check_says_the_same(loop, seq)
    for cut in (0, 1, 3, 30, 70):
        kept = run.text[: len(run.text) - cut]
        generate(loop, seq, [*kept, 5, 6], 9, HOT)
        check_says_the_same(loop, seq)


@pytest.mark.parametrize("arch", ["llama", "qwen35"])
def test_n_drafted_tokens_are_n_decodes(arch: str) -> None:
    """Attention rereads no accepted token, and a recurrent state rereads one."""
    loop, seq = loop_of("llama", draft_of(arch, seed=9)), SequenceState()
    memory = memory_of(loop)
    run = generate(loop, seq, prompt_tokens(21), 60, HOT)
    asked = [i for i, step in enumerate(run.steps) if step.n_drafted]
    assert memory.n_calls == sum(step.n_drafted for step in run.steps)
    # The text up to the last draft, and the guesses, but for those that stayed in the memory.
    n_text = 21 + sum(len(step.tokens) for step in run.steps[: asked[-1]])
    n_guesses = sum(run.steps[i].n_drafted - 1 for i in asked)
    guesses = [(run.steps[i].n_drafted - 1, run.steps[i].n_accepted) for i in asked[:-1]]
    if arch == "llama":
        n_stayed = sum(min(n_fed, n_accepted) for n_fed, n_accepted in guesses)
    else:  # all of them or none
        n_stayed = sum(n_fed for n_fed, n_accepted in guesses if n_accepted >= n_fed)
    assert memory.n_read == n_text + n_guesses - n_stayed


def test_nothing_is_read_before_a_draft_is_asked_for() -> None:
    drafter = draft_of("llama", seed=9)
    loop, seq = loop_of("llama", drafter), SequenceState()
    loop.prefill(seq, prompt_tokens(60))
    assert memory_of(loop).n_read == 0
    assert drafter.n_unread(0) == 60
    run = generate(loop, seq, [*seq.tokens, 3], 9, HOT)
    assert drafter.n_unread(0) <= 1 + len(run.steps[-1].tokens)
    # A chat that goes on: its last answer is known.
    loop.prefill(seq, [*run.text, 4, 5])
    assert drafter.n_unread(0) <= len(run.steps[-1].tokens) + 3


class Counted(ProfitController):
    """Notes what it is told of texts that are to be read."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[int, int]] = []

    def catch_up(self, seq: int, n_tokens: int) -> None:
        """Told once a prompt is there."""
        self.told.append((seq, n_tokens))
        super().catch_up(seq, n_tokens)


@pytest.mark.parametrize("has_lookup", [False, True])
def test_the_reading_of_a_prompt_is_not_the_price_of_a_draft(has_lookup: bool) -> None:
    controller = Counted()
    model = draft_of("llama", seed=9)
    drafter: Drafter = LookupFirst(model, 5) if has_lookup else model
    with target_context(tiny("llama"), drafter, n_rs_seq=10) as context:
        loop = SpeculativeLoop(context, drafter, controller=controller)
        seq = SequenceState()
        generate(loop, seq, prompt_tokens(100), 30, HOT)
        assert controller.told == [(0, 100)]
        generate(loop, seq, [*seq.tokens, 3, 4], 30, HOT)
        assert controller.told[1][1] < 40


def test_the_first_draft_behind_a_prompt_teaches_no_price() -> None:
    """The first call reads a hundred tokens and drafts one, so its time is no price of a draft."""
    costs = RoundCosts()
    costs.limits = ControllerLimits(4, is_stepwise=True)
    span = Span(0, 0, max_draft=4)
    span.decide(DraftDecision(4))
    span.draft = Draft([1, 2], [0.5, 0.5])
    span.verify(2)
    for n_waiting, seconds in ((100, 9.0), (3, 0.002), (3, 0.002), (200, 8.0)):
        costs.learn([span], Spent(seconds, 0.001), [n_waiting])
    assert costs.draft(1, 2)[2] == pytest.approx(0.002)
    assert costs.catch_up_s(200) == pytest.approx(8.0, rel=0.01)


@pytest.mark.parametrize("arch", ["llama", "gemma3", "qwen35"])
@pytest.mark.parametrize("window", [8, 30, 64])
def test_a_window(arch: str, window: int) -> None:
    drafter = draft_of(arch, n_ctx=window, seed=9)
    loop, seq = loop_of("llama", drafter), SequenceState()
    text = prompt_tokens(150)
    for size in (150, 20, 90):
        run = generate(loop, seq, text[:size], 40, HOT)
        assert run.stats.reason_off is None
        assert run.stats.drafted > 20
        assert drafter.context is not None
        first, last = drafter.context.memory.positions(0)
        assert last - first < window + drafter.max_draft
        # Of a text that was cut the draft reads enough.
        assert last + 1 - first >= min(size, window // 3) or arch == "qwen35"


def test_until_the_context_is_full() -> None:
    run = generate(loop_of("llama", draft_of("llama"), n_ctx=64), SequenceState(), [1, 2, 3], 500)
    check_all_right(run)
    assert len(run.text) == 65


@pytest.mark.parametrize("arch", ["llama", "qwen35"])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_after_a_cancel(arch: str, at: int) -> None:
    loop, seq = loop_of(arch, draft_of(arch)), SequenceState()
    prompt = prompt_tokens(20)
    cancel_at(loop, seq, prompt, at)
    check_all_right(generate(loop, seq, [*prompt, 9], 20))


@pytest.mark.parametrize("arch", ["llama", "qwen35"])
@pytest.mark.parametrize("is_before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("at", [1, 2, 5])
def test_an_interrupt_in_the_draft(arch: str, at: int, is_before: bool) -> None:
    loop, seq = loop_of(arch, draft_of(arch), n_ubatch=16), SequenceState()
    interrupt_decode(memory_of(loop), at, is_before=is_before)
    with pytest.raises(KeyboardInterrupt):
        generate(loop, seq, prompt_tokens(25), 40)
    check_all_right(generate(loop, seq, [*seq.tokens, 5, 6], 12))


@pytest.mark.parametrize("at", [0, 10, 40, -1])
def test_a_damaged_state_is_refused(at: int) -> None:
    drafter = draft_of("llama", seed=9)
    loop, seq = loop_of("llama", drafter), SequenceState()
    run = generate(loop, seq, prompt_tokens(20), 8, HOT)
    states = damaged_states(drafter, at)
    for bad in states:
        with pytest.raises(ArgumentError):
            drafter.restore(0, bad)
    loop.drafter.restore(0, states[0], len(run.text))
    generate(loop, seq, [*run.text, 1], 10, HOT)
    check_says_the_same(loop, seq)
    other = draft_of("llama", seed=8)
    loop_of("llama", other)
    with pytest.raises(ArgumentError, match="another draft"):
        other.restore(0, drafter.save(0))


@pytest.mark.parametrize("arch", ["llama", "qwen35"])
def test_drafts_of_several_sequences_are_those_of_each_alone(arch: str) -> None:
    drafter = draft_of(arch, seed=9)
    loop = loop_of("llama", drafter, n_ctx=768, n_seq_max=3)
    seqs = [SequenceState(i) for i in range(3)]
    for seq in seqs:
        generate(loop, seq, prompt_tokens(9 + 4 * seq.seq_id, seed=seq.seq_id), 5, HOT)
    n_calls = drafter.n_calls
    requests = [DraftRequest(seq.seq_id, seq.tokens, 4 - seq.seq_id) for seq in seqs]
    together = [proposal(draft) for draft in drafter.propose(requests)]
    assert drafter.n_calls == n_calls + 4, "as many calls as the longest draft has tokens"
    for request, got in zip(requests, together, strict=True):
        assert got.ids == ask(drafter, request.seq, request.tokens, request.n_requested).ids

    def breaks_off(drafted: Sequence[int]) -> Sequence[Vote]:
        if len(drafted) == 2:
            raise LookupError("no more advice")
        return ()

    told: list[float] = []

    def breaks_off_in_the_engine(p: float) -> bool:
        told.append(p)
        if len(told) == 2:
            raise LookupError("no more advice")
        return False

    check_one_fails(drafter, requests, together, stop=breaks_off_in_the_engine)
    check_one_fails(drafter, requests, together, prior=breaks_off)


def check_one_fails(
    drafter: SmallModel,
    requests: Sequence[DraftRequest],
    together: Sequence[Proposal],
    **broken: Any,
) -> None:
    """An error of the second of three is its own alone."""
    requests = [requests[0], requests[1]._replace(**broken), requests[2]]
    with pytest.raises(SequenceErrors) as caught:
        drafter.propose(requests)
    assert list(caught.value.errors) == [1]
    assert {seq: proposal(d).ids for seq, d in caught.value.drafts.items()} == {
        0: together[0].ids, 2: together[2].ids,
    }  # fmt: skip


# ---- other vocabularies


def test_padding_is_no_other_vocabulary() -> None:
    small, target = tiny("llama", n_vocab=400, seed=9), tiny("llama")
    assert VocabMap(target.vocab, small.vocab).is_identity
    loop, seq = loop_of("llama", draft_of("llama", n_vocab=400, seed=9)), SequenceState()
    run = generate(loop, seq, prompt_tokens(21), 40, HOT)
    assert run.stats.reason_off is None
    assert run.stats.drafted > 20


def test_a_draft_ends_after_a_voted_token_that_the_draft_lacks() -> None:
    drafter = draft_of("llama", seed=9)
    context, seq = target_context(tiny("llama", n_vocab=400), drafter), SequenceState()
    generate(SpeculativeLoop(context, drafter), seq, prompt_tokens(21), 4)
    votes = {1: [Vote(390, 1.0, 9.0)]}
    drafted = ask(drafter, 0, seq.tokens, prior=lambda ids: votes.get(len(ids), ()))
    assert drafted.ids == (ask(drafter, 0, seq.tokens).ids[0], 390)


@pytest.mark.parametrize("n_draft", [1, 2, 4, 7])
def test_the_same_texts_under_other_ids(n_draft: int) -> None:
    """PERM with permuted ids accepts drafts only if every id is mapped, both ways."""
    drafter = draft_of("perm", n_draft, shuffle=3)
    loop, seq = loop_of("perm", drafter), SequenceState()
    text = prompt_tokens(20)
    for _ in range(3):
        run = generate(loop, seq, text, 25)
        assert run.tokens == perm_continuation(text[-1], 25, SUCCESSOR)
        check_all_right(run)
        text = [*run.text[:-5], 65, 66]
    assert drafter.describe()["shared_tokens"] == 320


def test_a_map_that_is_off_by_one_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    of_draft = VocabMap.of_draft
    monkeypatch.setattr(VocabMap, "of_draft", lambda self, i: (of_draft(self, i) + 1) % 320)
    run = generate(
        loop_of("perm", draft_of("perm", shuffle=3)), SequenceState(), prompt_tokens(20), 25
    )
    assert run.stats.accepted == 0


def test_what_the_draft_lacks_becomes_its_text() -> None:
    """The draft reads words of the target that it has no token for in pieces."""
    target, small = tiny("llama", n_vocab=640), tiny("llama", n_vocab=320, seed=9)
    vocab = VocabMap(target.vocab, small.vocab)
    assert not vocab.is_identity
    assert vocab.n_shared == 320
    for token in (5, 64, 265, 319):
        assert vocab.to_draft(token) == (token,)
        assert vocab.of_draft(token) == token
    for token in (320, 500, 639):
        assert small.vocab.detokenize(vocab.to_draft(token)) == target.vocab.piece(token)
    tokens = [5, 320, 66, 639]
    assert small.vocab.detokenize(
        i for one in tokens for i in vocab.to_draft(one)
    ) == target.vocab.detokenize(tokens)


@pytest.mark.parametrize("arch", ["llama", "qwen35"])
def test_the_text_of_a_target_with_more_words(arch: str) -> None:
    drafter = draft_of(arch, seed=9)
    with target_context(tiny("llama", n_vocab=640), drafter, n_ctx=1024) as context:
        loop, seq = SpeculativeLoop(context, drafter), SequenceState()
        prompt = np.random.default_rng(1).integers(260, 640, 30).tolist()
        run = generate(loop, seq, prompt, 60, HOT)
        assert run.stats.reason_off is None
        assert run.stats.drafted > 40
        s = memory_of(loop).of(0)
        assert s.ids == [i for one in seq.tokens for i in memory_of(loop).vocab.to_draft(one)]
        assert s.held[: len(s.ids) - 1] == s.ids[: len(s.held)][: len(s.ids) - 1]
        generate(loop, seq, run.text[:33], 9, HOT)
        assert s.ids == [i for one in seq.tokens for i in memory_of(loop).vocab.to_draft(one)]
        # What it says is what one says that reads this text anew.
        expected = cold_of_ids(drafter, s.ids)
        assert ask(drafter, 0, seq.tokens, 1).ids == (expected,)


def cold_of_ids(drafter: SmallModel, ids: Sequence[int]) -> int:
    """The likeliest id after a text of the draft's own ids."""
    with tiny_context(drafter.model, n_ctx=1024, n_batch=512, n_ubatch=32) as context:
        batch = Batch(len(ids))
        batch.extend(ids, 0, output_last=True)
        context.decode(batch)
        return int(context.logits(len(ids) - 1).argmax())


# ---- through Llama


def test_what_does_not_generate_is_no_draft() -> None:
    with pytest.raises(ArgumentError, match=r"\(bert\) is not a model that generates text"):
        Llama(model_path("llama"), draft=model_path("bert"), n_threads=1)
    with pytest.raises(ArgumentError, match="is a draft that reads rows of its target"):
        SmallModel(model_path("eagle3"))


def test_by_its_path() -> None:
    path, counts = model_path("llama", seed=9, output_scale=0.1), []
    for options in ({}, {"p_min": 0.9}, {"n_draft": 2}):
        with Llama(
            model_path("llama"), draft=path, lookup=0, controller="fixed", n_threads=1, **options
        ) as llm:
            said = llm.create_completion([1, 2, 3], max_tokens=30, temperature=0)
        assert said["speculation"]["drafter"] == "draft-model"
        assert said["speculation"]["reason_off"] is None
        counts.append(said["speculation"]["drafted"])
    assert counts[0] > counts[2] > 0 == counts[1]


@pytest.mark.parametrize("arch", ["llama", "qwen35"])
@pytest.mark.parametrize("n_vocab", [320, 400], ids=["", "padded"])
def test_a_draft_is_two_calls_of_the_engine(arch: str, n_vocab: int) -> None:
    """One call reads the new tokens, and one drafts all that follows, as single calls would."""
    drafter = draft_of(arch, 8, seed=9, n_vocab=n_vocab)
    loop, seq = loop_of("llama", drafter), SequenceState()
    generate(loop, seq, prompt_tokens(21), 20, HOT)
    memory, calls = memory_of(loop), []

    def noted(name: str) -> Callable[..., Any]:
        call = getattr(memory.context, name)

        def noting(*args: Any, **keywords: Any) -> Any:
            calls.append(name)
            return call(*args, **keywords)

        return noting

    for name in ("decode", "draft_chains"):
        setattr(memory.context, name, noted(name))
    for n in (2, 5, 8):
        calls.clear()
        n_calls = memory.n_calls
        at_once = ask(drafter, 0, seq.tokens, n)
        # A state that was asked of this text before reads it anew, in two batches.
        n_reads = calls.index("draft_chains")
        assert n_reads == 1 or (arch == "qwen35" and n_reads == 2)
        assert calls == ["decode"] * n_reads + ["draft_chains"]
        assert memory.n_calls == n_calls + n_reads + n - 1
        assert len(at_once.ids) == n
        calls.clear()
        singly = ask(drafter, 0, seq.tokens, n, lambda drafted: ())
        assert calls.count("decode") == len(calls) >= n
        assert at_once.ids == singly.ids
        assert at_once.probabilities == pytest.approx(singly.probabilities, rel=1e-6)


@pytest.mark.parametrize("arch", ["llama", "qwen35"])
@pytest.mark.parametrize("is_before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("at", [1, 2, 3, 5])
def test_a_signal_among_the_guesses_of_one_call(arch: str, at: int, is_before: bool) -> None:
    loop, seq = loop_of(arch, draft_of(arch)), SequenceState()
    interrupt_guess(memory_of(loop), at, is_before=is_before)
    # A program that a shell began in the background is told to ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            generate(loop, seq, prompt_tokens(25), 40)
    finally:
        signal.signal(signal.SIGINT, before)
    check_all_right(generate(loop, seq, [*seq.tokens, 5, 6], 12))


@pytest.mark.parametrize("arch", ["llama", "qwen35"])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_cancel_among_the_guesses_of_one_call(arch: str, at: int) -> None:
    drafter = draft_of(arch, seed=9)
    loop, seq = loop_of("llama", drafter), SequenceState()
    generate(loop, seq, prompt_tokens(21), 5, HOT)
    context, n_told = memory_of(loop).context, 0

    def cancels(_p: float) -> bool:
        nonlocal n_told
        n_told += 1
        context.cancel(n_told == at)
        return False

    with pytest.raises(CancelledError):
        drafter.propose([DraftRequest(0, seq.tokens, 4, stop=cancels)])
    context.cancel(False)
    check_says_the_same(loop, seq)


@pytest.mark.parametrize(("kind", "is_told"), [("Q8_0", False), ("Q4_0", True), ("Q5_0", True)])
def test_a_draft_of_few_bits_is_told(kind: str, is_told: bool, tmp_path: Path) -> None:
    path = tmp_path / "small.gguf"
    quantize(model_path("llama", seed=9), path, kind)
    with Llama(model_path("llama"), draft=path, controller="fixed", n_threads=1) as llm:
        told = llm.create_completion([3, 4, 5], max_tokens=3)["speculation"]["note"]
    assert (told is not None) == is_told
    assert not is_told or kind in told
    with SmallModel(path) as drafter:
        assert drafter.describe()["weights"] == kind
