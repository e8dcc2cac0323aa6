"""Measures import, load, prompt and decoding speed of both packages, interleaved.

``python -m tools.comparison.speed [--real PYTHON] [--repeat 3] [KIND ...]`` prints a table of
medians. They are of processor time with one thread: wall-clock time includes the load of other
programs. ``--imports N`` measures only the import, N times on each side, with .pyc files.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.conftest import smollm2
from tools.comparison import environments
from tools.packaged_models import cache_directory

ROOT = Path(__file__).resolve().parents[2]
DRAFT = ROOT / "examples" / "drafts" / "smollm2-135m-eagle3.gguf"
KINDS = ("Q4_0", "BF16", "Q4_K_M")
SIDES = ("theirs", "ours", "draft")
FIGURES = ("import_s", "load_s", "prompt_tps", "decode_tps")


# All imports run in one environment. A copy of our package with the compiled module replaces an
# installed one: the finder of an editable install would slow every import, numpy's too.
IMPORT = """
import sys
from time import thread_time
sys.path.insert(0, {folder!r})
start = thread_time()
import {name}
print(thread_time() - start)
"""
# thread_time() counts only the importing thread: NumPy's compute threads spin for a while, longer
# the earlier NumPy is imported.
IMPORTED = ("numpy", "llama_cpp", "pyllama_spec.llama_cpp")


def _variables() -> dict[str, str]:
    cached = {"PYTHONPYCACHEPREFIX": str(cache_directory() / "pyc"), "PYTHONDONTWRITEBYTECODE": ""}
    return {**os.environ, **cached, "PYLLAMA_SPEC_COSTS": "off", "OMP_WAIT_POLICY": "PASSIVE"}


def measure_imports(real: Path, repeat: int) -> None:
    """Prints a table: processor seconds of an import in a fresh process, interleaved."""
    seconds: dict[str, list[float]] = {name: [] for name in IMPORTED}
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "pyllama_spec"
        shutil.copytree(ROOT / "pyllama_spec", package, ignore=shutil.ignore_patterns("__pyc*"))
        shutil.copy(environments.engine(), package)
        for turn in range(repeat + 1):
            for name in IMPORTED:
                code = IMPORT.format(name=name, folder=folder)
                done = subprocess.run(
                    [str(real), "-c", code], env=_variables(), cwd=folder, check=True,
                    capture_output=True, text=True,
                )  # fmt: skip
                if turn:  # the first turn writes the .pyc files
                    seconds[name].append(float(done.stdout.splitlines()[-1]))
    print(f"| import, {repeat} times | median (s) | least (s) |\n|---|---|---|")
    for name, runs in seconds.items():
        print(f"| {name} | {statistics.median(runs):.3f} | {min(runs):.3f} |")


def measure(python: Path, side: str, kind: str) -> dict[str, float]:
    """Measures one side in its own process."""
    command = [str(python), "-m", "tools.comparison.speed_child", side, str(smollm2(kind))]
    command += [environments.engine(), str(DRAFT)]
    done = subprocess.run(
        command, cwd=ROOT, env=_variables(), check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{command}\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main(argv: list[str]) -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kinds", nargs="*", default=KINDS)
    parser.add_argument("--real", type=Path, help="an interpreter that has llama-cpp-python")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--imports", type=int, metavar="N", help="measure only the import, N times")
    args = parser.parse_args(argv)
    real = args.real or environments.real_python()
    if args.imports:
        measure_imports(real, args.imports)
        return 0
    print("| weights | | import (s) | load (s) | prompt (tokens/s) | decoding (tokens/s) |")
    print("|---|---|---|---|---|---|")
    for kind in args.kinds:
        runs_by_side: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
        for _ in range(args.repeat):
            for side in SIDES:
                runs_by_side[side].append(measure(real, side, kind))
        for side, runs in runs_by_side.items():
            cells = [f"{statistics.median(run[name] for run in runs):.2f}" for name in FIGURES]
            print(f"| {kind} | {side} | {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
