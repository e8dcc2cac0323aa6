"""Tensor files: reading, and damage."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from pyllama_spec.convert.checkpoint import open_checkpoint
from pyllama_spec.convert.tensor_files import read_safetensors
from pyllama_spec.errors import ConversionError
from pyllama_spec.gguf.tensors import SourceTensor, to_float32
from tests.convert.tools import (
    Tensors,
    as_bf16,
    check_equal,
    convert,
    make_head,
    write_head,
    write_safetensors,
)
from tests.fuzz.mutated import mutate

RNG = np.random.default_rng(7)
FLOATS = as_bf16(RNG.standard_normal((5, 6)))
MIXED: Tensors = {
    "floats": FLOATS,
    "doubles": RNG.standard_normal((2, 3, 4)),
    "halves": RNG.standard_normal(7).astype(np.float16),
    "ids": np.array([-3, 0, 1 << 40], np.int64),
    "small_ids": np.array([[1], [2]], np.int32),
    "mask": np.array([True, False, True]),
    "scalar": np.array(2.5, np.float32),
    "empty": np.zeros((0, 4), np.float32),
}


def check_mixed(tensors: Mapping[str, SourceTensor], floats: str) -> None:
    """They have the numbers of MIXED, with float32 stored as `floats`."""
    assert set(tensors) == set(MIXED)
    for key, array in MIXED.items():
        tensor = tensors[key]
        assert tensor.shape == array.shape
        is_bf16 = tensor.dtype == "BF16"
        numbers = to_float32(tensor.read(), "BF16") if is_bf16 else tensor.read()
        assert np.array_equal(numbers, array), key
    kinds = ["F64", "F16", "I64", "I32", "BOOL", floats, floats, floats]
    assert sorted(t.dtype for t in tensors.values()) == sorted(kinds)


@pytest.mark.parametrize("floats", ["BF16", "F32"])
def test_every_kind_of_number(tmp_path: Path, floats: str) -> None:
    write_safetensors(tmp_path / "a.safetensors", MIXED, floats)
    tensors = read_safetensors(tmp_path / "a.safetensors")
    check_mixed(tensors, floats)
    assert tensors["mask"].integers().tolist() == [1, 0, 1]
    assert tensors["ids"].integers().tolist() == MIXED["ids"].tolist()


def test_damage(tmp_path: Path) -> None:
    """A file cut anywhere is refused; one with changed bytes too, or it gives numbers."""
    whole = tmp_path / "a.safetensors"
    write_safetensors(whole, MIXED)
    data = whole.read_bytes()
    part = tmp_path / "part_a.safetensors"
    for n in [*range(40), *range(40, len(data), 37), len(data) - 1]:
        part.write_bytes(data[:n])
        with pytest.raises(ConversionError, match="part_a"):
            for tensor in read_safetensors(part).values():
                tensor.read()
    draw = random.Random(0)
    for _ in range(400):
        part.write_bytes(mutate(bytearray(data), draw))
        try:
            for tensor in read_safetensors(part).values():
                assert tensor.read().shape == tensor.shape
        except ConversionError as error:
            assert "part_a" in str(error) or "is stored as" in str(error)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"a": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}}, "stored as F8_E4M3"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, "0 to 4 of 4"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, "0 to 8 of 4"),
        ({"a": {"dtype": "U8", "shape": [2], "data_offsets": [2, 4]}}, "begins at byte 2, not 0"),
        ({"a": {"dtype": "U8", "shape": [-4], "data_offsets": [0, 4]}}, "does not describe 'a'"),
        ({"a": [1]}, "a.safetensors cannot be read"),
        ([1], "a.safetensors cannot be read"),
    ],
)  # fmt: skip
def test_safetensors_headers(tmp_path: Path, header: object, message: str) -> None:
    text = json.dumps(header).encode()
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(4))
    with pytest.raises(ConversionError, match=message):
        read_safetensors(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "cut off, or no safetensors file"),
        (struct.pack("<Q", 1 << 40) + b"{}", "cut off, or no safetensors file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "git lfs pull"),
        (struct.pack("<Q", 4) + b"\xff\xff{}", "a.safetensors cannot be read"),
        (struct.pack("<Q", 13) + b'{"a":1,"a":2}', "a tensor name occurs twice"),
    ],
)
def test_no_safetensors(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(data)
    with pytest.raises(ConversionError, match=message):
        read_safetensors(path)


def sharded(folder: Path) -> dict[str, str]:
    """Splits a head into two files with an index; returns the index."""
    head = make_head()
    write_head(folder, "specforge", head)
    (folder / "model.safetensors").unlink()
    tensors = {name.replace("layers.0.", "midlayer."): v for name, v in head.tensors.items()}
    places: dict[str, str] = {}
    for index in range(2):
        file = f"model-{index + 1}-of-2.safetensors"
        part = dict(list(tensors.items())[index::2])
        write_safetensors(folder / file, part)
        places |= dict.fromkeys(part, file)
    return places


def test_shards(tmp_path: Path) -> None:
    folder = tmp_path / "draft"
    places = sharded(folder)

    def write(weight_map: object) -> None:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

    write(places)
    check_equal(convert(folder).path, make_head().gguf)
    for changed, message in (
        (places | {"more.weight": "model-1-of-2.safetensors"}, "more.weight: .* lacks it"),
        ({k: v for k, v in places.items() if k != "fc.weight"}, "fc.weight: .* as well"),
        (places | {"fc.weight": "model-3-of-3.bin"}, "model-3-of-3.bin, which is not beside it"),
        (places | {"fc.weight": "../elsewhere.bin"}, "which is not the plain name of a file"),
        ([], "no weight_map"),
        ({"fc.weight": 3}, "no weight_map"),
    ):
        write(changed)
        with pytest.raises(ConversionError, match=message):
            open_checkpoint(folder)
