"""Tensor files: reading, and damage."""

from __future__ import annotations

import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyllama_spec.convert.checkpoint import open_checkpoint
from pyllama_spec.convert.pickled import read_torch
from pyllama_spec.convert.safetensors import read_safetensors
from pyllama_spec.errors import ConversionError
from pyllama_spec.gguf.tensors import SourceTensor, to_float32
from tests.convert.test_layouts import check_equal
from tests.convert.tools import (
    Tensors,
    as_bf16,
    convert,
    make_head,
    write_head,
    write_safetensors,
    write_torch,
)

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
Reader = Callable[[Path], dict[str, SourceTensor]]
FORMATS: list[tuple[str, Callable[..., None], Reader]] = [
    ("a.safetensors", write_safetensors, read_safetensors),
    ("a.bin", write_torch, read_torch),
]
by_format = pytest.mark.parametrize(("name", "write", "read"), FORMATS, ids=["safetensors", "bin"])


def numbers(tensor: SourceTensor) -> Any:
    """The numbers as they were given to the writer."""
    if tensor.dtype == "BF16":
        return to_float32(tensor.read(), "BF16")
    return tensor.read()


@by_format
@pytest.mark.parametrize("floats", ["BF16", "F32"])
def test_every_kind_of_number(
    tmp_path: Path, name: str, write: Callable[..., None], read: Reader, floats: str
) -> None:
    write(tmp_path / name, MIXED, floats)
    tensors = read(tmp_path / name)
    assert set(tensors) == set(MIXED)
    for key, array in MIXED.items():
        assert tensors[key].shape == array.shape
        assert np.array_equal(numbers(tensors[key]), array), key
    kinds = ["F64", "F16", "I64", "I32", "BOOL", floats, floats, floats]
    assert sorted(t.dtype for t in tensors.values()) == sorted(kinds)
    assert tensors["mask"].integers().tolist() == [1, 0, 1]
    assert tensors["ids"].integers().tolist() == MIXED["ids"].tolist()


@by_format
def test_half_of_a_file(
    tmp_path: Path, name: str, write: Callable[..., None], read: Reader
) -> None:
    """A file cut anywhere is refused, at once or when its numbers are read, without a traceback."""
    whole = tmp_path / name
    write(whole, MIXED)
    data = whole.read_bytes()
    part = tmp_path / f"part_{name}"
    for n in [*range(40), *range(40, len(data), 37), len(data) - 1]:
        part.write_bytes(data[:n])
        with pytest.raises(ConversionError, match="part_a"):
            for tensor in read(part).values():
                tensor.read()


@by_format
def test_flipped_bytes(tmp_path: Path, name: str, write: Callable[..., None], read: Reader) -> None:
    """A damaged file gives numbers or a ConversionError, nothing else."""
    whole = tmp_path / name
    write(whole, MIXED)
    data = whole.read_bytes()
    part = tmp_path / f"part_{name}"
    rng = np.random.default_rng(0)
    for _ in range(400):
        damaged = bytearray(data)
        for at in rng.integers(0, len(data), 2):
            damaged[at] ^= 1 << rng.integers(0, 8)
        part.write_bytes(bytes(damaged))
        try:
            for tensor in read(part).values():
                assert tensor.read().shape == tensor.shape
        except ConversionError as error:
            assert "part_a" in str(error) or "is stored as" in str(error)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"a": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}}, "stored as F8_E4M3"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, "8 bytes, and has 4"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, "byte 8 of 4: it is cut"),
        ({"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}}, "belong to no tensor"),
        ({"a": {"dtype": "U8", "shape": [2], "data_offsets": [2, 4]}}, "begins at byte 2, not 0"),
        ({"a": {"dtype": "U8", "shape": [-4], "data_offsets": [0, 4]}}, "does not describe 'a'"),
        ({"a": {"dtype": "U8", "shape": [4.0], "data_offsets": [0, 4]}}, "does not describe 'a'"),
        ({"a": {"dtype": "U8", "shape": [4]}}, "does not describe 'a'"),
        ({"a": [1]}, "does not describe 'a'"),
        ({"a": {"dtype": ["U8"], "shape": [4], "data_offsets": [0, 4]}}, "does not describe 'a'"),
        ([1], "not a table of tensors"),
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
        (struct.pack("<Q", 4) + b"\xff\xff{}", "its header is not JSON"),
        (struct.pack("<Q", 13) + b'{"a":1,"a":2}', "a tensor name occurs twice"),
    ],
)
def test_no_safetensors(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(data)
    with pytest.raises(ConversionError, match=message):
        read_safetensors(path)


class Evil:
    """Code that a hostile file would run."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch evil",)


def pickled(path: Path, data: bytes, **files: bytes) -> Path:
    """A torch file around this pickle."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data.pkl", data)
        for name, raw in files.items():
            archive.writestr(f"model/{name}", raw)
    return path


