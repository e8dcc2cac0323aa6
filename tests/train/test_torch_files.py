"""Checkpoints that torch.save() wrote: state dicts, and the mask's vector of a DFlash draft."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pyllama_spec.convert.tensor_files import read_torch
from pyllama_spec.errors import ConversionError
from tests.convert.dflash_tools import MASK, N_EMBD, convert, make_draft, numbers, write_draft
from tests.convert.test_dflash_matrices import target_with
from tests.convert.test_files import MIXED
from tests.convert.test_files import numbers as numbers_of
from tests.convert.tools import (
    Array,
    Tensors,
    as_bf16,
    check_equal,
    gguf_tensors,
    make_head,
    stored,
    write_head,
    write_target,
)
from tests.convert.tools import convert as convert_eagle3

VECTOR = as_bf16(np.random.default_rng(3).standard_normal(N_EMBD))


def as_torch(array: Array, floats: str = "BF16") -> torch.Tensor:
    """An array as a checkpoint holds it: float32 in the type `floats`."""
    tensor = torch.from_numpy(np.array(array, order="C"))
    return tensor.to(torch.bfloat16) if array.dtype == np.float32 and floats == "BF16" else tensor


def save(path: Path, tensors: Tensors, floats: str = "BF16", **more: int) -> None:
    """torch.save() of a state dict."""
    torch.save({name: as_torch(array, floats) for name, array in tensors.items()} | more, path)


@pytest.mark.parametrize("floats", ["BF16", "F32"])
def test_every_kind_of_number(tmp_path: Path, floats: str) -> None:
    save(tmp_path / "a.bin", MIXED, floats)
    tensors = read_torch(tmp_path / "a.bin")
    assert set(tensors) == set(MIXED)
    for key, array in MIXED.items():
        assert tensors[key].shape == array.shape
        assert np.array_equal(numbers_of(tensors[key]), array), key
    kinds = ["F64", "F16", "I64", "I32", "BOOL", floats, floats, floats]
    assert sorted(t.dtype for t in tensors.values()) == sorted(kinds)


def test_a_head_in_one_file_and_a_transposed_view(tmp_path: Path) -> None:
    head = make_head()
    folder = write_head(tmp_path / "draft", "safeailab", head)
    (folder / "model.safetensors").unlink()
    tensors = {name.replace("layers.0.", "midlayer."): a for name, a in head.tensors.items()}
    views = {n: as_torch(a.T).T if a.ndim == 2 else as_torch(a) for n, a in tensors.items()}
    torch.save(views, folder / "pytorch_model.bin")
    check_equal(convert_eagle3(folder).path, head.gguf)


class Evil:
    """Code that a hostile file would run."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch evil",)


@pytest.mark.parametrize(
    "content", [{"a": Evil()}, [1, 2], {1: torch.ones(1)}, {"epoch": 3}, {"model": {}}]
)
def test_what_is_no_state_dict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: object
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(content, tmp_path / "a.bin")
    with pytest.raises(ConversionError, match=r"a\.bin"):
        read_torch(tmp_path / "a.bin")
    assert not (tmp_path / "evil").exists()


def write_mask(
    folder: Path, vector: Array = VECTOR, token: int | None = MASK, floats: str = "BF16"
) -> None:
    """mask_embedding.pt: a dict with its token, as XiaomiMiMo writes it."""
    more: dict[str, Any] = {} if token is None else {"mask_token_id": token}
    save(folder / "mask_embedding.pt", {"embedding": vector}, floats, **more)


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


@pytest.mark.parametrize("shape", [None, (N_EMBD,), (1, N_EMBD)])
@pytest.mark.parametrize("tied", [False, True])
def test_the_mask_in_an_own_embedding(
    tmp_path: Path, tied: bool, shape: tuple[int, ...] | None
) -> None:
    """The mask may be a dict or a tensor alone."""
    draft = make_draft(own=("token_embd",) if tied else ("token_embd", "output"))
    draft.config["tie_word_embeddings"] = tied
    folder = write_draft(tmp_path / "draft", "zlab", draft)
    if shape is None:
        write_mask(folder)
    else:
        torch.save(as_torch(VECTOR.reshape(shape)), folder / "mask_embedding.pt")
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
    with pytest.raises(ConversionError, match=r"mask_embedding\.pt cannot be read"):
        convert(folder)
