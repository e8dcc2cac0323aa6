"""Two servers behind a proxy: streams, session affinity, and a server that is killed.

    python -m benchmarks.affinity -m TARGET.gguf --proxy haproxy

Starts two servers of one model behind nginx or HAProxy, with its file of examples/serve. It sends
chats of several sessions, each with its own system prompt and with turns that continue the last
answer. One run has the session's name in a header. One has another name in each request, as without
affinity. In the last run one server is killed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

from pyllama_spec.bench import beside

FILES = Path(__file__).parents[1] / "examples" / "serve"
COMMANDS = {
    "nginx": ("nginx.conf", ["nginx", "-g", "daemon off; pid nginx.pid;", "-p", ".", "-c"]),
    "haproxy": ("haproxy.cfg", ["haproxy", "-db", "-f"]),
}
TOPICS = ("rivers", "bread", "trains", "clocks", "bees", "maps", "glass", "rope", "salt", "wool")
STARTED_S = 120.0


@dataclass
class Asked:
    """The result of a run.

    Attributes:
        workers: the workers that answered each session.
        n_prompt, n_cached: prompt tokens, and those of them that were cached, without each
            session's first request.
        seconds: the time of the same requests.

    """

    workers: dict[str, Counter[str]] = field(default_factory=dict)
    n_prompt: int = 0
    n_cached: int = 0
    seconds: list[float] = field(default_factory=list)

    def line(self) -> str:
        """The result as a line of text."""
        n_one = sum(len(one) == 1 for one in self.workers.values())
        share = self.n_cached / max(self.n_prompt, 1)
        load = dict(sorted(sum(self.workers.values(), Counter[str]()).items()))
        return (
            f"{n_one} of {len(self.workers)} sessions at one server; {self.n_cached} of "
            f"{self.n_prompt} prompt tokens in memory ({share:.0%}); median request "
            f"{statistics.median(self.seconds):.2f} s; answers by server {load}"
        )


@contextmanager
def running(command: list[str], port: int, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a program; yields it once it answers at a port."""
    with (folder / f"{port}.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        until = time.monotonic() + STARTED_S
        while not is_ready(port):
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit((folder / f"{port}.log").read_text(errors="replace"))
            time.sleep(0.1)
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def is_ready(port: int) -> bool:
    """Whether a server takes requests at a port."""
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/ready")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def send(port: int, body: dict[str, Any], session: str) -> tuple[HTTPConnection, HTTPResponse]:
    """Sends a chat; returns the connection and the unread response."""
    connection = HTTPConnection("127.0.0.1", port, timeout=300)
    headers = {"Content-Type": "application/json", "X-Session-Id": session}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    return connection, connection.getresponse()


def ask(port: int, messages: list[Any], session: str) -> dict[str, Any]:
    """Sends a chat; returns its answer.

    Raises:
        OSError: the connection failed, or the server sent an error.
        HTTPException: the server closed the connection during its answer.

    """
    body = {"messages": messages, "max_tokens": 8, "temperature": 0}
    connection, response = send(port, body, session)
    try:
        raw = response.read()
        if response.status != 200:
            raise OSError(f"{response.status}: {raw.decode(errors='replace')}")
        answer: dict[str, Any] = json.loads(raw)
        return answer
    finally:
        connection.close()


def opening(topic: str, salt: str) -> list[Any]:
    """The first message of a session: some hundred tokens that no other session has."""
    rules = " ".join(f"Rule {i} of {salt}: say nothing of {topic} but fact {i}." for i in range(20))
    return [{"role": "system", "content": rules}]


def sessions(port: int, n: int, n_turns: int, salt: str, *, has_name: bool) -> Asked:
    """Runs sessions, two at a time; without has_name each request sends another name."""
    asked, lock = Asked(), threading.Lock()

    def one(topic: str) -> None:
        messages = opening(topic, salt)
        for turn in range(n_turns):
            messages.append({"role": "user", "content": f"Tell me fact {turn} about {topic}."})
            name = f"{salt} {topic}" if has_name else uuid4().hex
            begin = time.perf_counter()
            answer = ask(port, messages, name)
            seconds = time.perf_counter() - begin
            messages.append(answer["choices"][0]["message"])
            usage = answer["usage"]
            with lock:
                asked.workers.setdefault(topic, Counter())[answer["model"]] += 1
                if turn:
                    asked.n_prompt += usage["prompt_tokens"]
                    asked.n_cached += usage["prompt_tokens_details"]["cached_tokens"]
                    asked.seconds.append(seconds)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(one, TOPICS[:n]))
    return asked


