"""The source package: the tracked files, and enough of them to build from; options arrive."""

from __future__ import annotations

import os
import re
import sys
import tarfile
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.wheel.environment import ROOT, run, tracked_files

# sdist.exclude in pyproject.toml; what is ignored by git is not listed to begin with.
LEFT_OUT = (
    ".ci/", "examples/drafts/", "docs/images/", "docs/results/", "docs/results.md",
    "docs/measurements.md", "benchmarks/",
    "tools/comparison/", "tools/docs/", "tests/docs/", "tests/moving/", "tests/browser/",
)  # fmt: skip
# A repository keeps every version of a file for good.
MAX_TRACKED_BYTES = 25_000_000
COMPILED = (".so", ".pyd", ".dll", ".dylib", ".a", ".o", ".gguf", ".whl", ".pyc")


def test_contents(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    root = f"{sdist.name.removesuffix('.tar.gz')}/"
    assert all(member.isfile() and member.name.startswith(root) for member in members)
    names = {member.name.removeprefix(root) for member in members}
    tracked = {
        name
        for name in tracked_files()
        if not name.startswith(LEFT_OUT) and not fnmatch(name, "docs/*.png")
    }
    assert names - {"PKG-INFO"} == tracked
    assert not [name for name in names if name.endswith(COMPILED)]
    assert not [name for name in names if name.startswith("vendor/llama.cpp/")]
    # Sources, tests and documents. A model or a build among them would be more than all of it.
    assert sdist.stat().st_size < 2 << 20


def test_no_tracked_file_is_too_large() -> None:
    sizes = {name: (ROOT / name).stat().st_size for name in tracked_files()}
    assert max(sizes.values()) > 1_000_000  # the trained drafts are among them
    assert {name: size for name, size in sizes.items() if size > MAX_TRACKED_BYTES} == {}


def test_wheel_comes_from_it(sdist: Path, wheel: Path) -> None:
    # The fixture (or `make wheel`) built it in isolation; the Python files must be the sdist's.
    root = sdist.name.removesuffix(".tar.gz")
    with tarfile.open(sdist) as source, zipfile.ZipFile(wheel) as built:
        modules = [name for name in built.namelist() if name.endswith(".py")]
        assert modules
        for name in modules:
            member = source.extractfile(f"{root}/{name}")
            assert member is not None and member.read() == built.read(name), name


@pytest.mark.parametrize("way", ["-C cmake.define", "CMAKE_ARGS"])
def test_backend_option_reaches_cmake(tmp_path: Path, way: str) -> None:
    # Configures, lists the targets and installs no component: seconds, no compiling.
    settings = [f"build-dir={tmp_path}/build", "build.targets=help", "install.components=none"]
    variables = {**os.environ, "CMAKE_GENERATOR": "Ninja"}
    variables["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{variables['PATH']}"
    if way == "CMAKE_ARGS":
        variables["CMAKE_ARGS"] = "-DGGML_RPC=off"
    else:
        settings.append("cmake.define.GGML_RPC=OFF")
    flags = [word for setting in settings for word in ("-C", setting)]
    pip = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps"]
    run(*pip, *flags, "--wheel-dir", tmp_path, ROOT, env=variables)
    cache = (tmp_path / "build/CMakeCache.txt").read_text()
    assert re.search(r"^GGML_RPC:\w+=off$", cache, re.MULTILINE | re.IGNORECASE)
    # The rule that links the module: without that backend, and the rest statically.
    ninja = (tmp_path / "build/build.ninja").read_text()
    rule = re.search(r"^build _engine\.abi3\.so:.*$", ninja, re.MULTILINE)
    assert rule and "libggml-rpc.a" not in rule.group() and "libggml-cpu.a" in rule.group()
