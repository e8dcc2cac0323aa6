"""DFlash drafts that go with another target, and numbers that a draft cannot be opened with.

Files that contradict themselves: tests/robust/cases_dflash.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyllama_spec import ArgumentError, Llama, ModelLoadError, UnsupportedError
from pyllama_spec.drafters import DFlash
from pyllama_spec.engine import Context, Model
from tests.dflash_tools import KINDS
from tests.models import model_path
from tests.models.dflash import DFlashConfig, dflash_tensors, write_dflash
from tests.oracles import tiny
from tests.scripted import proposed, told


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_embd": 128}, "rows of width 128, this one has 64"),
        ({"target_layers": (1, 2, 5)}, "the input of layer 5, the target has the layer inputs 0"),
        ({"n_vocab": 512}, "a vocabulary of 512, this one has 320"),
        (
            {"n_vocab": 321, "own_embedding": False, "own_output": False},
            "a vocabulary of 321, this one has 320",
        ),
    ],
)
def test_a_draft_for_another_target(options: dict[str, Any], message: str) -> None:
    path = model_path("dflash", **options)
    with pytest.raises(ArgumentError, match=message):
        Llama(model_path("llama"), draft=path, n_threads=1)
    # The engine's room says it too, to who opens contexts by hand.
    with Context(tiny("llama"), n_ctx=32, n_threads=1) as target, Model(path) as draft:
        with pytest.raises(ArgumentError, match=message):
            Context(draft, target=target, n_ctx=32)
        with pytest.raises(ArgumentError, match=message):
            draft.check_draft_of(tiny("llama"))


def test_another_vocabulary_of_the_same_size(tmp_path: Path) -> None:
    data = bytearray(model_path("dflash").read_bytes())
    at = data.index(b"<|endoftext|>")
    data[at : at + 13] = b"<|endofworld|"
    path = tmp_path / "draft.gguf"
    path.write_bytes(data)
    with pytest.raises(ArgumentError, match=r"token 259 is '<\|endofworld\|', the target's is"):
        Llama(model_path("llama"), draft=path, n_threads=1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_by_its_path(kind: str) -> None:
    """No more is guessed than a block was trained for, whatever is asked."""
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


def test_p_min_of_a_file_given_by_path() -> None:
    path, counts = model_path("dflash", output_scale=0.1), []
    for p_min in (None, 0.0, 0.9):
        with Llama(
            model_path("llama"), draft=path, p_min=p_min, lookup=0, controller="fixed",
            n_threads=1,
        ) as llm:  # fmt: skip
            result = llm.create_completion([1, 2, 3], max_tokens=30, temperature=0)
            counts.append(result["speculation"]["drafted"])
    assert counts[0] == counts[1] > 0
    assert counts[2] == 0, "this draft is sure of nothing"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_draft": 0}, "max_draft=0"),
        ({"max_draft": 6}, "max_draft=6: a block of .* 6 slots and guesses 5 tokens"),
        ({"n_ctx": 0}, "n_ctx=0"),
        ({"p_min": -1.0}, "p_min=-1"),
        ({"p_min": float("nan")}, "p_min"),
    ],
)
def test_numbers_out_of_range(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        DFlash(model_path("dflash"), **arguments)
    with pytest.raises(ArgumentError, match="model must be"):
        DFlash(3)  # type: ignore[arg-type]


def test_what_is_no_dflash_draft() -> None:
    with pytest.raises(ArgumentError, match="'llama', not a DFlash draft"):
        DFlash(model_path("llama"))
    with pytest.raises(ArgumentError, match="'eagle3', not a DFlash draft"):
        DFlash(model_path("eagle3"))
    with pytest.raises(UnsupportedError, match="needs its target"):
        Llama(model_path("dflash"), n_threads=1)


@pytest.mark.parametrize("size", [0, 100, 5_000, 200_000])
def test_a_truncated_file(size: int, tmp_path: Path) -> None:
    path = tmp_path / "draft.gguf"
    path.write_bytes(model_path("dflash").read_bytes()[:size])
    with pytest.raises(ModelLoadError):
        Llama(model_path("llama"), draft=path, n_threads=1)


def test_a_draft_without_its_target() -> None:
    shared = Model(model_path("dflash", own_embedding=False, own_output=False))
    with pytest.raises(ArgumentError, match="target="):
        Context(shared, n_ctx=32)
    drafter = DFlash(shared)
    with pytest.raises(ArgumentError, match="attach"):
        drafter.commit(told([1]))
    with pytest.raises(ArgumentError, match="attach"):
        proposed(drafter, [1, 2], 1)


def test_a_draft_drafts_for_one_open_model() -> None:
    with DFlash(model_path("dflash")) as drafter:
        with Llama(model_path("llama"), draft=drafter, controller="fixed", n_threads=1) as first:
            with pytest.raises(ArgumentError, match="drafts for another open model"):
                Llama(model_path("llama"), draft=drafter, n_threads=1)
            result = first.create_completion([1, 2, 3], max_tokens=5, temperature=0)
            assert result["speculation"]["reason_off"] is None
        with Llama(model_path("llama"), draft=drafter, controller="fixed", n_threads=1) as second:
            result = second.create_completion([1, 2, 3], max_tokens=5, temperature=0)
            assert result["speculation"]["reason_off"] is None


@pytest.mark.parametrize("n_parallel", [1, 3])
def test_a_token_that_the_draft_lacks_stops_no_other(n_parallel: int, tmp_path: Path) -> None:
    """A draft may lack the target's last ids: nothing is guessed behind one of them."""
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
