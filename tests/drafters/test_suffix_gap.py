"""A copy resumes after a difference, within the same request only."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from pyllama_spec.drafters import Committed, DraftRequest, Suffix
from pyllama_spec.drafters.suffix import copies_beside
from pyllama_spec.drafters.suffix.memory import Memory
from pyllama_spec.drafters.suffix.upkeep import play_all
from tests.suffix_tools import proposal, teach, tell

N_LEAD = 20
NEW = [501, 502, 503, 504, 505]


def fresh(seed: int, n: int = 60) -> list[int]:
    """A text without repetitions of its own."""
    return random.Random(seed).sample(range(1000, 9000), n)


def behind(drafter: Suffix, known: Sequence[int], *parts: Sequence[int], seq: int = 0) -> list[int]:
    """The proposal after N_LEAD tokens of a text and parts, each committed with a draft."""
    text = [*known[:N_LEAD]]
    tell(drafter, text, seq)
    for part in parts:
        drafter.propose_one(DraftRequest(seq, text, drafter.max_draft))
        drafter.commit_one(Committed(seq, list(part), len(text)))
        text += part
    return proposal(drafter, text, seq=seq)


def knows(seed: int, **about: object) -> tuple[Suffix, list[int]]:
    """A drafter that has seen a text, and copies the rest of it."""
    known, drafter = fresh(seed), Suffix(8, least_chance=0.0)
    teach(drafter, [known], **about)
    return drafter, known


@pytest.mark.parametrize(
    ("here", "at"),
    [
        ([[501]], 1),  # another token in place of one
        ([[501], [502]], 2),  # two in place of two
        ([["a0", 501]], 2),  # the same, behind one that was right
        ([[501], [502], ["a1"]], 2),  # two in place of one
        ([[501, 502, 503], ["a1", "a2"]], 3),  # three in place of one
        ([[501, 502], ["a0"]], 1),  # two that were put in
        ([["a3"]], 4),  # three that were left out
        ([[501], ["a4"]], 5),  # one in place of four
    ],
)
@pytest.mark.parametrize("is_own", [False, True])
def test_it_goes_on_behind_a_difference(
    here: Sequence[Sequence[int | str]], at: int, is_own: bool
) -> None:
    """`a3` is the third token after the lead, as in the copied text."""
    drafter, known = knows(1)
    if is_own:
        drafter = Suffix(8, least_chance=0.0)
    parts = [[known[N_LEAD + int(t[1:])] if isinstance(t, str) else t for t in p] for p in here]
    if is_own:
        text = [*known, 42, 43, 44, *known[:N_LEAD]]
        tell(drafter, text)
        for part in parts:
            drafter.propose_one(DraftRequest(0, text, 8))
            drafter.commit_one(Committed(0, part, len(text)))
            text += part
        found = proposal(drafter, text)
    else:
        found = behind(drafter, known, *parts)
    assert found == known[N_LEAD + at : N_LEAD + at + 8]


@pytest.mark.parametrize("n", [3, 7])
def test_a_difference_of_the_same_lengths_comes_again(n: int) -> None:
    """Several tokens replace one: the second time, the copy resumes right after them."""
    drafter, known = knows(2)
    a = known[N_LEAD:]
    first, second = list(range(501, 501 + n)), list(range(521, 521 + n))
    assert behind(drafter, known, first, [a[1]], a[2:6], second) == a[7:15]
    drafter, known = knows(2)
    assert behind(drafter, known, [a[0], *a[1:6]], [504, 505, 506]) == a[9:17]


@pytest.mark.parametrize("n", [1, 3, 4, 7, 11, 12, 30])
def test_a_long_difference_waits_for_an_equal_token_and_is_given_up(n: int) -> None:
    """A guess after many other tokens is hardly ever right, and costs a row each time."""
    drafter, known = knows(3)
    a, new = known[N_LEAD:], [600 + i for i in range(n)]
    assert bool(behind(drafter, known, new)) is (n <= 3)
    drafter, _ = knows(3)
    found = behind(drafter, known, *([token] for token in new), [a[n]])
    assert found == (a[n + 1 : n + 9] if n < 12 else [])


@pytest.mark.parametrize("how", ["user", "private", "copy", "truncate"])
def test_nobody_else_goes_on_with_it(how: str) -> None:
    """The place of a difference leads into texts that another request may not see."""
    drafter, known = knows(4, user="a")
    tell(drafter, known[:N_LEAD], user="a")
    text = [*known[:N_LEAD], 501]
    drafter.propose_one(DraftRequest(0, text, 8))
    drafter.commit_one(Committed(0, [501], N_LEAD))
    seq = 0
    assert proposal(drafter, text) == known[N_LEAD + 1 : N_LEAD + 9]
    if how == "copy":
        seq = 1
        drafter.begin_request(1, user="b")
        drafter.copy(0, 1)
    elif how == "truncate":
        drafter.truncate(0, N_LEAD)
        drafter.begin_request(0, user="b")
        drafter.commit_one(Committed(0, [501], N_LEAD))
    else:
        drafter.begin_request(0, user="b", remember=how == "user")
    assert proposal(drafter, text, seq=seq) == []
    drafter.commit_one(Committed(seq, [known[N_LEAD + 1]], len(text)))
    assert proposal(drafter, [*text, known[N_LEAD + 1]], seq=seq) == []


def test_a_draft_of_the_request_before_says_nothing_of_the_next_one() -> None:
    """An unverified draft of the previous request tells nothing about the next one."""
    drafter, known = knows(5, user="a")
    tell(drafter, known[:N_LEAD], user="a")
    drafter.propose_one(DraftRequest(0, known[:N_LEAD], 8))
    drafter.begin_request(0, user="b")
    drafter.commit_one(Committed(0, [501], N_LEAD))
    assert proposal(drafter, [*known[:N_LEAD], 501]) == []


@pytest.mark.parametrize("n_left", [0, 5, N_LEAD])
def test_a_place_that_is_gone_is_none(n_left: int) -> None:
    """The copied file may have been replaced or cut since."""
    known, memory = fresh(6), Memory(1 << 12)
    memory.add(known)
    drafter = Suffix(8, store=memory, least_chance=0.0)
    assert behind(drafter, known, [501])
    memory.index.cut(n_left)
    assert proposal(drafter, [*known[:N_LEAD], 501]) == []


def test_beside_a_model_and_where_it_is_not_wanted(tmp_path: object) -> None:
    known, memory = fresh(7), Memory(1 << 12)
    memory.add(known)
    assert behind(Suffix(8, store=memory, resumes=False), known, [501]) == []
    assert copies_beside(8, 5, f"{tmp_path}/use.memory")._resumes is False


def test_forms_that_are_filled_in_take_fewer_rounds() -> None:
    """Fields of one to four tokens change from form to form; the text between them does not."""
    rng = random.Random(8)
    between = [[rng.randrange(1000, 9000) for _ in range(5)] for _ in range(8)]
    counter = iter(range(10_000, 100_000))
    forms = []
    for _ in range(30):
        form: list[int] = []
        for i, part in enumerate(between):
            form += [*part, *(next(counter) for _ in range(1 + i % 4))]
        forms.append(((between[0][0],), form[1:]))
    resumed, without = (play_all(Suffix(resumes=resumes), forms) for resumes in (True, False))
    assert resumed.n_tokens == without.n_tokens
    assert resumed.n_rounds < 0.8 * without.n_rounds
