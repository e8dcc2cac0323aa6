"""Acceptance is right, where only acceptance can tell: PERM with drafts that read rows alone.

The text of a target does not depend on its draft, so that a row which belongs to another token is
seen in nothing but acceptance. The drafts here know the next tokens from the newest row, or, if
they read a spread, each from another row: every guess is accepted if each row is where it belongs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pyllama_spec import Llama
from pyllama_spec.drafters import DFlash, Draft, DraftRequest
from pyllama_spec.errors import CancelledError
from pyllama_spec.speculative import Round, SequenceState
from tests import perm_tools
from tests.dflash_tools import (
    KINDS,
    NotANumber,
    Permuted,
    Shifted,
    Swapped,
)
from tests.models import ENDOFTEXT, model_path, perm_continuation
from tests.oracles import GREEDY, generate, make_sampler, tiny, tiny_context
from tests.perm_tools import SUCCESSOR, check_perfect, further, perm, perm_loop, perm_prompt
from tests.traffic import Request, Traffic

READS = ("newest", "spread")


# ---- all paths, with the drafter that the test is given: what checks a path is checked itself


def along_blocks(make: Callable[[], DFlash]) -> None:
    """Rounds of whole blocks."""
    loop = perm_loop(make())
    check_perfect(generate(loop, SequenceState(), perm_prompt(20), 40))


def along_ubatches(make: Callable[[], DFlash]) -> None:
    """Prompts around the sizes of batches."""
    for n_ubatch in (1, 7, 32):
        loop, seq = perm_loop(make(), n_batch=64, n_ubatch=n_ubatch), SequenceState()
        for size in (9, 31, 32, 33, 64, 65):
            check_perfect(generate(loop, seq, perm_prompt(size, seed=size), 12))


def along_a_conversation(make: Callable[[], DFlash]) -> None:
    """A text that goes on before its end, and the same again."""
    loop, seq = perm_loop(make()), SequenceState()
    run = generate(loop, seq, perm_prompt(40), 31)
    for cut in (0, 1, 2, 5, 31, 33, 50):
        kept = run.text[: len(run.text) - cut]
        for _ in range(2):
            check_perfect(generate(loop, seq, kept, 22))
        check_perfect(generate(loop, seq, further(kept, 3), 22))
        run = generate(loop, seq, perm_prompt(40), 31)


def along_restored_states(make: Callable[[], DFlash]) -> None:
    """Saved, then others, then there again and in another context."""
    loop, seq = perm_loop(make()), SequenceState()
    run = generate(loop, seq, perm_prompt(40), 21)
    saved, state = loop.target.memory.save(), loop.drafter.save(0)
    generate(loop, seq, perm_prompt(60, seed=5), 9)
    for into in (loop, perm_loop(make())):
        into.target.memory.restore(0, saved)
        into.drafter.restore(0, state)
        there = SequenceState(0, list(run.text), len(run.text) - 1)
        check_perfect(generate(into, there, further(run.text, 1), 21))


def along_forks(make: Callable[[], DFlash]) -> None:
    """Copies that go on from the text, and from before its end."""
    for kv_unified in (False, True):
        loop = perm_loop(make(), n_ctx=1024, n_seq_max=4, kv_unified=kv_unified)
        first = SequenceState()
        run = generate(loop, first, perm_prompt(40), 20)
        for i in range(1, 4):
            check_perfect(generate(loop, loop.fork(first, i), run.text[: 52 - i], 15))
        check_perfect(generate(loop, first, further(run.text, 2), 15))


def along_sequences_in_turn(make: Callable[[], DFlash]) -> None:
    """Each comes back to its own conversation, after all the others."""
    for kv_unified in (False, True):
        loop = perm_loop(make(), n_ctx=1024, n_seq_max=8, kv_unified=kv_unified)
        texts = [perm_prompt(9 + 7 * i, seed=i) for i in range(8)]
        for seq in [SequenceState(i) for i in range(8)] * 2:
            run = generate(loop, seq, texts[seq.seq_id], 9 + seq.seq_id)
            check_perfect(run)
            texts[seq.seq_id] = further(run.text, 5)


def along_shared_rounds(make: Callable[[], DFlash]) -> None:
    """Blocks of 1 to 8 sequences in one decode, of which each has another length left."""
    for n_seqs in range(1, 9):
        requests = [
            Request(tuple(perm_prompt(9 + 7 * i % 40, seed=i)), 5 + 11 * i % 37, arrival=i // 2)
            for i in range(2 * n_seqs)
        ]
        texts = [perm_continuation(r.prompt[-1], r.max_tokens, SUCCESSOR) for r in requests]
        drafter = make()
        with tiny_context(
            tiny("perm"), n_ctx=128 * n_seqs, n_seq_max=n_seqs, n_batch=256,
            kv_unified=n_seqs % 2 == 0, target_layers=drafter.target_layers,
        ) as context:  # fmt: skip
            traffic = Traffic(Round(context, drafter), requests, texts, n_seqs)
            answers = traffic.serve()
            traffic.check()
        for answer in answers:
            assert answer.stats.reason_off is None
            assert answer.stats.accepted == answer.stats.drafted
        assert sum(answer.stats.drafted for answer in answers) > 10 * n_seqs
        drafter.close()


PATHS = (
    along_blocks, along_ubatches, along_a_conversation, along_restored_states, along_forks,
    along_sequences_in_turn, along_shared_rounds,
)  # fmt: skip


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("path", PATHS)
def test_all_is_accepted(path: Callable[[Callable[[], DFlash]], None], read: str) -> None:
    path(lambda: perm(read))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_all_is_accepted_of_every_kind(kind: str) -> None:
    for path in (along_blocks, along_a_conversation, along_shared_rounds):
        path(lambda: perm(**KINDS[kind]))


@pytest.mark.parametrize("fault", [Shifted, Permuted, NotANumber, Swapped])
@pytest.mark.parametrize("path", PATHS)
def test_each_path_sees_wrong_rows(
    path: Callable[[Callable[[], DFlash]], None],
    fault: type[Shifted | Permuted | NotANumber | Swapped],
) -> None:
    """The tests above fail, one by one, for a fault in what the draft is told."""
    with pytest.raises(AssertionError):
        path(lambda: fault(model_path("perm_dflash", mask_token=ENDOFTEXT)))


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("off", [-1, 1])
def test_each_path_sees_another_layer(
    path: Callable[[Callable[[], DFlash]], None], off: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a target whose layers say different things, and layer ids off by one."""
    stepping = tiny("perm", stepping=True)
    for module in (sys.modules[__name__], perm_tools):
        monkeypatch.setattr(module, "tiny", lambda _: stepping)

    def make(layer: int) -> DFlash:
        drafter = perm(stepping=True, target_layers=(2,))
        drafter.target_layers = (layer,)
        return drafter

    path(lambda: make(2))
    with pytest.raises(AssertionError):
        path(lambda: make(2 + off))


