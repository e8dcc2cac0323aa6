"""The drafts in examples/drafts do what their README says, on the target they were made for."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyllama_spec import Llama

DRAFTS = Path(__file__).resolve().parents[2] / "examples" / "drafts"
PROMPT = "Write a list of ten fruits, one per line."


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "drafter", "least"),
    [("smollm2-135m-eagle3.gguf", "eagle3", 2.0), ("smollm2-135m-dflash.gguf", "dflash", 1.5)],
)
def test_a_shipped_draft_is_accepted_and_changes_nothing(
    name: str, drafter: str, least: float, smollm2_bf16: Path
) -> None:
    assert (DRAFTS / name).stat().st_size <= 25_000_000
    texts = []
    for draft in (None, DRAFTS / name):
        with Llama(smollm2_bf16, draft=draft, n_ctx=512, controller="fixed") as llm:
            answer = llm.create_chat_completion(
                [{"role": "user", "content": PROMPT}], max_tokens=96, temperature=0.0
            )
        texts.append(answer["choices"][0]["message"]["content"])
    assert texts[0] == texts[1]
    figures = answer["speculation"]
    assert figures["drafter"] == drafter
    assert figures["tokens_per_round"] >= least
