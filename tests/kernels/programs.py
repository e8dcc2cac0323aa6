"""C++ programs of this folder, linked with the engine as it was built in this tree."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.upstream.built import cpu_backend, ggml_libraries

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parents[1]


def _libraries() -> list[str]:
    """The engine's static libraries, of the newest build in the tree."""
    ggml = ggml_libraries()
    return [str(path) for path in (ggml / "libggml.a", *cpu_backend(), ggml / "libggml-base.a")]


def compiled(source: str, folder: Path, *flags: str) -> Path:
    """A program of this folder with the engine's libraries."""
    compiler = shutil.which("g++") or shutil.which("c++")
    assert compiler, "a C++ compiler is needed"
    program = folder / "program"
    engine = _ROOT / "vendor/llama.cpp/ggml"
    subprocess.run(
        [compiler, "-std=c++17", "-O2", f"-I{engine / 'include'}", f"-I{engine / 'src'}",
         f"-I{engine / 'src/ggml-cpu'}", f"-I{_ROOT / 'csrc'}", *flags, str(_HERE / source),
         *_libraries(), "-lpthread", "-ldl", "-o", str(program)],
        check=True,
    )  # fmt: skip
    return program


def printed(program: Path, *args: str) -> list[str]:
    """The lines that a program prints."""
    run = subprocess.run([program, *args], check=True, capture_output=True, text=True)
    return run.stdout.splitlines()