@pytest.mark.parametrize("fault", [Shifted, Permuted, NotANumber, Swapped])
def test_rows_of_other_tokens_are_seen(
    fault: type[Shifted | Permuted | NotANumber | Swapped],
) -> None:
    drafter = fault(model_path("perm_dflash", mask_token=ENDOFTEXT))
    run = generate(perm_loop(drafter), SequenceState(), perm_prompt(20), 40)
    assert run.tokens == perm_continuation(run.prompt[-1], 40, SUCCESSOR), "the text never shows it"
    # The rows of one token cannot be swapped.
    assert run.stats.accepted == 0 or fault is Swapped
    assert run.stats.accepted < run.stats.drafted or fault is NotANumber
    is_noticed = run.stats.reason_off is not None and "NaN" in run.stats.reason_off
    assert is_noticed == (fault is NotANumber)


# ---- what else there is to a text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block_size", [2, 3, 8, 12])
def test_blocks_of_every_length(kind: str, block_size: int) -> None:
    whole = perm(block_size=block_size, **KINDS[kind])
    most = whole.max_draft
    assert most == block_size - 1 + whole.block.guesses_behind
    for k in range(1, most + 1):
        loop = perm_loop(DFlash(whole.model, k))
        run = generate(loop, SequenceState(), perm_prompt(20), 3 * (k + 1) + 1)
        check_perfect(run, k)
        assert run.stats.rounds == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"reduced": True},
        {"reduced": True, **KINDS["dflash2"]},
        {"reduced": True, **KINDS["dspark"]},
        {"target_layers": (0, 2, 4)},
        {"target_layers": (4,)},
        {"causal": True},
        {"sliding_window": 17},
        {"sliding_window": 17, "window_pattern": (True, False)},
    ],
    ids=str,
)
def test_kinds_of_drafts(options: dict[str, Any]) -> None:
    for path in (along_blocks, along_a_conversation):
        path(lambda: perm(**options))


