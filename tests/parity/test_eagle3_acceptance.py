"""Acceptance is right, where only acceptance can tell: PERM with a head that reads the hidden row.

The text of a target does not depend on its draft, so that a row which belongs to another token is
seen in nothing but acceptance. The head here knows the next tokens from the row alone: every draft
is accepted if each row is that of its token, and none if it is not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from pyllama_spec import Llama
from pyllama_spec.drafters import Committed, Draft, DraftRequest, Eagle3
from pyllama_spec.engine import Batch
from pyllama_spec.errors import CancelledError
from pyllama_spec.speculative import SequenceState
from tests.eagle3_tools import NotANumber, Permuted, Shifted, Tampered, head
from tests.models import model_path, perm_continuation
from tests.oracles import GREEDY, generate, make_sampler
from tests.perm_tools import SUCCESSOR, check_perfect, perm_loop


def perm_prompt(n: int, seed: int = 0) -> list[int]:
    """Random single bytes: PERM goes on from the last of them."""
    return [int(i) for i in np.random.default_rng(seed).integers(0, 256, size=n)]


@pytest.mark.parametrize("k", range(1, 17))
def test_chains(k: int) -> None:
    loop = perm_loop(head("perm_eagle3", k))
    run = generate(loop, SequenceState(), perm_prompt(20), 3 * (k + 1) + 1)
    check_perfect(run, k)
    assert run.stats.rounds == 3


@pytest.mark.parametrize(
    "options",
    [
        {"norm_output": True},
        {"reduced": True},
        {"target_layers": (0, 2, 4)},
        {"target_layers": (4,)},
        {"target_layers": (0, 1, 2, 3, 4)},
    ],
    ids=["norm_output", "d2t", "three layers", "final layer", "five layers"],
)
def test_kinds_of_heads(options: dict[str, object]) -> None:
    run = generate(
        perm_loop(head("perm_eagle3", 6, **options)), SequenceState(), perm_prompt(33), 60
    )
    check_perfect(run, 6)


@pytest.mark.parametrize("n_ubatch", [3, 32])
@pytest.mark.parametrize("k", [1, 2, 8])
def test_a_head_that_reads_the_token_alone(k: int, n_ubatch: int) -> None:
    """The other half of a pair: each row stands beside the token that follows it."""
    loop, seq = (
        perm_loop(head("perm_eagle3", k, read_token=True), n_ubatch=n_ubatch),
        SequenceState(),
    )
    run = generate(loop, seq, perm_prompt(20), 30)
    check_perfect(run, k)
    check_perfect(generate(loop, seq, [*run.text[:40], 3, 4], 30), k)


@pytest.mark.parametrize("n_ubatch", [1, 3, 7, 32, 512])
def test_prompts_around_ubatch_boundaries(n_ubatch: int) -> None:
    loop = perm_loop(head("perm_eagle3", 4), n_batch=512, n_ubatch=n_ubatch, n_ctx=1200)
    seq = SequenceState()
    sizes = {1, 2, n_ubatch - 1, n_ubatch, n_ubatch + 1, 2 * n_ubatch, 2 * n_ubatch + 1} - {0}
    for size in sorted(sizes):
        check_perfect(generate(loop, seq, perm_prompt(size, seed=size), 12), 4)


@pytest.mark.parametrize("n_seqs", range(1, 9))
@pytest.mark.parametrize("kv_unified", [False, True], ids=["streams", "unified"])
def test_sequences_of_unequal_length(n_seqs: int, kv_unified: bool) -> None:
    loop = perm_loop(head("perm_eagle3", 4), n_ctx=1024, n_seq_max=n_seqs, kv_unified=kv_unified)
    seqs = [SequenceState(i) for i in range(n_seqs)]
    texts = [perm_prompt(3 + 7 * i, seed=i) for i in range(n_seqs)]
    for _ in range(2):  # each comes back to its own conversation, after all the others
        for seq in seqs:
            run = generate(loop, seq, texts[seq.seq_id], 9 + seq.seq_id)
            check_perfect(run)
            texts[seq.seq_id] = run.text + perm_prompt(5, seed=99 + seq.seq_id)


@pytest.mark.parametrize("kv_unified", [False, True], ids=["streams", "unified"])
def test_a_shared_cached_prefix(kv_unified: bool) -> None:
    loop = perm_loop(head("perm_eagle3", 4), n_ctx=1024, n_seq_max=4, kv_unified=kv_unified)
    first = SequenceState()
    run = generate(loop, first, perm_prompt(40), 20)
    seqs = [loop.fork(first, i) for i in range(1, 4)]
    for seq in seqs:
        shared = run.text[: 50 - seq.seq_id]
        n_before = loop.target.memory.positions(seq.seq_id)[1] + 1
        assert n_before == len(run.text) - 1
        other = generate(loop, seq, shared + perm_prompt(3, seed=seq.seq_id), 15)
        check_perfect(other)
    check_perfect(generate(loop, first, run.text + perm_prompt(2), 15))


def test_two_alternating_chats() -> None:
    with Llama(
        model_path("perm"),
        draft=model_path("perm_eagle3"),
        n_ctx=512,
        lookup=0,
        controller="fixed",
        n_threads=1,
    ) as llm:
        chats = [perm_prompt(30, seed=1), perm_prompt(41, seed=2)]
        for turn in range(4):
            for i, chat in enumerate(chats):
                record = llm.create_completion(chat, max_tokens=11, temperature=0)
                stats = record["speculation"]
                assert stats["accepted"] == stats["drafted"] > 0
                continuation = perm_continuation(chat[-1], 11, SUCCESSOR)
                chats[i] = chat + continuation + perm_prompt(4, seed=10 * turn + i)


@pytest.mark.parametrize("cut", [0, 1, 2, 5, 31, 32, 33, 50])
def test_a_conversation_that_goes_on_before_its_end(cut: int) -> None:
    loop, seq = perm_loop(head("perm_eagle3", 5)), SequenceState()
    run = generate(loop, seq, perm_prompt(40), 31)
    kept = run.text[: len(run.text) - cut]
    check_perfect(generate(loop, seq, [*kept, 7, 8], 22), 5)
    # And the very same prompt again.
    check_perfect(generate(loop, seq, [*kept, 7, 8], 22), 5)


def test_after_save_and_restore() -> None:
    target, draft = model_path("perm"), model_path("perm_eagle3")
    prompt = perm_prompt(40)
    with Llama(target, draft=draft, n_ctx=512, lookup=0, controller="fixed", n_threads=1) as llm:
        llm.create_completion(prompt, max_tokens=21, temperature=0)
        state = llm.save_state()
        llm.create_completion(perm_prompt(90, seed=5), max_tokens=9, temperature=0)
        assert state.drafter is not None
        goes_on = [*state.tokens, 5]
        for other in (
            llm,
            Llama(target, draft=draft, n_ctx=512, lookup=0, controller="fixed", n_threads=1),
        ):
            other.load_state(state)
            told = spied_commit(draft_of(other))
            stats = other.create_completion(goes_on, max_tokens=21, temperature=0)["speculation"]
            assert stats["accepted"] == stats["drafted"] > 0
            # The last token was pending; all before it is there and not read again.
            n_known = len(state.tokens) - 1
            assert told[0] == (n_known, (state.tokens[-1], 5, SUCCESSOR[5]))
            # Nor is anything after it told twice, or left out.
            assert [start for start, _ in told] == [
                n_known + sum(len(tokens) for _, tokens in told[:i]) for i in range(len(told))
            ]


def spied_commit(drafter: Eagle3) -> list[tuple[int, tuple[int, ...]]]:
    """What the drafter is told from now on: where, and which tokens."""
    told: list[tuple[int, tuple[int, ...]]] = []
    commit = drafter.commit

    def spy(done: Sequence[Committed]) -> None:
        told.extend((one.start, tuple(one.tokens)) for one in done)
        commit(done)

    drafter.commit = spy  # type: ignore[method-assign]
    return told


def draft_of(llm: Llama) -> Eagle3:
    """The drafter of an open model."""
    drafter = llm._runtime.round.drafter._drafter
    assert isinstance(drafter, Eagle3)
    return drafter


@pytest.mark.parametrize("n_steps", [0, 1, 3])
def test_after_a_closed_stream(n_steps: int) -> None:
    loop, seq = perm_loop(head("perm_eagle3", 4)), SequenceState()
    prompt = perm_prompt(20)
    loop.prefill(seq, prompt)
    steps = loop.generate(seq, make_sampler(loop.target.model, GREEDY, prompt), 40)
    for _ in range(n_steps):
        next(steps)
    steps.close()  # type: ignore[attr-defined]
    check_perfect(generate(loop, seq, list(seq.tokens), 20), 4)
    check_perfect(generate(loop, seq, [*prompt, 9], 20), 4)


@pytest.mark.parametrize("at", [1, 2, 3])
def test_after_a_cancel(at: int) -> None:
    loop, seq = perm_loop(head("perm_eagle3", 4)), SequenceState()
    prompt = perm_prompt(20)
    loop.prefill(seq, prompt)
    steps = loop.generate(seq, make_sampler(loop.target.model, GREEDY, prompt), 40)
    for _ in range(at):
        next(steps)
    loop.target.cancel()
    with pytest.raises(CancelledError):
        next(steps)
    loop.target.cancel(False)
    check_perfect(generate(loop, seq, [*prompt, 9], 20), 4)


class Failing(Eagle3):
    """Fails at the n-th call of one of its methods."""

    where, n_left = "", 0

    def _called(self, where: str) -> None:
        self.n_left -= where == self.where
        if where == self.where and self.n_left == 0:
            raise RuntimeError("injected")

    def propose(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        """May fail after the head has computed."""
        drafts = super().propose(requests)
        self._called("propose")
        return drafts

    def commit(self, done: Sequence[Committed]) -> None:
        """May fail after a part of a prompt is fed, or before a round's rows are noted."""
        is_read = done[0].first_row == done[0].start
        if not is_read:
            self._called("commit")
        super().commit(done)
        if is_read:
            self._called("read")


