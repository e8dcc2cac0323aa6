"""Checkpoints that torch.save() wrote."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from pyllama_spec.convert.tensor_files import read_torch
from pyllama_spec.errors import ConversionError
from tests.convert.test_files import MIXED, check_mixed
from tests.convert.tools import (
    Array,
    Tensors,
    check_equal,
    make_head,
    write_head,
)
from tests.convert.tools import convert as convert_eagle3


def as_torch(array: Array, floats: str = "BF16") -> torch.Tensor:
    """An array as a checkpoint holds it: float32 in the type `floats`."""
    tensor = torch.from_numpy(np.array(array, order="C"))
    return tensor.to(torch.bfloat16) if array.dtype == np.float32 and floats == "BF16" else tensor


def save(path: Path, tensors: Tensors, floats: str = "BF16") -> None:
    """torch.save() of a state dict."""
    torch.save({name: as_torch(array, floats) for name, array in tensors.items()}, path)


@pytest.mark.parametrize("floats", ["BF16", "F32"])
def test_every_kind_of_number(tmp_path: Path, floats: str) -> None:
    save(tmp_path / "a.bin", MIXED, floats)
    check_mixed(read_torch(tmp_path / "a.bin"), floats)


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
