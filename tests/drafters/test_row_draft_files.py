"""Files of drafts that read rows: another target's, no draft, torsos; and who a drafter drafts for.

The contract of every kind in tests/row_drafts.py; the tests of files apply to kinds with a file of
their own (test_mtp_files.py has the others). For faults of one kind alone, see test_eagle3_files.py
and tests/robust/cases_dflash.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyllama_spec import ArgumentError, Llama, UnsupportedError
from pyllama_spec.drafters import DFlash
from pyllama_spec.engine import Context, Model
from tests.dflash_tools import KINDS
from tests.models import model_path
from tests.models.dflash import DFlashConfig, dflash_tensors, write_dflash
from tests.oracles import tiny
from tests.row_drafts import OWN_FILES, ROW_DRAFTS, each_kind

each_file = pytest.mark.parametrize("name", OWN_FILES)


OF_EACH: list[tuple[dict[str, Any], str]] = [
    ({"target_layers": (1, 2, 5)}, "the input of layer 5, the target has the layer inputs 0"),
    ({"n_vocab": 512}, "a vocabulary of 512, this one has 320"),
    (
        {"n_vocab": 321, "own_embedding": False, "own_output": False},
        "a vocabulary of 321, this one has 320",
    ),
]
OF_ONE: list[tuple[str, dict[str, Any], str]] = [
    ("dflash", {"n_embd": 128}, "rows of width 128"),
    ("eagle3", {"target_n_embd": 128}, "rows of width 128"),
    ("eagle3", {"n_embd": 32, "own_embedding": False}, "no token_embd.weight of its own"),
    ("eagle3", {"n_embd": 32, "own_output": False}, "no output.weight of its own"),
]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [*OF_ONE, *((name, *case) for name in OWN_FILES for case in OF_EACH)],
)
def test_a_draft_for_another_target(name: str, options: dict[str, Any], message: str) -> None:
    path = model_path(name, **options)
    with pytest.raises(ArgumentError, match=message):
        Llama(model_path("llama"), draft=path, n_threads=1)
    # The engine's room says it too, to who opens contexts by hand.
    with Context(tiny("llama"), n_ctx=32, n_threads=1) as target, Model(path) as draft:
        with pytest.raises(ArgumentError, match=message):
            Context(draft, target=target, n_ctx=32)
        with pytest.raises(ArgumentError, match=message):
            draft.check_draft_of(tiny("llama"))


@each_file
def test_another_vocabulary_of_the_same_size(name: str, tmp_path: Path) -> None:
    data = bytearray(model_path(name).read_bytes())
    at = data.index(b"<|endoftext|>")
    data[at : at + 13] = b"<|endofworld|"
    path = tmp_path / "draft.gguf"
    path.write_bytes(data)
    with pytest.raises(ArgumentError, match=r"token 259 is '<\|endofworld\|', the target's is"):
        Llama(model_path("llama"), draft=path, n_threads=1)


@each_kind
def test_p_min_of_a_file_given_by_path(name: str) -> None:
    kind = ROW_DRAFTS[name]
    (target, draft), counts = kind.pair(output_scale=0.1), []
    for p_min in (None, 0.0, 0.9):
        with Llama(
            target, draft=draft, p_min=p_min, lookup=0, controller="fixed",
            n_threads=1,
        ) as llm:  # fmt: skip
            result = llm.create_completion([1, 2, 3], max_tokens=30, temperature=0)
            assert result["speculation"]["drafter"] == kind.drafter_name
            counts.append(result["speculation"]["drafted"])
    assert counts[0] == counts[1] > 0
    assert counts[2] == 0, "this draft is sure of nothing"


@each_file
def test_a_draft_is_no_target(name: str) -> None:
    with pytest.raises(UnsupportedError, match="needs its target"):
        Llama(model_path(name), n_threads=1)


@each_file
@pytest.mark.parametrize("other", ["llama", *OWN_FILES])
def test_a_file_of_another_kind(name: str, other: str) -> None:
    kind = ROW_DRAFTS[name]
    if other == name:
        with kind.random() as drafter:
            assert drafter.name == name
    else:
        with pytest.raises(ArgumentError, match=f"'{other}', not {kind.article}"):
            kind.open(model_path(other))


@each_kind
def test_a_draft_drafts_for_one_open_model(name: str) -> None:
    kind = ROW_DRAFTS[name]
    with kind.random() as drafter:
        path = kind.target_for(drafter).path
        with Llama(path, draft=drafter, controller="fixed", n_threads=1) as first:
            with pytest.raises(ArgumentError, match="drafts for another open model"):
                Llama(path, draft=drafter, n_threads=1)
            result = first.create_completion([1, 2, 3], max_tokens=5, temperature=0)
            assert result["speculation"]["reason_off"] is None
        with Llama(path, draft=drafter, controller="fixed", n_threads=1) as second:
            result = second.create_completion([1, 2, 3], max_tokens=5, temperature=0)
            assert result["speculation"]["reason_off"] is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_by_its_path(kind: str) -> None:
    """The draft predicts no more tokens than its trained block, whatever n_draft is."""
    path = model_path("dflash", **KINDS[kind])
    with DFlash(path) as draft:
        most = draft.max_draft
        assert draft.describe()["block_size"] == 6
        assert most == 5 + draft.block.sample_from_anchor
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


@pytest.mark.parametrize("n_parallel", [1, 3])
def test_a_token_that_the_draft_lacks_stops_no_other(n_parallel: int, tmp_path: Path) -> None:
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