@pytest.mark.parametrize("n_steps", [0, 1, 3])
def test_after_a_closed_stream(n_steps: int) -> None:
    loop, seq = perm_loop(perm()), SequenceState()
    prompt = perm_prompt(20)
    loop.prefill(seq, prompt)
    steps = loop.generate(seq, make_sampler(loop.target.model, GREEDY, prompt), 60)
    for _ in range(n_steps):
        next(steps)
    steps.close()  # type: ignore[attr-defined]
    check_perfect(generate(loop, seq, list(seq.tokens), 20))
    check_perfect(generate(loop, seq, further(prompt, 1), 20))


@pytest.mark.parametrize("at", [1, 2, 3])
def test_after_a_cancel(at: int) -> None:
    loop, seq = perm_loop(perm()), SequenceState()
    prompt = perm_prompt(20)
    loop.prefill(seq, prompt)
    steps = loop.generate(seq, make_sampler(loop.target.model, GREEDY, prompt), 60)
    for _ in range(at):
        next(steps)
    loop.target.cancel()
    with pytest.raises(CancelledError):
        next(steps)
    loop.target.cancel(False)
    check_perfect(generate(loop, seq, further(prompt, 1), 20))


class Failing(DFlash):
    """Fails once, after it has computed."""

    n_left = 2

    def propose(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        """May fail."""
        drafts = super().propose(requests)
        self.n_left -= 1
        if self.n_left == 0:
            raise RuntimeError("injected")
        return drafts


def test_after_a_failure_of_the_drafter() -> None:
    loop, seq = perm_loop(Failing(model_path("perm_dflash", mask_token=ENDOFTEXT))), SequenceState()
    run = generate(loop, seq, perm_prompt(30), 40)
    assert run.tokens == perm_continuation(run.prompt[-1], 40, SUCCESSOR)
    assert "injected" in str(run.stats.reason_off)
    check_perfect(generate(loop, seq, further(run.text, 1), 20), 7)


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("window", [9, 24, 64])
def test_a_window_shorter_than_the_text(window: int, read: str) -> None:
    drafter = perm(read, n_ctx=window)
    loop, seq = perm_loop(drafter), SequenceState()
    text = perm_prompt(150)
    for size in (150, 20, 90):
        check_perfect(generate(loop, seq, text[:size], 30), 7)
        assert drafter.context is not None
        first, last = drafter.context.memory.positions(0)
        assert last - first < window + drafter.max_draft


@pytest.mark.parametrize("kv_unified", [False, True], ids=["streams", "unified"])
def test_a_window_for_each_sequence(kv_unified: bool) -> None:
    drafter = perm(n_ctx=250)
    loop = perm_loop(drafter, n_ctx=2048, n_seq_max=4, kv_unified=kv_unified)
    for seq in [SequenceState(i) for i in range(4)]:
        check_perfect(generate(loop, seq, perm_prompt(400 + seq.seq_id, seed=seq.seq_id), 30), 7)


def test_until_the_context_is_full() -> None:
    run = generate(perm_loop(perm(), n_ctx=64), SequenceState(), perm_prompt(20), 500)
    check_perfect(run, 7)
    assert run.finish_reason == "length"
    assert len(run.text) == 65  # the last token is known without being decoded


def test_two_alternating_chats() -> None:
    with Llama(
        model_path("perm"),
        draft=model_path("perm_dflash", mask_token=ENDOFTEXT),
        n_ctx=512,
        lookup=0,
        controller="fixed",
        n_threads=1,
    ) as llm:
        chats = [perm_prompt(30, seed=1), perm_prompt(41, seed=2)]
        for _ in range(4):
            for i, chat in enumerate(chats):
                stats = llm.create_completion(chat, max_tokens=11, temperature=0)["speculation"]
                assert stats["drafter"] == "dflash"
                assert stats["accepted"] == stats["drafted"] > 0
                chats[i] = further(chat, 15)
