"""Copies beside a draft model: likely ones only, from the text itself and the user's others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from pyllama_spec.drafters import (
    Committed,
    Draft,
    Drafter,
    DraftRequest,
    LookupFirst,
    PromptLookup,
    Suffix,
)
from pyllama_spec.drafters.suffix import copies_beside
from pyllama_spec.errors import ArgumentError

MODEL = 9999


class Model(Drafter):
    """Guesses one token that stands in no text."""

    name = "model"
    max_draft = 8

    def propose_one(self, request: DraftRequest) -> Draft:
        return Draft([MODEL])


def behind(drafter: Drafter, text: Sequence[int], n: int = 4) -> list[int]:
    """The draft after the text of a new request."""
    drafter.begin_request(0, remember=True, user="")
    drafter.truncate(0, 0)
    drafter.commit([Committed(0, list(text), 0)])
    [draft] = drafter.propose([DraftRequest(0, list(text), n)])
    return list(draft.ids)


@pytest.mark.parametrize("n_ways", [2, 3, 6])
def test_where_places_disagree_the_model_is_asked(n_ways: int) -> None:
    same = [1, 2, 3, 4, 5]
    text = [token for i in range(n_ways) for token in (*same, 80 + i, 60 + i)]
    assert behind(LookupFirst(Model()), [*text, *same]) == [MODEL]
    assert behind(LookupFirst(Model()), [*same, 80, 60, *same], 2) == [80, 60]


@pytest.mark.parametrize("match_length", [3, 5, 24])
def test_fewer_equal_tokens_are_no_match(match_length: int) -> None:
    same = list(range(100, 100 + match_length))
    text = [*same, 80, 81, 82, 83, 50, *same]
    assert behind(LookupFirst(Model(), match_length), text) == [80, 81, 82, 83]
    text = [*same, 80, 81, 82, 83, 50, *same[1:]]
    assert behind(LookupFirst(Model(), match_length), text) == [MODEL]


@pytest.mark.parametrize("match_length", [1, 2, 25, 40])
def test_lengths_that_an_index_does_not_know_are_prompt_lookups(match_length: int) -> None:
    drafter = LookupFirst(Model(), match_length)
    assert isinstance(drafter._lookup, PromptLookup)
    same = list(range(100, 100 + match_length))
    assert behind(drafter, [*same, 80, 81, 50, *same], 2) == [80, 81]
    assert behind(drafter, [*same, 80, 81, 50, *same[1:]], 2) == [MODEL]


@pytest.mark.parametrize("remembers", [True, False])
@pytest.mark.parametrize("match_length", [3, 5, 24])
def test_an_earlier_request_of_the_user_is_copied(match_length: int, remembers: bool) -> None:
    drafter = LookupFirst(Model(), match_length, remembers=remembers)
    said = list(range(100, 160))
    behind(drafter, said)
    drafter.end_request(0)
    for seq, user in enumerate(("", "", "another")):
        drafter.begin_request(seq, remember=True, user=user)
        drafter.truncate(seq, 0)
        drafter.commit([Committed(seq, said[:40], 0)])
        [draft] = drafter.propose([DraftRequest(seq, said[:40], 4)])
        assert list(draft.ids) == (said[40:44] if remembers and not user else [MODEL])
        assert draft.is_remembered == (draft.ids[0] != MODEL)


@pytest.mark.parametrize("match_length", [1, 2, 25, 1000])
def test_a_store_is_not_looked_up_by_what_no_index_has(tmp_path: Path, match_length: int) -> None:
    with pytest.raises(ArgumentError):
        copies_beside(8, match_length, True, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_sequence_that_is_copied_or_put_back_goes_on_with_its_text() -> None:
    same = [1, 2, 3, 4, 5]
    text = [*same, 80, 81, 82, 83, 50, *same]

    class Saved(Model):
        def save(self, seq: int) -> bytes:
            return b"state"

        def restore(self, seq: int, data: bytes) -> int:
            return len(text)

    drafter, other = LookupFirst(Saved()), LookupFirst(Saved())
    assert behind(drafter, text) == [80, 81, 82, 83]
    drafter.copy(0, 1)
    assert list(drafter.propose([DraftRequest(1, text, 4)])[0].ids) == [80, 81, 82, 83]
    state = drafter.save(1)
    assert state is not None
    assert other.restore(2, state) == len(text)
    assert isinstance(other._lookup, Suffix)
    assert other._lookup.tokens(2) == text
    assert list(other.propose([DraftRequest(2, text, 4)])[0].ids) == [80, 81, 82, 83]
