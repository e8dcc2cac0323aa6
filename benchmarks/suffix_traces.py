"""Measures lookup drafts on three recorded traces of repetitive work.

    python -m benchmarks.suffix_traces [measure] [--requests 50]

A trace of `traces/` is a list of requests: the prompt and SmolLM2's greedy answer, as ids. They are
an agent's sessions with tool calls and contents of files, edits of one source file, and records
extracted by one schema. Greedy text does not depend on the drafter. So tokens per round are counted
by replaying the answers to a drafter, without a clock. A drafter that remembers first gets a number
of earlier requests; the measured requests are always the same.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from pathlib import Path
from typing import NamedTuple

from pyllama_spec.drafters import Drafter, PromptLookup, Suffix
from tests.suffix_tools import play, play_all

FOLDER = Path(__file__).parent / "traces"
# The number of measured requests of each trace: the last ones.
N_MEASURED = {"agent": 40, "edits": 20, "records": 50}
N_EARLIER = (0, 10, 100)


class Recorded(NamedTuple):
    """One request of a trace: the ids of its prompt, and those of the answer."""

    prompt: list[int]
    answer: list[int]


def read_trace(name: str, folder: Path = FOLDER) -> list[Recorded]:
    """The requests of a trace, in order; a prompt is stored as what it adds to the previous one."""
    out: list[Recorded] = []
    before: list[int] = []
    for n, rest, answer in json.loads(gzip.decompress((folder / f"{name}.json.gz").read_bytes())):
        before = [*before[:n], *rest]
        out.append(Recorded(before, answer))
    return out


def measure(args: argparse.Namespace) -> None:
    """Prints tokens per round of each trace, and the processor time of a round."""
    print("trace     drafter                       tokens/round  drafted/round  us/round")
    for name, n_measured in N_MEASURED.items():
        trace, n_measured = read_trace(name, args.folder), min(n_measured, args.requests)
        rest, earlier = trace[-n_measured:], trace[:-n_measured]
        kinds: list[tuple[str, Drafter, int]] = [
            ("prompt-lookup", PromptLookup(), 0),
            ("prompt-lookup, 15", PromptLookup(15), 0),
            ("suffix, this text alone", Suffix(remembers=False), 0),
            *((f"suffix, after {n}", Suffix(), n) for n in N_EARLIER),
        ]
        for words, drafter, n in kinds:
            for one in earlier[len(earlier) - min(n, len(earlier)) :]:
                play(drafter, *one)
            begin = time.process_time()
            played = play_all(drafter, rest)
            micros = 1e6 * (time.process_time() - begin) / played.n_rounds
            print(
                f"{name:9} {words:29} {played.tokens_per_round:12.2f} "
                f"{played.n_drafted / played.n_rounds:14.2f} {micros:9.0f}"
            )


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("command", nargs="?", choices=("measure",))
    parser.add_argument("--requests", type=int, default=1000, help="measure only the last N")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder of the traces")
    measure(parser.parse_args())


if __name__ == "__main__":
    main()
