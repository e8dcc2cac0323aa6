"""DFlash drafts that go with another target, and numbers that a draft cannot be opened with.

For files that contradict themselves, see tests/robust/cases_dflash.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pyllama_spec import ArgumentError, Llama
from pyllama_spec.drafters import DFlash
from tests.dflash_tools import KINDS
from tests.models import model_path
from tests.models.dflash import DFlashConfig, dflash_tensors, write_dflash


@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_by_its_path(kind: str) -> None:
    """The draft predicts no more tokens than its trained block, whatever n_draft is."""
    path = model_path("dflash", **KINDS[kind])
    with DFlash(path) as draft:
        most = draft.max_draft
        assert draft.describe()["block_size"] == 6
        assert most == 5 + draft.block.guesses_behind
    for n_draft in (None, 1, 3, 50):
        with Llama(
            model_path("llama"), draft=path, n_draft=n_draft, lookup=0, controller="fixed",
            n_threads=1,
        ) as llm:  # fmt: skip
            stats = llm.create_completion([1, 2, 3], max_tokens=30, temperature=0)["speculation"]
        assert stats["reason_off"] is None
        assert stats["drafter"] == "dflash"
        # Fewer in the last rounds alone, where fewer tokens are left.
        assert -(-stats["drafted"] // stats["rounds"]) == min(n_draft or most, most)


def test_more_tokens_than_a_block_guesses() -> None:
    with pytest.raises(ArgumentError, match="max_draft=6"):
        DFlash(model_path("dflash"), max_draft=6)


@pytest.mark.parametrize("n_parallel", [1, 3])
def test_a_token_that_the_draft_lacks_stops_no_other(n_parallel: int, tmp_path: Path) -> None:
    """The requests of other sequences still draft, and the drafter is not disabled."""
    cfg = DFlashConfig(n_vocab=308, target_layers=(0, 1, 2))
    path = write_dflash(tmp_path / "draft.gguf", cfg, dflash_tensors(cfg), {})
    prompts = [[5, 9, 316], [7, 8, 9], [1, 2, 3]]
    options = {"n_ctx": 128, "n_threads": 1, "n_parallel": n_parallel}
    texts = []
    for draft in ({}, {"draft": path, "lookup": 0, "controller": "fixed"}):
        with Llama(model_path("llama"), **options, **draft) as llm:  # type: ignore[arg-type]
            done = llm.create_completion(prompts, max_tokens=12, temperature=0.0)
        texts.append([choice["text"] for choice in done["choices"]])
    assert texts[0] == texts[1]
    for choice in done["choices"]:
        assert choice["speculation"]["reason_off"] is None
        assert choice["speculation"]["drafted"] > 0
