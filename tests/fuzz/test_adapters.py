"""Untrusted LoRA adapters are used, or refused by one of our errors."""

from __future__ import annotations

import random
import struct
from functools import partial
from pathlib import Path

import pytest

from pyllama_spec import Llama
from tests.fuzz import runner
from tests.fuzz.gguf_bytes import GgufFile, Value
from tests.fuzz.mutated import mutate
from tests.robust.tools import tiny

_WIDTH, _RANK = 64, 4
# Of ggml: whole numbers, F64, what no product takes, types that are only half of a product.
_TYPES = {"I8": 24, "I32": 26, "F64": 28, "Q8_1": 9, "Q8_K": 15, "IQ1_S": 19, "none": 4, "new": 200}


def adapter(arch: str = "llama", name: str = "blk.0.attn_q.weight") -> GgufFile:
    """A sound adapter of the tiny model."""
    keys = {
        "general.architecture": Value("str", arch), "general.type": Value("str", "adapter"),
        "adapter.type": Value("str", "lora"), "adapter.lora.alpha": Value("f32", 4.0),
    }  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {
        f"{name}.lora_a": (_WIDTH, _RANK),
        f"{name}.lora_b": (_RANK, _WIDTH),
    }
    return GgufFile(keys, shapes)


def use(path: Path) -> None:
    with Llama(tiny(), n_ctx=64, n_threads=1, lora_path=path) as llm:
        llm.create_completion([1, 2, 3, 4], max_tokens=3, temperature=0)


def ending(path: Path) -> runner.Ending:
    return runner.run(partial(use, path))


def test_a_sound_one(tmp_path: Path) -> None:
    assert ending(adapter().write(tmp_path / "a.gguf")).kind == "fine"


@pytest.mark.parametrize("kind", _TYPES)
@pytest.mark.parametrize("part", ["lora_a", "lora_b"])
def test_types_that_no_product_takes(tmp_path: Path, kind: str, part: str) -> None:
    path = adapter().write(tmp_path / "a.gguf")
    data, name = bytearray(path.read_bytes()), f"blk.0.attn_q.weight.{part}".encode()
    at = data.index(name) + len(name) + 4 + 16
    data[at : at + 4] = struct.pack("<I", _TYPES[kind])
    path.write_bytes(bytes(data) + bytes(1 << 16))
    assert (end := ending(path)).is_allowed, end


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("general.type", Value("u32", 1)), ("general.type", Value("str", "model")),
        ("general.architecture", Value("u32", 1)), ("general.architecture", Value("str", "qwen2")),
        ("adapter.type", Value("[str]", ["lora"])), ("adapter.lora.alpha", Value("str", "x")),
        ("adapter.lora.alpha", Value("f32", float("nan"))), ("adapter.lora.alpha", Value("u32", 0)),
        ("adapter.alora.invocation_tokens", Value("[u32]", [2**31] * 5)),
        ("adapter.alora.invocation_tokens", Value("str", "x")),
    ],
)  # fmt: skip
def test_keys(tmp_path: Path, key: str, value: Value) -> None:
    file = adapter()
    file.keys[key] = value
    assert (end := ending(file.write(tmp_path / "a.gguf"))).is_allowed, end


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((_WIDTH, 0), (0, _WIDTH)), ((_WIDTH,), (1, _WIDTH)), ((_WIDTH, 4), (5, _WIDTH)),
        ((_WIDTH, 4, 3), (4, _WIDTH)), ((_WIDTH, 4, 2, 2), (4, _WIDTH, 2, 2)),
        ((_WIDTH, 4), (4, _WIDTH, 7)), ((_WIDTH, 4096), (4096, _WIDTH)), ((31, 4), (4, _WIDTH)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["blk.0.attn_q.weight", "token_embd.weight", "output.weight"])
def test_sizes(tmp_path: Path, name: str, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    file = adapter(name=name)
    file.tensors = {f"{name}.lora_a": a, f"{name}.lora_b": b}
    assert (end := ending(file.write(tmp_path / "a.gguf"))).is_allowed, end


@pytest.mark.parametrize(
    "name", ["blk.0.attn_norm.weight", "blk.9.attn_q.weight", "", ".lora_a", "x" * 63, "rope_freqs"]
)
def test_names(tmp_path: Path, name: str) -> None:
    assert (end := ending(adapter(name=name).write(tmp_path / "a.gguf"))).is_allowed, end


def test_half_a_pair_and_other_names(tmp_path: Path) -> None:
    for left in ("lora_a", "lora_b", "lora_c"):
        file = adapter()
        file.tensors = {f"blk.0.attn_q.weight.{left}": (_WIDTH, _RANK)}
        assert ending(file.write(tmp_path / "a.gguf")).kind == "ModelLoadError"


def test_bytes_changed(tmp_path: Path) -> None:
    draw, path = random.Random(7), tmp_path / "a.gguf"
    data = adapter().write(path).read_bytes()
    for i in range(60):
        path.write_bytes(mutate(bytearray(data), draw))
        assert (end := ending(path)).is_allowed, (i, end)


def test_a_refused_one_leaves_no_file_open(tmp_path: Path) -> None:
    file = adapter()
    file.keys["general.type"] = Value("u32", 1)
    path = file.write(tmp_path / "a.gguf")

    def refused_often() -> None:
        from pyllama_spec.engine import Adapter, Model
        from pyllama_spec.errors import PyllamaSpecError

        with Model(tiny()) as model:
            before = len(list(Path("/proc/self/fd").iterdir()))
            for _ in range(20):
                with pytest.raises(PyllamaSpecError):
                    Adapter(model, path)
            assert len(list(Path("/proc/self/fd").iterdir())) == before

    assert (result := runner.run(refused_often)).kind == "fine", result
