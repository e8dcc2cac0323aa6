"""The round isolates drafters: no failure, no malformed draft, no invalid id gets through."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyllama_spec.drafters import (
    Committed,
    Draft,
    Drafter,
    DraftRequest,
    Eagle3,
    SequenceErrors,
)
from pyllama_spec.speculative.isolated_drafter import IsolatedDrafter
from tests.drafters.tools import N_TOKENS, PROMPTS, Moody, OnlyProposeOne, plain_texts, requests
from tests.faces.tools import GREEDY, open_tiny
from tests.models import model_path


def isolated(drafter: Drafter, n_seqs: int = 3) -> IsolatedDrafter:
    """An isolated drafter whose sequences have begun, with two tokens each."""
    round_side = IsolatedDrafter(drafter, 320)
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


class Raising(Drafter):
    """Fails in its list forms."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def propose(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        raise self.error


@pytest.mark.parametrize(
    ("error", "failed", "drafts"),
    [
        (ValueError("all"), {0, 1, 2}, [[], [], []]),
        (SequenceErrors({}), {0, 1, 2}, [[], [], []]),
        (SequenceErrors({7: ValueError("none of these")}), {0, 1, 2}, [[], [], []]),
        (SequenceErrors({2: ValueError("one")}), {2}, [[], [], []]),
        (
            SequenceErrors({2: ValueError("one")}, {0: Draft([5, 400]), 1: Draft([6] * 9)}),
            {2},
            [[5], [6, 6, 6], []],
        ),
        # What failed has no draft, whatever it says.
        (
            SequenceErrors({0: ValueError("one")}, {0: Draft([5]), 1: Draft([6])}),
            {0},
            [[], [6], []],
        ),
    ],
    ids=["plain", "of nobody", "of another", "of one", "with drafts", "with its own draft"],
)
def test_what_a_list_form_raises(
    error: Exception, failed: set[int], drafts: list[list[int]]
) -> None:
    round_side = isolated(Raising(error))
    found = round_side.propose(requests())
    assert [list(draft.ids) for draft in found] == drafts
    assert round_side.failures.keys() == failed
    # A sequence that has failed already gets nothing either.
    again = round_side.propose(requests())
    assert all(not again[seq].ids for seq in failed)


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


def test_a_draft_that_is_cut_loses_its_other_columns_too() -> None:
    class Wide(Drafter):
        def propose_one(self, request: DraftRequest) -> Draft:
            p = np.array([0.5, 1.0, 0.25, 0.125], np.float32)
            return Draft(np.array([5, 6, 400, 7]), p)  # type: ignore[arg-type]

    for n, kept in ((4, 2), (2, 2), (1, 1)):
        draft = isolated(Wide()).propose(requests(n, 1))[0]
        assert list(draft.ids) == [5, 6][:kept]
        assert draft.probabilities == [0.5, 1.0][:kept]


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


class Shy(Drafter):
    """Does not begin a request while it is shy."""

    is_shy = True

    def __init__(self) -> None:
        self.told: list[int] = []

    def begin_request(self, seq: int, *, remember: bool, user: str) -> None:
        if self.is_shy:
            raise ValueError("whose is it?")

    def propose_one(self, request: DraftRequest) -> Draft:
        return Draft([5])

    def commit_one(self, done: Committed) -> None:
        assert done.start == len(self.told)
        self.told += done.tokens

    def truncate(self, seq: int, n_keep: int) -> None:
        del self.told[n_keep:]


class OwnHead(Eagle3):
    """A subclass of a kind of the package, with a state beside its parent's."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, 4)
        self.n_own, self.restored = 7, (0, 0)

    def save(self, seq: int) -> bytes:
        return bytes([self.n_own]) + super().save(seq)

    def restore(self, seq: int, data: bytes) -> int:
        self.restored = data[0], super().restore(seq, data[1:])
        return self.restored[1]


def test_the_state_of_a_subclass_is_saved() -> None:
    with OwnHead(model_path("eagle3")) as own, open_tiny(own) as llm:
        llm("abab", max_tokens=12, **GREEDY)
        state = llm.save_state()
        llm.load_state(state)
        assert own.restored == (7, len(state.tokens))


def test_a_request_that_could_not_begin_is_not_drafted() -> None:
    drafter = Shy()
    with open_tiny(drafter) as llm:
        with pytest.warns(UserWarning, match=r"disabled until the next prompt .* begin_request"):
            found = llm("abab", max_tokens=12, **GREEDY)["speculation"]
        assert (found["state"], found["proposed"], drafter.told) == ("disabled", 0, [])
        assert "failed in begin_request(): ValueError: whose is it?" in found["reason_off"]
        drafter.is_shy = False
        found = llm("abab", max_tokens=12, **GREEDY)["speculation"]
        assert (found["reason_off"], found["proposed"] > 0) == (None, True)


def test_no_warning_ends_a_text() -> None:
    with open_tiny() as llm:
        want = llm("abab", max_tokens=12, **GREEDY)["choices"]
    with warnings.catch_warnings(), open_tiny(Failing()) as llm:
        warnings.simplefilter("error")
        found = llm("abab", max_tokens=12, **GREEDY)
    assert found["choices"] == want
    assert "ZeroDivisionError" in found["speculation"]["reason_off"]


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
