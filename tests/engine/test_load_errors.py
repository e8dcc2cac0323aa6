"""A file that the engine refuses: what is wrong, what to do, and at most one line of the engine."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter

from pyllama_spec.engine import Model
from pyllama_spec.engine.load_errors import load_error
from pyllama_spec.engine.placement import warn_of_fewer
from pyllama_spec.errors import (
    ArgumentError,
    ModelLoadError,
    OutOfMemoryError,
    PyllamaSpecError,
    UnsupportedError,
)
from tests.models.adapter import write_adapter
from tests.models.sketch import Sketch
from tests.robust.tools import edited, tiny, with_bytes, with_key, written

AGAIN = "download or convert it again"


def _tensors(edit: Callable[[dict[str, Any]], object]) -> Callable[[Path], Path]:
    def change(sketch: Sketch) -> None:
        edit(sketch.tensors)

    return lambda folder: edited(folder, change)


def _type_of_norm(kind: int) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        data, name = tiny().read_bytes(), b"output_norm.weight"
        at = data.index(name) + len(name)
        at += 4 + 8 * int.from_bytes(data[at : at + 4], "little")  # after the sizes
        return written(folder, data[:at] + struct.pack("<I", kind) + data[at + 4 :])

    return write


def _bytes(old: bytes, new: bytes) -> Callable[[Path], Path]:
    return lambda folder: with_bytes(folder, old, new)


def _key(name: str, value: Any) -> Callable[[Path], Path]:
    return lambda folder: with_key(folder, name, value)


FILES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "no tensor": (
        _tensors(lambda t: t.pop("blk.1.ffn_up.weight")),
        f"the file has no tensor blk.1.ffn_up.weight; it is incomplete: {AGAIN}",
    ),
    "shape": (
        _key("feed_forward_length", 77),
        (
            "the tensor blk.0.ffn_gate.weight has the shape 64, 128, and the keys of the file say "
            f"64, 77; it is damaged: {AGAIN}"
        ),
    ),
    "one tensor more": (
        _tensors(lambda t: t.update(more=np.zeros((32, 32), np.float32))),
        f"the file has 22 tensors, and this version reads 21 of them: {AGAIN}, or update this",
    ),
    "architecture": (
        _bytes(b"\0llama", b"\0xlama"),
        (
            "this version does not know its architecture 'xlama' (general.architecture): update "
            "this package, or choose another model"
        ),
    ),
    "no key": (
        _bytes(b"llama.embedding_length", b"llama.embedding_lengtX"),
        f"the file has no key llama.embedding_length; it is incomplete: {AGAIN}",
    ),
    "kind of a key": (
        _key("block_count", "two"),
        f"its key llama.block_count has the type str, and not u32: {AGAIN}",
    ),
    "unknown type": (
        _type_of_norm(99),
        "this version does not know the type 99 of the tensor output_norm",
    ),
    "removed type": (
        _type_of_norm(4),
        (
            "the tensor output_norm.weight has the type 4 (DEPRECATED), which does not fit its "
            "rows of 64 numbers: download it again, or quantize it to another type"
        ),
    ),
    "rope": (
        _key("embedding_length", 0),
        "its rope.dimension_count is 16, and its other keys give 0",
    ),
    "refused value": (
        _key("block_count", 10**6),
        f"a key of the file has a value that the engine refuses; {AGAIN} (the engine says: ",
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_that_cannot_be_loaded(case: str, tmp_path: Path) -> None:
    write, words = FILES[case]
    path = write(tmp_path)
    with pytest.raises(ModelLoadError) as caught:
        Model(path)
    assert str(caught.value).startswith(f"cannot load {path}: {words}")
    assert "llama_model_load" not in str(caught.value)
    assert ";llama" not in str(caught.value)


def test_an_adapter_is_no_model(tmp_path: Path) -> None:
    path = write_adapter(tiny(), tmp_path / "adapter.gguf")
    said = "it is a LoRA adapter, not a model: give the model's file, and this one as lora_path"
    with pytest.raises(ModelLoadError) as caught:
        Model(path)
    assert str(caught.value) == f"cannot load {path}: {said}"


def test_an_mmproj_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "mmproj.gguf"
    writer = GGUFWriter(path, "clip")
    writer.add_type("mmproj")
    writer.add_tensor("mm.0.weight", np.zeros((32, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelLoadError) as caught:
        Model(path)
    assert str(caught.value) == (
        f"cannot load {path}: it is an mmproj, which reads images for a language model: give the "
        "language model's file"
    )


def test_control_characters_of_a_file_are_escaped(tmp_path: Path) -> None:
    path = tmp_path / "a\x1b[2J é.gguf"
    path.write_bytes(tiny().read_bytes().replace(b"\0llama", b"\0l\x1b\x07\t\x7f", 1))
    with pytest.raises(ModelLoadError) as caught:
        Model(path)
    start = f"cannot load {tmp_path}/a\\x1b[2J é.gguf: this version does not know its"
    assert str(caught.value).startswith(f"{start} architecture 'l\\x1b\\x07\t\\x7f' ")


def test_a_message_keeps_what_is_no_control_character() -> None:
    assert str(ModelLoadError("a\n\tü 語 \x9b2J\r\u202ez")) == "a\n\tü 語 \\x9b2J\\r\\u202ez"
    with pytest.warns(UserWarning, match=r"9 layers of ü\\x1b\[31m on a device"):
        warn_of_fewer("ü\x1b[31m", 9, 0, 9)


def test_kv_overrides_may_be_at_fault() -> None:
    said = (
        r"know its pre-tokenizer 'mine' \(tokenizer\.ggml\.pre\): correct kv_overrides, or update"
    )
    with pytest.raises(ModelLoadError, match=said):
        Model(tiny(), kv_overrides={"tokenizer.ggml.pre": "mine"})


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("unknown tokenizer: 'x'", "does not know its tokenizer 'x' (tokenizer.ggml.model)"),
        ("unexpectedly reached end of file", "it became shorter while it was read; load it again"),
        ("missing tensor 'x'", "the file has no tensor x; it is incomplete"),
        (
            "key a.b has wrong array length; expected 2, got 3",
            "its key a.b has 3 values, and not 2",
        ),
        ("invalid gguf type for a.b", "its key a.b has a value of another type"),
        ("expected scalar, found array for key: a.b", "its key a.b has a list, and not a single"),
        (
            "nobody knows; what this is",
            "m: the engine could not load the file (the engine says: nobody knows; what this is)",
        ),
        (
            "l: GGUF data section at file offset 5 is not 32 byte aligned, cannot mmap",
            "its tensors are not aligned as a mapped file needs: give use_mmap=False",
        ),
        ("failed to open /a: c/b.gguf: Permission denied", ": b.gguf may not be read by this"),
        ("failed to open /a.gguf: Too many open files", "this process has too many open files: "),
        ("read error: Input/output error", "reading it failed (Input/output error): check the"),
    ],
)
def test_further_lines_of_the_engine(line: str, words: str) -> None:
    """Those of files that the tiny models are not."""
    said = (
        "cannot load m: the engine could not load the file (the engine says: llama_model_load: "
        f"error loading model: {line};llama_model_load_from_file_impl: failed to load model)"
    )
    assert str(load_error(ModelLoadError(said), "cannot load m")).startswith("cannot load m: ")
    assert words in str(load_error(ModelLoadError(said), "cannot load m"))
    other = PyllamaSpecError(said)
    assert load_error(other, "cannot load m") is other


@pytest.mark.parametrize(
    ("line", "words", "kind"),
    [
        (
            "m: invalid value for main_gpu: 3 (available devices: 1)",
            "main_gpu=3 is too large, as it can use 1 devices: choose a smaller main_gpu",
            ArgumentError,
        ),
        (
            "m: error loading model: LLAMA_SPLIT_MODE_TENSOR not implemented for architecture 'x'",
            "split_mode='tensor' does not support its architecture 'x': choose split_mode='layer'",
            UnsupportedError,
        ),
        (
            "m: error loading model: device X 1 does not support split buffers",
            "split_mode='row' does not support the device X 1: choose split_mode='layer'",
            UnsupportedError,
        ),
        (
            "gguf_init_from_file: failed to open GGUF file '/a.gguf' (Permission denied)",
            "a.gguf may not be read by this user: check its permissions",
            ModelLoadError,
        ),
        (
            "gguf_init_from_reader: key 'x' is strange",
            f"it failed; {AGAIN} (the engine says: key 'x' is strange)",
            ModelLoadError,
        ),
    ],
)
def test_the_callers_and_the_machines_faults_are_not_the_files(
    line: str, words: str, kind: type[PyllamaSpecError]
) -> None:
    said = f"m: it failed (the engine says: {line};llama_model_load: failed)"
    error = load_error(ModelLoadError(said), "m")
    assert type(error) is kind
    assert str(error) == f"m: {words}"


DEVICE, HOST = "choose a smaller n_gpu_layers, close other", "close other programs, or choose a"


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("unable to allocate CPU buffer", HOST),
        ("unable to allocate CPU_REPACK buffer", HOST),
        ("unable to allocate CUDA_Host buffer", HOST),
        ("unable to allocate CUDA0 buffer", DEVICE),
        ("allocating 9.00 MiB on device 0: cudaMalloc failed: out of memory", DEVICE),
        ("posix_memalign failed with error 12", HOST),
        ("mmap failed: Cannot allocate memory", HOST),
    ],
)
def test_too_little_memory_is_an_error_of_memory(line: str, remedy: str) -> None:
    said = f"m: it failed (the engine says: llama_model_load: error loading model: {line};a: b)"
    error = load_error(ModelLoadError(said), "m")
    assert isinstance(error, OutOfMemoryError)
    assert str(error).startswith(f"m: there is not enough memory for it: {remedy}")
    assert str(error).endswith(f" (the engine says: {line})")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("std::bad_alloc", f"so it is damaged or too large; {AGAIN} (the engine says: std::bad"),
        ("posix_memalign failed with error 22", "it failed (the engine says: posix_memalign"),
        ("failed to open /out of memory/bad_alloc.gguf: Input/output error", "it failed (the"),
    ],
)
def test_other_faults_are_no_errors_of_memory(line: str, words: str) -> None:
    said = f"m: it failed (the engine says: llama_model_load: error loading model: {line};a: b)"
    error = load_error(ModelLoadError(said), "m")
    assert type(error) is ModelLoadError
    assert words in str(error)
