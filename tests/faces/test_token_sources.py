"""A request's bound for its drafts, and the source of each piece of its text."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faces.tools import GREEDY, PROMPT, SAMPLED, open_tiny
from tests.scripted import Perfect


def reference(**options: Any) -> list[int]:
    """Prompt and text, without a draft."""
    with open_tiny() as llm:
        generation = llm.generate_steps(PROMPT, max_tokens=60, **options)
        return [*PROMPT, *generation.read_all().tokens]


@pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("n_draft", [0, 1, 3, 100, None])
def test_a_request_bounds_its_drafts(options: dict[str, Any], n_draft: int | None) -> None:
    tokens = reference(**options)
    with open_tiny(Perfect(tokens, 6), n_draft=5) as llm:
        generation = llm.generate_steps(PROMPT, max_tokens=60, n_draft=n_draft, **options)
        record = generation.read_all()
        assert [*PROMPT, *record.tokens] == tokens
        most = 5 if n_draft is None else min(n_draft, 5)
        assert len(record.stats.accepted_histogram) - 1 == most
        if n_draft == 0:
            assert record.stats.state == "disabled"
            assert "n_draft=0" in (record.stats.reason_off or "")
        else:
            assert record.stats.state == "used"
