"""The draft in examples/drafts does what its README says, on its target."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyllama_spec import Llama

DRAFT = Path(__file__).resolve().parents[2] / "examples/drafts/smollm2-135m-eagle3.gguf"
PROMPT = "Write a list of ten fruits, one per line."


@pytest.mark.slow
def test_the_shipped_draft_is_accepted_and_changes_nothing(smollm2_bf16: Path) -> None:
    assert DRAFT.stat().st_size <= 25_000_000
    texts = []
    for draft in (None, DRAFT):
        with Llama(smollm2_bf16, draft=draft, n_ctx=512, controller="fixed") as llm:
            answer = llm.create_chat_completion(
                [{"role": "user", "content": PROMPT}], max_tokens=96, temperature=0.0
            )
        texts.append(answer["choices"][0]["message"]["content"])
    assert texts[0] == texts[1]
    figures = answer["speculation"]
    assert figures["drafter"] == "eagle3"
    assert figures["tokens_per_round"] >= 2.0
