"""csrc/ccache.cmake: builds use a compiler cache that is installed, unless the caller decides."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_PROJECT = f"""cmake_minimum_required(VERSION 3.26)
project(tiny LANGUAGES C)
include("{ROOT}/csrc/ccache.cmake")
add_library(tiny STATIC tiny.c)
"""
# Notes what it is told, and runs the compiler.
_CACHE = """#!/bin/sh
echo "$CCACHE_BASEDIR $CCACHE_NOHASHDIR" >> "$CALLS"
exec "$@"
"""


@pytest.mark.parametrize(
    ("options", "is_used"),
    [
        ((), True),
        (("-DPYLLAMA_SPEC_CCACHE=OFF",), False),
        (("-DCMAKE_C_COMPILER_LAUNCHER=env",), False),
    ],
)
def test_a_build_uses_the_compiler_cache(
    tmp_path: Path, options: tuple[str, ...], is_used: bool
) -> None:
    source, tools, calls = tmp_path / "source", tmp_path / "tools", tmp_path / "calls"
    for folder in (source, tools):
        folder.mkdir()
    (source / "CMakeLists.txt").write_text(_PROJECT)
    (source / "tiny.c").write_text("int tiny(void) { return 1; }\n")
    cache = tools / "ccache"
    cache.write_text(_CACHE)
    cache.chmod(0o755)
    path = os.pathsep.join((str(tools), str(Path(sys.executable).parent), os.environ["PATH"]))
    cmake = shutil.which("cmake", path=path)
    assert cmake is not None, "make installs it into the environment"
    # What `make` sets for its own builds.
    names = {"CMAKE_C_COMPILER_LAUNCHER", "CCACHE_BASEDIR", "CCACHE_NOHASHDIR"}
    own = {name: value for name, value in os.environ.items() if name not in names}
    own |= {"PATH": path, "CALLS": str(calls)}
    build = str(tmp_path / "build")
    configure = [cmake, "-G", "Unix Makefiles", "-S", str(source), "-B", build, *options]
    for command in (configure, [cmake, "--build", build]):
        done = subprocess.run(
            command, env=own, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    found = calls.read_text().splitlines() if calls.exists() else []
    assert found == ([f"{source} 1"] if is_used else [])
