"""draft="suffix": its proposals, its sources, and the privacy of its texts."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from pyllama_spec.drafters import Committed, DraftRequest, Suffix
from pyllama_spec.drafters.suffix.drafter import Chances, CopyKind
from pyllama_spec.drafters.suffix.memory import HEADER_TOKENS, Memory, texts_of
from pyllama_spec.errors import ArgumentError
from tests.suffix_tools import knowing, proposal, teach, tell

ALPHABET = range(100, 160)


def fresh(seed: int, n: int = 40) -> list[int]:
    """A text without repetitions of its own."""
    return random.Random(seed).sample(range(1000, 9000), n)


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


def test_chances_are_learnt_by_kind() -> None:
    chances = Chances()
    kind = CopyKind(5, 1, 1, is_own=True)
    other = CopyKind(20, 9, 9, is_own=True)
    before = chances.chance(kind), chances.chance(other)
    assert before[0] < before[1]
    for _ in range(100):
        chances.learn([kind, kind], 0)
    assert chances.chance(kind) < 0.1
    assert chances.chance(other) == before[1]
    for _ in range(300):
        chances.learn([kind], 1)
    assert chances.chance(kind) > 0.8


def test_little_that_is_equal_promises_little() -> None:
    """Before any verification, more equal tokens make a copy likelier, and few make it unlikely."""
    for is_own in (False, True):
        of_matches = [Chances().chance(CopyKind(m, 1, 1, is_own)) for m in range(3, 25)]
        behind_gaps = [Chances().chance(CopyKind(m, 1, 1, is_own, 2)) for m in range(4)]
        for p in (of_matches, behind_gaps):
            assert p == sorted(p)
        assert of_matches[0] <= 0.6 < of_matches[1] < of_matches[-1]
        assert behind_gaps[0] < 0.2 < behind_gaps[1]


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
    """A private text is visible to no later request, copy, or continued conversation."""
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


@pytest.mark.parametrize("remember", [True, False])
@pytest.mark.parametrize("user", ["b", ""])
def test_a_text_that_cannot_be_kept_leaves_its_user_behind(
    monkeypatch: pytest.MonkeyPatch, user: str, remember: bool
) -> None:
    """A text that cannot be added does not leave its user to the next request."""

    def is_full(memory: Memory, ids: Sequence[int]) -> None:
        raise MemoryError("no room is left")

    text, drafter = fresh(7), Suffix(8)
    teach(drafter, [text], user="a")
    tell(drafter, fresh(8), user="a")
    with monkeypatch.context() as patch, pytest.raises(MemoryError, match="no room"):
        patch.setattr(Memory, "add", is_full)
        drafter.begin_request(0, remember=remember, user=user)
    drafter.truncate(0, 0)
    drafter.commit_one(Committed(0, text[:12], 0))
    assert proposal(drafter, text[:12]) == []
    drafter.end_request(0)  # and what it wrote is its own user's
    tell(drafter, text[:8], seq=1, user="c")
    assert proposal(drafter, text[:8], seq=1) == []
    tell(drafter, text[:8], seq=1, user=user)
    assert proposal(drafter, text[:8], seq=1) == (text[8:12] if remember else [])


def test_two_drafters_know_nothing_of_each_other() -> None:
    text = fresh(8)
    knowing(text)
    other = Suffix(8)
    tell(other, text[:12])
    assert proposal(other, text[:12]) == []


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
    return [text.ids.tolist() for text in texts_of(memory.index)]


def test_a_conversation_is_remembered_once() -> None:
    memory, text = Memory(1 << 14), fresh(10, 400)
    for end in (100, 200, 300, 400, 400, 350):
        memory.add(text[:end])
    n = sum(len(one) for one in kept(memory))
    assert n < 400 + 4 * 30
    assert all(contains(memory, text[i : i + 12], text[i + 12]) for i in range(0, 380, 7))


def contains(memory: Memory, tail: Sequence[int], token: int) -> bool:
    return any(memory.index.tokens[place.at] == token for place in memory.index.places(tail))


def test_a_memory_is_bounded_and_keeps_what_is_new_or_of_use() -> None:
    memory = Memory(4096)
    useful = fresh(0, 200)
    memory.add(useful)
    memory.note_use(HEADER_TOKENS + 50, 500)
    for i in range(1, 60):
        memory.add(fresh(i, 200))
        assert memory.index.n <= 4096
    assert contains(memory, useful[20:40], useful[40])
    last = fresh(59, 200)
    assert contains(memory, last[20:40], last[40])
    gone = [
        i for i in range(1, 59) if not contains(memory, fresh(i, 200)[20:40], fresh(i, 200)[40])
    ]
    assert len(gone) > 30
    minutes = [text.minute for text in texts_of(memory.index)]
    assert minutes == sorted(minutes)
    assert minutes[0] > 0


def test_texts_longer_than_the_memory() -> None:
    memory, text = Memory(1024), fresh(11, 5000)
    memory.add(text)
    memory.add(fresh(12, 100))
    assert memory.index.n <= 1024
    assert contains(memory, text[-30:-10], text[-10])


@pytest.mark.parametrize("wrong", [{"max_draft": 0}, {"min_match": 2}, {"min_match": 0}])
def test_numbers_out_of_range(wrong: dict[str, int]) -> None:
    with pytest.raises(ArgumentError, match=next(iter(wrong))):
        Suffix(**wrong)  # type: ignore[arg-type]
