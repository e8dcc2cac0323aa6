"""Records how the engine's own server parses the answers of tests/moving/scripts.py, for CI.

``python -m tools.comparison.server`` installs xllamacpp, the package whose source this tree is
built from. Its wheel has that engine's server. tests/moving/test_recorded.py reads the record.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.faces.families import templates
from tests.moving.scripts import cases, read
from tools.comparison import environments

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "tests" / "moving" / "server_answers.json"
_CHILD = """
import json, sys
import xllamacpp

def answer(job):
    params = xllamacpp.CommonParams()
    params.model.path = job["model"]
    if "template" in job:
        params.chat_template, params.use_jinja = job["template"], True
    if "mmproj" in job:
        params.mmproj.path = job["mmproj"]
    params.n_ctx, params.n_parallel, params.warmup, params.port = job["n_ctx"], 1, False, 0
    params.cpuparams.n_threads = 1
    return xllamacpp.Server(params).handle_chat_completions(job["request"])

jobs = json.load(open(sys.argv[1]))
with open(sys.argv[2], "w") as out:
    for job in jobs:
        try:
            outcome = answer(job)
        except RuntimeError as error:
            outcome = {"error": str(error).strip()}
        out.write(json.dumps(outcome) + "\\n")
        out.flush()
"""


def version() -> str:
    """The version of the package that the engine's source comes from."""
    lines = (ROOT / "vendor" / "llama.cpp.lock").read_text().splitlines()
    return next(line.partition("=")[2].strip() for line in lines if line.startswith("version"))


def responses(jobs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What the engine's own server says to requests, each to a model of its own."""
    python = environments.environment("server", f"xllamacpp=={version()}")
    with tempfile.TemporaryDirectory() as folder:
        jobs_file, out = Path(folder) / "jobs.json", Path(folder) / "out.jsonl"
        jobs_file.write_text(json.dumps(jobs))
        command = [str(python), "-c", _CHILD, str(jobs_file), str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = out.read_text().splitlines() if out.is_file() else []
    if done.returncode or len(lines) != len(jobs):
        raise SystemExit(f"{len(lines)} of {len(jobs)} answers:\n{done.stderr[-3000:]}")
    return [json.loads(line) for line in lines]


def answers() -> dict[str, dict[str, Any]]:
    """The results by the case's key; "refused" has the error of an answer it cannot parse."""
    jobs, lengths = [], []
    for case in cases():
        path, n_prompt, n_ctx = case.model()
        jobs.append(
            {
                "model": path, "template": templates()[case.family], "n_ctx": n_ctx,
                "request": case.request,
            }
        )  # fmt: skip
        lengths.append(n_prompt)
    read_answers = {}
    for case, n_prompt, response in zip(cases(), lengths, responses(jobs), strict=True):
        if "error" in response:
            read_answers[case.key] = {"refused": response["error"]}
            continue
        if response["usage"]["prompt_tokens"] != n_prompt:
            raise SystemExit(f"{case.key}: {n_prompt} tokens here, {response['usage']} there")
        read_answers[case.key] = read(response)
    return read_answers


def main() -> int:
    """Writes the record."""
    record = answers()
    RECORD.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    print(f"{len(record)} answers in {RECORD}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
