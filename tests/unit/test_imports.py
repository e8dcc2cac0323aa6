"""The modules that `import pyllama_spec` loads, and those that it loads later."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

import pyllama_spec
from pyllama_spec import Llama
from pyllama_spec.engine import cpu_variants
from pyllama_spec.engine.cpu_variants import ARM, X86, choose

# Each takes milliseconds, and no text needs them.
LATER = (
    "importlib.metadata", "email", "secrets", "hashlib", "statistics", "difflib", "uuid",
    "torch", "gguf", "matplotlib", "pyllama_spec.schema",
)  # fmt: skip


def modules_of(code: str) -> set[str]:
    """The modules that code imports in a fresh Python, without those loaded at the start."""
    source = f"import sys; before = set(sys.modules)\n{code}\n"
    source += "import json; print(json.dumps(sorted(set(sys.modules) - before)))"
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True, timeout=120
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_an_import_leaves_out_what_a_text_does_not_need() -> None:
    brought = modules_of("import numpy")
    for name in ("pyllama_spec", "pyllama_spec.llama_cpp"):
        found = modules_of(f"import {name}")
        assert "pyllama_spec.llama.llama" in found
        assert not found.intersection(LATER) - brought


def test_types_can_be_read_at_run_time() -> None:
    """Libraries that check arguments need this."""
    assert "_chats" in typing.get_type_hints(Llama)
    hints = typing.get_type_hints(Llama.__init__)
    assert hints["model_path"] == str | os.PathLike[str]
    assert "chat_handler" in hints


def test_the_version_is_read_when_it_is_asked_for() -> None:
    assert pyllama_spec.__version__ == importlib.metadata.version("pyllama_spec")
    assert "__version__" in dir(pyllama_spec)
    assert set(pyllama_spec.__all__) <= set(dir(pyllama_spec))
    assert all(getattr(pyllama_spec, name) is not None for name in pyllama_spec.__all__)
    assert not hasattr(pyllama_spec, "no_such_name")
    assert modules_of("from pyllama_spec import *\nassert __version__")


# ---- a wheel loads the engine variant that suits the processor


AVX2, AVX512, BF16 = (list(X86[name]) for name in ("avx2", "avx512", "avx512bf16"))
DOT, I8MM = (list(ARM[name]) for name in ("dotprod", "i8mm"))


@pytest.mark.parametrize(
    ("known", "features", "variant"),
    [
        (X86, AVX2, "avx2"),
        (X86, [*AVX2, *AVX512[:-1]], "avx2"),  # AVX-512 without VNNI
        (X86, [*AVX2, *BF16], "avx2"),
        (X86, [*AVX2, *AVX512], "avx512"),
        (X86, [*AVX2, *AVX512, *BF16], "avx512bf16"),
        (ARM, [], "neon"),
        (ARM, DOT, "dotprod"),
        (ARM, I8MM, "neon"),
        (ARM, [*DOT, *I8MM], "i8mm"),
    ],
)
def test_the_best_of_those_that_run(
    known: Mapping[str, Sequence[str]],
    features: list[str],
    variant: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu_variants, "CPU_VARIANTS", known)
    assert choose(features) == variant
    first = next(iter(known))
    assert choose(features, first) == choose(features, built=[first]) == first


@pytest.mark.parametrize(
    ("features", "asked", "named"),
    [
        ([], "", "AVX2"), ([*AVX512, *BF16], "", "AVX2"), (AVX2, "avx512", "AVX512F"),
        ([*AVX2, *AVX512], "avx512bf16", "AVX512BF16"), (AVX2, "sse", "'sse'"),
    ],
)  # fmt: skip
def test_what_a_processor_cannot_run_is_named(
    features: list[str], asked: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_variants, "CPU_VARIANTS", X86)
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