@pytest.mark.parametrize("where", ["read", "propose", "commit"])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_after_a_failure_of_the_drafter(where: str, at: int) -> None:
    drafter = Failing(model_path("perm_eagle3"), 4)
    loop, seq = perm_loop(drafter, n_ubatch=7, n_batch=64), SequenceState()
    check_perfect(generate(loop, seq, perm_prompt(20, seed=3), 20), 4)
    drafter.where, drafter.n_left = where, at
    run = generate(loop, seq, perm_prompt(30), 40)
    assert run.tokens == perm_continuation(run.prompt[-1], 40, SUCCESSOR)
    assert run.stats.reason_off is not None
    assert "injected" in run.stats.reason_off
    assert isinstance(run.stats.reason_off_error, RuntimeError)
    assert run.stats.drafted < 30
    check_perfect(generate(loop, seq, [*run.text, 4], 20), 4)


@pytest.mark.parametrize("window", [1, 5, 24, 64])
def test_a_window_shorter_than_the_text(window: int) -> None:
    drafter = head("perm_eagle3", 4, n_ctx=window)
    loop, seq = perm_loop(drafter), SequenceState()
    text = perm_prompt(150)
    for size in (150, 20, 90):
        check_perfect(generate(loop, seq, text[:size], 30), 4)
        assert drafter.context is not None
        first, last = drafter.context.memory.positions(0)
        assert last - first < window + drafter.max_draft


