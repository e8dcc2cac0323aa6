"""Acceptance is right, where only acceptance can tell: PERM with drafts that read rows alone.

A target's text does not depend on its draft, so only acceptance shows a row of another token. The
drafts here derive the next tokens from the rows alone: every one is accepted if each row is in its
place, and none if it is not. This is the contract of every kind in tests/row_drafts.py; for one
kind alone see test_dflash_paths.py and test_mtp_acceptance.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pyllama_spec import Llama
from pyllama_spec.drafters import Committed, Draft, DraftRequest
from pyllama_spec.engine import Batch
from pyllama_spec.speculative import SequenceState
from tests.oracles import cancel_at, generate
from tests.row_drafts import (
    PATHS,
    READ_ROWS,
    ROW_DRAFTS,
    RowDraft,
    Way,
    along_a_conversation,
    along_rounds,
    along_sequences_in_turn,
    along_shared_rounds,
    along_ubatches,
    context_of,
    each_kind,
    each_that_reads_rows,
    marked,
    memory_of,
)

# What takes seconds with each sequence of each head.
_LONG_PATHS = (along_ubatches, along_sequences_in_turn, along_shared_rounds)
each_path = pytest.mark.parametrize(
    ("name", "path"),
    [
        marked(name, path, is_release=ROW_DRAFTS[name].tier != "" and path in _LONG_PATHS)
        for name in ROW_DRAFTS
        for path in PATHS
    ],
)


@each_path
def test_all_is_accepted(path: Way, name: str) -> None:
    kind = ROW_DRAFTS[name]
    path(kind, kind.perm)


@each_path
def test_each_path_sees_a_fault(path: Way, name: str) -> None:
    """Each of the tests above fails for a fault in the draft's input."""
    kind = ROW_DRAFTS[name]
    for fault in kind.faults:
        with pytest.raises(AssertionError):
            path(kind, lambda fault=fault: kind.faulty(fault))  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "k"),
    [marked(name, k) for name, kind in ROW_DRAFTS.items() for k in kind.perm_lengths],
)
def test_drafts_of_each_length(name: str, k: int) -> None:
    kind = ROW_DRAFTS[name]
    loop = kind.perm_loop(kind.perm(k))
    run = generate(loop, SequenceState(), kind.perm_prompt(20), 3 * (k + 1) + 1)
    kind.check_perfect(run, k)
    assert run.stats.rounds == 3


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param(name, options, marks=[pytest.mark.slow] if i else [])
        for name, kind in ROW_DRAFTS.items()
        for i, options in enumerate(kind.perm_variants)
    ],
    ids=str,
)
def test_variants_of_a_kind(name: str, options: dict[str, Any]) -> None:
    kind = ROW_DRAFTS[name]
    for path in (along_rounds, along_a_conversation, along_shared_rounds):
        path(kind, lambda: kind.open(kind.perm_path(**options)))


