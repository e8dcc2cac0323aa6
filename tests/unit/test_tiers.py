"""The gate and the release check together run each test once."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.tiers import QUICK, RELEASE, TIERS

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
GATE = ("test", "test-train", "test-wheel")
# Of `make release-check`, without the same tests once more where a device is to be seen.
ROWS = "test-release test-pythons test-coexistence test-page"
_GIVEN = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "PYTEST_ARGS")
FILES = sorted(path.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py"))


def selections(*targets: str) -> list[list[str]]:
    """The pytest arguments of `make TARGET ...`, command by command."""
    make = ["make", "--dry-run", "--always-make", "ENGINE=wheel", *targets]
    # Not what the make around this test was given: PYTEST_ARGS, for one.
    variables = {key: value for key, value in os.environ.items() if key not in _GIVEN}
    said = subprocess.run(
        make, cwd=ROOT, env=variables, capture_output=True, text=True, check=True
    ).stdout
    lines = said.replace("\\\n", " ").splitlines()
    return [shlex.split(found[1]) for x in lines if (found := re.search(r"-m pytest (.*)", x))]


def takes(words: list[str], file: str, tier: str) -> bool:
    """Whether pytest, with these arguments, runs the tests of a file in a tier."""
    expression = words[words.index("-m") + 1] if "-m" in words else ""
    # Names with and, or, not: an expression of Python too.
    if expression and not eval(expression, {}, {name: name == tier for name in TIERS}):
        return False
    path = f"tests/{file}"
    left_out = [word.partition("=")[2] for word in words if word.startswith("--ignore=")]
    within = [word for word in words if word == "tests" or word.startswith("tests/")]
    return any(_lies_in(path, x) for x in within) and not any(_lies_in(path, x) for x in left_out)


def _lies_in(path: str, place: str) -> bool:
    return path == place or path.startswith(f"{place}/")


@pytest.fixture(scope="module")
def commands() -> dict[str, list[list[str]]]:
    """The commands of the gate, of the quick tests, and of a release."""
    assert f"\nROWS ?= {ROWS} " in (ROOT / "Makefile").read_text(encoding="utf-8")
    return {
        "gate": selections(*GATE), "quick": selections("check"),
        "release": selections("release-check", f"ROWS={ROWS}"),
    }  # fmt: skip


@pytest.mark.parametrize("tier", TIERS)
def test_each_test_is_taken_by_one_command(commands: dict[str, list[list[str]]], tier: str) -> None:
    assert [len(commands[name]) for name in ("gate", "quick", "release")] == [3, 1, 4]
    for file in FILES:
        if file.startswith("gpu/"):  # every tier of it with the device: make device-tests
            continue
        if file.startswith("browser/") and tier != RELEASE:  # it has no other
            continue
        taken = {name: sum(takes(x, file, tier) for x in commands[name]) for name in commands}
        assert (taken["gate"], taken["release"]) == ((0, 1) if tier == RELEASE else (1, 0)), file
        assert not (taken["quick"] and tier != QUICK)
    quick = [file for file in FILES if any(takes(x, file, QUICK) for x in commands["quick"])]
    assert {file.partition("/")[0] for file in FILES} - {x.partition("/")[0] for x in quick} == {
        "browser", "gpu", "train", "wheel",
    }  # fmt: skip
