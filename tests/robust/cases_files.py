"""Files that are not what they should be."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pyllama_spec.engine import Model, quantize
from pyllama_spec.errors import ArgumentError, EngineError, ModelLoadError, PyllamaSpecError
from tests.models.sketch import Sketch

from .harness import CaseList
from .tools import edited, generate_greedily, tiny, with_bytes, with_key, written

CASES = CaseList()

_NOBODY = 65534


def _cut(at: Callable[[bytes], int]) -> Callable[[Path], object]:
    """Loads a model whose file ends at a place."""

    def run(folder: Path) -> object:
        data = tiny().read_bytes()
        return Model(written(folder, data[: at(data)]))

    return run


def _header(version: int = 3, n_tensors: int = 21, n_keys: int = 28) -> Callable[[Path], object]:
    def run(folder: Path) -> object:
        head = struct.pack("<4sIQQ", b"GGUF", version, n_tensors, n_keys)
        return Model(written(folder, head + tiny().read_bytes()[len(head) :]))

    return run


def _bytes(old: bytes, new: bytes) -> Callable[[Path], object]:
    return lambda folder: Model(with_bytes(folder, old, new))


def _after(key: bytes, n: int) -> Callable[[bytes], int]:
    return lambda data: data.index(key) + len(key) + n


CASES.calls(
    "file", ModelLoadError,
    {
        "missing": lambda f: Model(f / "no.gguf"),
        "empty": lambda f: Model(written(f, b"")),
        "folder": Model,
        "text": lambda f: Model(written(f, b"hello " * 99)),
        "device": lambda _: Model("/dev/zero"),
        "nul_in_path": lambda _: Model("a\0b.gguf"),
        "long_path": lambda _: Model("x" * 5000),
        "cut_in_magic": _cut(lambda _: 3),
        "cut_in_header": _cut(lambda _: 20),
        "cut_after_header": _cut(lambda _: 24),
        "cut_in_a_key": _cut(_after(b"llama.embed", 0)),
        "cut_in_tokens": _cut(_after(b"tokenizer.ggml.tokens", 99)),
        "cut_in_tensor_infos": _cut(_after(b"blk.1.attn_k.weight", 9)),
        "cut_before_data": _cut(lambda d: len(d) - 460_000),
        "cut_in_data": _cut(lambda d: len(d) // 2),
        "cut_last_tensor": _cut(lambda d: len(d) - 64),
        **{f"version_{version}": _header(version=version) for version in (0, 1, 99, 3 << 24)},
        "too_many_tensors": _header(n_tensors=2**60),
        "too_many_keys": _header(n_keys=2**64 - 1),
        "one_key_more": _header(n_keys=29),
        "no_tensors": _header(n_tensors=0),
        "no_architecture": _bytes(b"general.architecture", b"general.architectuXX"),
        "duplicate_key": _bytes(b"llama.context_length", b"llama.embedding_leng"),
        "tensor_renamed": _bytes(b"output_norm.w", b"output_nrom.w"),
    },
)  # fmt: skip


def _key(suffix: str, value: Any, arch: str = "llama") -> Callable[[Path], object]:
    return lambda folder: generate_greedily(with_key(folder, suffix, value, arch))


_EPSILON = "attention.layer_norm_rms_epsilon"

# Impossible numbers: refused at the load, or where one is first used.
for _name, _value, _arch, _kind in (
    ("block_count", 0, "llama", ModelLoadError),
    ("block_count", 2**32 - 1, "llama", ModelLoadError),
    ("attention.head_count", 0, "llama", PyllamaSpecError),
    ("attention.head_count", 0, "olmo2", ModelLoadError),
    ("attention.head_count", 2**31, "llama", PyllamaSpecError),
    ("attention.head_count_kv", 0, "llama", PyllamaSpecError),
    ("attention.head_count_kv", 3, "llama", PyllamaSpecError),
    ("full_attention_interval", 0, "qwen35", ModelLoadError),
    ("embedding_length", 0, "llama", ModelLoadError),
    ("embedding_length", 2**31, "llama", ModelLoadError),
    ("embedding_length", [1, 2], "llama", ModelLoadError),
    (_EPSILON, -1.0, "llama", EngineError), (_EPSILON, float("nan"), "llama", EngineError),
    ("rope.dimension_count", 7, "qwen3", EngineError),
    ("rope.dimension_count", 520, "qwen35", EngineError),
    ("rope.dimension_count", 2**31, "qwen35", EngineError),
    ("rope.dimension_sections", [99, 1, 1, 0], "qwen35", EngineError),
    ("rope.dimension_sections", [0, 0, 0, 0], "qwen35", EngineError),
    ("ssm.group_count", 0, "qwen35", PyllamaSpecError),
    ("ssm.group_count", 3, "mamba2", PyllamaSpecError),
    ("expert_used_count", 0, "qwen3moe", PyllamaSpecError),
    ("expert_used_count", 9, "qwen3moe", PyllamaSpecError),
):  # fmt: skip
    CASES.calls("metadata", _kind, {f"{_arch}_{_name}_{_value}": _key(_name, _value, _arch)})


@CASES.add(ModelLoadError)
def no_permission(folder: Path) -> None:
    path = written(folder, tiny().read_bytes())
    path.chmod(0)
    if os.geteuid() == 0:
        os.setuid(_NOBODY)
    Model(path)


@CASES.add(ModelLoadError)
def named_pipe(folder: Path) -> None:
    os.mkfifo(folder / "pipe.gguf")
    Model(folder / "pipe.gguf")


@CASES.add(ModelLoadError)
def link_to_itself(folder: Path) -> None:
    (folder / "loop.gguf").symlink_to("loop.gguf")
    Model(folder / "loop.gguf")


@CASES.add(PyllamaSpecError)
def shrinks_after_the_check(folder: Path) -> None:
    """Read, not mapped: a mapped file that shrinks later raises SIGBUS, which nobody can catch."""
    path = written(folder, tiny().read_bytes())

    def cut(_: float) -> None:
        os.truncate(path, 100_000)

    Model(path, use_mmap=False, progress=cut)


@CASES.add(EngineError)
def nan_weights(folder: Path) -> None:
    def spoil(sketch: Sketch) -> None:
        sketch.tensors["output_norm.weight"][:] = np.nan

    generate_greedily(edited(folder, spoil))


@CASES.add(PyllamaSpecError)
def hybrid_without_attention(folder: Path) -> None:
    def one_layer(sketch: Sketch) -> None:
        sketch.key("block_count", 1)
        for name in [n for n in sketch.tensors if n.startswith("blk.1.")]:
            del sketch.tensors[name]

    generate_greedily(edited(folder, one_layer, "qwen35"))


def _quantize(source: Path | None, target: Path, kind: str = "Q8_0", **options: Any) -> None:
    quantize(source or tiny(), target, kind, **options)


def _quantize_to_itself(folder: Path) -> None:
    path = written(folder, tiny().read_bytes())
    _quantize(path, path)


def _quantize_unwritable(folder: Path) -> None:
    source = written(folder, tiny().read_bytes())
    (folder / "locked").mkdir(mode=0o555)
    if os.geteuid() == 0:
        os.setuid(_NOBODY)
    _quantize(source, folder / "locked" / "out.gguf")


def _quantize_to_full_disk(folder: Path) -> None:
    # A limit on file sizes fails writes like a full disk does, and needs no rights.
    import resource
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
    _quantize(None, folder / "out.gguf", "F16")


CASES.calls(
    "quantize", ModelLoadError,
    {
        "missing_input": lambda f: _quantize(f / "no", f / "o"),
        "missing_folder": lambda f: _quantize(None, f / "a/o"),
        "unwritable": _quantize_unwritable,
        "full_disk": _quantize_to_full_disk,
        "to_a_folder": lambda f: _quantize(None, f),
        "damaged_input": lambda f: _quantize(written(f, tiny().read_bytes()[:90_000]), f / "o"),
    },
)  # fmt: skip
CASES.calls(
    "quantize", ArgumentError,
    {
        "to_itself": _quantize_to_itself,
        "bad_type": lambda f: _quantize(None, f / "o", "Q3_X"),
    },
)  # fmt: skip
