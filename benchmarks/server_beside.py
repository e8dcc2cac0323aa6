"""Compares the server with another one on this machine: concurrent clients, greedy streamed chats.

    python -m venv OTHER && OTHER/bin/pip install xllamacpp==2026.10.11549
    python -m benchmarks.server_beside --python OTHER/bin/python -m MODEL.gguf -d HEAD.gguf
    python -m benchmarks.server_beside --peer http://127.0.0.1:8081 -m MODEL.gguf --clients 1

xllamacpp has llama-server of the pinned source; --peer measures any server that runs, such as that
of llama-cpp-python. All sides have the same model, threads, parallel sequences and context. The
other server is plain, and once more for each kind of draft that --like names, with the file of the
first -d where the kind has one. The sides are interleaved, in reverse order in every second repeat.
Each repeat has prompts of its own, so that no server has a whole prompt cached; with --prompts they
are those of a file. It prints for each side: tokens per second of wall time and of CPU time, the
median and the 95th percentile of the time to the first token, the prompt tokens computed, and the
accepted of the drafted tokens. Then it prints the speed of each side over the other server's plain
one, and how many texts differ: ours from that of the same request alone, theirs from their plain
server's. With --shared N all requests of a repeat have one system prompt of about N tokens. The
exit status is 1 if a text of ours differs.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import re
import socket
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

from pyllama_spec.bench.config import load_prompts

_OURS, _PEER = "ours", "theirs"
_SUBJECTS = (
    "the tides", "bread", "a bicycle", "sleep", "volcanoes", "paper", "bees", "a lighthouse",
    "rust", "the moon", "a violin", "salt", "maps", "glass", "rivers", "clocks",
)  # fmt: skip
_WAYS = ("Explain {} in two sentences.", "Write a short poem about {}.", "List facts about {}.",
         "What would a child ask about {}?", "Why do people care about {}?")  # fmt: skip
# The kinds by which llama-server drafts, with what its documents advise for dense models.
_KINDS: dict[str, tuple[str, dict[str, int]]] = {
    "model": ("DRAFT_SIMPLE", {}), "mtp": ("DRAFT_MTP", {}), "eagle3": ("DRAFT_EAGLE3", {}),
    "dflash": ("DRAFT_DFLASH", {}), "dspark": ("DRAFT_DSPARK", {}),
    "lookup": ("NGRAM_SIMPLE", {"draft.n_max": 64}),
    "map-k": ("NGRAM_MAP_K", {"draft.n_max": 64}),
    "map-k4v": ("NGRAM_MAP_K4V", {
        "draft.n_max": 64, "ngram_map_k4v.size_n": 8, "ngram_map_k4v.size_m": 8,
        "ngram_map_k4v.min_hits": 2,
    }),
    "mod": ("NGRAM_MOD", {"ngram_mod.n_match": 24, "ngram_mod.n_min": 8, "ngram_mod.n_max": 16}),
}  # fmt: skip
# Run by the other system's interpreter, which has none of this package.
_LLAMA_SERVER = """
import json, sys, threading, xllamacpp
job, params = json.loads(sys.argv[1]), xllamacpp.CommonParams()
params.model.path, params.port, params.verbosity = job["model"], job["port"], 3
params.n_ctx, params.n_parallel = job["n_ctx"] * job["n_parallel"], job["n_parallel"]
params.n_gpu_layers, params.warmup, params.fit_params = 0, False, False
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = job["n_threads"]
if job["kind"]:
    kinds, draft = xllamacpp.common_speculative_type, params.speculative.draft
    params.speculative.types = [getattr(kinds, "COMMON_SPECULATIVE_TYPE_" + job["kind"])]
    params.load_mtp = job["kind"] == "DRAFT_MTP"
    if job["draft"]:
        draft.mparams.path = job["draft"]
    for name, value in job["tuned"].items():
        group, _, field = name.partition(".")
        setattr(getattr(params.speculative, group), field, value)
    if job["n_draft"] is not None:
        draft.n_max = params.speculative.ngram_simple.size_m = job["n_draft"]
    draft.n_gpu_layers = 0
    draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = job["n_threads"]
server = xllamacpp.Server(params)
while server.listening_address:  # its threads end with this object
    threading.Event().wait()
