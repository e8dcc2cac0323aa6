"""Our reader of GGUF files against the gguf package's, and damaged files."""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from pyllama_spec.engine import quantize
from pyllama_spec.errors import ModelLoadError
from pyllama_spec.files import whole_file, why_no_output
from pyllama_spec.gguf.header import check_header
from pyllama_spec.gguf.reader import read_gguf, read_keys, read_table
from pyllama_spec.gguf.sizes import shares_by_type, tensor_bytes
from pyllama_spec.gguf.values import read_floats, read_ids
from tests.models import model_path


def write(path: Path, *, alignment: int | None = None) -> Path:
    """A file with each kind of value and two tensors."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint64("a.count", 2**40)
    writer.add_bool("a.flag", True)
    writer.add_string("a.text", "é")
    writer.add_array("a.texts", ["x", "", "yz"])
    writer.add_array("a.numbers", [1, 2, 3])
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    writer.add_tensor("one", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("ids", np.arange(4, dtype=np.int64))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("alignment", [None, 64, 256])
def test_keys_and_table_are_those_of_the_package(tmp_path: Path, alignment: int | None) -> None:
    path = write(tmp_path / "a.gguf", alignment=alignment)
    file = read_gguf(path)
    values = {name: key.value for name, key in file.keys.items() if name.startswith("a.")}
    assert values == {
        "a.count": 2**40, "a.flag": True, "a.text": "é".encode(), "a.texts": [b"x", b"", b"yz"],
        "a.numbers": [1, 2, 3],
    }  # fmt: skip
    expected = gguf.GGUFReader(path)
    assert [(t.name, t.offset) for t in file.tensors.values()] == [
        (t.name, int(t.data_offset)) for t in expected.tensors
    ]
    assert file.tensors["one"].shape == (2, 3)
    np.testing.assert_array_equal(
        read_floats(path, file.tensors["one"]), np.arange(6, dtype=np.float32).reshape(2, 3)
    )
    np.testing.assert_array_equal(read_ids(path, file.tensors["ids"]), np.arange(4))
    assert read_keys(path, lambda name: name == "a.flag").keys() == {"a.flag"}


@pytest.mark.parametrize("kind", ["F32", "BF16", "F16", "Q8_0", "Q4_0", "Q6_K"])
def test_numbers_are_those_of_the_package(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.gguf"
    quantize(model_path("llama"), path, kind)
    file = read_gguf(path, lambda _: False)
    for tensor in gguf.GGUFReader(path).tensors:
        entry = file.tensors[tensor.name]
        assert entry.type_id == tensor.tensor_type
        wanted = gguf.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_array_equal(read_floats(path, entry), wanted.reshape(entry.shape))


def test_numbers_of_an_unknown_type_or_a_cut_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf")
    tensors = read_gguf(path).tensors
    with pytest.raises(ModelLoadError):
        read_ids(path, tensors["one"].__class__("one", (2, 3), 0, 0))
    with pytest.raises(ModelLoadError):
        read_floats(path, tensors["one"].__class__("one", (2, 3), 999, 0))
    path.write_bytes(path.read_bytes()[:-32])
    with pytest.raises(ModelLoadError):
        read_ids(path, tensors["ids"])


def test_a_table_is_read_once_while_the_file_stays(tmp_path: Path) -> None:
    path, other = write(tmp_path / "a.gguf"), write(tmp_path / "other.gguf", alignment=64)
    first = read_table(path)
    assert first.tensors == read_gguf(path).tensors
    assert read_table(path) is first
    time_of_first = path.stat().st_mtime_ns
    # The same size, and one of time and file is the same.
    path.write_bytes(path.read_bytes().replace(b"one", b"two"))
    os.utime(path, ns=(1, time_of_first + 1))
    assert set(tensor_bytes(path)) == {"two", "ids"}
    renamed = path.read_bytes().replace(b"two", b"six")
    (tmp_path / "new").write_bytes(renamed)
    (tmp_path / "new").replace(path)
    os.utime(path, ns=(1, time_of_first + 1))
    assert set(tensor_bytes(path)) == {"six", "ids"}
    assert set(tensor_bytes(other)) == {"one", "ids"}
    path.unlink()
    for read in (tensor_bytes, shares_by_type, read_table):
        with pytest.raises(ModelLoadError):
            read(path)


def after(data: bytes, place: bytes, number: int) -> bytes:
    """The data with another number of four bytes behind a place."""
    at = data.index(place) + len(place)
    return data[:at] + struct.pack("<I", number) + data[at + 4 :]


_ALIGNMENT = b"general.alignment" + struct.pack("<I", 4)
_NUMBERS = b"a.numbers" + struct.pack("<I", 9)
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "two of a name": lambda data: data.replace(b"\3\0\0\0\0\0\0\0ids", b"\3\0\0\0\0\0\0\0one"),
    "dimensions": lambda data: after(data, b"ids", 2**31),
    "a cut": lambda data: data[: data.index(b"ids") + 30],
    "no alignment": lambda data: after(data, _ALIGNMENT, 0),
    "an alignment of 48": lambda data: after(data, _ALIGNMENT, 48),
    "an array of arrays": lambda data: after(data, _NUMBERS, 9),
    # Reading the metadata would take seven seconds of a processor.
    "20,000 keys": lambda _: struct.pack("<4sIQQ", b"GGUF", 3, 0, 20_000) + bytes(20_000 * 14),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_table_that_cannot_be(what: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", alignment=64)
    path.write_bytes(DAMAGE[what](path.read_bytes()))
    for wanted in (True, False):
        with pytest.raises(ModelLoadError):
            check_header(path)
            read_gguf(path, lambda _, wanted=wanted: wanted)  # type: ignore[misc]


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with whole_file(path) as part:
        part.write_text("first")
        assert not path.exists()
    with pytest.raises(KeyboardInterrupt), whole_file(path) as part:
        part.write_text("second")
        raise KeyboardInterrupt
    with pytest.raises(FileNotFoundError), whole_file(path):
        pass
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_takes_no_devices_place(tmp_path: Path) -> None:
    pipe, link, aim = tmp_path / "pipe", tmp_path / "link", tmp_path / "aim"
    os.mkfifo(pipe)
    link.symlink_to(aim)
    for path in (pipe, tmp_path, Path("/dev/full")):
        with pytest.raises(OSError, match="not a file"), whole_file(path) as part:
            part.write_text("new")
        assert why_no_output(path) is not None
    assert stat.S_ISFIFO(pipe.stat().st_mode) and stat.S_ISCHR(Path("/dev/full").stat().st_mode)
    for text in ("new", "newer"):
        assert why_no_output(link) is None
        with whole_file(link) as part:
            part.write_text(text)
        assert link.is_symlink() and aim.read_text() == text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["aim", "link", "pipe"]
