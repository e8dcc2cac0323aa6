"""What a draft adds to the load time and the memory of a program.

    python -m benchmarks.draft_footprint -m MODEL [-d DRAFT ...] [--n-ctx 4096] [--repeat 2]

One process for each draft, interleaved, with one thread: the processor time of `Llama(...)`, and
the resident memory after it and after 96 tokens. A process's own memory is what it allocated; the
pages of mapped files are shared with other programs that map them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

from pyllama_spec import Llama
from pyllama_spec.cli.wording import whole_number
from pyllama_spec.errors import PyllamaSpecError

_PROMPT = "Write a quicksort in Python."
_N_TOKENS = 96
_MIB = 1024


def _resident_mib() -> tuple[float, float]:
    """Resident memory in MiB: the process's own, and pages of mapped files."""
    text = Path("/proc/self/status").read_text(encoding="utf-8")
    facts = dict(line.split(":", 1) for line in text.splitlines())
    own, of_files = (int(facts[name].split()[0]) / _MIB for name in ("RssAnon", "RssFile"))
    return own, of_files


def measure(model: str, draft: str | None, n_ctx: int) -> dict[str, float]:
    """The figures of one draft, in this process."""
    start = time.process_time()
    with closing(Llama(model, draft=draft, n_ctx=n_ctx, n_threads=1, verbose=False)) as llm:
        seconds = time.process_time() - start
        opened, _ = _resident_mib()
        llm.create_completion(_PROMPT, max_tokens=_N_TOKENS, temperature=0)
        used, of_files = _resident_mib()
    return {"seconds": seconds, "opened": opened, "used": used, "of_files": of_files}


def main() -> None:
    """Prints a table, a row for each draft."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-d", "--draft", action="append", default=[], help="may be repeated")
    parser.add_argument("--n-ctx", type=int, default=4096)
    parser.add_argument("--repeat", type=whole_number(1, 100), default=2)
    parser.add_argument("--one", help=argparse.SUPPRESS)  # the draft of this process; "" for none
    args = parser.parse_args()
    if args.one is not None:
        try:
            print(json.dumps(measure(args.model, args.one or None, args.n_ctx)))
        except PyllamaSpecError as error:
            sys.exit(str(error))
        return
    drafts = ["", *args.draft]
    rows: dict[str, list[dict[str, float]]] = {draft: [] for draft in drafts}
    again = [sys.executable, "-m", "benchmarks.draft_footprint", "-m", args.model]
    for _ in range(args.repeat):
        for draft in drafts:
            command = [*again, "--n-ctx", str(args.n_ctx), "--one", draft]
            done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
            if done.returncode:  # it printed the error
                sys.exit(f"{draft or 'the model without a draft'} could not be measured")
            rows[draft].append(json.loads(done.stdout))
    print(f"{'draft':40} load s  MiB at ready  after {_N_TOKENS} tokens  mapped MiB")
    for draft, runs in rows.items():
        seconds, opened, used, of_files = (
            statistics.median(run[name] for run in runs)
            for name in ("seconds", "opened", "used", "of_files")
        )
        name = Path(draft).name or "none"
        print(f"{name:40} {seconds:6.2f} {opened:13.0f} {used:16.0f} {of_files:11.0f}")


if __name__ == "__main__":
    main()
