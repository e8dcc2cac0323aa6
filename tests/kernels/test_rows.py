"""Our kernels for a few rows are right, and give a row the same bits at any width."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from pyllama_spec.engine import quantize, row_kernels
from tests.kernels.programs import compiled, printed
from tests.models import model_path
from tests.oracles import run_child

# A row of the widest tile, over one of the tile below it; where sums spill, 2.
_MAX_RATIO = 1.5


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, float]]:
    """Every product of products.cpp with its relative error."""
    folder = tmp_path_factory.mktemp("products")
    lines = [line.rsplit(" ", 1) for line in printed(compiled("products.cpp", folder))]
    return [(case, float(error)) for case, error in lines]


@pytest.mark.parametrize(
    ("kind", "n_cases"),
    [
        ("bf16", 138), ("f16", 138), ("bf16-shared", 30), ("f16-shared", 30),
        ("q8_0", 138), ("q4_0", 138), ("q4_1", 126), ("q5_0", 138), ("q5_1", 126),
        ("iq4_nl", 138), ("mxfp4", 138), ("q2_K", 72), ("q3_K", 72), ("q4_K", 72), ("q5_K", 72),
        ("q6_K", 72), ("iq4_xs", 72),
        ("q8_0-rows", 181), ("q4_0-rows", 181), ("q4_1-rows", 181), ("q5_0-rows", 181),
        ("q5_1-rows", 181), ("iq4_nl-rows", 181), ("mxfp4-rows", 181), ("q2_K-rows", 136),
        ("q3_K-rows", 136), ("q4_K-rows", 136), ("q5_K-rows", 136), ("q6_K-rows", 136),
        ("iq4_xs-rows", 136),
    ],
)  # fmt: skip
def test_products_are_the_sums_that_they_stand_for(
    products: list[tuple[str, float]], kind: str, n_cases: int
) -> None:
    mine = {case: error for case, error in products if case.split(" ")[0] == kind}
    is_there = not kind.endswith("-rows") or row_kernels().get("Q8_0") is not None
    assert len(mine) == (n_cases if is_there else 0)
    # Sums in float32: a wrong term would be off by 1e-2 and more.
    assert {case: error for case, error in mine.items() if not error < 4e-6} == {}


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="has one kernel")
def test_all_instruction_sets_give_the_same_bits(tmp_path: Path) -> None:
    program = compiled("variants.cpp", tmp_path, "-march=native")
    differences = dict(line.split() for line in printed(program))
    assert len(differences) == 13
    assert set(differences.values()) == {"0"}


def test_the_sums_of_the_widest_tile_stay_in_registers(tmp_path: Path) -> None:
    """A sum kept in memory by the compiler doubles the tile's cost per row.

    The cost shows in every run; other programs disturb some runs, but not all.
    """
    program = compiled("widths.cpp", tmp_path)
    least: dict[str, float] = {}
    for _ in range(5):
        for kind, most, less_us, most_us in (line.split() for line in printed(program)):
            ratio = (float(most_us) / int(most)) / (float(less_us) / (int(most) - 1))
            least[kind] = min(ratio, least.get(kind, ratio))
        if max(least.values()) <= _MAX_RATIO:
            break
    assert len(least) == 11
    assert {kind: ratio for kind, ratio in least.items() if ratio > _MAX_RATIO} == {}


_KINDS = (
    "BF16", "F16", "Q8_0", "Q5_0", "Q5_1", "Q4_0", "Q4_1", "Q6_K", "Q5_K", "Q4_K", "Q3_K", "Q2_K",
    "IQ4_XS", "IQ4_NL", "MXFP4",
)  # fmt: skip


def test_this_processor_has_our_kernels() -> None:
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    kernels = row_kernels()
    if "avx512_bf16" in flags and "avx512_vnni" in flags:
        assert kernels == dict.fromkeys(_KINDS, "AVX-512")
    elif "avx2" in flags:
        assert kernels.keys() == set(_KINDS)
        assert set(kernels.values()) <= {"AVX2", "AVX-VNNI", "AVX-512"}
    elif "asimd" in flags:
        assert kernels.keys() == set(_KINDS)
        assert all(name.startswith("NEON") for name in kernels.values())
    else:
        assert kernels == {}


# What a thread gets is read when a program starts.
_SHORT_STACK = """
import os, resource, sys
if len(sys.argv) == 2:
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    resource.setrlimit(resource.RLIMIT_STACK, (160 << 10, hard))
    os.execv(sys.executable, [*sys.orig_argv, "limited"])
from pyllama_spec.engine import Batch, Context, Model

batch = Batch(5)
batch.extend([1, 2, 3, 4, 5], 0, output_all=True)
Context(Model(sys.argv[1]), n_ctx=64, n_threads=2).decode(batch)
"""


@pytest.mark.parametrize("kind", ["BF16", "F16", "Q8_0", "Q4_0", "Q4_K_M"])
def test_a_thread_needs_little_stack(kind: str, tmp_path: Path) -> None:
    """Threads use the process's stack limit: 8 MiB here, and 128 KiB elsewhere."""
    path = tmp_path / "model.gguf"
    quantize(model_path("llama", n_embd=256), path, kind)
    run_child(_SHORT_STACK, str(path))
