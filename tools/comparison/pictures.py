"""Records what the engine's own server says about pictures.

``python -m tools.comparison.pictures`` installs xllamacpp, as tools.comparison.server does, and
asks its server about the cases of tests/faces/test_stock_pictures.py with the same tiny files.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.faces.test_stock_pictures import CASES, RECORD, request
from tests.media_tools import projector, seeing
from tools.comparison import environments
from tools.comparison.server import version

# Nearer to each other than this, two tokens may change places by rounding alone.
_NEAR = 0.1
_CHILD = """
import json, sys
import xllamacpp

jobs = json.load(open(sys.argv[1]))
with open(sys.argv[2], "w") as out:
    for job in jobs:
        params = xllamacpp.CommonParams()
        params.model.path, params.mmproj.path = job["model"], job["mmproj"]
        params.n_ctx, params.n_parallel, params.warmup, params.port = 1024, 1, False, 0
        params.cpuparams.n_threads = 1
        answer = xllamacpp.Server(params).handle_chat_completions(job["request"])
        out.write(json.dumps(answer) + "\\n")
        out.flush()
"""


def tokens_of(answer: dict[str, Any]) -> list[int]:
    """The ids of an answer, up to the first that another one nearly equals."""
    out: list[int] = []
    for step in answer["choices"][0]["logprobs"]["content"]:
        first, second = (one["logprob"] for one in step["top_logprobs"])
        if first - second < _NEAR:
            break
        out.append(step["id"])
    return out


def main() -> int:
    """Writes the record."""
    jobs = [
        {
            "model": str(seeing(case.family).path), "mmproj": str(projector(case.family).path),
            "request": {**request(case), "logprobs": True, "top_logprobs": 2},
        }
        for case in CASES
    ]  # fmt: skip
    python = environments.environment("server", f"xllamacpp=={version()}")
    with tempfile.TemporaryDirectory() as folder:
        jobs_file, out = Path(folder) / "jobs.json", Path(folder) / "out.jsonl"
        jobs_file.write_text(json.dumps(jobs))
        command = [str(python), "-c", _CHILD, str(jobs_file), str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = out.read_text().splitlines() if out.is_file() else []
    if done.returncode or len(lines) != len(jobs):
        raise SystemExit(f"{len(lines)} of {len(jobs)} answers:\n{done.stderr[-3000:]}")
    RECORD.write_text(json.dumps([tokens_of(json.loads(line)) for line in lines]) + "\n")
    print(f"{len(lines)} answers in {RECORD}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
