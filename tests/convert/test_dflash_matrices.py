"""Matrices that a DFlash draft shares with its target or must bring."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from tests.convert.dflash_tools import (
    N_EMBD,
    N_VOCAB,
    convert,
    convert_written,
    make_draft,
    numbers,
    write_draft,
)
from tests.convert.tools import Tensors, as_bf16, check_equal, gguf_keys, gguf_tensors, write_target
from tests.models.keys import writing
from tests.models.vocab import write_tokenizer


def target_with(path: Path, kind: str = "F16", tied: bool = False, arch: str = "llama") -> Tensors:
    """A target's GGUF with its embedding and output; their numbers as float32."""
    rng, values = np.random.default_rng(5), {}
    with writing(path, arch) as writer:
        writer.add_uint32(f"{arch}.block_count", 8)
        writer.add_uint32(f"{arch}.embedding_length", N_EMBD)
        write_tokenizer(writer, N_VOCAB, None)
        for name in ("token_embd.weight",) if tied else ("token_embd.weight", "output.weight"):
            qtype = GGMLQuantizationType[kind]
            raw = quantize(as_bf16(rng.standard_normal((N_VOCAB, N_EMBD))), qtype)
            values[name] = dequantize(raw, qtype)
            writer.add_tensor(name, raw, raw_dtype=None if kind in ("F16", "F32") else qtype)
    return values


def test_a_tied_draft_without_matrices_shares_both(tmp_path: Path) -> None:
    """z-lab/Qwen3.5-4B-DFlash: the flag describes the target."""
    draft = make_draft()
    draft.config["tie_word_embeddings"] = True
    check_equal(convert_written(tmp_path, "zlab", draft).path, draft.gguf)


def test_a_tied_embedding_is_the_output(tmp_path: Path) -> None:
    draft = make_draft(own=("token_embd",))
    draft.config["tie_word_embeddings"] = True
    tensors = gguf_tensors(convert_written(tmp_path, "zlab", draft).path)
    assert tensors["output.weight"] == tensors["token_embd.weight"]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_an_embedding_alone_brings_the_targets_output(
    tmp_path: Path, kind: str, tied: bool
) -> None:
    """The file gets the target's output; without it stock llama.cpp would use the embedding."""
    draft = make_draft(own=("token_embd",))
    folder = write_draft(tmp_path / "draft", "zlab", draft)
    values = target_with(tmp_path / "target.gguf", kind, tied)
    report = convert(folder, target=tmp_path / "target.gguf")
    name = "token_embd.weight" if tied else "output.weight"
    assert gguf_tensors(report.path)["output.weight"][0] == kind
    assert np.array_equal(numbers(report.path, "output.weight"), values[name])
    assert f"{name} of the target is copied" in report.notes[-1]


def test_a_quantised_output_becomes_f16(tmp_path: Path) -> None:
    folder = write_draft(tmp_path / "draft", "zlab", make_draft(own=("token_embd",)))
    values = target_with(tmp_path / "target.gguf", "Q8_0")
    report = convert(folder, target=tmp_path / "target.gguf")
    written = numbers(report.path, "output.weight")
    assert np.array_equal(written, values["output.weight"].astype(np.float16).astype(np.float32))
    assert "output.weight of the target is quantised, and copied as F16" in report.notes


SCALES: list[tuple[str, dict[str, Any], float | None]] = [
    ("llama", {}, None),
    ("gemma3", {}, math.sqrt(N_EMBD)),
    ("gemma4", {"input_embedding_scale": 2.5}, 2.5),
    ("qwen3", {"input_embedding_scale": 2.5}, 2.5),
]


@pytest.mark.parametrize(("arch", "options", "scale"), SCALES)
def test_embedding_scale(
    tmp_path: Path, arch: str, options: dict[str, Any], scale: float | None
) -> None:
    draft = make_draft()
    draft.config["dflash_config"] |= options
    target = write_target(tmp_path / "t.gguf", arch, embedding_length=N_EMBD)
    keys = gguf_keys(convert_written(tmp_path, "zlab", draft, target=target).path)
    scale_key = keys.get("dflash.embedding_scale")
    assert scale_key == (None if scale is None else pytest.approx(scale))


@pytest.mark.parametrize("sections", [[11, 11, 10, 0], [24, 20, 20, 0], [0, 0, 0, 0]])
def test_mrope_targets(tmp_path: Path, sections: list[int]) -> None:
    keys = {"embedding_length": N_EMBD, "rope.dimension_sections": sections}
    target = write_target(tmp_path / "t.gguf", "qwen35", **keys)
    written = gguf_keys(convert_written(tmp_path, "zlab", make_draft(), target=target).path)
    assert written.get("dflash.rope.dimension_sections") == (
        [8, 0, 0, 0] if any(sections) else None
    )
