"""Ours and llama-cpp-python in one process: two copies of the engine that must not mix."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from pathlib import Path

import pytest

from tests.wheel.environment import PROMPT, Environment, perm_model, run
from tools.packaged_models import cache_directory

PACKAGE = "llama-cpp-python==0.3.36"
SCRIPT = Path(__file__).with_name("beside_llama_cpp.py")
# The shared libraries that its Python files load, and nothing around them.
OPTIONS = "-DLLAVA_BUILD=OFF -DGGML_OPENMP=OFF -DLLAMA_OPENSSL=OFF " + " ".join(
    f"-DLLAMA_BUILD_{part}=OFF" for part in ("TOOLS", "EXAMPLES", "SERVER", "TESTS", "APP")
)


@pytest.fixture(scope="module")
def llama_cpp_wheel() -> Path:
    """Built from source, as the index carries no other; kept, as that takes minutes."""
    key = hashlib.sha256(f"{PACKAGE} {OPTIONS} {platform.platform()}".encode()).hexdigest()[:12]
    kept = cache_directory() / "wheels" / key
    if wheels := list(kept.glob("*.whl")):
        return wheels[0]
    name, _, version = PACKAGE.partition("==")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-binary", name]
    source = cache_directory() / f"{name.replace('-', '_')}-{version}.tar.gz"
    variables = {**os.environ, "CMAKE_ARGS": OPTIONS}
    run(*command, "--wheel-dir", kept, source if source.is_file() else PACKAGE, env=variables)
    return next(kept.glob("*.whl"))


@pytest.fixture(scope="module")
def both(
    tmp_path_factory: pytest.TempPathFactory, wheel: Path, llama_cpp_wheel: Path
) -> Environment:
    environment = Environment.make(tmp_path_factory.mktemp("both"))
    environment.install(wheel, llama_cpp_wheel)
    return environment


@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_both_generate_in_one_process(both: Environment, first: str) -> None:
    model, expected = perm_model()
    words = [str(x) for x in (first, model, len(expected), *PROMPT)]
    said = json.loads(both.run(SCRIPT, *words).stdout)
    assert said == [expected] * 4