def stream(port: int) -> str:
    """Reads a stream; returns the times of its events as text."""
    body = {
        "messages": [{"role": "user", "content": "Write of the sea."}], "max_tokens": 48,
        "temperature": 1, "seed": 1, "stream": True, "ignore_eos": True,
    }  # fmt: skip
    begin = time.perf_counter()
    connection, response = send(port, body, "stream")
    times = [time.perf_counter() - begin for line in response if line.startswith(b"data: ")]
    connection.close()
    n_apart = sum(b - a > 0.001 for a, b in pairwise(times)) + 1
    return (
        f"{len(times)} events, the first after {times[0]:.2f} s, the last after {times[-1]:.2f} s, "
        f"{n_apart} at times of their own"
    )


def killed(port: int, n: int, victim: subprocess.Popen[bytes]) -> str:
    """Runs sessions while one server is killed; returns the counts as text."""
    answers, failures = Counter[str](), Counter[str]()
    lock, is_killed = threading.Lock(), threading.Event()

    def one(topic: str) -> None:
        messages = opening(topic, "killed")
        for turn in range(4):
            if topic == TOPICS[0] and turn == 2:
                victim.kill()
                is_killed.set()
            turns = [*messages, {"role": "user", "content": f"Tell me fact {turn} of {topic}."}]
            when = "after" if is_killed.is_set() else "before"
            try:
                found = f"{when}, {ask(port, turns, f'killed {topic}')['model']}"
                with lock:
                    answers[found] += 1
            except (OSError, HTTPException, ValueError) as error:
                with lock:
                    failures[f"asked {when}: {type(error).__name__}"] += 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, TOPICS[:n]))
    return f"answers {dict(sorted(answers.items()))}, failures {dict(failures)}"


def main() -> int:
    """Prints a line for each measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("--proxy", choices=tuple(COMMANDS), required=True)
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--turns", type=int, default=4)
    args = parser.parse_args()
    name, command = COMMANDS[args.proxy]
    if shutil.which(command[0]) is None:
        raise SystemExit(f"there is no {command[0]} here")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ports = [beside.free_port() for _ in range(3)]
        text = (FILES / name).read_text()
        for here in ("bind :8080", "listen 8080"):
            text = text.replace(here, here.replace("8080", str(ports[2])))
        workers = []
        for i, port in enumerate(ports[:2], 1):
            text = text.replace(f"worker-{i}:8080", f"127.0.0.1:{port}")
            serve = [
                sys.executable, "-m", "pyllama_spec.cli", "serve", "-m", str(args.model.resolve()),
                "-d", "prompt-lookup", "--port", str(port), "--alias", f"worker-{i}", "-c", "2048",
                "--parallel", "2", "-t", "1",
            ]  # fmt: skip
            workers.append(stack.enter_context(running(serve, port, folder)))
        file = folder / name
        file.write_text(text)
        port = ports[2]
        stack.enter_context(running([*command, str(file)], port, folder))
        print(f"no proxy, a stream: {stream(ports[0])}", flush=True)
        print(f"{args.proxy}, a stream: {stream(port)}", flush=True)
        for has_name in (True, False):
            way = "with" if has_name else "without"
            asked = sessions(port, args.sessions, args.turns, way, has_name=has_name)
            print(f"{args.proxy}, {way} affinity: {asked.line()}", flush=True)
        print(f"{args.proxy}, one killed: {killed(port, args.sessions, workers[0])}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
