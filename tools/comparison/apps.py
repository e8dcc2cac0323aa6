"""Runs small apps on libraries that import llama_cpp, with llama-cpp-python and with ours.

``python -m tools.comparison.apps [APP ...] [-o docs/apps-table.md]`` installs each library from the
index into its own environment. An app fails if ours gives another answer, with a draft or without.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.conftest import smollm2
from tools.comparison import environments
from tools.comparison.app_calls import APPS
from tools.comparison.verdict import Verdict, judge

ROOT = Path(__file__).resolve().parents[2]
# The marks of answers that may differ, by the call's name.
MARKS = {
    "embed documents": "better: there the second text gets parts of the first one's vector",
    "tools": "any",
    "structured": "any",
}
INTRODUCTION = f"""# Libraries beside llama-cpp-python {environments.VERSION}

Made by `python -m tools.comparison.apps`: each library from the index runs in an environment
of its own, once with llama-cpp-python and once, in another process, with
`pyllama_spec.llama_cpp.install()`. Texts are greedy, of SmolLM2-135M in Q4_0. The calls are in
tools/comparison/app_calls.py. Types, keys and values are compared. Of tool calls and structured
output only types and keys are, since their white space and their choices are near ties.
"""
# The dependencies of pyllama_spec.
OURS = ("cffi", "numpy")


def run_app(python: Path, app: str, side: str) -> dict[str, Any]:
    """The results of an app's calls on one side."""
    engine = environments.engine()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        words = [app, side, str(smollm2("Q4_0")), str(out), engine]
        variables = {
            **os.environ, "PYLLAMA_SPEC_COSTS": "off", "HF_HUB_OFFLINE": "1",
            "OMP_WAIT_POLICY": "PASSIVE", "LLM_USER_PATH": folder,
        }  # fmt: skip
        command = [str(python), "-m", "tools.comparison.app_child", *words]
        done = subprocess.run(
            command, cwd=ROOT, env=variables, check=False, capture_output=True, text=True
        )
        if not out.is_file():
            says = f"the process ended with {done.returncode}: {done.stderr[-400:]}"
            return {"opening": {"error": ["ProcessEnded"], "says": says}}
        return dict(json.loads(out.read_text()))


def compare_app(theirs: dict[str, Any], ours: dict[str, Any]) -> dict[str, Verdict]:
    """A verdict for each call; a call that a side did not reach has failed there."""
    verdicts = {}
    for name in {**theirs, **ours}:
        stopped = [
            side.get("opening", {"error": ["Missing"], "says": ""}) for side in (theirs, ours)
        ]
        verdicts[name] = judge(
            theirs.get(name, stopped[0]), ours.get(name, stopped[1]), MARKS.get(name, "")
        )
    return verdicts


def main(argv: list[str]) -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("apps", nargs="*", help="apps to run; all by default")
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args(argv)
    lines = ["| app | call | without a draft | with prompt lookup |", "|---|---|---|---|"]
    n_bad = 0
    for app in args.apps or APPS:
        _, packages, has_draft = APPS[app]
        wheel = str(environments.real_wheel())
        python = environments.environment(app, *OURS, wheel, *packages)
        theirs = run_app(python, app, "theirs")
        plain = compare_app(theirs, run_app(python, app, "ours"))
        drafted = compare_app(theirs, run_app(python, app, "draft")) if has_draft else {}
        for name, one in plain.items():
            other = drafted.get(name)
            n_bad += sum(1 for each in (one, other) if each and not is_fine(each))
            shown = [f"{x.word}{': ' + x.why if x.why else ''}" if x else "" for x in (one, other)]
            lines.append(f"| {app} | {name} | {' | '.join(_cell(text) for text in shown)} |")
            print(lines[-1], flush=True)
    if args.output:
        args.output.write_text("\n".join([INTRODUCTION, *lines, ""]))
    return 1 if n_bad else 0


def _cell(text: str) -> str:
    text = " ".join(text.split()).replace("|", "\\|")
    return text if len(text) <= 200 else text[:197] + "..."


def is_fine(one: Verdict) -> bool:
    """Whether an app works no worse here: the same failure on both sides is its own."""
    return one.is_good or one.word == "fails there" or one == Verdict("both fail")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
