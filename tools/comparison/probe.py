"""Runs every call of calls.txt in llama-cpp-python and in pyllama_spec, and records the verdicts.

``python -m tools.comparison.probe [--real PYTHON] [--only TEXT]``

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
from tools.comparison.signatures import compare_signatures
from tools.comparison.verdict import Verdict, judge
from tools.docs import beside

ROOT = Path(__file__).resolve().parents[2]
RECORD = Path(__file__).with_name("theirs.json.gz")
# The share of the calls that work there which must be the same or better here.
BAR = 270 / 286
# The verdicts on calls that work there.
WORDS = ("same", "better", "differs", "refused", "missing", "worse")


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
            **os.environ, "COMPARISON_ONLY": only,
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
    beside.keep(
        llama_cpp_python=environments.VERSION,
        calls={code: str(one) for code, one in verdicts.items() if one.word != "same"},
        n_signatures=len(compared),
        signatures={
            name: f"{word}: {why}" if why else word
            for name, word, why in compared
            if word != "same"
        },
    )
    counted = Counter(one.word for one in verdicts.values())
    print(dict(counted), Counter(word for _, word, _ in compared))
    n_there = sum(counted[word] for word in WORDS)
    return 0 if counted["same"] + counted["better"] >= BAR * n_there else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
