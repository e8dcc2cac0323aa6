"""What things say of themselves at a prompt: file, sizes, draft, place, open or closed."""

from __future__ import annotations

import re

import pytest

from pyllama_spec import Drafter, Eagle3, Llama, NoDrafter, PromptLookup
from pyllama_spec.engine import Context, Model
from tests.models import model_path


def test_a_model_and_its_context() -> None:
    path = model_path("qwen35")
    with Model(path) as model:
        assert re.fullmatch(
            rf"<Model '{re.escape(path.name)}': qwen35 .+, on the CPU, open>", repr(model)
        )
        with Context(model, n_ctx=128, n_seq_max=2, n_rs_seq=3, n_threads=1) as context:
            assert repr(context) == (
                f"<Context of '{path.name}': n_ctx=64 for each of 2 sequences, n_rs_seq=3, "
                "1 threads, open>"
            )
        assert repr(context).endswith(", closed>")
    assert repr(model) == f"<Model '{path.name}', closed>"


@pytest.mark.parametrize(
    ("draft", "words"),
    [
        (None, "no draft"), ("prompt-lookup", "draft <PromptLookup: prompt-lookup, max_draft="),
        (NoDrafter(), "no draft"),
    ],
)  # fmt: skip
def test_a_llama(draft: str | Drafter | None, words: str) -> None:
    path = model_path("llama")
    with Llama(str(path), draft=draft, n_ctx=64) as llm:
        assert repr(llm).startswith(f"<Llama of <Model '{path.name}': llama ")
        assert ", n_ctx=64, n_parallel=1, " in repr(llm)
        assert words in repr(llm)
        stream = llm([1, 2, 3], max_tokens=3, temperature=0.0, stream=True)
        assert repr(stream) == "<Stream: 0 tokens, going on>"
        list(stream)
        assert re.fullmatch(r"<Stream: \d tokens, ended: (length|stop)>", repr(stream))
    assert repr(llm) == f"<Llama of <Model '{path.name}', closed>>"


@pytest.mark.parametrize("n_draft", [0, 2])
def test_a_draft_that_may_propose_nothing(n_draft: int) -> None:
    """Neither the repr nor a result calls it idle: it was never asked."""
    with Llama(str(model_path("llama")), draft="prompt-lookup", n_draft=n_draft, n_ctx=64) as llm:
        assert (" disabled by n_draft>" in repr(llm)) == (n_draft == 0)
        stats = llm([1, 2, 1, 2, 1], max_tokens=6, temperature=0.0)["speculation"]
    assert (stats["state"] == "disabled") == (n_draft == 0)
    assert (stats["reason_off"] == "no token may be drafted here: the bound of n_draft is 0") == (
        n_draft == 0
    )


@pytest.mark.parametrize("n_parallel", [1, 3])
def test_how_many_requests_a_llama_computes_side_by_side(n_parallel: int) -> None:
    with Llama(str(model_path("llama")), n_ctx=64, n_parallel=n_parallel) as llm:
        assert f", n_ctx=64, n_parallel={n_parallel}, no draft>" in repr(llm)


def test_drafters_before_and_after() -> None:
    path = model_path("eagle3")
    head = Eagle3(path, 3)
    assert repr(head) == f"<Eagle3 '{path.name}': eagle3, max_draft=3>"
    head.close()
    assert repr(head).endswith(", closed>")
    assert repr(PromptLookup(4)) == "<PromptLookup: prompt-lookup, max_draft=4>"
