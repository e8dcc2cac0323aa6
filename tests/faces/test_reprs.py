"""Reprs at a prompt: file, sizes, draft, open or closed; and drafts that may propose nothing."""

from __future__ import annotations

from typing import Any

import pytest

from pyllama_spec import Eagle3, Llama
from pyllama_spec.engine import Context, Model
from tests.models import model_path


def test_a_model_and_its_context() -> None:
    path = model_path("qwen35")
    with Model(path) as model:
        assert path.name in repr(model) and "qwen35" in repr(model) and "open" in repr(model)
        with Context(model, n_ctx=128, n_seq_max=2, n_rs_seq=3, n_threads=1) as context:
            for part in (path.name, "n_ctx=64", "2 sequences", "n_rs_seq=3", "open"):
                assert part in repr(context)
        assert "closed" in repr(context)
    assert repr(model) == f"<Model '{path.name}', closed>"


@pytest.mark.parametrize("draft", [None, "prompt-lookup"])
@pytest.mark.parametrize("n_parallel", [1, 3])
def test_a_llama(draft: str | None, n_parallel: int) -> None:
    path = model_path("llama")
    with Llama(str(path), draft=draft, n_ctx=64, n_parallel=n_parallel) as llm:
        for part in (path.name, "n_ctx=64", f"n_parallel={n_parallel}", draft or "no draft"):
            assert part in repr(llm)
        stream = llm([1, 2, 3], max_tokens=3, temperature=0.0, stream=True)
        assert repr(stream) == "<Stream: 0 tokens, going on>"
        list(stream)
        assert "ended" in repr(stream)
        assert "tokens" in repr(llm.save_state())
    assert "closed" in repr(llm)


def test_a_drafter() -> None:
    path = model_path("eagle3")
    head = Eagle3(path, 3)
    assert repr(head) == f"<Eagle3 '{path.name}': eagle3, max_draft=3>"
    head.close()
    assert "closed" in repr(head)


@pytest.mark.parametrize(
    ("kind", "options", "is_off"),
    [
        ("llama", {"n_draft": 0}, True), ("llama", {"n_draft": 2}, False),
        ("deepseek4", {"n_ubatch": 1}, True), ("deepseek4", {"n_ubatch": 2}, True),
        ("deepseek4", {"n_batch": 2}, True), ("deepseek4", {}, False),
    ],
)  # fmt: skip
def test_a_draft_that_may_propose_nothing(kind: str, options: dict[str, Any], is_off: bool) -> None:
    """By n_draft, or since a batch leaves no room for the state's snapshots."""
    with Llama(str(model_path(kind)), draft="prompt-lookup", n_ctx=64, **options) as llm:
        assert ("disabled" in repr(llm)) == is_off
        stats = llm([1, 2, 1, 2, 1], max_tokens=6, temperature=0.0)["speculation"]
    assert (stats["state"] == "disabled") == is_off
    assert bool(stats["reason_off"]) == is_off
