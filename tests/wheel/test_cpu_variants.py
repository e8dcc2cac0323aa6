"""One wheel for many processors: each gets its best engine, or a one-line error."""

from __future__ import annotations

import platform
import re
import subprocess
import zipfile
from pathlib import Path

import pytest

from pyllama_spec.engine.cpu_variants import CPU_VARIANTS, VARIABLE, choose
from tests.wheel.environment import Environment, check_generates, run

# The kernels of each, by two types of weights.
KERNELS = {
    "avx2": ("AVX2", "AVX2"), "avx512": ("AVX2", "AVX-512"), "avx512bf16": ("AVX-512", "AVX-512"),
    "neon": ("NEON", "NEON"), "dotprod": ("NEON", "NEON-dotprod"), "i8mm": ("NEON", "NEON-i8mm"),
}  # fmt: skip
of_x86 = pytest.mark.xfail(
    platform.machine() != "x86_64", reason="instructions of x86-64", run=False
)


def without_vnni(name: str) -> str:
    """The engine for AVX2 has kernels of both and asks the processor."""
    return "AVX2" if name == "AVX-VNNI" else name


def features(environment: Environment) -> list[str]:
    """The features that the wheel detects on this processor."""
    code = "import importlib.util as i; from pathlib import Path; import numpy;"
    code += "p = next(Path(numpy.__file__).parents[1].glob('pyllama_spec/_processor*'));"
    code += "s = i.spec_from_file_location('_processor', p); m = i.module_from_spec(s);"
    code += "s.loader.exec_module(m); print(m.features())"
    return environment.run("-c", code).stdout.split()


def test_the_best_one_is_loaded(installed: Environment) -> None:
    found = features(installed)
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    words = set(re.sub(r"_", "", cpuinfo).upper().split())
    assert {name for needed in CPU_VARIANTS.values() for name in needed} & words == set(found)
    kernels = check_generates(installed)["row_kernels"]
    assert (kernels["BF16"], without_vnni(kernels["Q4_K"])) == KERNELS[choose(found)]


@pytest.mark.parametrize("variant", CPU_VARIANTS)
def test_a_variant_by_name(installed: Environment, variant: str) -> None:
    best = list(CPU_VARIANTS).index(choose(features(installed)))
    if list(CPU_VARIANTS).index(variant) <= best:
        kernels = check_generates(installed, **{VARIABLE: variant})["row_kernels"]
        assert (kernels["BF16"], without_vnni(kernels["Q4_K"])) == KERNELS[variant]
        return
    said = subprocess.run(
        [installed.python, "-I", "-c", "import pyllama_spec"],
        env={**installed.variables(), VARIABLE: variant}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert said.returncode == 1 and "unset it" in said.stderr.splitlines()[-1]


@of_x86
def test_what_all_processors_run_has_no_instructions_of_some(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)

    def lines(name: str, register: str) -> int:
        module = next(tmp_path.glob(f"pyllama_spec/{name}.*"))
        code = run("objdump", "-d", "--no-show-raw-insn", module).stdout
        return sum(register in line for line in code.splitlines())

    # The search for the largest logit has a copy for AVX-512 that is chosen when it is called.
    assert lines("_engine_avx2", "%zmm") < 50
    assert lines("_engine_avx512", "%zmm") > 10_000
    assert lines("_processor", "%ymm") == 0


@of_x86
@pytest.mark.parametrize("variant", CPU_VARIANTS)
def test_no_pair_of_sum_and_difference_is_made_of_a_loop(
    wheel: Path, variant: str, tmp_path: Path
) -> None:
    """GCC fuses such a pair only in a loop's vector form, whatever -ffp-contract says.

    The form that runs depends on memory addresses, so that a row would differ from the row alone. A
    new one in the engine's next version must be fused by hand: csrc/kernels/rotation.h.
    """
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if f"_engine_{variant}." in n)
        module = archive.extract(name, tmp_path)
    code = run("objdump", "-d", "--no-show-raw-insn", Path(module)).stdout
    assert "vfmadd231ps" in code
    assert re.findall(r"vf?m?addsub[^ ]*|vfmsubadd[^ ]*", code) == []
