"""A request's bound for its drafts, and the source of each piece of its text."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faces.tools import GREEDY, PROMPT, SAMPLED, open_tiny
from tests.scripted import Perfect

MESSAGES = [{"role": "user", "content": "the cat"}]


def reference(**options: Any) -> list[int]:
    """Prompt and text, without a draft."""
    with open_tiny() as llm:
        generation = llm.generate_steps(PROMPT, max_tokens=60, **options)
        return [*PROMPT, *generation.read_all().tokens]


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("kind", ["text", "chat", "chat with a reader"])
def test_responses_and_chunks_have_them_where_they_are_asked_for(kind: str, n: int) -> None:
    given: dict[str, Any] = {"max_tokens": 40, "temperature": 0.0, "n": n, "logit_bias": {97: 60.0}}
    if kind == "chat with a reader":
        given["reasoning_format"] = "auto"
    with open_tiny("prompt-lookup", n_parallel=2) as llm:

        def create(**more: Any) -> Any:
            if kind == "text":
                return llm.create_completion(bytes(PROMPT), **given, **more)
            return llm.create_chat_completion(MESSAGES, **given, **more)

        plain, whole = create(), create(return_token_sources=True)
        assert "token_sources" not in plain["choices"][0]
        chunks = list(create(return_token_sources=True, stream=True))
        for i, choice in enumerate(whole["choices"]):
            text = choice["text"] if kind == "text" else choice["message"]["content"]
            sources = choice["token_sources"]
            assert "".join(one["text"] for one in sources) == text
            assert {one["source"] for one in sources} == {"target", "copy"}
            of_choice = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == i]
            streamed = [one for c in of_choice for one in c.get("token_sources", ())]
            assert [one["text"] for one in streamed] == [one["text"] for one in sources]


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
