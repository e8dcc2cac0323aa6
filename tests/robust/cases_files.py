"""Files that are not what they should be."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pyllama_spec.engine import Model, quantize
from pyllama_spec.errors import ArgumentError, EngineError, ModelLoadError, PyllamaSpecError
from tests.models.eagle3 import Eagle3Config, eagle3_tensors, write_eagle3
from tests.models.sketch import Sketch

from .harness import CaseList
from .tools import edited, generate_greedily, opened_file, tiny, with_bytes, with_key, written

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


CASES.table(
    "file",
    {
        "missing": (lambda f: Model(f / "no.gguf"), ModelLoadError, "no.gguf does not exist"),
        "in_missing_folder": (lambda f: Model(f / "a/b.gguf"), ModelLoadError, "does not exist"),
        "empty": (lambda f: Model(written(f, b"")), ModelLoadError, "is empty"),
        "folder": (Model, ModelLoadError, "is a folder"),
        "text": (lambda f: Model(written(f, b"hello " * 99)), ModelLoadError, "not a GGUF file"),
        "device": (lambda _: Model("/dev/zero"), ModelLoadError, "/dev/zero"),
        "zip": (lambda f: Model(written(f, b"PK\3\4" * 99)), ModelLoadError, "b'PK\\x03\\x04'"),
        "nul_in_path": (lambda _: Model("a\0b.gguf"), ModelLoadError, "null byte"),
        "long_path": (lambda _: Model("x" * 5000), ModelLoadError, "too long"),
        "cut_in_magic": (_cut(lambda _: 3), ModelLoadError, "b'GGU'"),
        "cut_in_header": (_cut(lambda _: 20), ModelLoadError, "cut off after 20 bytes"),
        "cut_after_header": (_cut(lambda _: 24), ModelLoadError, "24 bytes"),
        "cut_in_a_key": (_cut(_after(b"llama.embed", 0)), ModelLoadError, "key"),
        "cut_in_tokens": (_cut(_after(b"tokenizer.ggml.tokens", 99)), ModelLoadError, "key-value"),
        "cut_in_tensor_infos": (_cut(_after(b"blk.1.attn_k.weight", 9)), ModelLoadError, "tensor"),
        "cut_before_data": (_cut(lambda d: len(d) - 460_000), ModelLoadError, "it is cut off"),
        "cut_in_data": (_cut(lambda d: len(d) // 2), ModelLoadError, "it is cut off"),
        "cut_last_tensor": (_cut(lambda d: len(d) - 64), ModelLoadError, "it is cut off"),
        "version_0": (_header(version=0), ModelLoadError, "version 0"),
        "version_1": (_header(version=1), ModelLoadError, "version 1"),
        "version_99": (_header(version=99), ModelLoadError, "version 99"),
        "big_endian": (_header(version=3 << 24), ModelLoadError, "version 50331648"),
        "too_many_tensors": (_header(n_tensors=2**60), ModelLoadError, str(2**60)),
        "too_many_keys": (_header(n_keys=2**64 - 1), ModelLoadError, str(2**64 - 1)),
        "one_key_more": (_header(n_keys=29), ModelLoadError, "cannot load"),
        "no_tensors": (_header(n_tensors=0), ModelLoadError, "cannot load"),
        "no_architecture": (
            _bytes(b"general.architecture", b"general.architectuXX"), ModelLoadError, "architect",
        ),
        "unknown_architecture": (_bytes(b"\0llama", b"\0xlama"), ModelLoadError, "xlama"),
        "duplicate_key": (
            _bytes(b"llama.context_length", b"llama.embedding_leng"), ModelLoadError, "cannot load",
        ),
        "tensor_renamed": (_bytes(b"output_norm.w", b"output_nrom.w"), ModelLoadError, "output_n"),
    },
)  # fmt: skip


def _key(suffix: str, value: Any, arch: str = "llama") -> Callable[[Path], object]:
    return lambda folder: generate_greedily(with_key(folder, suffix, value, arch))


_EPSILON = "attention.layer_norm_rms_epsilon"

# What an impossible number in the metadata does: where it is first used differs.
CASES.table(
    "metadata",
    {
        "no_layers": (_key("block_count", 0), ModelLoadError, "cannot load"),
        "million_layers": (_key("block_count", 10**6), ModelLoadError, "cannot load"),
        "max_layers": (_key("block_count", 2**32 - 1), ModelLoadError, "cannot load"),
        "no_heads": (_key("attention.head_count", 0), PyllamaSpecError, "cannot"),
        "no_kv_heads": (_key("attention.head_count_kv", 0), PyllamaSpecError, "cannot"),
        "no_heads_divided": (
            _key("attention.head_count", 0, "olmo2"), ModelLoadError, "head_count",
        ),
        "no_interval": (
            _key("full_attention_interval", 0, "qwen35"), ModelLoadError, "full_attention_interval",
        ),
        "odd_kv_heads": (_key("attention.head_count_kv", 3), PyllamaSpecError, "cannot"),
        "many_heads": (_key("attention.head_count", 2**31), PyllamaSpecError, "cannot"),
        "no_width": (_key("embedding_length", 0), ModelLoadError, "cannot load"),
        "huge_width": (_key("embedding_length", 2**31), ModelLoadError, "cannot load"),
        "other_ffn": (_key("feed_forward_length", 77), ModelLoadError, "cannot load"),
        "text_for_number": (_key("block_count", "two"), ModelLoadError, "block_count"),
        "list_for_number": (_key("embedding_length", [1, 2]), ModelLoadError, "embedding_length"),
        "negative_epsilon": (_key(_EPSILON, -1.0), EngineError, "epsilon"),
        "nan_epsilon": (_key(_EPSILON, float("nan")), EngineError, "epsilon"),
        "odd_rope": (_key("rope.dimension_count", 7, "qwen3"), EngineError, "7"),
        "wide_rope": (_key("rope.dimension_count", 520, "qwen35"), EngineError, "520"),
        "negative_rope": (
            _key("rope.dimension_count", 2**31, "qwen35"), EngineError, "rope.dimension",
        ),
        "rope_sections": (
            _key("rope.dimension_sections", [99, 1, 1, 0], "qwen35"), EngineError, "sections",
        ),
        "no_rope_sections": (
            _key("rope.dimension_sections", [0, 0, 0, 0], "qwen35"), EngineError, "sections",
        ),
        "no_state_groups": (_key("ssm.group_count", 0, "qwen35"), PyllamaSpecError, "cannot"),
        "odd_state_groups": (_key("ssm.group_count", 3, "mamba2"), PyllamaSpecError, "cannot"),
        "no_experts_used": (_key("expert_used_count", 0, "qwen3moe"), PyllamaSpecError, "cannot"),
        "many_experts_used": (_key("expert_used_count", 9, "qwen3moe"), PyllamaSpecError, "cannot"),
    },
)  # fmt: skip


@CASES.add(ModelLoadError, "permission")
def no_permission(folder: Path) -> None:
    path = written(folder, tiny().read_bytes())
    path.chmod(0)
    if os.geteuid() == 0:
        os.setuid(_NOBODY)
    Model(path)


@CASES.add(ModelLoadError, "permission")
def folder_without_permission(folder: Path) -> None:
    path = written(folder, tiny().read_bytes())
    folder.chmod(0)
    if os.geteuid() == 0:
        os.setuid(_NOBODY)
    try:
        Model(path)
    finally:
        if os.geteuid() != _NOBODY:
            folder.chmod(0o755)


@CASES.add(ModelLoadError, "not a file")
def named_pipe(folder: Path) -> None:
    os.mkfifo(folder / "pipe.gguf")
    Model(folder / "pipe.gguf")


@CASES.add(ModelLoadError, "link")
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


@CASES.add(EngineError, "NaN")
def nan_weights(folder: Path) -> None:
    def spoil(sketch: Sketch) -> None:
        sketch.tensors["output_norm.weight"][:] = np.nan

    generate_greedily(edited(folder, spoil))


@CASES.add(PyllamaSpecError, "cannot")
def hybrid_without_attention(folder: Path) -> None:
    def one_layer(sketch: Sketch) -> None:
        sketch.key("block_count", 1)
        for name in [n for n in sketch.tensors if n.startswith("blk.1.")]:
            del sketch.tensors[name]

    generate_greedily(edited(folder, one_layer, "qwen35"))


@CASES.add(PyllamaSpecError, "target")
def eagle3_without_its_target(folder: Path) -> None:
    opened_file(_eagle3(folder, ("token_embd.weight",)))


@CASES.add(ModelLoadError, "fc.weight")
def eagle3_without_tensors(folder: Path) -> None:
    Model(_eagle3(folder, ("fc.weight",)))


def _eagle3(folder: Path, leave_out: tuple[str, ...]) -> Path:
    """An EAGLE-3 draft for the small llama, complete but for some tensors."""
    cfg = Eagle3Config(target_layers=(0, 1, 2))
    tensors = {name: array for name, array in eagle3_tensors(cfg).items() if name not in leave_out}
    return write_eagle3(folder / "eagle3.gguf", cfg, tensors)


_LOAD: Callable[..., Model] = partial(Model, tiny())
CASES.table(
    "load",
    {
        "path_none": (lambda _: Model(None), ArgumentError, "NoneType"),  # type: ignore[arg-type]
        "path_int": (lambda _: Model(3), ArgumentError, "int"),  # type: ignore[arg-type]
        "path_list": (lambda _: Model(["a"]), ArgumentError, "list"),  # type: ignore[arg-type]
        "layers_text": (lambda _: _LOAD(n_gpu_layers="all"), ArgumentError, "'all'"),
        "layers_huge": (lambda _: _LOAD(n_gpu_layers=2**40), ArgumentError, str(2**40)),
        "split_mode": (lambda _: _LOAD(split_mode="diagonal"), ArgumentError, "diagonal"),
        "tensor_split": (lambda _: _LOAD(tensor_split=["x"]), ArgumentError, "tensor_split"),
        "many_shares": (lambda _: _LOAD(tensor_split=[1.0] * 999), ArgumentError, "tensor_split"),
        "mmap_text": (lambda _: _LOAD(use_mmap="yes"), ArgumentError, "use_mmap"),
        "progress_int": (lambda _: _LOAD(progress=3), ArgumentError, "progress"),
    },
)


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


CASES.table(
    "quantize",
    {
        "to_itself": (_quantize_to_itself, ArgumentError, "is the input itself"),
        "bad_type": (lambda f: _quantize(None, f / "o", "Q3_X"), ArgumentError, "'Q3_X'"),
        "missing_input": (lambda f: _quantize(f / "no", f / "o"), ModelLoadError, "does not exist"),
        "missing_folder": (lambda f: _quantize(None, f / "a/o"), ModelLoadError, "the folder"),
        "unwritable": (_quantize_unwritable, ModelLoadError, "out.gguf"),
        "full_disk": (_quantize_to_full_disk, ModelLoadError, "out.gguf"),
        "to_a_folder": (lambda f: _quantize(None, f), ModelLoadError, "folder"),
        "negative_threads": (
            lambda f: _quantize(None, f / "o", n_threads=-1), ArgumentError, "n_threads",
        ),
        "many_threads": (
            lambda f: _quantize(None, f / "o", n_threads=10**6), ArgumentError, "n_threads",
        ),
        "damaged_input": (
            lambda f: _quantize(written(f, tiny().read_bytes()[:90_000]), f / "o"),
            ModelLoadError, "bad.gguf",
        ),
        "kind_none": (lambda f: _quantize(None, f / "o", None), ArgumentError, "None"),  # type: ignore[arg-type]
        "path_none": (lambda f: quantize(None, f / "o", "F16"), ArgumentError, "NoneType"),  # type: ignore[arg-type]
    },
)  # fmt: skip
