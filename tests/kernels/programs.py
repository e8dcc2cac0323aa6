"""C++ programs of this folder, linked with the engine as it was built in this tree."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parents[1]
_LIBRARIES = ("libggml.a", "libggml-cpu.a", "libggml-base.a")


def _libraries() -> list[str]:
    """The engine's static libraries, of the newest build in the tree."""
    found = sorted(_ROOT.glob(f"build/*/vendor/llama.cpp/ggml/src/{_LIBRARIES[1]}"), key=_age)
    assert found, "build the engine in this tree first: make test does"
    return [str(found[-1].with_name(name)) for name in _LIBRARIES]


def _age(path: Path) -> float:
    return path.stat().st_mtime


def compiled(source: str, folder: Path) -> Path:
    """A program of this folder with the engine's libraries."""
    compiler = shutil.which("g++") or shutil.which("c++")
    assert compiler, "a C++ compiler is needed"
    program = folder / "program"
    engine = _ROOT / "vendor/llama.cpp/ggml"
    subprocess.run(
        [compiler, "-std=c++17", "-O2", f"-I{engine / 'include'}", f"-I{engine / 'src'}",
         f"-I{_ROOT / 'csrc'}", str(_HERE / source),
         *_libraries(), "-lpthread", "-ldl", "-o", str(program)],
        check=True,
    )  # fmt: skip
    return program


def printed(program: Path, *args: str) -> list[str]:
    """The lines that a program prints."""
    run = subprocess.run([program, *args], check=True, capture_output=True, text=True)
    return run.stdout.splitlines()
