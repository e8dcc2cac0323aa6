"""One wheel for every Python from 3.10 on, on those of this machine."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.wheel.environment import Environment, check_generates

MINORS = range(10, 16)
PROBE = (
    "import sys, ensurepip, venv; print('%d.%d' % sys.version_info[:2], sys.implementation.name)"
)


def _works(python: str, version: str) -> bool:
    try:
        said = subprocess.run(
            [python, "-c", PROBE], capture_output=True, text=True, check=False, timeout=300
        ).stdout
    except OSError:
        return False
    return said.split() == [version, "cpython"]


def _pyenv_versions() -> list[Path]:
    """Interpreters that pyenv holds but has not put forward: their shims fail."""
    if not (pyenv := shutil.which("pyenv")):
        return []
    said = subprocess.run([pyenv, "root"], capture_output=True, text=True, check=False).stdout
    return sorted(Path(said.strip()).glob("versions/3.*/bin/python")) if said.strip() else []


@cache
def pythons() -> dict[str, str]:
    """Version -> interpreter, for each that works."""
    by_version: dict[str, str] = {}
    for minor in MINORS:
        version = f"3.{minor}"
        named = shutil.which(f"python{version}")
        held = [path for path in _pyenv_versions() if path.parts[-3].startswith(f"{version}.")]
        candidates = [named or "", *map(str, held)]
        if working := next((c for c in candidates if c and _works(c, version)), None):
            by_version[version] = working
    return by_version


def test_more_than_one_python_was_found() -> None:
    hint = "install another one (3.10 to 3.13), for example with pyenv"
    assert len(pythons()) >= 2, f"only {list(pythons())}: {hint}"


@pytest.mark.parametrize("version", pythons())
def test_installs_and_generates(version: str, wheel: Path, tmp_path: Path) -> None:
    environment = Environment.make(tmp_path / "clean", pythons()[version])
    environment.install(wheel)
    report = check_generates(environment)
    assert ".".join(map(str, report["python"])) == version
