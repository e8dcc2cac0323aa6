"""A wheel loads the engine variant that suits the processor."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pyllama_spec
from pyllama_spec.engine import cpu_variants
from pyllama_spec.engine.cpu_variants import ARM, X86, choose

AVX2, AVX512, BF16 = (list(X86[name]) for name in ("avx2", "avx512", "avx512bf16"))
DOT, I8MM = (list(ARM[name]) for name in ("dotprod", "i8mm"))


@pytest.fixture(autouse=True)
def _on_x86(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_variants, "CPU_VARIANTS", X86)


@pytest.mark.parametrize(
    ("features", "variant"),
    [([], "neon"), (DOT, "dotprod"), (I8MM, "neon"), ([*DOT, *I8MM], "i8mm")],
)
def test_the_best_on_arm(
    features: list[str], variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_variants, "CPU_VARIANTS", ARM)
    assert choose(features) == variant
    assert choose(features, "neon") == "neon"


@pytest.mark.parametrize(
    ("features", "variant"),
    [
        (AVX2, "avx2"),
        ([*AVX2, *AVX512[:-1]], "avx2"),  # AVX-512 without VNNI
        ([*AVX2, *BF16], "avx2"),
        ([*AVX2, *AVX512], "avx512"),
        ([*AVX2, *AVX512, *BF16], "avx512bf16"),
    ],
)
def test_the_best_of_those_that_run(features: list[str], variant: str) -> None:
    assert choose(features) == variant
    assert choose(features, "avx2") == "avx2"


@pytest.mark.parametrize(
    ("features", "asked", "named"),
    [
        ([], "", "AVX2"), ([*AVX512, *BF16], "", "AVX2"), (AVX2, "avx512", "AVX512F"),
        ([*AVX2, *AVX512], "avx512bf16", "AVX512BF16"), (AVX2, "sse", "'sse'"),
    ],
)  # fmt: skip
def test_what_a_processor_cannot_run_is_named(features: list[str], asked: str, named: str) -> None:
    with pytest.raises(ImportError, match=named):
        choose(features, asked)


@pytest.mark.parametrize(
    "statement",
    ["from pyllama_spec import Llama", "import pyllama_spec.cli.__main__", "pyllama_spec.Llama"],
)
def test_a_source_folder_without_an_engine(tmp_path: Path, statement: str) -> None:
    """In a checkout after `pip install .`, Python finds the source in the current folder."""
    source = Path(pyllama_spec.__file__).parent
    compiled = shutil.ignore_patterns("*.so", "*.pyd", "__pycache__")
    shutil.copytree(source, tmp_path / "pyllama_spec", ignore=compiled)
    # Without site, so that no finder of an editable install comes first; its packages behind.
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import pyllama_spec; {statement}"],
        check=False, capture_output=True, text=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if "site-" in p)},
    )  # fmt: skip
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: {tmp_path / 'pyllama_spec'} has no compiled engine"), last
    assert "another folder" in last