HOSTILE = [
    (pickle.dumps({"a": Evil()}), r"names (posix|nt)\.system, which a plain state dict"),
    (pickle.dumps({"a": Evil()}, protocol=0), r"names (posix|nt)\.system"),
    (b"\x80\x02cbuiltins\neval\n.", "names builtins.eval"),
    (b"\x80\x02cbuiltins\ngetattr\n.", "names builtins.getattr"),
    (b"\x80\x02ctorch\nload\n.", "names torch.load"),
    (b"\x80\x02ctorch.storage\n_load_from_bytes\n.", "names torch.storage._load_from_bytes"),
    # Reaching into what the allowed names stand for.
    (b"\x80\x04\x8c\x0ctorch._utils\x8c\x1e_rebuild_tensor_v2.__globals__\x93.", "names torch"),
    (b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n}X\x01\x00\x00\x00aK\x01sb.", "damaged"),
    (b"\x80\x02ctorch\nFloatStorage\n)R.", "not callable"),
    (b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(K\x01K\x01K\x01K\x01tR.", "damaged|wrongly"),
    (b"\x80\x02(X\x07\x00\x00\x00storagetQ.", "not a storage"),
    (b"\x80\x02X\x01\x00\x00\x00aQ.", "not a storage"),
    (pickle.dumps([1, 2]), "holds a list"),
    (pickle.dumps({1: 2}), "holds a dict, no tensors by their names"),
    (pickle.dumps({"epoch": 3}), "'epoch' is a int, not a tensor"),
    (pickle.dumps({"model": {}}), "'model' is a dict, not a tensor"),
    # Gigabytes for a table with one entry.
    (b"\x80\x02Nr\x00\x00\x00\x20.", "uses the memo index 536870912"),
    (b"\x80\x02Np536870912\n.", "uses the memo index 536870912"),
    (b"", "Ran out of input|exhausted|damaged"),
    (b"\x80\x02K\x01", "damaged"),
    (b"\x80\x63.", "unsupported pickle protocol"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "message"), HOSTILE)
def test_pickles_that_are_no_state_dict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConversionError, match=message):
        read_torch(pickled(tmp_path / "a.bin", data))
    assert not (tmp_path / "evil").exists()


def test_numbers_of_a_torch_file(tmp_path: Path) -> None:
    write_torch(tmp_path / "a.bin", {"a": FLOATS}, "F32")
    with zipfile.ZipFile(tmp_path / "a.bin") as archive:
        data, raw = archive.read("model/data.pkl"), archive.read("model/data/0")
    shape = b"J" + struct.pack("<i", 5) + b"J" + struct.pack("<i", 6) + b"t"
    taller = shape.replace(struct.pack("<i", 5), struct.pack("<i", 6))
    for changed, files, message in (
        (data, {}, "the numbers of a are missing"),
        (data, {"data/0": raw[:-4]}, "the numbers of a are not 120 bytes"),
        (data, {"data/0": raw, "byteorder": b"big"}, "big-endian"),
        (data.replace(shape, taller), {"data/0": raw}, "reaches beyond the end of its storage"),
    ):
        with pytest.raises(ConversionError, match=message):
            read_torch(pickled(tmp_path / "b.bin", changed, **files))


def test_views_of_one_storage(tmp_path: Path) -> None:
    """A transposed view reads its storage with the view's strides."""
    write_torch(tmp_path / "a.bin", {"a": FLOATS}, "F32")
    with zipfile.ZipFile(tmp_path / "a.bin") as archive:
        data, raw = archive.read("model/data.pkl"), archive.read("model/data/0")

    def pair(a: int, b: int) -> bytes:
        return b"(J" + struct.pack("<i", a) + b"J" + struct.pack("<i", b) + b"t"

    data = data.replace(pair(5, 6) + pair(6, 1), pair(6, 5) + pair(1, 6))
    tensors = read_torch(pickled(tmp_path / "b.bin", data, **{"data/0": raw}))
    assert np.array_equal(tensors["a"].read(), FLOATS.T)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "format before torch 1.6"),
        (b"PK\x03\x04 and no more", "is cut off"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"", "not a file that torch.save"),
        (b"hello", "not a file that torch.save"),
    ],
)
def test_no_torch_file(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(data)
    with pytest.raises(ConversionError, match=message):
        read_torch(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("word/document.xml", "no model")
    with pytest.raises(ConversionError, match=r"holds no data\.pkl"):
        read_torch(path)


def test_checksums_are_compared(tmp_path: Path) -> None:
    write_torch(tmp_path / "a.bin", {"a": FLOATS}, "F32")
    data = (tmp_path / "a.bin").read_bytes()
    raw = FLOATS.tobytes()
    (tmp_path / "a.bin").write_bytes(data.replace(raw, raw[:-1] + bytes([raw[-1] ^ 1])))
    with pytest.raises(ConversionError, match=r"a\.bin: a: Bad CRC"):
        read_torch(tmp_path / "a.bin")["a"].read()


def sharded(folder: Path, suffix: str) -> dict[str, str]:
    """Splits a head into two files with an index; returns the index."""
    head = make_head()
    write_head(folder, "specforge", head)
    (folder / "model.safetensors").unlink()
    tensors = {name.replace("layers.0.", "midlayer."): v for name, v in head.tensors.items()}
    places: dict[str, str] = {}
    for index in range(2):
        file = f"model-{index + 1}-of-2{suffix}"
        part = dict(list(tensors.items())[index::2])
        (write_torch if suffix == ".bin" else write_safetensors)(folder / file, part)
        places |= dict.fromkeys(part, file)
    return places


@pytest.mark.parametrize(
    ("suffix", "index"),
    [
        (".safetensors", "model.safetensors.index.json"),
        (".bin", "pytorch_model.bin.index.json"),
    ],
)
def test_shards(tmp_path: Path, suffix: str, index: str) -> None:
    folder = tmp_path / "draft"
    places = sharded(folder, suffix)

    def write(weight_map: object) -> None:
        (folder / index).write_text(json.dumps({"weight_map": weight_map}))

    write(places)
    check_equal(convert(folder).path, make_head())
    for changed, message in (
        (places | {"more.weight": f"model-1-of-2{suffix}"}, "more.weight: .* lacks it"),
        ({k: v for k, v in places.items() if k != "fc.weight"}, "fc.weight: .* as well"),
        (places | {"fc.weight": "model-3-of-3.bin"}, "model-3-of-3.bin, which is not beside it"),
        (places | {"fc.weight": "../elsewhere.bin"}, "which is not the plain name of a file"),
        ([], "no weight_map"),
        ({"fc.weight": 3}, "no weight_map"),
    ):
        write(changed)
        with pytest.raises(ConversionError, match=message):
            open_checkpoint(folder)


def test_folders(tmp_path: Path) -> None:
    folder = write_head(tmp_path / "draft", "specforge", make_head())
    model = folder / "model.safetensors"
    with pytest.raises(ConversionError, match=r"model\.safetensors is a file; give the folder"):
        open_checkpoint(model)
    with pytest.raises(ConversionError, match="none does not exist: a checkpoint is a folder"):
        open_checkpoint(tmp_path / "none")
    (folder / "other.safetensors").write_bytes(model.read_bytes())
    assert open_checkpoint(folder).tensors
    model.unlink()
    assert open_checkpoint(folder).tensors
    (folder / "third.safetensors").write_bytes(b"")
    with pytest.raises(ConversionError, match=r"other\.safetensors, third\.safetensors without"):
        open_checkpoint(folder)
    for path in folder.glob("*.safetensors"):
        path.unlink()
    with pytest.raises(ConversionError, match=r"neither model\.safetensors or pytorch_model\.bin"):
        open_checkpoint(folder)
    write_safetensors(model, {})
    with pytest.raises(ConversionError, match="holds no tensors"):
        open_checkpoint(folder)
    for text, message in (
        ("{", "is not JSON"),
        ("[1]", "holds a list, not an object"),
        ("[" * 100_000, "is not JSON"),
        ("\xff", "is not JSON"),
    ):
        (folder / "config.json").write_bytes(text.encode("latin-1"))
        with pytest.raises(ConversionError, match=message):
            open_checkpoint(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ConversionError, match=r"config\.json does not exist"):
        open_checkpoint(folder)
