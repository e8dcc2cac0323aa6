"""Acceptance of DFlash drafts for PERM: several rows at once, block lengths, layers, the calls.

The drafts of test_row_draft_acceptance.py read the next tokens from the newest row. These read each
token from another row: all are accepted if all rows are in their places.
"""

from __future__ import annotations

from typing import Any

import pytest

from pyllama_spec.drafters import DFlash, DraftRequest
from pyllama_spec.engine import Batch
from pyllama_spec.speculative import SequenceState
from tests.dflash_tools import KINDS
from tests.models import model_path
from tests.oracles import generate
from tests.perm_paths import PATHS, Path, along_a_conversation, along_rounds, along_shared_rounds
from tests.perm_tools import check_perfect, perm, perm_loop, perm_prompt
from tests.row_drafts import ROW_DRAFTS

KIND = ROW_DRAFTS["dflash"]


@pytest.mark.parametrize("path", PATHS)
def test_all_of_a_spread_is_accepted(path: Path) -> None:
    path(KIND, lambda: perm("spread"))


@pytest.mark.parametrize("path", PATHS)
def test_each_path_sees_rows_of_a_batch_in_another_order(path: Path) -> None:
    with pytest.raises(AssertionError):
        path(KIND, lambda: KIND.faulty("Swapped"))


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("off", [-1, 1])
def test_each_path_sees_another_layer(
    path: Path, off: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target's layers say different things, and the layer ids are off by one."""
    stepping = model_path("perm", stepping=True)
    monkeypatch.setattr(type(KIND), "perm_target", lambda _: stepping)
    assert KIND.perm_target() == stepping

    def make(layer: int) -> DFlash:
        drafter = perm(stepping=True, target_layers=(2,))
        drafter.target_layers = (layer,)
        return drafter

    path(KIND, lambda: make(2))
    with pytest.raises(AssertionError):
        path(KIND, lambda: make(2 + off))


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
        *KINDS.values(),
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
    for path in (along_rounds, along_a_conversation, along_shared_rounds):
        path(KIND, lambda: perm(**options))


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
