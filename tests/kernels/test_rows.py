"""Our kernels for a few rows: right, and the same for a row however many stand beside it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from pyllama_spec.engine import Batch, Context, Model, quantize, row_kernels
from tests.models import model_path
from tests.oracles import run_child

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parents[1]
# A row of the widest tile, over one of the tile below it; where sums spill, 2.
_MAX_RATIO = 1.5
_LIBRARIES = ("libggml.a", "libggml-cpu.a", "libggml-base.a")


def _libraries() -> list[str]:
    """The engine's static libraries, of the newest build in the tree."""
    found = sorted(_ROOT.glob(f"build/*/vendor/llama.cpp/ggml/src/{_LIBRARIES[1]}"), key=_age)
    assert found, "build the engine in this tree first: make test does"
    return [str(found[-1].with_name(name)) for name in _LIBRARIES]


def _age(path: Path) -> float:
    return path.stat().st_mtime


def _compiled(source: str, folder: Path) -> Path:
    """A program of this folder with the engine's libraries."""
    compiler = shutil.which("g++") or shutil.which("c++")
    assert compiler, "a C++ compiler is needed"
    program = folder / "program"
    include = _ROOT / "vendor/llama.cpp/ggml/include"
    subprocess.run(
        [compiler, "-std=c++17", "-O2", f"-I{include}", str(_HERE / source),
         *_libraries(), "-lpthread", "-ldl", "-o", str(program)],
        check=True,
    )  # fmt: skip
    return program


def _run(program: Path) -> list[str]:
    """The lines that a program prints."""
    run = subprocess.run([program], check=True, capture_output=True, text=True)
    return run.stdout.splitlines()


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, float]]:
    """Every product of products.cpp with its relative error."""
    folder = tmp_path_factory.mktemp("products")
    lines = [line.rsplit(" ", 1) for line in _run(_compiled("products.cpp", folder))]
    return [(case, float(error)) for case, error in lines]


@pytest.mark.parametrize(
    ("kind", "n_cases"),
    [
        ("bf16", 114), ("f16", 114), ("q8_0", 114), ("q4_0", 114), ("q4_0-repacked", 111),
        ("bf16-shared", 30), ("f16-shared", 30),
    ],
)  # fmt: skip
def test_products_are_the_sums_that_they_stand_for(
    products: list[tuple[str, float]], kind: str, n_cases: int
) -> None:
    mine = {case: error for case, error in products if case.split(" ")[0] == kind}
    assert len(mine) == n_cases
    # Sums in float32: a wrong term would be off by 1e-2 and more.
    assert {case: error for case, error in mine.items() if not error < 4e-6} == {}


def test_the_sums_of_the_widest_tile_stay_in_registers(tmp_path: Path) -> None:
    """One that the compiler keeps in memory makes its tile twice as dear per row.

    It does so in every run. What else runs on the machine can disturb one, and not all.
    """
    program = _compiled("widths.cpp", tmp_path)
    least: dict[str, float] = {}
    for _ in range(5):
        for kind, five, six in (line.split() for line in _run(program)):
            ratio = (float(six) / 6) / (float(five) / 5)
            least[kind] = min(ratio, least.get(kind, ratio))
        if max(least.values()) <= _MAX_RATIO:
            break
    assert len(least) == 4
    assert {kind: ratio for kind, ratio in least.items() if ratio > _MAX_RATIO} == {}


def test_this_processor_has_our_kernels() -> None:
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    found = row_kernels()
    if "avx512_bf16" in flags and "avx512_vnni" in flags:
        assert found == dict.fromkeys(("BF16", "F16", "Q8_0", "Q4_0"), "AVX-512")
    elif "avx2" in flags:
        assert found.keys() == {"BF16", "F16", "Q8_0", "Q4_0"}
        assert set(found.values()) <= {"AVX2", "AVX-512"}
    else:
        assert found == {}


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


@pytest.mark.parametrize("kind", ["BF16", "F16", "Q8_0", "Q4_0"])
def test_a_thread_needs_little_stack(kind: str, tmp_path: Path) -> None:
    """Threads get what the process is limited to: 8 MiB here, and 128 KiB elsewhere."""
    path = tmp_path / "model.gguf"
    quantize(model_path("llama", n_embd=256), path, kind)
    run_child(_SHORT_STACK, str(path))


def _decode(model: Model, tokens: list[int], width: int, n_threads: int) -> npt.NDArray[np.float32]:
    """Logits of all tokens, decoded `width` at a time."""
    out = []
    with Context(model, n_ctx=128, n_batch=64, n_outputs_max=64, n_threads=n_threads) as context:
        batch = Batch(64)
        for start in range(0, len(tokens), width):
            part = tokens[start : start + width]
            batch.clear()
            batch.extend(part, start, output_all=True)
            context.decode(batch)
            out += [context.logits(i).copy() for i in range(len(part))]
    return np.array(out)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q6_K"])
@pytest.mark.parametrize("width_of_model", [64, 96, 256])
def test_a_row_is_the_same_whatever_stands_beside_it(
    kind: str, width_of_model: int, tmp_path: Path
) -> None:
    source = model_path("llama", n_embd=width_of_model, n_ff=3 * 64, n_vocab=1003)
    path = tmp_path / "model.gguf"
    quantize(source, path, kind)
    tokens = np.random.default_rng(1).integers(300, 1003, 40).tolist()
    with Model(path) as model:
        alone = _decode(model, tokens, 1, 1)
        for width in (2, 3, 4, 5, 6, 7, 8, 12, 13, 32):
            for n_threads in (1, 2):
                together = _decode(model, tokens, width, n_threads)
                assert np.array_equal(alone, together), (width, n_threads)
