"""Runs the release checks that the gate does not run, and records the result of each.

    python -m tools.release_check [ROW ... | all] [--list]

All rows together take hours, and their sources rarely change. Run them before a release, and after
work on csrc/ or vendor/. Each row is a target of the Makefile. Its result is written at once to
tests/release-check.json, which is committed, so rows can run one at a time. Without names, the
rows run that have not passed with the current sources. Needs only the standard library.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "tests" / "release-check.json"
_PATCHED = ("CMakeLists.txt", "vendor/llama.cpp.lock", "vendor/patches")
_ENGINE = (*_PATCHED, "csrc")
_SUFFIXES = frozenset((
    ".txt", ".lock", ".patch", ".cpp", ".c", ".h", ".map", ".cmake", ".py", ".html", ".css", ".js",
))  # fmt: skip
_PASSED, _FAILED = "passed", "failed"


@dataclass(frozen=True, slots=True)
class Row:
    """A target of the Makefile; a change of its sources makes its last result outdated."""

    target: str
    what: str
    sources: tuple[str, ...]
    programs: tuple[str, ...] = ()
    remedy: str = ""


ROWS: dict[str, Row] = {
    "tests": Row(
        "test-release",
        "every oracle on every architecture, type and width",
        (*_ENGINE, "pyllama_spec", "tests"),
    ),
    "pythons": Row(
        "test-pythons",
        "the wheel on every Python that is found",
        (*_ENGINE, "pyllama_spec", "tests/wheel"),
    ),
    "coexistence": Row(
        "test-coexistence",
        "the wheel and llama-cpp-python, built from source, in one process",
        (*_ENGINE, "tests/wheel"),
    ),
    "page": Row(
        "test-page",
        "the server's page and the documentation site in a browser: some ten minutes",
        ("pyllama_spec/server", "tests/browser", "docs/assets", "tools/docs/site_hooks.py"),
        ("chromium",),
        "apt-get install chromium",
    ),
    "soak": Row(
        "soak", "an hour of everything at once", (*_ENGINE, "pyllama_spec", "tests/robust/soak.py")
    ),
    "fuzz": Row(
        "fuzz",
        "libFuzzer with sanitizers over the C side",
        (*_ENGINE, "csrc/fuzz", "tests/fuzz/corpus.py"),
        ("clang", "clang++"),
        "apt-get install clang",
    ),
    "vulkan": Row(
        "test-vulkan",
        "the device tests and parity on Mesa's software Vulkan device",
        (*_ENGINE, "tests/gpu"),
        ("glslc",),
        "apt-get install libvulkan-dev glslc spirv-headers mesa-vulkan-drivers",
    ),
    "arm64": Row(
        "test-arm64",
        "the kernels for ARM64 and a model's texts under an emulator, for each variant of a wheel",
        (*_ENGINE, "tests/arm64"),
        ("aarch64-linux-gnu-g++", "qemu-aarch64"),
        "apt-get install g++-aarch64-linux-gnu qemu-user",
    ),
    # Checks only that it compiles and loads: our own sources are compiled everywhere.
    "cuda": Row(
        "build-cuda",
        "the CUDA backend, compiled and imported without a driver",
        (*_PATCHED, "csrc/devices", "tools/check_cuda_build.py"),
        ("nvcc",),
        "install a CUDA toolkit",
    ),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The last result of a row: at which commit ("+": with changes), and with which sources."""

    outcome: str
    date: str
    seconds: int | None
    commit: str
    sources: str


def fingerprint(row: Row) -> str:
    """A hash over names and contents of the row's sources."""
    files: set[Path] = set()
    for name in row.sources:
        path = ROOT / name
        inside = path.rglob("*") if path.is_dir() else (path,)
        # csrc/fuzz is a separate project: only the row that names it depends on it.
        fuzzed = name == "csrc/fuzz"
        files.update(
            file for file in inside
            if file.suffix in _SUFFIXES and (fuzzed or file.parent.name != "fuzz")
        )  # fmt: skip
    total = hashlib.sha256()
    for file in sorted(files):
        data = file.read_bytes()
        total.update(f"{file.relative_to(ROOT).as_posix()} {len(data)}\n".encode())
        total.update(data)
    return total.hexdigest()


