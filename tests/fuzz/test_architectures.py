"""Malformed files of every architecture of the pinned engine: a sample.

`python -m tests.fuzz.by_key` tests all of them, in hours.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.fuzz import runner
from tests.fuzz.architectures import NO_FILE, of_architecture
from tests.fuzz.by_key import VALUES, base_file, sweep, under_name, with_value
from tests.fuzz.corpus import TARGETS, write
from tests.fuzz.engine_source import keys_of
from tests.fuzz.gguf_bytes import Value
from tests.fuzz.mutated import sweep as sweep_mutated
from tests.robust.tools import generate_greedily
from tests.tiers import release_except

ARCHITECTURES = sorted(keys_of())
_N_KNOWN = 150
_SAMPLE = ("llama", "qwen35", "gemma3", "deepseek2", "rwkv7", "bert")
# What a sweep of these crashed before: a division by zero, a tensor that is not there.
CRASHED = (
    ("deepseek4", "pooling_type", "3"), ("falcon-h1", "rope.scaling.alpha", "0.0"),
    ("glm-dsa", "attention.indexer.types", "absent"), ("glm4moe", "expert_used_count", "[0..]"),
    ("laguna", "expert_used_count", "[..0]"), ("phi3", "rope.freq_base", "1"),
    ("phimoe", "expert_used_count", "[..0]"), ("pockettts", "rope.dimension_count", "absent"),
    ("qwen35", "rope.freq_base", "1"), ("qwen35moe", "rope.freq_base", "1"),
    ("qwen3next", "rope.freq_base", "1"), ("olmo2", "attention.head_count", "0"),
    ("phimoe", "attention.head_count", "0"), ("llama", "expert_used_count", "[..0]"),
)  # fmt: skip


def _ending(path: Path) -> runner.Ending:
    return runner.run(partial(generate_greedily, path, 2, 1))


def test_the_sources_are_understood() -> None:
    assert len(ARCHITECTURES) > _N_KNOWN
    assert "attention.head_count" in {key.removeprefix("%s.") for key in keys_of()["olmo2"]}


@pytest.mark.parametrize(
    "arch", release_except((arch for arch in ARCHITECTURES if arch not in NO_FILE), _SAMPLE)
)
def test_a_file_as_the_engine_asks_for_it(arch: str, tmp_path: Path) -> None:
    """It has what the loader requires and nothing else; some graphs need more.

    Also the file without head counts, and under the names of two others.
    """
    file = of_architecture(arch, tmp_path)
    assert (first := _ending(file.write(tmp_path / "f.gguf"))).is_allowed, first
    changed = with_value(file, f"{arch}.attention.head_count", VALUES["[..0]"])
    assert (second := _ending(changed.write(tmp_path / "f.gguf"))).is_allowed, second
    at = ARCHITECTURES.index(arch)
    for step in (1, 41):
        other = ARCHITECTURES[(at + step) % len(ARCHITECTURES)]
        third = _ending(under_name(file, other).write(tmp_path / "f.gguf"))
        assert third.is_allowed, (other, third)


@pytest.mark.parametrize(("arch", "key", "value"), CRASHED)
def test_what_ended_the_process(arch: str, key: str, value: str, tmp_path: Path) -> None:
    file = with_value(base_file(arch, tmp_path), f"{arch}.{key}", VALUES[value])
    assert (ending := _ending(file.write(tmp_path / "f.gguf"))).is_allowed, ending


@pytest.mark.parametrize("arch", ["rwkv7", "arwkv7"])
@pytest.mark.parametrize("size", [1, 16, 48, 96])
def test_heads_that_the_engine_would_write_behind(arch: str, size: int, tmp_path: Path) -> None:
    """A head size that AVX-512 would write beyond is refused."""
    file = with_value(base_file(arch, tmp_path), f"{arch}.wkv.head_size", Value("u32", size))
    assert (ending := _ending(file.write(tmp_path / "f.gguf"))).kind == "UnsupportedError", ending


@pytest.mark.parametrize("arch", _SAMPLE)
def test_a_sample_of_all_keys(arch: str, tmp_path: Path) -> None:
    counts = sweep([arch], 0.03, tmp_path)
    assert counts and not set(counts) - {k for k in counts if runner.Ending(k, "").is_allowed}


def test_mutated_files() -> None:
    counts = sweep_mutated(200, seed=1)
    assert sum(counts.values()) == 200
    assert all(runner.Ending(kind, "").is_allowed for kind in counts), counts


# ---- the seeds for libFuzzer are valid input of its targets


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("corpus")
    write(out)
    return out


def test_each_target_has_seeds(folder: Path) -> None:
    assert all(any((folder / target).iterdir()) for target in TARGETS)
