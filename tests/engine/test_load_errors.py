"""A file that the engine refuses: its class, what is at fault, and at most one engine line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter

from pyllama_spec.engine import Model
from pyllama_spec.engine.load_errors import UnknownArchitectureError, load_error
from pyllama_spec.errors import (
    ArgumentError,
    ModelLoadError,
    OutOfMemoryError,
    PyllamaSpecError,
    UnsupportedError,
)
from tests.models.adapter import write_adapter
from tests.models.sketch import Sketch
from tests.robust.tools import edited, tiny, with_bytes, with_key


def _without_a_tensor(folder: Path) -> Path:
    def change(sketch: Sketch) -> None:
        del sketch.tensors["blk.1.ffn_up.weight"]

    return edited(folder, change)


# The file, and what its message names.
FILES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "no tensor": (_without_a_tensor, "blk.1.ffn_up.weight"),
    "shape": (lambda f: with_key(f, "feed_forward_length", 77), "blk.0.ffn_gate.weight"),
    "architecture": (lambda f: with_bytes(f, b"\0llama", b"\0xlama"), "'xlama'"),
    "no key": (
        lambda f: with_bytes(f, b"llama.embedding_length", b"llama.embedding_lengtX"),
        "llama.embedding_length",
    ),
    "kind of a key": (lambda f: with_key(f, "block_count", "two"), "llama.block_count"),
    "refused value": (lambda f: with_key(f, "block_count", 10**6), "the engine says"),
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_that_cannot_be_loaded(case: str, tmp_path: Path) -> None:
    write, named = FILES[case]
    path = write(tmp_path)
    with pytest.raises(ModelLoadError) as caught:
        Model(path)
    said = str(caught.value)
    assert said.startswith(f"cannot load {path}: ")
    assert named in said
    assert "llama_model_load" not in said and ";llama" not in said
    if isinstance(caught.value, UnknownArchitectureError):
        assert caught.value.arch == "xlama"


def test_an_adapter_and_an_mmproj_are_no_models(tmp_path: Path) -> None:
    adapter, mmproj = write_adapter(tiny(), tmp_path / "adapter.gguf"), tmp_path / "mmproj.gguf"
    writer = GGUFWriter(mmproj, "clip")
    writer.add_type("mmproj")
    writer.add_tensor("mm.0.weight", np.zeros((32, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    for path, named in ((adapter, "lora_path"), (mmproj, "mmproj")):
        with pytest.raises(ModelLoadError, match=f"not a model|images.*{named}|{named}"):
            Model(path)


@pytest.mark.posix
def test_control_characters_of_a_file_are_escaped(tmp_path: Path) -> None:
    path = tmp_path / "a\x1b[2J é.gguf"
    path.write_bytes(tiny().read_bytes().replace(b"\0llama", b"\0l\x1b\x07\t\x7f", 1))
    with pytest.raises(ModelLoadError) as caught:
        Model(path)
    assert "a\\x1b[2J é.gguf" in str(caught.value)
    assert "'l\\x1b\\x07\t\\x7f'" in str(caught.value)


def test_kv_overrides_may_be_at_fault() -> None:
    with pytest.raises(ModelLoadError, match="'mine'"):
        Model(tiny(), kv_overrides={"tokenizer.ggml.pre": "mine"})


@pytest.mark.parametrize(
    ("line", "kind", "named"),
    [
        ("invalid value for main_gpu: 3 (available devices: 1)", ArgumentError, "main_gpu=3"),
        (
            "LLAMA_SPLIT_MODE_TENSOR not implemented for architecture 'x'", UnsupportedError,
            "split_mode",
        ),
        ("unable to allocate CPU buffer", OutOfMemoryError, ""),
        ("unable to allocate CUDA0 buffer", OutOfMemoryError, "n_gpu_layers"),
        (
            "allocating 9.00 MiB on device 0: cudaMalloc failed: out of memory", OutOfMemoryError,
            "n_gpu_layers",
        ),
        ("mmap failed: Cannot allocate memory", OutOfMemoryError, ""),
        ("posix_memalign failed with error 22", ModelLoadError, "posix_memalign"),
        ("failed to open /out of memory/bad_alloc.gguf: I/O error", ModelLoadError, "I/O error"),
        ("nobody knows; what this is", ModelLoadError, "nobody knows; what this is"),
    ],
)  # fmt: skip
def test_lines_of_the_engine(line: str, kind: type[PyllamaSpecError], named: str) -> None:
    """What is the caller's fault or the machine's has another class than what is the file's."""
    said = (
        "cannot load m: it failed (the engine says: llama_model_load: error loading model: "
        f"{line};llama_model_load_from_file_impl: failed to load model)"
    )
    error = load_error(ModelLoadError(said), "cannot load m")
    assert type(error) is kind
    assert str(error).startswith("cannot load m: ") and named in str(error)
    assert "from_file_impl" not in str(error)
    assert ("n_gpu_layers" in str(error)) == (named == "n_gpu_layers")
    other = PyllamaSpecError(said)
    assert load_error(other, "cannot load m") is other