"""


@dataclass
class Burst:
    """The result of one side in one repeat; cpu_s is 0 where the process is not known."""

    texts: list[str] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    n_tokens: int = 0
    n_prompt: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0


class Server:
    """A client of a server, which requests texts of at most max_tokens."""

    def __init__(self, name: str, pid: int | None, address: str, max_tokens: int) -> None:
        self.name, self._pid, self._max_tokens = name, pid, max_tokens
        self.host, _, port = address.rpartition("//")[2].partition(":")
        self.port = int(port.partition("/")[0] or 80)

    def cpu_s(self) -> float:
        """The CPU seconds of all threads of the server until now."""
        if self._pid is None:
            return 0.0
        # The name in brackets may hold spaces; user and system time are fields 14 and 15.
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def ask(self, messages: Sequence[Any]) -> tuple[str, float, dict[str, Any]]:
        """Streams one chat; returns its text, the seconds to its first token, and its counts."""
        body = {
            "model": "m", "messages": messages, "stream": True, "temperature": 0,
            "max_tokens": self._max_tokens, "stream_options": {"include_usage": True},
        }  # fmt: skip
        begin, first, parts, counts = time.perf_counter(), 0.0, list[str](), dict[str, Any]()
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
            counts |= {**(event.get("usage") or {}), **(event.get("timings") or {})}
            for choice in event.get("choices", ()):
                if text := choice["delta"].get("content"):
                    first = first or time.perf_counter() - begin
                    parts.append(text)
        connection.close()
        return "".join(parts), first, counts

    def burst(self, chats: Sequence[Any], n_clients: int) -> Burst:
        """Sends all chats from n_clients concurrent clients."""
        cpu_s, begin, out = self.cpu_s(), time.perf_counter(), Burst()
        with ThreadPoolExecutor(n_clients) as pool:
            for text, first_s, counts in pool.map(self.ask, chats):
                out.texts.append(text)
                out.first_s.append(first_s)
                out.n_tokens += counts["completion_tokens"]
                cached = (counts.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
                out.n_prompt += counts["prompt_tokens"] - cached
                out.n_drafted += counts.get("draft_n") or 0
                out.n_accepted += counts.get("draft_n_accepted") or 0
        out.wall_s, out.cpu_s = time.perf_counter() - begin, self.cpu_s() - cpu_s
        return out


@contextlib.contextmanager
def _ours(name: str, command: Sequence[str], max_tokens: int) -> Iterator[Server]:
    """Starts a server of this package."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    with _ended(process):
        address = next((line for line in process.stdout if "http://" in line), "")
        if not address:
            raise SystemExit(f"{name} did not start: {' '.join(command)}")
        threading.Thread(target=process.stdout.read, daemon=True).start()
        found = re.findall(r"http://[\w.]+:\d+", address)[0]
        yield Server(name, process.pid, found, max_tokens)


@contextlib.contextmanager
def _theirs(args: argparse.Namespace, like: str | None) -> Iterator[Server]:
    """Starts the other server with a kind of draft, unless --peer names one that runs."""
    if args.peer:
        yield Server(_PEER, None, args.peer, args.max_tokens)
        return
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    kind, tuned = _KINDS[like] if like else ("", {})
    name = f"theirs, {like}" if like else _PEER
    job = {
        "model": str(Path(args.model).absolute()), "n_ctx": args.n_ctx, "port": port,
        "n_parallel": args.clients, "n_threads": args.threads, "n_draft": args.n_draft,
        "kind": kind, "tuned": tuned, "draft": str(Path(args.draft[0]).absolute())
        if kind.startswith("DRAFT_") and like != "mtp" else "",
    }  # fmt: skip
    process = subprocess.Popen([args.python, "-c", _LLAMA_SERVER, json.dumps(job)])
    with _ended(process):
        server = Server(name, process.pid, f"http://127.0.0.1:{port}", args.max_tokens)
        while process.poll() is None:
            with contextlib.suppress(OSError, http.client.HTTPException):
                asked = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
                asked.request("GET", "/health")
                if asked.getresponse().status == 200:
                    break
            time.sleep(0.1)
        if process.poll() is not None:
            raise SystemExit("llama-server did not start: its log is above")
        yield server


