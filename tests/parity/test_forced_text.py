"""The engine emits the text that a grammar forces; no drafter is asked, and it is counted apart."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pyllama_spec import Llama
from pyllama_spec.cli.generate import figure_lines
from tests.faces.tools import PROMPT, open_tiny
from tests.models import model_path
from tests.scripted import Wrong

GRAMMARS = {
    "all forced": 'root ::= "a sentence without any choice"',
    "forced between": 'root ::= "the answer is " [0-9] [0-9] " and nothing else" [a-c]',
    "nothing forced": "root ::= [a-m] [a-m] [a-m] [a-m] [a-m] [a-m] [a-m] [a-m]",
}
DRAFTS: dict[str, Any] = {
    "grammar": lambda: "grammar",
    "prompt-lookup": lambda: "prompt-lookup",
    "wrong": lambda: Wrong(()),
    "eagle3": lambda: model_path("eagle3"),
}


@pytest.mark.parametrize("grammar", GRAMMARS)
@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("controller", ["fixed", "off"])
def test_no_more_is_verified_than_was_proposed(draft: str, grammar: str, controller: str) -> None:
    with open_tiny() as plain, open_tiny(DRAFTS[draft](), controller=controller) as llm:
        expected = plain(PROMPT, grammar=GRAMMARS[grammar], max_tokens=60, temperature=0.0)
        generation = llm.generate_steps(
            PROMPT, grammar=GRAMMARS[grammar], max_tokens=60, temperature=0.0
        )
        record = generation.read_all()
    assert record.text == expected["choices"][0]["text"]
    stats, counts = record.stats, record.stats.as_dict()
    assert 0 <= stats.accepted <= stats.drafted <= stats.proposed
    assert (stats.forced > 0) == (grammar != "nothing forced")
    assert stats.forced_accepted <= stats.forced <= stats.drafted
    assert counts["forced"] == stats.forced
    rounds = stats.round_counts
    assert len(rounds) == stats.rounds == counts["drafted_by"]["nobody"]
    assert sum(counts["drafted_by"].values()) == stats.accepted + stats.rounds
    assert counts["drafted_by"]["grammar"] == stats.forced_accepted
    assert sum(one.n_proposed for one in rounds) == stats.proposed
    assert sum(one.n_verified for one in rounds) == stats.drafted
    assert sum(one.n_accepted for one in rounds) == stats.accepted
    by_grammar = [one for one in rounds if one.who == "grammar"]
    assert sum(one.n_verified for one in by_grammar) == stats.forced
    assert sum(one.n_accepted for one in by_grammar) == stats.forced_accepted
    assert not any(one.n_requested for one in by_grammar), "nobody was asked"


def test_counts_of_requests_add_up() -> None:
    with open_tiny("grammar") as llm:
        total, parts = None, []
        for grammar in GRAMMARS.values():
            record = llm.generate_steps(PROMPT, grammar=grammar, max_tokens=60).read_all()
            parts.append((record.stats.proposed, record.stats.forced, record.stats.rounds))
            if total is None:
                total = record.stats
            else:
                total.add(record.stats)
    assert total is not None
    assert (total.proposed, total.forced, total.rounds) == tuple(map(sum, zip(*parts, strict=True)))


def test_the_command_line_says_what_was_forced() -> None:
    with Llama(model_path("llama"), draft="grammar", n_ctx=256, n_threads=1) as llm:
        record = llm.generate_steps(
            PROMPT, grammar=GRAMMARS["forced between"], max_tokens=60
        ).read_all()
    said = "\n".join(figure_lines(record.stats, record.timing))
    found = re.search(r"(\d+) of (\d+) proposed tokens drafted .*, (\d+) of them forced", said)
    assert found is not None, said
    verified, proposed, forced = map(int, found.groups())
    assert 0 < forced <= verified <= proposed
