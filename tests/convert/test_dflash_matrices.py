"""Matrices that a DFlash draft shares with its target or must bring, and mask_embedding.pt."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from pyllama_spec.errors import ConversionError
from tests.convert.dflash_tools import (
    MASK,
    N_EMBD,
    N_VOCAB,
    check_equal,
    convert,
    convert_written,
    make_draft,
    numbers,
    write_draft,
)
from tests.convert.tools import (
    Array,
    Tensors,
    as_bf16,
    gguf_keys,
    gguf_tensors,
    stored,
    write_bare_tensor,
    write_target,
    write_torch,
)
from tests.models.vocab import write_tokenizer

VECTOR = as_bf16(np.random.default_rng(3).standard_normal(N_EMBD))


def target_with(path: Path, kind: str = "F16", tied: bool = False, arch: str = "llama") -> Tensors:
    """A target's GGUF with its embedding and output; their numbers as float32."""
    writer = GGUFWriter(path, arch)
    writer.add_uint32(f"{arch}.block_count", 8)
    writer.add_uint32(f"{arch}.embedding_length", N_EMBD)
    write_tokenizer(writer, N_VOCAB, None)
    rng = np.random.default_rng(5)
    values: Tensors = {}
    for name in ("token_embd.weight",) if tied else ("token_embd.weight", "output.weight"):
        array = as_bf16(rng.standard_normal((N_VOCAB, N_EMBD)))
        qtype = GGMLQuantizationType[kind]
        raw = quantize(array, qtype)
        values[name] = dequantize(raw, qtype)
        if kind in ("F16", "F32"):
            writer.add_tensor(name, raw)
        else:
            writer.add_tensor(name, raw, raw_dtype=qtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return values


def write_mask(
    folder: Path, vector: Array = VECTOR, token: int | None = MASK, floats: str = "BF16"
) -> None:
    """mask_embedding.pt: a dict with its token, as XiaomiMiMo writes it."""
    extra = b""
    if token is not None:
        name = b"mask_token_id"
        extra = (
            b"X"
            + len(name).to_bytes(4, "little")
            + name
            + b"J"
            + token.to_bytes(4, "little", signed=True)
        )
    write_torch(folder / "mask_embedding.pt", {"embedding": vector}, floats, extra)


def test_nothing_is_written_that_is_shared(tmp_path: Path) -> None:
    tensors = gguf_tensors(convert_written(tmp_path, "zlab", make_draft()).path)
    assert "token_embd.weight" not in tensors
    assert "output.weight" not in tensors


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


def test_matrices_of_the_target_are_missing(tmp_path: Path) -> None:
    draft = make_draft(own=("token_embd",))
    with pytest.raises(ConversionError, match=r"no output: that needs output.weight \[320, 32\]"):
        convert_written(tmp_path, "zlab", draft)
    folder = write_draft(tmp_path / "again", "zlab", draft)
    target_with(tmp_path / "cut.gguf")
    whole = (tmp_path / "cut.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[:-100])
    with pytest.raises(ConversionError, match="cut"):
        convert(folder, target=tmp_path / "cut.gguf")


@pytest.mark.parametrize("token", [MASK, None])
def test_the_mask_gets_a_row_of_its_own(tmp_path: Path, token: int | None) -> None:
    """The mask's row goes into a copy of the target's embedding; the output stays the target's."""
    draft = make_draft()
    folder = write_draft(tmp_path / "draft", "zlab", draft)
    write_mask(folder, token=token)
    values = target_with(tmp_path / "target.gguf", "BF16")
    report = convert(folder, target=tmp_path / "target.gguf")
    expected = values["token_embd.weight"].copy()
    expected[MASK] = VECTOR
    assert np.array_equal(numbers(report.path, "token_embd.weight"), expected)
    assert np.array_equal(numbers(report.path, "output.weight"), values["output.weight"])
    del values["token_embd.weight"]
    rest = {n: t for n, t in gguf_tensors(report.path).items() if n in draft.gguf}
    assert len(rest) == len(draft.gguf) == report.n_tensors - 2
    assert sum("of the target is copied" in note for note in report.notes) == 2


@pytest.mark.parametrize("shape", [(N_EMBD,), (1, N_EMBD)])
def test_a_mask_may_be_a_tensor_alone(tmp_path: Path, shape: tuple[int, ...]) -> None:
    draft = make_draft(own=("token_embd", "output"))
    folder = write_draft(tmp_path / "draft", "zlab", draft)
    write_bare_tensor(folder / "mask_embedding.pt", VECTOR.reshape(shape))
    values = numbers(convert(folder).path, "token_embd.weight")
    expected = draft.gguf["token_embd.weight"].copy()
    expected[MASK] = VECTOR
    assert np.array_equal(values, expected)


@pytest.mark.parametrize("tied", [False, True])
def test_the_mask_in_an_own_embedding(tmp_path: Path, tied: bool) -> None:
    draft = make_draft(own=("token_embd",) if tied else ("token_embd", "output"))
    draft.config["tie_word_embeddings"] = tied
    folder = write_draft(tmp_path / "draft", "zlab", draft)
    write_mask(folder)
    tensors = gguf_tensors(convert(folder).path)
    expected = draft.gguf["token_embd.weight"].copy()
    output = expected if tied else draft.gguf["output.weight"]
    assert tensors["output.weight"][2] == stored(output)[1], "the output has no mask"
    expected[MASK] = VECTOR
    assert tensors["token_embd.weight"][2] == stored(expected)[1]


def test_a_mask_of_another_type_is_rounded(tmp_path: Path) -> None:
    """The mask is rounded to the embedding's type: F32 to the nearest BF16, BF16 to F16."""
    draft = make_draft(own=("token_embd", "output"))
    folder = write_draft(tmp_path / "draft", "zlab", draft)
    vector = np.full(N_EMBD, 1 + 2**-8 + 2**-20, np.float32)
    write_mask(folder, vector, floats="F32")
    assert np.all(numbers(convert(folder).path, "token_embd.weight")[MASK] == 1 + 2**-7)
    other = write_draft(tmp_path / "other", "zlab", make_draft())
    write_mask(other)
    target_with(tmp_path / "target.gguf", "F16")
    values = numbers(convert(other, target=tmp_path / "target.gguf").path, "token_embd.weight")
    assert np.array_equal(values[MASK], VECTOR.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize(
    ("vector", "token", "message"),
    [
        (VECTOR, MASK + 1, f"is for the token {MASK + 1}, and mask_token_id is {MASK}"),
        (VECTOR[:-1], MASK, r"has the shape \[31\], not \[32\]"),
        (np.ones((2, N_EMBD), np.float32), MASK, r"has the shape \[2, 32\]"),
        (np.ones(N_EMBD, np.int64), MASK, r"holds \['embedding'\], and not one vector"),
        (np.full(N_EMBD, np.nan, np.float32), MASK, "not finite"),
    ],
)
def test_bad_masks(tmp_path: Path, vector: Array, token: int, message: str) -> None:
    folder = write_draft(tmp_path / "draft", "zlab", make_draft(own=("token_embd", "output")))
    write_mask(folder, vector, token)
    with pytest.raises(ConversionError, match=message):
        convert(folder)


def test_masks_that_cannot_be_placed(tmp_path: Path) -> None:
    folder = write_draft(tmp_path / "draft", "zlab", make_draft())
    write_mask(folder)
    with pytest.raises(ConversionError, match="a vector for the mask token: that needs token_embd"):
        convert(folder)
    target = write_target(tmp_path / "gemma.gguf", "gemma3", embedding_length=N_EMBD)
    with pytest.raises(ConversionError, match="whether the embedding's scale counts"):
        convert(folder, target=target)
    (folder / "mask_embedding.pt").write_bytes(b"PK nothing")
    with pytest.raises(ConversionError, match=r"mask_embedding\.pt is cut off"):
        convert(folder)


SCALES: list[tuple[str, dict[str, Any], float | None]] = [
    ("llama", {}, None),
    ("gemma3", {}, math.sqrt(N_EMBD)),
    ("gemma4", {}, math.sqrt(N_EMBD)),
    ("gemma4", {"input_embedding_scale": 2.5}, 2.5),
    ("qwen3", {"input_embedding_scale": 2.5}, 2.5),
    ("gemma3", {"input_embedding_scale": 1.0}, None),
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


def test_speculators_trains_with_a_plain_table(tmp_path: Path) -> None:
    target = write_target(tmp_path / "t.gguf", "gemma4", embedding_length=N_EMBD)
    report = convert_written(tmp_path, "redhat", make_draft(reduced=True), target=target)
    assert "dflash.embedding_scale" not in gguf_keys(report.path)
    assert "as speculators trains it" in report.notes[-1]


@pytest.mark.parametrize("sections", [[11, 11, 10, 0], [24, 20, 20, 0], [0, 0, 0, 0]])
def test_mrope_targets(tmp_path: Path, sections: list[int]) -> None:
    keys = {"embedding_length": N_EMBD, "rope.dimension_sections": sections}
    target = write_target(tmp_path / "t.gguf", "qwen35", **keys)
    written = gguf_keys(convert_written(tmp_path, "zlab", make_draft(), target=target).path)
    assert written.get("dflash.rope.dimension_sections") == (
        [8, 0, 0, 0] if any(sections) else None
    )
