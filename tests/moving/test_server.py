"""Answers of a dozen families, read as the engine's own server reads them.

The models say a given text (tests/models/script.py). `python -m tools.comparison.server` recorded
the server's answers.
"""

from __future__ import annotations

import json

import pytest

from tests.faces.families import FAMILIES
from tests.moving.scripts import Case, cases
from tools.comparison.server import RECORD

ANSWERS = json.loads(RECORD.read_text(encoding="utf-8"))


def test_the_record_is_of_these_answers() -> None:
    assert [case.key for case in cases()] == list(ANSWERS), "python -m tools.comparison.server"
    assert len(FAMILIES) >= 8
    called = {key.partition(" / ")[0] for key, answer in ANSWERS.items() if answer.get("calls")}
    assert called == set(FAMILIES)


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case.key)
def test_an_answer_is_read_as_the_server_reads_it(case: Case) -> None:
    expected, found = ANSWERS[case.key], case.answer()
    if "refused" in expected:
        # An error there; here what no parser takes is text, which is never lost.
        assert found["content"] == case.text
        assert not found["calls"]
        return
    assert found == expected
