"""Acceptance is right, where only acceptance can tell: PERM with an MTP head that reads the row.

As in test_eagle3_acceptance.py, the head derives the next tokens from the row alone: every draft is
accepted if each pair is right, and none if it is not. Targets of hybrid architectures roll rejected
tokens back by snapshots.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from pyllama_spec import Llama
from pyllama_spec.drafters import Committed, Draft, DraftRequest, Features, Mtp
from pyllama_spec.drafters.mtp import HeadsMemory
from pyllama_spec.engine import Batch, Context
from pyllama_spec.speculative import Round, SequenceState, SpeculativeLoop
from tests.models import model_path, perm_continuation
from tests.models.mtp import MEANS_OF_STREAMS, READS_NORMED, SEVERAL
from tests.mtp_tools import (
    ARCHS,
    NotANumber,
    Permuted,
    Shifted,
    mtp_context,
    perm_loop,
    with_head,
)
from tests.oracles import cancel_at, generate
from tests.perm_tools import SUCCESSOR, check_perfect
from tests.tiers import release_except
from tests.traffic import Request, Traffic


def perm_prompt(n: int, seed: int = 0) -> list[int]:
    """Random single bytes: PERM continues from the last one."""
    return [int(i) for i in np.random.default_rng(seed).integers(0, 256, size=n)]


@pytest.mark.parametrize("arch", release_except(ARCHS, ("qwen35",)))
@pytest.mark.parametrize("k", release_except(tuple(range(1, 9)), (1, 4, 8)))
def test_chains(k: int, arch: str) -> None:
    loop = perm_loop(Mtp(max_draft=k), arch)
    run = generate(loop, SequenceState(), perm_prompt(20), 3 * (k + 1) + 1)
    check_perfect(run, k)
    assert run.stats.rounds == 3


@pytest.mark.parametrize("arch", release_except(ARCHS, ("qwen35",)))
@pytest.mark.parametrize("n_ubatch", release_except((12, 16, 32, 512), (12,)))
def test_prompts_around_ubatch_boundaries(n_ubatch: int, arch: str) -> None:
    loop = perm_loop(Mtp(max_draft=4), arch, n_batch=512, n_ubatch=n_ubatch, n_ctx=1200)
    seq = SequenceState()
    for size in sorted({1, 2, n_ubatch - 1, n_ubatch, n_ubatch + 1, 2 * n_ubatch + 1}):
        check_perfect(generate(loop, seq, perm_prompt(size, seed=size), 12), 4)


@pytest.mark.parametrize("arch", release_except(ARCHS, ("qwen35",)))
@pytest.mark.parametrize("n_seqs", release_except(tuple(range(1, 9)), (3,)))
@pytest.mark.parametrize("kv_unified", [False, True], ids=["streams", "unified"])
def test_sequences_of_unequal_length(n_seqs: int, kv_unified: bool, arch: str) -> None:
    loop = perm_loop(Mtp(max_draft=4), arch, n_ctx=1024, n_seq_max=n_seqs, kv_unified=kv_unified)
    seqs = [SequenceState(i) for i in range(n_seqs)]
    texts = [perm_prompt(3 + 7 * i, seed=i) for i in range(n_seqs)]
    for _ in range(2):  # each comes back to its own conversation, after all the others
        for seq in seqs:
            run = generate(loop, seq, texts[seq.seq_id], 9 + seq.seq_id)
            check_perfect(run)
            texts[seq.seq_id] = run.text + perm_prompt(5, seed=99 + seq.seq_id)


@pytest.mark.parametrize("arch", release_except(ARCHS, ("qwen35",)))
@pytest.mark.parametrize("n_seqs", release_except((1, 2, 4, 8), (4,)))
def test_rounds_that_sequences_share(n_seqs: int, arch: str) -> None:
    """One call of the head drafts for all sequences, each from its own row."""
    requests = [
        Request(tuple(perm_prompt(3 + 7 * i % 40, seed=i)), 5 + 11 * i % 37, arrival=i // 2)
        for i in range(3 * n_seqs)
    ]
    texts = [perm_continuation(r.prompt[-1], r.max_tokens, SUCCESSOR) for r in requests]
    drafter = Mtp(max_draft=4)
    with mtp_context(
        with_head("perm_mtp", arch=arch), drafter, n_ctx=128 * n_seqs, n_seq_max=n_seqs,
        n_batch=256,
    ) as context:  # fmt: skip
        traffic = Traffic(Round(context, drafter), requests, texts, n_seqs)
        answers = traffic.serve()
        traffic.check()
    for answer in answers:
        assert answer.stats.accepted == answer.stats.drafted
        assert answer.stats.reason_off is None
    assert sum(answer.stats.drafted for answer in answers) > 20 * n_seqs
    drafter.close()


@pytest.mark.parametrize("arch", release_except(ARCHS, ("qwen35", "glm5-next")))
@pytest.mark.parametrize("kv_unified", [False, True], ids=["streams", "unified"])
def test_a_shared_cached_prefix(kv_unified: bool, arch: str) -> None:
    loop = perm_loop(Mtp(max_draft=4), arch, n_ctx=1024, n_seq_max=4, kv_unified=kv_unified)
    first = SequenceState()
    run = generate(loop, first, perm_prompt(40), 20)
    for seq in [loop.fork(first, i) for i in range(1, 4)]:
        shared = run.text[: 50 - seq.seq_id]
        check_perfect(generate(loop, seq, shared + perm_prompt(3, seed=seq.seq_id), 15))
    check_perfect(generate(loop, first, run.text + perm_prompt(2), 15))


@pytest.mark.parametrize("arch", release_except(ARCHS, ("qwen35",)))
@pytest.mark.parametrize("cut", release_except((0, 1, 2, 5, 31, 32, 33, 50), (0, 1, 5, 33)))
def test_a_conversation_that_goes_on_before_its_end(cut: int, arch: str) -> None:
    loop, seq = perm_loop(Mtp(max_draft=5), arch), SequenceState()
    run = generate(loop, seq, perm_prompt(40), 31)
    kept = run.text[: len(run.text) - cut]
    check_perfect(generate(loop, seq, [*kept, 7, 8], 22), 5)
    # And the very same prompt again.
    check_perfect(generate(loop, seq, [*kept, 7, 8], 22), 5)


@pytest.mark.parametrize("arch", release_except(ARCHS, ("qwen35",)))
@pytest.mark.parametrize("window", [None, 24])
def test_after_save_and_restore(arch: str, window: int | None) -> None:
    path, prompt = model_path("perm_mtp", arch=arch), perm_prompt(40)

    def opened() -> Llama:
        drafter = Mtp(max_draft=3, n_ctx=window)
        return Llama(path, draft=drafter, n_ctx=512, controller="fixed", n_threads=1)

    with opened() as llm:
        llm.create_completion(prompt, max_tokens=21, temperature=0)
        state = llm.save_state()
        llm.create_completion(perm_prompt(90, seed=5), max_tokens=9, temperature=0)
        assert state.drafter is not None
        for other in (llm, opened()):
            other.load_state(state)
            answer = other.create_completion([*state.tokens, 5], max_tokens=21, temperature=0)
            assert answer["speculation"]["accepted"] == answer["speculation"]["drafted"] > 0


@pytest.mark.parametrize("at", release_except((1, 2, 3), (2,)))
def test_after_a_cancel(at: int) -> None:
    loop, seq = perm_loop(Mtp(max_draft=4)), SequenceState()
    prompt = perm_prompt(20)
    cancel_at(loop, seq, prompt, at)
    check_perfect(generate(loop, seq, [*prompt, 9], 20), 4)


@pytest.mark.parametrize("window", release_except((1, 5, 24, 64), (5,)))
def test_a_window_shorter_than_the_text(window: int) -> None:
    drafter = Mtp(max_draft=4, n_ctx=window)
    loop, seq = perm_loop(drafter), SequenceState()
    text = perm_prompt(150)
    for size in (150, 20, 90):
        check_perfect(generate(loop, seq, text[:size], 30), 4)
        assert drafter.context is not None
        first, last = drafter.context.memory.positions(0)
        assert last - first < window + drafter.max_draft


@pytest.mark.parametrize("n_ubatch", release_except((12, 32), (32,)))
@pytest.mark.parametrize("window", release_except((20, 64, 200), (20,)))
def test_a_prompt_is_not_read_twice_behind_a_window(window: int, n_ubatch: int) -> None:
    """Rows that left the window before the end of the prompt are never fed, in any turn."""
    drafter = Mtp(max_draft=4, n_ctx=window)
    loop, seq = perm_loop(drafter, n_ctx=1200, n_ubatch=n_ubatch), SequenceState()
    pairs, fed = drafter.memory_or_fail(), 0
    decode = pairs.decode

    def count(batch: Batch) -> None:
        nonlocal fed
        fed += batch.n_tokens
        decode(batch)

    pairs.decode = count  # type: ignore[method-assign]
    text, more = perm_prompt(700), perm_prompt(300, seed=1)
    said = perm_continuation(text[-1], 5, SUCCESSOR)
    # A long prompt, one that goes on in the answer, another text, and the first one's beginning.
    for prompt in (text, [*text, *said, 9, *more], [7, *more, *text], text[:650]):
        fed = 0
        check_perfect(generate(loop, seq, prompt, 25), 4)
        # Of the text behind the prompt each token at most once, and once more as a guess.
        assert fed <= window + 2 * 25 + 1
        rows = pairs.of(0).rows
        assert rows.end - rows.start <= 64


class BeyondTheNorm(Mtp):
    """A head that is given the row on the other side of the final norm than the one it reads.

    PERM's norm has the weights -1.
    """

    _context: Context | None = None

    def attach(self, target: Context) -> None:
        """Remembers where the other rows are."""
        super().attach(target)
        self._context = target

    def commit(self, done: Sequence[Committed]) -> None:
        """Passes the rows of the other side of the norm."""
        super().commit([one._replace(features=self._others(one.features)) for one in done])

    def _others(self, features: Features) -> Features:
        if not features:
            return features
        assert self._context is not None
        info = self._context.model.info
        if info.arch not in READS_NORMED or info.arch in MEANS_OF_STREAMS:
            rows = np.array(features[0])
            return [-rows / np.sqrt(np.mean(rows**2, axis=1, keepdims=True))]
        rows = self._context.layer_input(info.n_layer)
        first: int = features.first  # type: ignore[attr-defined]
        return [rows[first : first + len(features[0])]]


class Stale(Mtp):
    """A head that gets the rows of the previous batch, as without synchronisation."""

    _last: Features = ()

    def commit(self, done: Sequence[Committed]) -> None:
        """Passes the rows of the last call."""
        told = []
        for one in done:
            if one.features:
                n, rows = len(one.features[0]), np.array(one.features[0])
                old = np.resize(self._last[0], rows.shape) if self._last else np.zeros_like(rows)
                self._last = [rows]
                assert len(old) == n
                told.append(one._replace(features=[old]))
            else:
                told.append(one)
        super().commit(told)


@pytest.mark.parametrize("arch", release_except(ARCHS, ("qwen35",)))
@pytest.mark.parametrize("kind", [Shifted, Permuted, NotANumber, BeyondTheNorm, Stale])
def test_rows_of_other_tokens_are_seen(kind: type[Mtp], arch: str) -> None:
    drafter = kind(max_draft=4)
    layers = drafter.target_layers
    if kind is BeyondTheNorm and arch in READS_NORMED - MEANS_OF_STREAMS:
        layers = (*layers, with_head("perm_mtp", arch=arch).info.n_layer)
    run = generate(
        perm_loop(drafter, arch, target_layers=layers), SequenceState(), perm_prompt(20), 40
    )
    assert run.tokens == perm_continuation(run.prompt[-1], 40, SUCCESSOR), "the text never shows it"
    assert run.stats.accepted == 0
    is_noticed = run.stats.reason_off is not None and "NaN" in run.stats.reason_off
    assert is_noticed == (kind is NotANumber)
    with pytest.raises(AssertionError):
        check_perfect(run)


@pytest.mark.parametrize("arch", release_except(SEVERAL, ("hy_v3",)))
def test_each_of_several_heads_is_right_at_its_own_place(arch: str) -> None:
    """Each head is right only in its own place: the first head alone gets one token right."""
    model = with_head("perm_mtp", arch=arch, n_heads=3)
    for is_first_alone in (False, True):
        drafter = Mtp(max_draft=8)
        loop = SpeculativeLoop(mtp_context(model, drafter), drafter)
        memory = drafter.memory_or_fail()
        assert isinstance(memory, HeadsMemory)
        if is_first_alone:
            for head in memory._heads:
                head._batch.head = 0
        run = generate(loop, SequenceState(), perm_prompt(20), 41)
        if not is_first_alone:
            check_perfect(run, 3)
            continue
        full = [step.n_accepted for step in run.steps if step.n_drafted == 3]
        assert full == [1] * len(full)
        assert len(full) > 10


class Half(Mtp):
    """Right for two tokens, wrong from the third on."""

    def propose(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        """Two tokens of the head's, then nonsense."""
        drafts = [list(draft.ids) for draft in super().propose(requests)]
        return [Draft([*ids[:2], *[(i + 1) % 256 for i in ids[2:]]]) for ids in drafts]


def test_rejected_rows_cost_the_draft_nothing() -> None:
    drafter = Half(max_draft=5)
    run = generate(perm_loop(drafter), SequenceState(), perm_prompt(20), 31)
    full = [step.n_accepted for step in run.steps if step.n_drafted == 5]
    assert full == [2] * len(full)
    assert drafter.n_calls == 1 + sum(step.n_drafted for step in run.steps)
    assert sum(step.n_drafted > 0 for step in run.steps) > 5
