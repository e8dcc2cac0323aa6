"""Reprs at a prompt: file, sizes, draft, device, open or closed."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pyllama_spec import Drafter, Eagle3, Llama, NoDrafter, PromptLookup
from pyllama_spec.drafters import SmallModel
from pyllama_spec.engine import Context, Model
from pyllama_spec.speculative import Round
from tests.models import model_path
from tests.oracles import tiny, tiny_context


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
        assert re.fullmatch(r"<LlamaState: \d tokens, \d+ bytes>", repr(llm.save_state()))
        assert re.fullmatch(r"<Stream: \d tokens, ended: (length|stop)>", repr(stream))
    assert repr(llm) == f"<Llama of <Model '{path.name}', closed>>"


@pytest.mark.parametrize("n_draft", [0, 2])
def test_a_draft_that_may_propose_nothing(n_draft: int) -> None:
    """Neither the repr nor a result calls it idle, since it was never asked."""
    with Llama(str(model_path("llama")), draft="prompt-lookup", n_draft=n_draft, n_ctx=64) as llm:
        assert (" disabled by n_draft>" in repr(llm)) == (n_draft == 0)
        stats = llm([1, 2, 1, 2, 1], max_tokens=6, temperature=0.0)["speculation"]
    assert (stats["state"] == "disabled") == (n_draft == 0)
    said = "nothing is drafted: n_draft allows no token of a draft"
    assert (stats["reason_off"] == said) == (n_draft == 0)


def test_a_small_model_that_was_not_asked_says_why() -> None:
    """Its step costs several of the target's, also on a busy machine: no text repays reading."""
    with SmallModel(model_path("llama", seed=9, n_layer=16), 4) as draft:
        with Llama(str(model_path("llama")), draft=draft, n_ctx=128, n_threads=1) as llm:
            answer: Any = llm(list(range(20, 80)), max_tokens=12, temperature=0.0)
        stats = answer["speculation"]
        assert (stats["state"], stats["asked"]) == ("idle", 0)
        why = "it was not asked: reading the text so far would take it longer than its drafts could"
        assert stats["note"].startswith(f"{draft.name} was idle: {why}")
        assert answer._repr_html_().count("was idle") == 1


@pytest.mark.parametrize("sizes", [{"n_ubatch": 1}, {"n_ubatch": 2}, {"n_batch": 2}, {}], ids=str)
def test_a_state_without_room_for_snapshots_says_what_helps(sizes: dict[str, Any]) -> None:
    path = str(model_path("deepseek4"))
    with Llama(path, draft="prompt-lookup", n_ctx=64, **sizes) as llm:
        reason = (
            f"a physical batch of {min(sizes.values(), default=0)} tokens (too small for snapshots "
            "of this state; give n_ubatch, n_batch and n_ctx of 3 or more)"
        )
        assert (f" disabled by {reason}>" in repr(llm)) == bool(sizes)
        stats = llm([1, 2, 1, 2, 1], max_tokens=6, temperature=0.0)["speculation"]
    said = f"nothing is drafted: {reason} allows no token of a draft"
    assert (stats["reason_off"] == said) == bool(sizes)


def test_a_context_without_snapshots_says_what_helps() -> None:
    with tiny_context(tiny("deepseek4"), n_ctx=64, n_rs_seq=0) as context:
        round_ = Round(context, PromptLookup())
        assert round_.max_draft == 0
        assert round_.max_draft_reason.startswith("n_rs_seq=0 (")
    with tiny_context(tiny("deepseek4"), n_ctx=64, n_rs_seq=3) as context:
        assert Round(context, PromptLookup()).max_draft == 3


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