@pytest.mark.parametrize("name", [marked(name) for name in READ_ROWS if name != "several heads"])
def test_rejected_rows_cost_the_draft_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of drafts that are wrong from the third token on, the accepted rows alone are fed."""
    kind = ROW_DRAFTS[name]
    drafter, sizes = kind.perm(), list[int]()
    loop, memory = kind.perm_loop(drafter), memory_of(drafter)
    propose, decode = drafter.propose, memory.decode

    def half(requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        drafts = [list(draft.ids) for draft in propose(requests)]
        return [Draft([*ids[:2], *((i + 1) % 256 for i in ids[2:])]) for ids in drafts]

    def counted(batch: Batch) -> None:
        sizes.append(batch.n_tokens)
        decode(batch)

    monkeypatch.setattr(drafter, "propose", half)
    monkeypatch.setattr(memory, "decode", counted)
    rounds = [
        step
        for step in generate(loop, SequenceState(), kind.perm_prompt(20), 31).steps
        if step.n_drafted
    ]
    full = [step.n_accepted for step in rounds if step.n_drafted == kind.n_perm]
    assert full == [2] * len(full)
    assert len(full) > 5
    # An MTP head has a pair for the first token too.
    n_rows = 20 + (name == "mtp") + sum(len(step.tokens) for step in rounds[:-1])
    n_drafted = sum(step.n_drafted for step in rounds)
    if name == "dflash":  # a block has the pending token and the masks
        assert sum(sizes) == n_rows + n_drafted + len(rounds)
        assert drafter.n_calls == len(sizes) == 2 * len(rounds)
    else:  # the call that feeds the rows is the first step
        assert sum(sizes) == n_rows + n_drafted - len(rounds)
        assert drafter.n_calls == len(sizes) == 1 + n_drafted


# ---- what else there is to a text


@each_kind
@pytest.mark.parametrize("at", [1, 2, 3])
def test_after_a_cancel(name: str, at: int) -> None:
    kind = ROW_DRAFTS[name]
    loop, seq, prompt = kind.perm_loop(kind.perm()), SequenceState(), kind.perm_prompt(20)
    cancel_at(loop, seq, prompt, at)
    kind.check_perfect(generate(loop, seq, kind.further(prompt, 1), 20))


@each_that_reads_rows
@pytest.mark.parametrize("window", [1, 9, 24, 64])
def test_a_window_shorter_than_the_text(name: str, window: int) -> None:
    kind = ROW_DRAFTS[name]
    drafter = kind.perm(n_ctx=window)
    loop, seq = kind.perm_loop(drafter), SequenceState()
    text = kind.perm_prompt(150)
    for size in (150, 20, 90):
        kind.check_perfect(generate(loop, seq, text[:size], 30), kind.n_perm)
        first, last = context_of(drafter).memory.positions(0)
        assert last - first < window + drafter.max_draft


def perm_llama(kind: RowDraft, **options: Any) -> Llama:
    """PERM with the draft, each of whose tokens is verified."""
    values = {"n_ctx": 512, "lookup": 0, "controller": "fixed", "n_threads": 1, **options}
    return Llama(kind.perm_target(), draft=kind.perm_draft(), **values)


@pytest.mark.parametrize(
    ("name", "window"),
    [marked(name, w) for name in ROW_DRAFTS for w in (None, 24) if w is None or name in READ_ROWS],
)
def test_a_saved_state_is_not_read_again(name: str, window: int | None) -> None:
    """Through Llama, in the same one and in another: the draft continues where it ended."""
    kind = ROW_DRAFTS[name]
    options = {"draft_n_ctx": window}
    with perm_llama(kind, **options) as llm, perm_llama(kind, **options) as second:
        llm.create_completion(kind.perm_prompt(40), max_tokens=21, temperature=0)
        state = llm.save_state()
        llm.create_completion(kind.perm_prompt(90, seed=5), max_tokens=9, temperature=0)
        assert state.drafter is not None
        goes_on = kind.further(state.tokens, 1)
        for other in (llm, second):
            other.load_state(state)
            told = spied_commit(other)
            stats = other.create_completion(goes_on, max_tokens=21, temperature=0)["speculation"]
            assert stats["accepted"] == stats["drafted"] > 0
            # The last token was pending; all before it is there and not read again.
            n_known = len(state.tokens) - 1
            assert told[0] == (n_known, (*goes_on[-2:], *kind.text(goes_on, 1)))
            # Nor is anything after it told twice, or left out.
            assert [start for start, _ in told] == [
                n_known + sum(len(tokens) for _, tokens in told[:i]) for i in range(len(told))
            ]


def spied_commit(llm: Llama) -> list[tuple[int, tuple[int, ...]]]:
    told: list[tuple[int, tuple[int, ...]]] = []
    drafter = llm._runtime.round.drafter._drafter
    commit = drafter.commit

    def spy(done: Sequence[Committed]) -> None:
        told.extend((one.start, tuple(one.tokens)) for one in done)
        commit(done)

    drafter.commit = spy  # type: ignore[method-assign]
    return told
