"""The packages under test: named by the environment, or built once per session."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.wheel.environment import ROOT, Environment, run


def _given(variable: str) -> Path | None:
    value = os.environ.get(variable)
    if not value:
        return None
    path = ROOT / value
    assert path.is_file(), f"{variable}={value!r} is no file: one package, and built before"
    return path


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source package."""
    if given := _given("PYLLAMA_SPEC_SDIST"):
        return given
    out = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "build", "--sdist", "--outdir", out, ROOT)
    return next(out.glob("*.tar.gz"))


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """The binary package, built in isolation from the source package: minutes."""
    if given := _given("PYLLAMA_SPEC_WHEEL"):
        return given
    source: Path = request.getfixturevalue("sdist")
    out = tmp_path_factory.mktemp("wheel")
    portable = ["-C", "cmake.define.PYLLAMA_SPEC_PORTABLE=ON"]  # as `make wheel` does
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", *portable, "--wheel-dir", out, source)
    return next(out.glob("*.whl"))


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Environment:
    """A clean environment that holds the wheel and what it requires."""
    environment = Environment.make(tmp_path_factory.mktemp("clean"))
    environment.install(wheel)
    return environment
