"""How long Llama() takes to open, by draft: python -m benchmarks.opening -m MODEL.gguf -d DRAFT ...

Each opening is a process of its own, like a program's first one, with one thread. The drafts are
interleaved. CPU time is measured, to which other programs add nothing. An opening before the first
repeat loads the file's pages.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

_PROGRAM = """
import sys, time
from pyllama_spec import Llama
begin = time.process_time()
llm = Llama(sys.argv[1], draft=sys.argv[2], n_threads=1, n_ctx=2048)
print(time.process_time() - begin, begin)
"""


def opening_s(model: Path, draft: str) -> tuple[float, float]:
    """Processor seconds of Llama(), and of Python and the imports before it."""
    command = [sys.executable, "-c", _PROGRAM, str(model), draft]
    # Otherwise each opening would read the costs that the one before kept, which a first program
    # does not have.
    environment = {**os.environ, "PYLLAMA_SPEC_COSTS": "off"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    opening, before = map(float, done.stdout.split())
    return opening, before


def main() -> None:
    """Prints the median of each draft."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("-d", "--draft", action="append", required=True)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    opening_s(args.model, "none")
    found: dict[str, list[tuple[float, float]]] = {draft: [] for draft in args.draft}
    for _ in range(args.repeat):
        for draft, times in found.items():
            times.append(opening_s(args.model, draft))
    for draft, times in found.items():
        opening, before = (statistics.median(column) for column in zip(*times, strict=True))
        spread = max(t for t, _ in times) - min(t for t, _ in times)
        name = Path(draft).name
        print(f"{name:30} {opening:5.2f} s (spread {spread:.2f}), imports {before:.2f} s")


if __name__ == "__main__":
    main()
