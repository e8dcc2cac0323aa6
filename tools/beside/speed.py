"""How fast both packages import, load, read a prompt and decode, in turns.

``python -m tools.beside.speed [--real PYTHON] [--repeat 3] [KIND ...]`` prints a table, medians of
processor seconds with one thread: on a busy machine the clock on the wall measures the others.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from tests.conftest import smollm2
from tools.beside import environments

ROOT = Path(__file__).resolve().parents[2]
DRAFT = ROOT / "examples" / "drafts" / "smollm2-135m-eagle3.gguf"
KINDS = ("Q4_0", "BF16", "Q4_K_M")
SIDES = ("theirs", "ours", "draft")
FIGURES = ("import_s", "load_s", "prompt_tps", "decode_tps")


def measure(python: Path, side: str, kind: str) -> dict[str, float]:
    """One process on one side."""
    variables = {**os.environ, "PYLLAMA_SPEC_COSTS": "off", "OMP_WAIT_POLICY": "PASSIVE"}
    command = [str(python), "-m", "tools.beside.speed_child", side, str(smollm2(kind))]
    command += [environments.engine(), str(DRAFT)]
    done = subprocess.run(
        command, cwd=ROOT, env=variables, check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{command}\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main(argv: list[str]) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kinds", nargs="*", default=KINDS)
    parser.add_argument("--real", type=Path, help="an interpreter that has llama-cpp-python")
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args(argv)
    real = args.real or environments.real_python()
    print("| weights | | import (s) | load (s) | prompt (tokens/s) | decoding (tokens/s) |")
    print("|---|---|---|---|---|---|")
    for kind in args.kinds:
        found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
        for _ in range(args.repeat):
            for side in SIDES:
                found[side].append(measure(real, side, kind))
        for side, runs in found.items():
            cells = [f"{statistics.median(run[name] for run in runs):.2f}" for name in FIGURES]
            print(f"| {kind} | {side} | {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
