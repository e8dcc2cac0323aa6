"""Clean environments: a bare interpreter, wheels only, and no compiler to be found."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.models import model_path, perm_continuation, perm_next

ROOT = Path(__file__).resolve().parents[2]
GENERATE = Path(__file__).with_name("generate.py")
# Short cycles, so that the text repeats itself and prompt lookup has something to find.
PERM = {"n_vocab": 320, "seed": 3, "n_cycles": 79}
PROMPT = [72, 101, 108]


def run(*command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a command and shows what it said when it fails."""
    options = {"cwd": ROOT, "timeout": 1500, **options}
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False, **options)
    said = f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    assert done.returncode == 0, f"{words} ended with {done.returncode}:\n{said}"
    return done


def tracked_files(*under: str) -> set[str]:
    """Tracked files and new ones that git does not ignore, relative to the root."""
    listed = run("git", "ls-files", "-co", "--exclude-standard", "--", *under).stdout.split("\n")
    return {name for name in listed if name and (ROOT / name).exists()}


@dataclass(frozen=True)
class Environment:
    """A virtual environment without pip, entered with nothing but itself on PATH."""

    folder: Path

    @classmethod
    def make(cls, folder: Path, python: str = sys.executable) -> Environment:
        """A new one, of the given interpreter."""
        run(python, "-m", "venv", "--without-pip", folder)
        return cls(folder)

    @property
    def python(self) -> Path:
        """The environment's interpreter."""
        return self.folder / "bin" / "python"

    def variables(self) -> dict[str, str]:
        """The variables of this process, without the compiler, CMake or our tree."""
        hidden = ("CC", "CXX", "CMAKE", "PYTHON", "SKBUILD", "VIRTUAL_ENV", "PYTEST", "LD_")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
        kept["PATH"] = str(self.folder / "bin")
        for tool in ("cc", "gcc", "g++", "c++", "clang", "cmake", "ninja", "make"):
            assert shutil.which(tool, path=kept["PATH"]) is None
        return kept

    def install(self, *what: str | Path) -> None:
        """Lets pip, of the interpreter that runs the tests, install wheels into it."""
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
        command += ["--python", str(self.python), "install", "--only-binary", ":all:"]
        run(*command, *what, env=self.variables(), cwd=self.folder)

    def run(self, *words: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
        """Runs its interpreter, isolated from this one but for these variables."""
        variables = {**self.variables(), **more}
        return run(self.python, "-I", *words, env=variables, cwd=self.folder, timeout=600)


def perm_model() -> tuple[Path, list[int]]:
    """A tiny model and the 24 tokens that it says after PROMPT, known without running it."""
    successor = perm_next(PERM["n_vocab"], seed=PERM["seed"], n_cycles=PERM["n_cycles"])
    return model_path("perm", **PERM), perm_continuation(PROMPT[-1], 24, successor)


def check_generates(environment: Environment, **variables: str) -> dict[str, Any]:
    """Asserts that the installed package says the right 24 tokens; returns its report."""
    model, expected = perm_model()
    words = [str(x) for x in (model, len(expected), *PROMPT)]
    report: dict[str, Any] = json.loads(environment.run(GENERATE, *words, **variables).stdout)
    assert report["plain"] == expected
    assert report["drafted"] == expected
    assert report["n_accepted"] > 0
    assert Path(report["package"]).is_relative_to(environment.folder)
    return report