@pytest.mark.parametrize("kv_unified", [False, True], ids=["streams", "unified"])
def test_a_window_for_each_sequence(kv_unified: bool) -> None:
    """Also where the target's sequences share a cache: the head's windows are all full at once."""
    drafter = head("perm_eagle3", 4, n_ctx=250)
    loop = perm_loop(drafter, n_ctx=2048, n_seq_max=4, kv_unified=kv_unified)
    for seq in [SequenceState(i) for i in range(4)]:
        check_perfect(generate(loop, seq, perm_prompt(400 + seq.seq_id, seed=seq.seq_id), 30), 4)


def test_until_the_context_is_full() -> None:
    loop = perm_loop(head("perm_eagle3", 7), n_ctx=64)
    run = generate(loop, SequenceState(), perm_prompt(20), 500)
    check_perfect(run, 7)
    assert run.finish_reason == "length"
    assert len(run.text) == 65  # the last token is known without being decoded


@pytest.mark.parametrize("kind", [Shifted, Permuted, NotANumber])
def test_rows_of_other_tokens_are_seen(kind: type[Tampered]) -> None:
    drafter = kind(model_path("perm_eagle3"), 4)
    run = generate(perm_loop(drafter), SequenceState(), perm_prompt(20), 40)
    assert run.tokens == perm_continuation(run.prompt[-1], 40, SUCCESSOR), "the text never shows it"
    assert run.stats.accepted == 0
    is_noticed = run.stats.reason_off is not None and "NaN" in run.stats.reason_off
    assert is_noticed == (kind is NotANumber)
    with pytest.raises(AssertionError):
        check_perfect(run)


def test_n_drafted_tokens_are_n_calls() -> None:
    """The first call feeds the accepted rows and no others, and is the first step of the draft."""
    drafter = head("perm_eagle3", 5)
    loop, seq = perm_loop(drafter), SequenceState()
    fed: list[tuple[int, bool]] = []
    pairs = drafter.memory_or_fail()
    decode = pairs.decode

    def count(batch: Batch) -> None:
        assert batch in (pairs._batch, drafter._step)
        fed.append((batch.n_tokens, batch is pairs._batch))
        decode(batch)

    pairs.decode = count  # type: ignore[method-assign]
    run = generate(loop, seq, perm_prompt(20), 19)
    prefill, rounds = fed[0], fed[1:]
    assert prefill == (19, True)
    assert [step.n_drafted for step in run.steps] == [0, 5, 5, 5]
    first = [(1, True)] + [(1, False)] * 4
    assert rounds == first + [(6, True), *first[1:]] * 2


class Half(Eagle3):
    """Right for two tokens, wrong from the third on."""

    def propose(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        """Two tokens of the head's, then nonsense."""
        drafts = [list(draft.ids) for draft in super().propose(requests)]
        return [Draft([*ids[:2], *[(i + 1) % 256 for i in ids[2:]]]) for ids in drafts]


def test_rejected_rows_cost_the_draft_nothing() -> None:
    drafter = Half(model_path("perm_eagle3"), 5)
    loop = perm_loop(drafter)
    run = generate(loop, SequenceState(), perm_prompt(20), 31)
    full = [step.n_accepted for step in run.steps if step.n_drafted == 5]
    assert full == [2] * len(full)
    n_rounds = sum(step.n_drafted > 0 for step in run.steps)
    assert drafter.n_calls == 1 + sum(step.n_drafted for step in run.steps)
    assert n_rounds > 5
