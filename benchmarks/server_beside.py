"""Compares the server with llama-server of the same pin: concurrent clients, greedy streamed chats.

    python -m venv OTHER && OTHER/bin/pip install xllamacpp==2026.10.11549
    python -m benchmarks.server_beside --python OTHER/bin/python -m MODEL.gguf -d HEAD.gguf

All sides have the same model, threads, parallel sequences and context; only ours have drafts. The
sides are interleaved, in reverse order in every second repeat. Each repeat has prompts of its own,
so that no server has a whole prompt cached. It prints for each side: tokens per second of wall time
and of CPU time, the median and the 95th percentile of the time to the first token, and the prompt
tokens computed. Then it prints the speed of each of our sides over llama-server's. With --shared N
all requests of a repeat have one system prompt of about N tokens. The exit status is 1 if a text of
ours differs from that of the same request alone.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyllama_spec.bench import beside
from pyllama_spec.bench.machine import process_cpu_s

_SUBJECTS = (
    "the tides", "bread", "a bicycle", "sleep", "volcanoes", "paper", "bees", "a lighthouse",
    "rust", "the moon", "a violin", "salt", "maps", "glass", "rivers", "clocks",
)  # fmt: skip
_WAYS = ("Explain {} in two sentences.", "Write a short poem about {}.", "List facts about {}.",
         "What would a child ask about {}?", "Why do people care about {}?")  # fmt: skip


@dataclass
class Burst:
    """The result of one side in one repeat."""

    texts: list[str] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    n_tokens: int = 0
    n_prompt: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0


class Server:
    """A client of a server process, which requests texts of at most max_tokens."""

    def __init__(
        self, name: str, process: subprocess.Popen[Any], address: str, max_tokens: int
    ) -> None:
        self.name, self.process, self._max_tokens = name, process, max_tokens
        self.host, _, port = address.rpartition("//")[2].partition(":")
        self.port = int(port)

    def cpu_s(self) -> float:
        """The CPU seconds that the server has used."""
        seconds = process_cpu_s(self.process.pid)
        assert seconds is not None, "this benchmark needs Linux's /proc, and a running server"
        return seconds

    def ask(self, question: str, shared: str = "") -> tuple[str, float, dict[str, Any]]:
        """Streams one chat; returns its text, the seconds to its first token, and its usage."""
        turns = [{"role": "system", "content": shared}] if shared else []
        body = {
            "model": "m", "messages": [*turns, {"role": "user", "content": question}],
            "stream": True, "stream_options": {"include_usage": True},
            "max_tokens": self._max_tokens, "temperature": 0,
        }  # fmt: skip
        begin, first, parts, usage = time.perf_counter(), 0.0, list[str](), dict[str, Any]()
        connection = http.client.HTTPConnection(self.host, self.port, timeout=600)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise SystemExit(f"{self.name}: HTTP {response.status} {response.read()!r}")
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            for choice in event.get("choices", ()):
                if text := choice["delta"].get("content"):
                    first = first or time.perf_counter() - begin
                    parts.append(text)
        connection.close()
        return "".join(parts), first, usage

    def burst(self, questions: Sequence[str], n_clients: int, shared: str) -> Burst:
        """Sends all questions from n_clients concurrent clients."""
        cpu_s, begin, out = self.cpu_s(), time.perf_counter(), Burst()
        with ThreadPoolExecutor(n_clients) as pool:
            answers = pool.map(lambda question: self.ask(question, shared), questions)
            for text, first_s, usage in answers:
                out.texts.append(text)
                out.first_s.append(first_s)
                out.n_tokens += usage["completion_tokens"]
                cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
                out.n_prompt += usage["prompt_tokens"] - cached
        out.wall_s, out.cpu_s = time.perf_counter() - begin, self.cpu_s() - cpu_s
        return out


@contextlib.contextmanager
def _running(name: str, command: Sequence[str], max_tokens: int) -> Iterator[Server]:
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    try:
        address = next((line for line in process.stdout if "http://" in line), "")
        if not address:
            raise SystemExit(f"{name} did not start: {' '.join(command)}")
        threading.Thread(target=process.stdout.read, daemon=True).start()
        yield Server(name, process, re.findall(r"http://[\w.]+:\d+", address)[0], max_tokens)
    finally:
        process.terminate()
        process.wait()


def _questions(repeat: int, n: int) -> list[str]:
    way = _WAYS[repeat % len(_WAYS)]
    again = "" if repeat < len(_WAYS) else f" ({repeat})"
    return [way.format(_SUBJECTS[i % len(_SUBJECTS)]) + again + " " * (i // 16) for i in range(n)]


def _shared(repeat: int, n_tokens: int) -> str:
    """A system prompt of about n_tokens; its first rule differs in each repeat."""
    rules = [f"Rule {i}: of {_SUBJECTS[(i + repeat) % 16]} say what readers of book {repeat} say."
             for i in range(n_tokens // 17)]  # fmt: skip
    return " ".join(rules)


def _line(name: str, bursts: Sequence[Burst]) -> str:
    def spread(values: Sequence[float], digits: int) -> str:
        middle, low, high = statistics.median(values), min(values), max(values)
        return f"{middle:.{digits}f} ({low:.{digits}f}..{high:.{digits}f})"

    slowest = [statistics.quantiles(one.first_s, n=20, method="inclusive")[-1] for one in bursts]
    return "  ".join([
        f"{name:16}", spread([one.n_tokens / one.wall_s for one in bursts], 1),
        spread([one.n_tokens / one.cpu_s for one in bursts], 1),
        spread([statistics.median(one.first_s) for one in bursts], 2), spread(slowest, 2),
        spread([one.n_prompt for one in bursts], 0),
    ])  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and prints; returns 1 if a text of ours differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--python", required=True, help="interpreter that has xllamacpp")
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-d", "--draft", action="append", default=[], help="for our server only")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--shared", type=int, default=0, help="tokens of a common system prompt")
    parser.add_argument("-t", "--threads", type=int, default=1)
    parser.add_argument("-c", "--n-ctx", type=int, default=512)
    args = parser.parse_args(argv)
    places, n = args.clients, max(args.requests, args.clients)
    job = {
        "system": "llama-server", "model": str(Path(args.model).absolute()), "n_ctx": args.n_ctx,
        "n_parallel": places, "n_threads": args.threads, "n_gpu_layers": 0, "cache_ram_mib": None,
        "draft_kind": "none", "port": beside.free_port(),
    }  # fmt: skip
    serve = [sys.executable, "-m", "pyllama_spec.cli", "serve", "-m", args.model, "--port", "0",
             "-c", str(args.n_ctx), "-t", str(args.threads)]  # fmt: skip
    commands = {"ours": [*serve, "--parallel", str(places)]}
    for draft in args.draft:
        commands[f"ours, {Path(draft).stem}"] = [*commands["ours"], "-d", draft]
    with contextlib.ExitStack() as stack:
        sides = [
            stack.enter_context(_running(name, one, args.max_tokens))
            for name, one in commands.items()
        ]
        process = stack.enter_context(beside.serving(args.python, job))
        address = f"http://127.0.0.1:{job['port']}"
        sides.append(Server("llama-server", process, address, args.max_tokens))
        found: dict[str, list[Burst]] = {side.name: [] for side in sides}
        for side in sides:
            side.ask("Say hello.")
        for repeat in range(args.repeat):
            for side in sides if repeat % 2 == 0 else sides[::-1]:
                shared = _shared(repeat, args.shared)
                found[side.name].append(side.burst(_questions(repeat, n), args.clients, shared))
        alone = [
            sides[0].ask(one, _shared(repeat, args.shared))[0]
            for repeat in range(args.repeat)
            for one in _questions(repeat, n)
        ]
    print("tokens/s, tokens/processor-s, first token, 95th (s), prompt tokens computed")
    for name, bursts in found.items():
        print(_line(name, bursts))
    theirs, n_wrong = found.pop("llama-server"), 0
    for name, bursts in found.items():
        ratios = [
            (a.n_tokens / a.wall_s) / (b.n_tokens / b.wall_s)
            for a, b in zip(bursts, theirs, strict=True)
        ]
        texts = [text for one in bursts for text in one.texts]
        wrong = sum(x != y for x, y in zip(texts, alone, strict=True))
        n_wrong += wrong
        times = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})"
        print(f"{name}: {times} of llama-server's tokens/s; {wrong} of {len(texts)} texts differ")
    return 1 if n_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
