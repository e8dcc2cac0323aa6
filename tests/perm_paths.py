"""Ways to come to a text, on each of which a draft that knows PERM has every token accepted.

A path gets the kind and a function that makes its drafter, so that a test can pass a faulty
drafter, and see the path fail.
"""

from __future__ import annotations

from collections.abc import Callable

from pyllama_spec.speculative import Round, SequenceState
from tests.models import perm_continuation
from tests.oracles import generate
from tests.perm_tools import SUCCESSOR, check_perfect
from tests.row_drafts import AnyDrafter, RowDraft, opened
from tests.traffic import Request, Traffic

Make = Callable[[], AnyDrafter]
Path = Callable[[RowDraft, Make], None]


def along_rounds(kind: RowDraft, make: Make) -> None:
    """A single text."""
    check_perfect(generate(kind.perm_loop(make()), SequenceState(), kind.perm_prompt(20), 40))


def along_ubatches(kind: RowDraft, make: Make) -> None:
    """Prompts around the sizes of batches."""
    for n_ubatch in kind.n_ubatches:
        loop, seq = kind.perm_loop(make(), n_batch=64, n_ubatch=n_ubatch), SequenceState()
        for size in (9, 31, 32, 33, 64, 65):
            check_perfect(generate(loop, seq, kind.perm_prompt(size, seed=size), 12))


def along_a_conversation(kind: RowDraft, make: Make) -> None:
    """A text that continues from before its end, and the same again."""
    loop, seq = kind.perm_loop(make()), SequenceState()
    run = generate(loop, seq, kind.perm_prompt(40), 31)
    for cut in (0, 1, 2, 5, 31, 32, 33, 50):
        kept = run.text[: len(run.text) - cut]
        for _ in range(2):
            check_perfect(generate(loop, seq, kept, 22))
        for _ in range(2):
            check_perfect(generate(loop, seq, kind.further(kept, 3), 22))
        run = generate(loop, seq, kind.perm_prompt(40), 31)


def along_restored_states(kind: RowDraft, make: Make) -> None:
    """Saved, then others, then there again and in another context."""
    loop, seq = kind.perm_loop(make()), SequenceState()
    run = generate(loop, seq, kind.perm_prompt(40), 21)
    saved, state = loop.target.memory.save(), loop.drafter.save(0)
    generate(loop, seq, kind.perm_prompt(60, seed=5), 9)
    for into in (loop, kind.perm_loop(make())):
        into.target.memory.restore(0, saved)
        into.drafter.restore(0, state, len(run.text))
        there = SequenceState(0, list(run.text), len(run.text) - 1)
        check_perfect(generate(into, there, kind.further(run.text, 1), 21))


def along_forks(kind: RowDraft, make: Make) -> None:
    """Copies that go on from the text, and from before its end."""
    for kv_unified in (False, True):
        loop = kind.perm_loop(make(), n_ctx=1024, n_seq_max=4, kv_unified=kv_unified)
        first = SequenceState()
        run = generate(loop, first, kind.perm_prompt(40), 20)
        for i in range(1, 4):
            seq = loop.fork(first, i)
            assert loop.target.memory.positions(i)[1] == len(run.text) - 2
            shared = run.text[: 52 - i]
            check_perfect(generate(loop, seq, shared if i % 2 else kind.further(shared, 3), 15))
        check_perfect(generate(loop, first, kind.further(run.text, 2), 15))


def along_sequences_in_turn(kind: RowDraft, make: Make) -> None:
    """Each comes back to its own conversation, after all the others."""
    for kv_unified in (False, True):
        for n_seqs in (1, 2, 5, 8):
            loop = kind.perm_loop(make(), n_ctx=1024, n_seq_max=n_seqs, kv_unified=kv_unified)
            texts = [kind.perm_prompt(9 + 7 * i, seed=i) for i in range(n_seqs)]
            for seq in [SequenceState(i) for i in range(n_seqs)] * 2:
                run = generate(loop, seq, texts[seq.seq_id], 9 + seq.seq_id)
                check_perfect(run)
                texts[seq.seq_id] = kind.further(run.text, 5)


def along_shared_rounds(kind: RowDraft, make: Make) -> None:
    """Drafts of 1 to 8 sequences in one decode, of which each has another length left."""
    for n_seqs in range(1, 9):
        requests = [
            Request(
                tuple(kind.perm_prompt(9 + 7 * i % 40, seed=i)), 5 + 11 * i % 37, arrival=i // 2
            )
            for i in range(2 * n_seqs)
        ]
        texts = [perm_continuation(r.prompt[-1], r.max_tokens, SUCCESSOR) for r in requests]
        drafter = make()
        with kind.context(
            opened(kind.perm_target()), drafter, n_ctx=128 * n_seqs, n_seq_max=n_seqs, n_batch=256,
            kv_unified=n_seqs % 2 == 0,
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
    along_rounds, along_ubatches, along_a_conversation, along_restored_states, along_forks,
    along_sequences_in_turn, along_shared_rounds,
)  # fmt: skip
