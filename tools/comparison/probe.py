"""Runs every call of calls.txt in llama-cpp-python and in pyllama_spec, and writes a table.

``python -m tools.comparison.probe [--real PYTHON] [--only TEXT] [-o docs/parity-table.md]``

--real is the interpreter of an environment with llama-cpp-python. By default one is created in the
cache, which takes ten minutes the first time. The exit code is 1 if too few calls match. The
results of llama-cpp-python are kept in tools/comparison/theirs.json.gz. --recorded compares with
them and needs no llama-cpp-python; CI does this (tests/moving/test_recorded.py).
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from tests.conftest import smollm2
from tests.models import cache_directory, model_path
from tests.models.adapter import write_adapter
from tools.comparison import environments
from tools.comparison.calls import CALLS
from tools.comparison.signatures import compare_signatures, signature_table
from tools.comparison.verdict import Verdict, judge

ROOT = Path(__file__).resolve().parents[2]
RECORD = Path(__file__).with_name("theirs.json.gz")
# The share of the calls that work there which must be the same or better here.
BAR = 270 / 286
WORDS = {
    "same": "the same shapes, keys, types and values",
    "better": "more than there, or another answer that is meant so",
    "differs": "another answer, on purpose",
    "refused": "refused, with a reason",
    "missing": "fails here",
    "worse": "another answer, without a reason",
}


def models() -> dict[str, str]:
    """The models of the calls: SmolLM2 in Q4_0, tiny models and a vocabulary."""
    toy = model_path("llama")
    adapter = write_adapter(toy, cache_directory() / "adapter-for-tiny-llama.gguf")
    return {
        "target": str(smollm2("Q4_0")), "toy": str(toy), "encoder": str(model_path("bert")),
        "adapter": str(adapter), "spm": str(environments.vocabulary()),
    }  # fmt: skip


def run_side(python: Path, side: str, paths: dict[str, str], only: str) -> dict[str, Any]:
    """The results of every call on one side; a call that ends the process counts as failed."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.jsonl"
        variables = {
            **os.environ, "COMPARISON_ONLY": only, "PYLLAMA_SPEC_COSTS": "off",
            "HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE",
        }  # fmt: skip
        command = [str(python), "-m", "tools.comparison.child", side, json.dumps(paths), str(out)]
        command.append(environments.engine())
        for _ in CALLS:
            done = subprocess.run(
                command, cwd=ROOT, env=variables, check=False, capture_output=True, text=True
            )
            if not out.is_file():
                raise SystemExit(f"{side} ended with {done.returncode}:\n{done.stderr[-3000:]}")
            if done.returncode == 0:
                break
        lines = [json.loads(line) for line in out.read_text().splitlines()]
    calls = {line["call"]: line["outcome"] for line in lines if "outcome" in line}
    return {"signatures": calls.pop(""), "calls": calls}


def _cell(text: str) -> str:
    """A text as one cell of a table, shortened."""
    text = " ".join(text.split()).replace("|", "\\|")
    return text if len(text) <= 240 else text[:237] + "..."


def table(verdicts: dict[str, Verdict], signatures: list[str], version: str) -> str:
    """The text of the page."""
    counted = Counter(one.word for one in verdicts.values())
    n_there = sum(counted[word] for word in WORDS)
    n_good = counted["same"] + counted["better"]
    origin = (
        "`python -m tools.comparison.probe` makes this page: it makes every call below in both "
        "packages, in one environment and two processes, on SmolLM2-135M in Q4_0 and on toys. "
        "It compares types, keys and values, floats to a quarter, and streams by their text. "
        "`speculation` and `timing`, and `usage` in the last chunk of a stream, are additions "
        "of this package. tools/comparison/calls.py says what the names in the calls are. "
        "Calls that are marked `any` in tools/comparison/calls.txt are compared by types and "
        "keys alone, since their values are drawn or free. The prompts are such that SmolLM2 "
        "is sure of what follows. Where two tokens are nearly as likely, the kernels of the "
        "two builds round to different texts, as two builds of the engine do."
    )
    summary = (
        f"{len(verdicts)} calls; {n_there} work there. Of those {n_good} are the same or better "
        f"here ({n_good / max(n_there, 1):.1%})."
    )
    lines = [f"# Call by call, beside llama-cpp-python {version}", "", origin, "", summary, ""]
    lines += ["| | calls | |", "|---|---|---|"]
    lines += [f"| {word} | {counted[word]} | {what} |" for word, what in WORDS.items()]
    lines.append(f"| fails there | {counted['fails there']} | works here alone |")
    lines.append(f"| both fail | {counted['both fail']} | refused by both |")
    group = ""
    for name, code, _ in CALLS:
        if code not in verdicts:
            continue
        if name != group:
            group = name
            lines += ["", f"## {group}", "| call | | |", "|---|---|---|"]
        one = verdicts[code]
        # Two backticks: a call may contain one.
        lines.append(f"| `` {_cell(code)} `` | {one.word} | {_cell(one.why)} |")
    return "\n".join([*lines, "", *signatures, ""])


def record(theirs: dict[str, Any]) -> None:
    """Writes the results of llama-cpp-python; equal answers give equal bytes."""
    text = json.dumps(theirs, sort_keys=True, separators=(",", ":"))
    RECORD.write_bytes(gzip.compress(text.encode(), mtime=0))


def recorded() -> dict[str, Any]:
    """The recorded results of llama-cpp-python."""
    return dict(json.loads(gzip.decompress(RECORD.read_bytes())))


def verdicts_of(theirs: dict[str, Any], ours: dict[str, Any]) -> dict[str, Verdict]:
    """The verdicts on all calls that were made on both sides."""
    return {
        code: judge(theirs["calls"][code], ours["calls"][code], mark)
        for _, code, mark in CALLS
        if code in theirs["calls"] and code in ours["calls"]
    }


def main(argv: list[str]) -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--real", type=Path, help="an interpreter that has llama-cpp-python")
    parser.add_argument("--only", default="", help="only calls that contain this text")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs" / "parity-table.md")
    parser.add_argument("--recorded", action="store_true", help="compare with the kept results")
    args = parser.parse_args(argv)
    paths = models()
    if args.recorded:
        theirs, real = recorded(), Path(sys.executable)
    else:
        real = args.real or environments.real_python()
        theirs = run_side(real, "theirs", paths, args.only)
    ours = run_side(real, "ours", paths, args.only)
    verdicts = verdicts_of(theirs, ours)
    compared = compare_signatures(theirs["signatures"], ours["signatures"])
    for code, one in verdicts.items():
        if not one.is_good and (one.why or one.word == "missing"):
            print(f"{one.word:12}{code}\n{'':12}{one.why}")
    if args.only:
        return 0
    if not args.recorded:
        record(theirs)
    args.output.write_text(table(verdicts, signature_table(compared), environments.VERSION))
    counted = Counter(one.word for one in verdicts.values())
    print(dict(counted), Counter(word for _, word, _ in compared))
    n_there = sum(counted[word] for word in WORDS)
    return 0 if counted["same"] + counted["better"] >= BAR * n_there else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
