"""The cost of a round with a DFlash draft: two calls, the accepted rows, a short block."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pyllama_spec.drafters import DFlash, Draft, DraftRequest
from pyllama_spec.engine import Batch
from pyllama_spec.speculative import SequenceState
from tests.dflash_tools import KINDS
from tests.models import ENDOFTEXT, model_path
from tests.oracles import generate
from tests.perm_tools import check_perfect, perm, perm_loop, perm_prompt


class Counted:
    """Notes what a drafter's context decodes: rows or slots, and what the memory has after it."""

    def __init__(self, drafter: DFlash) -> None:
        self.calls: list[tuple[str, int]] = []
        memory = drafter.memory_or_fail()
        decode = memory.decode

        def count(batch: Batch) -> None:
            self.calls.append(("slots" if batch is memory._slots else "rows", batch.n_tokens))
            decode(batch)

        memory.decode = count  # type: ignore[method-assign]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 3, 6])
def test_a_round_is_two_calls(kind: str, n: int) -> None:
    """The calls feed as many rows as were accepted, and a block of the requested length."""
    whole = perm(**KINDS[kind])
    drafter = DFlash(whole.model, n)
    loop = perm_loop(drafter)
    counted = Counted(drafter)
    run = generate(loop, SequenceState(), perm_prompt(20), 3 * (n + 1) + 1)
    check_perfect(run, n)
    n_slots = n if drafter.block.guesses_behind else n + 1
    # The rows of the prompt were fed with it, so that the first round is one call alone.
    rounds = [("slots", n_slots)] + [("rows", n + 1), ("slots", n_slots)] * 2
    assert counted.calls == [("rows", 20), *rounds]
    assert drafter.n_calls == len(counted.calls)


class Half(DFlash):
    """Right for two tokens, wrong from the third on."""

    def propose(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        """Two guesses, then nonsense."""
        drafts = [list(draft.ids) for draft in super().propose(requests)]
        return [Draft([*ids[:2], *[(i + 1) % 256 for i in ids[2:]]]) for ids in drafts]


def test_rejected_rows_cost_the_draft_nothing() -> None:
    drafter = Half(model_path("perm_dflash", mask_token=ENDOFTEXT), 5)
    loop = perm_loop(drafter)
    counted = Counted(drafter)
    run = generate(loop, SequenceState(), perm_prompt(20), 31)
    full = [step.n_accepted for step in run.steps if step.n_drafted == 5]
    assert full == [2] * len(full)
    n_rounds = sum(step.n_drafted > 0 for step in run.steps)
    assert n_rounds > 5
    assert drafter.n_calls == 2 * n_rounds
    assert [n for what, n in counted.calls if what == "rows"] == [20] + [3] * (n_rounds - 1)
    assert {n for what, n in counted.calls[: 2 * len(full)] if what == "slots"} == {6}


def test_a_round_of_several_sequences_is_two_calls() -> None:
    drafter = perm()
    loop = perm_loop(drafter, n_ctx=1024, n_seq_max=4)
    seqs = [SequenceState(i) for i in range(4)]
    for seq in seqs:
        generate(loop, seq, perm_prompt(9 + seq.seq_id, seed=seq.seq_id), 5)
    counted = Counted(drafter)
    asked = [
        DraftRequest(seq.seq_id, seq.tokens, n) for seq, n in zip(seqs, (1, 4, 3, 2), strict=True)
    ]
    drafts = drafter.propose(asked)
    assert [len(draft.ids) for draft in drafts] == [1, 4, 3, 2]
    assert [what for what, _ in counted.calls] == ["rows", "slots"]
    assert counted.calls[1] == ("slots", 4 * 5)
    drafter.propose(asked)
    assert counted.calls[2:] == [("slots", 4 * 5)], "no row waits"
    for seq in seqs:
        assert drafter.context is not None
        assert drafter.context.memory.positions(seq.seq_id) == (0, len(seq.tokens) - 2)
