"""A kind of head is data: a made-up one with two inputs, which no file of the package knows.

It is an EAGLE-3 head that reads each pair one position later, after a row of zeros, as MTP does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pyllama_spec import Llama
from pyllama_spec.drafters.heads import head_class
from pyllama_spec.drafters.kinds import HEADS, HeadKind
from pyllama_spec.speculative import SequenceState
from tests.models import model_path
from tests.oracles import generate
from tests.row_drafts import PATHS, ROW_DRAFTS, Way

MADE_UP = HeadKind("made-up", "a made-up head", -1, 0, "eagle3", 4, 8)
KIND = replace(ROW_DRAFTS["eagle3"], drafter=head_class(MADE_UP))


@pytest.mark.parametrize("path", PATHS)
def test_all_is_accepted(path: Way) -> None:
    path(KIND, KIND.perm)


@pytest.mark.parametrize("path", PATHS)
def test_each_path_sees_a_fault(path: Way) -> None:
    for fault in KIND.faults:
        with pytest.raises(AssertionError):
            path(KIND, lambda fault=fault: KIND.faulty(fault))  # type: ignore[misc]


@pytest.mark.parametrize(("row", "token", "is_right"), [(-1, 0, True), (0, 1, True), (0, 0, False)])
def test_a_token_beside_another_row_is_seen(row: int, token: int, is_right: bool) -> None:
    """With a head that reads the token alone."""
    kind = replace(KIND, drafter=head_class(replace(MADE_UP, row=row, token=token)))
    loop = kind.perm_loop(kind.open(kind.perm_path(read_token=True), 4))
    run = generate(loop, SequenceState(), kind.perm_prompt(20), 30)
    assert run.tokens == kind.text(run.prompt, 30)
    assert run.stats.drafted > 0
    assert run.stats.accepted == (run.stats.drafted if is_right else 0)


def test_an_entry_of_the_table_opens_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(HEADS, MADE_UP.arch, MADE_UP)
    options: dict[str, Any] = {"lookup": 0, "controller": "fixed", "n_ctx": 256, "n_threads": 1}
    with Llama(model_path("perm"), draft=model_path("perm_eagle3"), **options) as llm:
        stats = llm.create_completion([5, 6], max_tokens=21, temperature=0)["speculation"]
    assert stats["drafter"] == "made-up"
    assert stats["accepted"] == stats["drafted"] > 0
