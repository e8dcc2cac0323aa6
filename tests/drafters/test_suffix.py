"""draft="suffix": its proposals, its sources, and the privacy of its texts."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from pyllama_spec.drafters import Committed, DraftRequest, Suffix
from pyllama_spec.drafters.suffix.drafter import chance_of
from pyllama_spec.drafters.suffix.memory import Memory
from tests.suffix_tools import fresh, knowing, play_all, proposal, teach, tell

ALPHABET = range(100, 160)


def test_the_longest_match_counts_and_not_the_newest() -> None:
    drafter = Suffix()
    text = [1, 2, 3, 4, 5, 6, 7, 70, 71, 9, 5, 6, 7, 80, 81, 9, 3, 4, 5, 6, 7]
    tell(drafter, text)
    draft = drafter.propose_one(DraftRequest(0, text, 2))
    assert (list(draft.ids), draft.match_length) == ([70, 71], 5)


@pytest.mark.parametrize(("ways", "token"), [("aab", "a"), ("aba", "a"), ("baa", "a"), ("ab", "b")])
def test_places_that_are_alike_vote(ways: str, token: str) -> None:
    """Of equally many places, the newest wins."""
    of = {"a": 70, "b": 80}
    text: list[int] = []
    for i, way in enumerate(ways):
        text += [50 + i, 4, 5, 6, of[way], 30 + i]
    text += [99, 4, 5, 6]
    drafter = Suffix()
    tell(drafter, text)
    draft = drafter.propose_one(DraftRequest(0, text, 3))
    assert draft.ids[0] == of[token]
    assert draft.probabilities is not None


def test_a_repetition_with_a_short_period_is_drafted_at_full_length() -> None:
    drafter, text = Suffix(least_chance=0.0), [7, 8, 9] * 3
    tell(drafter, text)
    assert proposal(drafter, text, 8) == [7, 8, 9, 7, 8, 9, 7, 8]


def test_no_more_than_is_asked_for_and_nothing_without_a_match() -> None:
    text = fresh(1)
    drafter = knowing(text, max_draft=6)
    tell(drafter, text[:20])
    assert proposal(drafter, text[:20], 3) == text[20:23]
    assert proposal(drafter, text[:20], 50) == text[20:26]
    tell(drafter, fresh(2))
    assert proposal(drafter, fresh(2)) == []
    tell(drafter, [text[0], text[1]])
    assert proposal(drafter, text[:2]) == []


def test_a_draft_ends_where_it_is_no_longer_likely() -> None:
    text = fresh(3)
    sure, unsure = Suffix(15), Suffix(15)
    for drafter, is_right in ((sure, True), (unsure, False)):
        for i in range(60):
            teach(drafter, [text])
            tell(drafter, text[:20])
            ids = proposal(drafter, text[:20], 15)
            follows = text[20:36] if is_right else [text[20 + 1 + i % 8], 3]
            drafter.commit_one(Committed(0, follows, 20))
        tell(drafter, text[:20])
        ids = proposal(drafter, text[:20], 15)
        assert (len(ids) == 15) is is_right


def test_little_that_is_equal_promises_little() -> None:
    """Before any verification, more equal tokens make a copy likelier, and few make it unlikely."""
    for is_own in (False, True):
        of_matches = [chance_of(m, 1.0, is_own=is_own) for m in range(3, 25)]
        behind_gaps = [chance_of(m, 1.0, is_own=is_own, is_resumed=True) for m in range(1, 4)]
        for p in (of_matches, behind_gaps):
            assert p == sorted(p)
        assert of_matches[0] <= 0.6 < of_matches[1] < of_matches[-1]
        assert behind_gaps[0] < 0.6


@pytest.mark.parametrize("seed", range(5))
def test_truncate_leaves_no_trace(seed: int) -> None:
    rng = random.Random(seed)
    drafter, text = Suffix(8), [rng.choice(ALPHABET[:7]) for _ in range(60)]
    tell(drafter, text)
    for _ in range(12):
        keep = rng.randrange(len(text))
        drafter.truncate(0, keep)
        text = text[:keep] + [rng.choice(ALPHABET[:7]) for _ in range(rng.randrange(1, 50))]
        drafter.commit_one(Committed(0, text[keep:], keep))
        other = Suffix(8)
        tell(other, text)
        assert drafter.tokens(0) == text
        assert proposal(drafter, text) == proposal(other, text)


# ---- earlier requests


def test_what_a_request_wrote_is_proposed_to_the_next_one() -> None:
    first = fresh(4)
    drafter = Suffix(8)
    tell(drafter, first)
    tell(drafter, first[:12], seq=1)
    assert proposal(drafter, first[:12], seq=1) == []  # it has not ended
    tell(drafter, [5, *first[3:12]])  # the sequence's next one begins: now it has
    assert proposal(drafter, [5, *first[3:12]]) == first[12:20]


@pytest.mark.parametrize("told", [{"remember": False}, {"user": "b"}])
def test_what_no_request_may_see(told: dict[str, object]) -> None:
    private, drafter = fresh(5), Suffix(8)
    teach(drafter, [private], **told)
    tell(drafter, private, seq=2, **told)
    # Another one begins with the same words, in the same sequence and in a copy of it.
    for seq in (2, 3):
        if seq == 3:
            drafter.begin_request(3)
            drafter.copy(2, 3)
        else:
            drafter.begin_request(2)
        drafter.truncate(seq, 10)
        drafter.commit_one(Committed(seq, [*fresh(6, 12), *private[5:9]], 10))
        drafter.end_request(seq)
        tell(drafter, [1, *private[10:20]], seq=4)
        assert proposal(drafter, [1, *private[10:20]], seq=4) == []
    tell(drafter, private[10:20], seq=4, user="c")
    assert proposal(drafter, private[10:20], seq=4) == []


def test_each_user_has_his_own() -> None:
    text, drafter = fresh(7), Suffix(8)
    teach(drafter, [text], user="a")
    for user, expected in (("a", text[12:20]), ("b", []), ("", [])):
        tell(drafter, text[:12], user=user)
        assert proposal(drafter, text[:12]) == expected


def test_a_drafter_that_does_not_remember() -> None:
    text, drafter = fresh(9), Suffix(8, remembers=False)
    teach(drafter, [text])
    tell(drafter, text[:12])
    assert proposal(drafter, text[:12]) == []


def test_many_users_take_no_more_memory_than_one() -> None:
    drafter = Suffix(8)
    for i in range(400):
        teach(drafter, [fresh(i)], user=f"user {i}")
    assert len(drafter._memories) <= 256
    assert "user 399" in drafter._memories
    assert "user 0" not in drafter._memories


# ---- what fits into a memory


def kept(memory: Memory) -> list[list[int]]:
    return [text.ids.tolist() for text in memory.texts()]


def test_a_conversation_is_remembered_once() -> None:
    memory, text = Memory(1 << 14), fresh(10, 400)
    for end in (100, 200, 300, 400, 400, 350):
        memory.add(text[:end])
    n = sum(len(one) for one in kept(memory))
    assert n < 400 + 4 * 30
    assert all(contains(memory, text[i : i + 12], text[i + 12]) for i in range(0, 380, 7))


def contains(memory: Memory, tail: Sequence[int], token: int) -> bool:
    return any(memory.index.tokens[at] == token for at in memory.index.places(tail)[1])


N_LEAD = 20


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


def test_where_it_is_not_wanted() -> None:
    known, memory = fresh(7), Memory(1 << 12)
    memory.add(known)
    assert behind(Suffix(8, store=memory, resumes=False), known, [501]) == []


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
    assert resumed.n_rounds < 0.8 * without.n_rounds
