"""The libraries of the engine built in this tree, for programs that link with it."""

from __future__ import annotations

import importlib
from pathlib import Path

from pyllama_spec.engine.cpu_variants import choose

_ROOT = Path(__file__).resolve().parents[2]
_GGML = "vendor/llama.cpp/ggml/src"


def newest_build() -> Path:
    """The newest CMake tree: `make` has build/native, `make wheel` build/wheel."""
    trees = [path for path in _ROOT.glob("build/*") if (path / _GGML / "libggml-cpu.a").exists()]
    assert trees, "build the engine in this tree first: make test does"
    return max(trees, key=lambda tree: (tree / _GGML / "libggml-cpu.a").stat().st_mtime)


def ggml_libraries() -> Path:
    """The folder of ggml's static libraries in it."""
    return newest_build() / _GGML


def cpu_backend() -> list[Path]:
    """The CPU backend that is loaded here: a wheel has one for each variant of the CPU.

    The first variant is in the library, and the others are object files: see csrc/cpu_variants/.
    """
    library = [ggml_libraries() / "libggml-cpu.a"]
    try:
        processor = importlib.import_module("pyllama_spec._processor")
    except ModuleNotFoundError:
        return library
    level = choose(str(processor.features()).split())
    folder = newest_build() / "CMakeFiles" / f"ggml-cpu-{level}.dir"
    return sorted(folder.rglob("*.o")) or library