@contextlib.contextmanager
def _ended(process: subprocess.Popen[Any]) -> Iterator[None]:
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def _chats(args: argparse.Namespace, repeat: int) -> list[Any]:
    """The chats of a repeat."""
    if args.prompts:
        return [one.as_chat(True).messages for one in load_prompts(args.prompts)[: args.requests]]
    way, again = _WAYS[repeat % len(_WAYS)], f" ({repeat})" * (repeat >= len(_WAYS))
    # Its first rule differs in each repeat.
    rules = [f"Rule {i}: of {_SUBJECTS[(i + repeat) % 16]} say what readers of book {repeat} say."
             for i in range(args.shared // 17)]  # fmt: skip
    shared = [{"role": "system", "content": " ".join(rules)}] if rules else []
    texts = [
        way.format(_SUBJECTS[i % 16]) + again + " " * (i // 16)
        for i in range(max(args.requests, args.clients))
    ]
    return [[*shared, {"role": "user", "content": text}] for text in texts]


def _line(name: str, bursts: Sequence[Burst]) -> str:
    def spread(values: Sequence[float], digits: int) -> str:
        middle, low, high = statistics.median(values), min(values), max(values)
        return f"{middle:.{digits}f} ({low:.{digits}f}..{high:.{digits}f})"

    slowest = [statistics.quantiles(one.first_s, n=20, method="inclusive")[-1] for one in bursts]
    drafted, accepted = (sum(getattr(b, n) for b in bursts) for n in ("n_drafted", "n_accepted"))
    return "  ".join([
        f"{name:16}", spread([one.n_tokens / one.wall_s for one in bursts], 1),
        spread([one.n_tokens / one.cpu_s if one.cpu_s else 0.0 for one in bursts], 1),
        spread([statistics.median(one.first_s) for one in bursts], 2), spread(slowest, 2),
        spread([one.n_prompt for one in bursts], 0), f"{accepted} of {drafted}",
    ])  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--python", help="interpreter that has xllamacpp")
    parser.add_argument("--peer", metavar="URL", help="a server that runs, in place of --python")
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-d", "--draft", action="append", default=[], help="for our server")
    parser.add_argument(
        "--like", choices=tuple(_KINDS), action="append", default=[], help="how the other drafts"
    )
    parser.add_argument("--n-draft", type=int, help="the most of a draft; map-k4v has its own")
    parser.add_argument("--prompts", type=Path, help="a prompts file; --requests takes the first")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--shared", type=int, default=0, help="tokens of a common system prompt")
    parser.add_argument("-t", "--threads", type=int, default=1)
    parser.add_argument("-c", "--n-ctx", type=int, default=512)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and prints; returns 1 if a text of ours differs."""
    parser = _parser()
    args = parser.parse_args(argv)
    if bool(args.python) == bool(args.peer):
        parser.error("give --python or --peer")
    if args.peer and args.like:
        parser.error("--like starts the other server: give --python with it")
    serve = [sys.executable, "-m", "pyllama_spec.cli", "serve", "-m", args.model, "--port", "0",
             "-c", str(args.n_ctx), "-t", str(args.threads), "--parallel",
             str(args.clients)]  # fmt: skip
    n_draft = [] if args.n_draft is None else ["--n-draft", str(args.n_draft)]
    commands = {_OURS: serve}
    for draft in args.draft:
        commands[f"{_OURS}, {Path(draft).stem}"] = [*serve, "-d", draft, *n_draft]
    with contextlib.ExitStack() as stack:
        sides = [
            stack.enter_context(_ours(name, one, args.max_tokens)) for name, one in commands.items()
        ]
        sides += [stack.enter_context(_theirs(args, like)) for like in (None, *args.like)]
        found: dict[str, list[Burst]] = {side.name: [] for side in sides}
        for side in sides:
            side.ask([{"role": "user", "content": "Say hello."}])
        for repeat in range(args.repeat):
            for side in sides if repeat % 2 == 0 else sides[::-1]:
                found[side.name].append(side.burst(_chats(args, repeat), args.clients))
        chats = [chat for repeat in range(args.repeat) for chat in _chats(args, repeat)]
        judges = {
            _OURS: [sides[0].ask(chat)[0] for chat in chats],  # each request alone
            _PEER: [text for one in found[_PEER] for text in one.texts],
        }
    print("tokens/s, tokens/processor-s, first token, 95th (s), prompt tokens computed, accepted")
    for name, bursts in found.items():
        print(_line(name, bursts))
    n_wrong = 0
    for name, bursts in found.items():
        if name == _PEER:
            continue
        ratios = [
            (a.n_tokens / a.wall_s) / (b.n_tokens / b.wall_s)
            for a, b in zip(bursts, found[_PEER], strict=True)
        ]
        whose = name.partition(",")[0]
        texts = [text for one in bursts for text in one.texts]
        wrong = sum(x != y for x, y in zip(texts, judges[whose], strict=True))
        n_wrong += wrong if whose == _OURS else 0
        times = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})"
        print(f"{name}: {times} of their plain speed; {wrong} of {len(texts)} texts differ")
    return 1 if n_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
