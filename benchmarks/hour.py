"""Replays a working session with each draft and without, and compares the time.

    python -m benchmarks.hour -m TARGET.gguf -d auto [-d HEAD.gguf] [-t 1] [--repeat 3]

The conversations of hour.jsonl are questions about a file, edits of it, records extracted by a
schema, a commit message, letters and translations. Each side is a Llama of its own, which keeps
its text and its copies from request to request, as in a program that stays open. All sides answer
a request directly after each other, in an order that rotates. Times are processor seconds of whole
requests, prompts included. The exit status is 1 if a text differs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from time import process_time
from typing import Any

from pyllama_spec import Llama

_HOUR = Path(__file__).with_name("hour.jsonl")
# By side and kind of request, the seconds of one repeat.
Seconds = dict[str, dict[str, float]]


def replay(sides: dict[str, Llama], conversations: list[dict[str, Any]]) -> tuple[Seconds, int]:
    """Sends all requests to all sides; returns their seconds, and how many texts differ."""
    seconds: Seconds = {name: defaultdict(float) for name in sides}
    names, n_requests, n_different = list(sides), 0, 0
    for one in conversations:
        schema = one.get("schema")
        how = {"type": "json_object", "schema": schema} if schema else None
        messages: list[dict[str, str]] = []
        for turn in one["turns"]:
            messages.append({"role": "user", "content": turn})
            texts, first = {}, n_requests % len(names)
            for name in names[first:] + names[:first]:
                begin = process_time()
                answer = sides[name].create_chat_completion(
                    messages, temperature=0, max_tokens=900, response_format=how
                )
                seconds[name][one["kind"]] += process_time() - begin
                texts[name] = answer["choices"][0]["message"]["content"]
            n_requests += 1
            n_different += len(set(texts.values())) > 1
            messages.append({"role": "assistant", "content": texts[names[0]]})
    return seconds, n_different


def main() -> int:
    """Measures and prints; returns 1 if a text differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-d", "--draft", action="append", required=True)
    parser.add_argument("-t", "--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    conversations = [json.loads(line) for line in _HOUR.read_text("utf-8").splitlines()]
    runs: list[Seconds] = []
    n_different = 0
    for repeat in range(args.repeat):
        # A new program each time: it has not seen the requests before.
        with contextlib.ExitStack() as stack:
            sides = {
                name: stack.enter_context(
                    Llama(args.model, draft=name, n_ctx=8192, n_threads=args.threads, verbose=False)
                )
                for name in ("none", *args.draft)
            }
            seconds, wrong = replay(sides, conversations)
        runs.append(seconds)
        n_different += wrong
        for name, kinds in seconds.items():
            plain = seconds["none"]
            each = "  ".join(f"{kind} {plain[kind] / s:.2f}" for kind, s in kinds.items())
            total, without = sum(kinds.values()), sum(plain.values())
            line = (
                f"{repeat + 1} {Path(name).stem:16} {total:7.1f} s  {without / total:.2f}  {each}"
            )
            print(line, flush=True)
    for name in args.draft:
        gains = [sum(run["none"].values()) / sum(run[name].values()) for run in runs]
        middle, low, high = statistics.median(gains), min(gains), max(gains)
        print(f"{Path(name).stem}: {middle:.2f} ({low:.2f}..{high:.2f}) of none")
    print(f"{n_different} texts differ")
    return 1 if n_different else 0


if __name__ == "__main__":
    sys.exit(main())