def read(path: Path) -> dict[str, Outcome]:
    """The recorded results by row."""
    if not path.exists():
        return {}
    rows = json.loads(path.read_text(encoding="utf-8"))
    return {name: Outcome(**fields) for name, fields in rows.items()}


def write(path: Path, outcomes: Mapping[str, Outcome]) -> None:
    """Writes the results, sorted by row name."""
    rows = {name: asdict(outcomes[name]) for name in sorted(outcomes)}
    path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def has_passed(name: str, outcomes: Mapping[str, Outcome]) -> bool:
    """Whether a row has passed with the current sources."""
    last = outcomes.get(name)
    return last is not None and (last.outcome, last.sources) == (_PASSED, fingerprint(ROWS[name]))


def chosen(names: Sequence[str], outcomes: Mapping[str, Outcome]) -> list[str]:
    """The rows to run: the named ones, all, or those not passed with the current sources."""
    if unknown := [name for name in names if name not in (*ROWS, "all")]:
        raise ValueError(f"no such row: {', '.join(unknown)}; there are {', '.join(ROWS)}, or all")
    if "all" in names:
        return list(ROWS)
    return [name for name in ROWS if name in names or not (names or has_passed(name, outcomes))]


def commit() -> str:
    """The commit that is checked out, with a "+" if files differ from it."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    # The record is left out: it changes with each row.
    others = (".", f":!{RECORD.relative_to(ROOT).as_posix()}")
    differs = git("status", "--porcelain", "--", *others)
    return git("rev-parse", "--short=12", "HEAD") + ("+" if differs else "")


def make(target: str) -> int:
    """Runs a target on the wheel to be released; returns its exit code."""
    return subprocess.run(["make", "ENGINE=wheel", target], cwd=ROOT, check=False).returncode


def lacking(row: Row) -> str:
    """The missing requirements of a row, with the remedy; "" for none."""
    missing = [name for name in row.programs if shutil.which(name) is None]
    return f"needs {', '.join(missing)}: {row.remedy}" if missing else ""


def check(names: Sequence[str]) -> bool:
    """Runs rows and records their results; returns whether all passed.

    A row that cannot run here leaves the record unchanged.
    """
    said: dict[str, str] = {}
    for name in names:
        row = ROWS[name]
        if reason := lacking(row):
            said[name] = f"NOT RUN, {reason}"
            continue
        print(f"== {name}: make {row.target}", flush=True)
        # Taken before the run, which does not test later changes.
        sources, checked_out, begin = fingerprint(row), commit(), time.monotonic()
        outcome = _FAILED if make(row.target) else _PASSED
        seconds = round(time.monotonic() - begin)
        date = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%MZ")
        ended = Outcome(outcome, date, seconds, checked_out, sources)
        write(RECORD, {**read(RECORD), name: ended})
        said[name] = f"{outcome} in {seconds} s"
    for name, text in said.items():
        print(f"== {name}: {text}")
    return all(text.startswith(_PASSED) for text in said.values())


def listing(outcomes: Mapping[str, Outcome]) -> list[str]:
    """A line for each row: its description and its last result."""
    lines = []
    for name, row in ROWS.items():
        last = outcomes.get(name)
        if last is None:
            text = "never run"
        else:
            now = "these sources" if last.sources == fingerprint(row) else "other sources"
            text = f"{last.outcome} {last.date} at {last.commit}, with {now}"
        lines.append(f"{name:12} {row.what}; {text}")
    return lines


def main() -> int:
    """Runs rows, or prints their last results; returns 1 if one did not pass."""
    parser = argparse.ArgumentParser(description="run the release checks that the gate lacks")
    parser.add_argument("rows", nargs="*", help=f"{', '.join(ROWS)}, or all [the rows due]")
    parser.add_argument("--list", action="store_true", help="print the last results, run nothing")
    args = parser.parse_args()
    outcomes = read(RECORD)
    if args.list:
        print(*listing(outcomes), sep="\n")
        return 0
    try:
        rows = chosen(args.rows, outcomes)
    except ValueError as error:
        parser.error(str(error))
    return int(not check(rows))


if __name__ == "__main__":
    sys.exit(main())
