"""Cached environments of llama-cpp-python and of libraries that use it."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

from tools.packaged_models import cache_directory

VERSION = "0.3.36"
PACKAGE = f"llama-cpp-python=={VERSION}"
ROOT = Path(__file__).resolve().parents[2]
_VOCABULARY = "vendor/llama.cpp/models/ggml-vocab-llama-spm.gguf"
# Builds only the shared libraries that its Python files load.
_OPTIONS = " ".join(
    f"-D{name}=OFF"
    for name in (
        "LLAVA_BUILD", "LLAMA_OPENSSL", "LLAMA_BUILD_TOOLS", "LLAMA_BUILD_EXAMPLES",
        "LLAMA_BUILD_SERVER", "LLAMA_BUILD_TESTS", "LLAMA_BUILD_APP",
    )
)  # fmt: skip


def _pip(python: Path | str, *words: str | Path, **variables: str) -> None:
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "-q", *map(str, words)]
    done = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}")


def engine() -> str:
    """The path of the compiled module of this tree."""
    path = sys.modules["pyllama_spec._engine"].__file__
    assert path is not None
    return path


def source() -> Path:
    """The archive of the source package."""
    archive = cache_directory() / f"llama_cpp_python-{VERSION}.tar.gz"
    if not archive.is_file():
        archive.parent.mkdir(parents=True, exist_ok=True)
        words = ("--no-deps", "--no-binary", ":all:", "--no-build-isolation", "-d", archive.parent)
        _pip(sys.executable, "download", *words, PACKAGE)
    return archive


def vocabulary() -> Path:
    """A model with only a vocabulary, from llama-cpp-python's source package."""
    path = cache_directory() / Path(_VOCABULARY).name
    if not path.is_file():
        with tarfile.open(source()) as archive:
            name = next(one for one in archive.getnames() if one.endswith(_VOCABULARY))
            data = archive.extractfile(name)
            assert data is not None
            path.write_bytes(data.read())
    return path


def real_wheel() -> Path:
    """The wheel of llama-cpp-python, built from source once, because the index has no wheel."""
    folder = cache_directory() / "wheels" / "beside"
    if not (wheels := list(folder.glob("*.whl"))):
        _pip(sys.executable, "wheel", "--no-deps", "-w", folder, source(), CMAKE_ARGS=_OPTIONS)
        wheels = list(folder.glob("*.whl"))
    return wheels[0]


def real_python() -> Path:
    """The interpreter of an environment with llama-cpp-python and its optional dependencies."""
    return environment(f"real-{VERSION}", str(real_wheel()), "openai", "huggingface_hub", "cffi")


def environment(name: str, *packages: str, **variables: str) -> Path:
    """The interpreter of an environment of that name, with these packages."""
    folder = cache_directory() / "environments" / name
    python, done = folder / "bin" / "python", folder / "packages.txt"
    wanted = "\n".join(packages)
    if not done.is_file() or done.read_text() != wanted:
        print(f"making {folder}", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        _pip(python, "install", *packages, **variables)
        done.write_text(wanted)
    return python
