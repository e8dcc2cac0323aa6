"""The round isolates drafters: no failure, no malformed draft, no invalid id gets through."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyllama_spec.drafters import (
    Committed,
    Draft,
    Drafter,
    DraftRequest,
)
from pyllama_spec.speculative.isolated_drafter import IsolatedDrafter
from tests.drafters.tools import N_TOKENS, PROMPTS, Moody, OnlyProposeOne, plain_texts, requests
from tests.faces.tools import GREEDY, open_tiny
from tests.oracles import tiny, tiny_context


def isolated(drafter: Drafter, n_seqs: int = 3) -> IsolatedDrafter:
    """An isolated drafter whose sequences have begun, with two tokens each."""
    round_side = IsolatedDrafter(drafter, tiny_context(tiny("llama")))
    for seq in range(n_seqs):
        assert round_side.resume_at(seq, 0, []) == 0
    round_side.commit([Committed(seq, [7, 8], 0) for seq in range(n_seqs)])
    return round_side


@pytest.mark.parametrize("where", ["propose", "commit"])
def test_a_failure_is_of_its_sequence(where: str) -> None:
    drafter = Moody(where="")
    round_side = isolated(drafter)
    drafter.where = where
    round_side.commit([Committed(seq, [9], 2) for seq in range(3)])
    drafts = round_side.propose(requests())
    assert [list(draft.ids) for draft in drafts] == [[10] * 3, [], [12] * 3]
    assert list(round_side.failures) == [1]
    reason, error = round_side.failures[1]
    assert reason == f"the drafter failed in {where}(): ValueError: not sequence 1"
    assert isinstance(error, ValueError)
    assert "_hear" in "".join(traceback.format_exception(error))
    # Until its next prompt it is not spoken to; the others are.
    drafter.heard.clear()
    drafter.where = ""
    round_side.commit([Committed(seq, [9], 3) for seq in range(3)])
    assert [list(d.ids) for d in round_side.propose(requests())] == [[10] * 3, [], [12] * 3]
    assert [seq for _, seq in drafter.heard] == [0, 2, 0, 2]
    # There it begins from nothing: what it knows of the sequence is told anew.
    drafter.heard.clear()
    round_side.begin_request(1, remember=True, user="")
    assert round_side.resume_at(1, 2, [7, 8]) == 2
    assert drafter.heard[-2:] == [("truncate", 1), ("commit", 1)]
    assert not round_side.failures
    assert [list(d.ids) for d in round_side.propose(requests())][1] == [11] * 3


def ids_of(draft: Any, n: int = 4) -> tuple[list[Any], str | None]:
    """The draft that the round gets, alone and beside another sequence's, and the failure."""

    class Fixed(Drafter):
        def propose_one(self, request: DraftRequest) -> Draft:
            return draft  # type: ignore[no-any-return]

    found = []
    for n_seqs in (1, 2):
        round_side = isolated(Fixed(), n_seqs)
        got = round_side.propose(requests(n, n_seqs))[0].ids
        found.append((list(got), round_side.failures.get(0, (None,))[0]))
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize(
    ("ids", "kept"),
    [
        ([], []), ([1, 2], [1, 2]), ([1] * 5000, [1] * 4), (range(9), [0, 1, 2, 3]),
        ([1, -1, 2], [1]), ([320], []), ([1, 2, 319, 320, 5], [1, 2, 319]), ([2**31], []),
        ([3, -(2**70)], [3]), (np.array([4, 5, 6, 7, 8]), [4, 5, 6, 7]),
        (np.array([4, 5, 320], np.int64), [4, 5]), ((np.int32(9), 10), [9, 10]),
        (np.array([], np.int32), []),
    ],
    ids=str,
)  # fmt: skip
def test_ids_that_may_be_proposed(ids: Any, kept: list[int]) -> None:
    found, reason = ids_of(Draft(ids))
    assert found == kept
    assert all(type(token) is int for token in found)
    assert reason is None


class Failing(Drafter):
    name = "mine"

    def __init__(self, where: str = "propose") -> None:
        self.where = where

    def _fail(self, where: str) -> None:
        if where == self.where:
            raise ZeroDivisionError("no tokens " + "x" * 5000)

    def propose_one(self, request: DraftRequest) -> Draft:
        self._fail("propose")
        return Draft([5])

    def commit_one(self, done: Committed) -> None:
        self._fail("commit")

    def resume_at(self, seq: int, n_keep: int) -> int:
        self._fail("resume_at")
        return n_keep


@pytest.mark.parametrize("where", ["propose", "commit", "resume_at"])
def test_the_first_failure_is_said_and_no_other(where: str) -> None:
    with open_tiny(Failing(where)) as llm, pytest.warns(UserWarning) as said:
        for prompt in ("one two", "three"):
            answer = llm(prompt, max_tokens=12, **GREEDY)
            assert answer["speculation"]["reason_off"]
    assert len(said) == 1
    message = str(said[0].message)
    assert f"it failed in {where}(): " in message
    assert Path(said[0].filename) == Path(__file__)
    assert len(message) < 1000


@pytest.mark.parametrize("what", ["resume_at", "save", "restore", "truncate", "copy"])
def test_failures_elsewhere_cost_no_text(what: str) -> None:
    """After an error of any method the next prompt starts anew, with the same text."""

    def fails(*args: Any) -> Any:
        raise KeyError(what)

    texts = plain_texts()
    drafter = OnlyProposeOne(texts)
    with open_tiny() as llm:
        llm(PROMPTS[0], max_tokens=5, **GREEDY)
        plain = llm.save_state()
    if what == "restore":
        drafter.save = lambda seq: b"all of it"  # type: ignore[method-assign]
    with open_tiny(drafter) as llm:
        for turn in range(2):
            for prompt, text in zip(PROMPTS, texts, strict=True):
                steps = llm.generate_steps(prompt, max_tokens=N_TOKENS, **GREEDY)
                ids = [token for piece in steps for token in piece.tokens]
                assert ids == text[len(prompt) :]
            if turn == 0:
                setattr(drafter, what, fails)
            state = llm.save_state()
            assert state.tokens == tuple(texts[-1])
            llm.load_state(state)
            llm.load_state(plain)
