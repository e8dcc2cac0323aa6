"""Clients of every temper against a server of its own process, which is killed in the middle.

    python -m tests.server.soak --seconds 3600 [--share 0.5] [--kill-every 1200] [--log FILE]

Whole answers and streams are compared with the text of the request alone. The server is killed and
stopped in turns and restarted with the same folder of prefixes. Each minute its memory, its
descriptors and its threads are logged. A different text, an answer lost while the server lived, an
error from elsewhere, or a traceback is a failure.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from tests.models import model_path
from tests.server.test_noise import _FIELDS, body
from tests.server.world import PATIENCE_S, Client, events_of

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
N_CLIENTS, N_KINDS = 8, 12
# A chat of 8 MiB takes 13 s of a core, and the machine may have others to serve.
_PATIENCE_S = 900.0
# What was in the works a moment ago is not a leak.
_QUIET_S = 3.0
_TICKS = os.sysconf("SC_CLK_TCK")


def asked(i: int) -> dict[str, Any]:
    """A random request; equal ones have equal texts."""
    rng = random.Random(i)
    given: dict[str, Any] = {
        "prompt": [97 + rng.randrange(26) for _ in range(rng.choice([3, 20, 90]))],
        "max_tokens": rng.randrange(1, 60), "temperature": rng.choice([0, 0.8]), "seed": i,
    }  # fmt: skip
    if rng.random() < 0.3:
        given["logit_bias"] = {"97": 50.0}
    if rng.random() < 0.3:
        given["speculation"] = {"draft": False}
    return given


class Clients:
    """Clients that come and go; what they saw is counted."""

    def __init__(self, client: Client) -> None:
        self.client, self.seen = client, Counter[str]()
        self.alone = [client.right(TEXT, asked(i))["choices"][0]["text"] for i in range(N_KINDS)]
        self.acts: list[Callable[[random.Random], None]] = [
            self.whole, self.stream, self.leaves, self.mute, self.noise, self.looks,
        ]  # fmt: skip
        self._lock = threading.Lock()

    def note(self, what: str) -> None:
        with self._lock:
            self.seen[what] += 1

    def come(self, seed: int) -> None:
        """Runs one client, from connect to disconnect."""
        rng = random.Random(seed)
        rng.choice(self.acts)(rng)

    def whole(self, rng: random.Random) -> None:
        i = rng.randrange(N_KINDS)
        status, answer = self.client.post(TEXT, asked(i))
        if status == 429:
            self.note("told to come again")
            return
        assert status == 200, answer
        assert answer["choices"][0]["text"] == self.alone[i]
        self.note("whole")

    def stream(self, rng: random.Random) -> None:
        i = rng.randrange(N_KINDS)
        connection, response = self.client.send("POST", TEXT, {**asked(i), "stream": True})
        if response.status == 200:
            text, is_slow = "", rng.random() < 0.2
            for event in events_of(response):
                if is_slow:
                    threading.Event().wait(0.01)
                if event != "[DONE]":
                    assert "error" not in event, event
                    text += event["choices"][0]["text"]
            assert text == self.alone[i]
            self.note("streamed")
        else:
            assert response.status == 429
            self.note("told to come again")
        connection.close()

    def leaves(self, rng: random.Random) -> None:
        """In the middle of a stream without an end."""
        endless = {**asked(rng.randrange(N_KINDS)), "max_tokens": 10**6, "context_shift": True,
                   "ignore_eos": True, "stream": True}  # fmt: skip
        connection, response = self.client.send("POST", TEXT, endless)
        if response.status == 200:
            events = events_of(response)
            for _ in range(rng.randrange(1, 30)):
                next(events)
        response.close()
        connection.close()
        self.note("left")

    def mute(self, rng: random.Random) -> None:
        """Leaves before anything was said, at any place of its request."""
        raw = json.dumps({**asked(rng.randrange(N_KINDS)), "stream": rng.random() < 0.5}).encode()
        head = f"POST {TEXT} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(raw)}\r\n\r\n".encode()
        with socket.create_connection((self.client.host, self.client.port), PATIENCE_S) as sock:
            sock.sendall((head + raw)[: rng.randrange(len(head) + len(raw) + 1)])
            if rng.random() < 0.3:  # with a reset in place of an end
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.note("mute")

    def noise(self, rng: random.Random) -> None:
        path = rng.choice(sorted(_FIELDS))
        status, answer = self.client.post(path, body(rng, path))
        # A request may set itself a time that is too short.
        assert status < 500 or status == 504, answer
        self.note("noise")

    def looks(self, rng: random.Random) -> None:
        path = rng.choice(["/metrics", "/slots", "/health", "/ready", "/v1/models", "/props"])
        assert self.client.get(path)[0] == 200
        self.note("looked")

    # ---- for the hour alone: these take long, or much

    def unread(self, rng: random.Random) -> None:
        """Asks for a stream and takes nothing of it, until the server gives it up or it leaves."""
        raw = json.dumps({"prompt": "ab", "max_tokens": 10**6, "context_shift": True,
                          "ignore_eos": True, "stream": True}).encode()  # fmt: skip
        head = f"POST {TEXT} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(raw)}\r\n\r\n"
        with socket.create_connection((self.client.host, self.client.port), PATIENCE_S) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.sendall(head.encode() + raw)
            threading.Event().wait(rng.uniform(0.5, 8))
        self.note("took nothing")

    def large(self, rng: random.Random) -> None:
        """Sends as much as the server takes: each is a 400, and nothing is begun for it."""
        n = rng.randrange(1 << 18, (8 << 20) - 4096)
        path, raw = rng.choice([
            (TEXT, b'{"prompt": "%s"}' % (b"a" * n)),
            (TEXT, b'{"prompt": [%s7]}' % (b"7," * (n // 2))),
            (CHAT, b'{"messages": [{"role": "user", "content": "%s"}]}' % (b"a b " * (n // 4))),
            (CHAT, b'{"messages": %s' % (b"[" * n)),
            (CHAT, b"{%s}" % b",".join(b'"%d":0' % i for i in range(n // 12))),
            (TEXT, b'{"prompt": "a", "max_tokens": %s}' % (b"9" * n)),
        ])  # fmt: skip
        status, answer = self.client.post(path, raw)
        assert status == 400, (status, str(answer)[:500], raw[:50])
        self.note("large")


class Figures(NamedTuple):
    """The server's resource use at a time of the soak."""

    seconds: float
    acts: int
    rss: int
    descriptors: int
    threads: int
    life: int


class Server:
    """The server's process, one life after the other.

    Args:
        folder: the folder of its log and its prefixes.
        more: further options of the command.

    """

    def __init__(self, folder: Path, more: list[str]) -> None:
        self._log = (folder / "server.log").open("ab")
        self._command = [
            sys.executable, "-m", "pyllama_spec.cli", "serve", "-m", str(model_path("llama")),
            "-d", "prompt-lookup", "--n-ctx", "128", "--parallel", "3", "--max-waiting", "6",
            "--port", "0", "--slots", "--embeddings", "--pooling", "mean", "--send-timeout", "5",
            "--stop-timeout", "5", "--cache-dir", str(folder / "prefixes"), "-q", *more,
        ]  # fmt: skip
        self.life, self.past_s = 0, 0.0
        self.start()

    def start(self) -> None:
        """A new life."""
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert " at http" in line, f"the server did not start: {line!r}"
        self.url = line.split(" at ")[1].split(",")[0].strip()
        self.life += 1

    def end(self, with_signal: signal.Signals) -> int:
        """The end of this life; its exit status."""
        self.past_s += self.cpu_s(past=False)
        self._process.send_signal(with_signal)
        code = self._process.wait(PATIENCE_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code

    def _stat(self, name: str) -> str:
        return Path(f"/proc/{self._process.pid}/{name}").read_text()

    def cpu_s(self, *, past: bool = True) -> float:
        """Processor seconds of this life, and of the others."""
        parts = self._stat("stat").rpartition(")")[2].split()
        return (int(parts[11]) + int(parts[12])) / _TICKS + (self.past_s if past else 0.0)

    def figures(self, seconds: float, n_acts: int) -> Figures:
        """The resource use now."""
        status = dict(line.split(":", 1) for line in self._stat("status").splitlines())
        n_open = len(list(Path(f"/proc/{self._process.pid}/fd").iterdir()))
        rss = int(status["VmRSS"].split()[0]) << 10
        return Figures(round(seconds, 1), n_acts, rss, n_open, int(status["Threads"]), self.life)


class Soak:
    """Clients of a server for some time.

    Args:
        folder: the folder of the server.
        seed: the seed of the clients' acts.
        share: the most processor seconds per second, of server and clients together.
        kill_every: seconds of a server's life.
        log: receives a line of figures each minute.

    """

    def __init__(self, folder: Path, seed: int, share: float, kill_every: float, log: Any) -> None:
        self.server = Server(folder, [])
        client = Client(self.server.url)
        client.patience_s = _PATIENCE_S
        self.clients = Clients(client)
        for act, n in ((self.clients.unread, 1), (self.clients.whole, 6), (self.clients.stream, 6)):
            self.clients.acts += [act] * n
        self.clients.acts += [*self.clients.acts, self.clients.large]
        self._share, self._kill_every, self._log = share, kill_every, log
        self._next = seed * 10**9
        self._start = time.monotonic()
        self._is_over = threading.Event()
        # The second one is held while there is no server.
        self._lock, self._alive = threading.Lock(), threading.Lock()
        self.wrong: list[str] = []
        self.n_cut = self.n_acts = 0
        self.ends: list[tuple[str, int]] = []

    def _elapsed(self) -> float:
        return time.monotonic() - self._start

    def _cpu_s(self) -> float:
        own = os.times()
        return own.user + own.system + self.server.cpu_s()

    def _client(self) -> None:
        """Runs clients in turn; they pause while all together use more than their share."""
        while not self._is_over.is_set():
            with self._alive:
                life, is_fast = self.server.life, self._cpu_s() > self._share * self._elapsed()
            if is_fast:
                self._is_over.wait(0.05)
                continue
            with self._lock:
                self._next += 1
                seed = self._next
            try:
                self.clients.come(seed)
            except Exception as error:  # noqa: BLE001 - it is told at the end
                with self._alive:
                    is_cut = life != self.server.life
                with self._lock:
                    if is_cut:
                        self.n_cut += 1
                    else:
                        self.wrong.append(f"{seed}: {type(error).__name__}: {error!s:.600}")
            with self._lock:
                self.n_acts += 1

    def _again(self, how: signal.Signals) -> None:
        """Ends the server while clients are at it, and starts another one at the same folder."""
        with self._alive:
            self.ends.append((how.name, self.server.end(how)))
            self.server.start()
            at = urlsplit(self.server.url)
            client = self.clients.client
            client.url, client.host, client.port = self.server.url, at.hostname or "", at.port or 0

    def run(self, seconds: float) -> dict[str, Any]:
        """All of it; what it has shown."""
        threads = [threading.Thread(target=self._client) for _ in range(N_CLIENTS)]
        for thread in threads:
            thread.start()
        figures: list[Figures] = []
        pause, next_end, ways = min(60.0, seconds / 20), self._kill_every, 0
        while self._elapsed() < seconds:
            self._is_over.wait(min(pause, max(seconds - self._elapsed(), 0.01)))
            figures.append(self.server.figures(self._elapsed(), self.n_acts))
            print(json.dumps(figures[-1]._asdict()), file=self._log, flush=True)
            if self._elapsed() >= next_end and seconds - self._elapsed() > pause:
                self._again((signal.SIGKILL, signal.SIGTERM)[ways % 2])
                ways, next_end = ways + 1, next_end + self._kill_every
        self._is_over.set()
        for thread in threads:
            thread.join(2 * _PATIENCE_S)
        n_hung = sum(thread.is_alive() for thread in threads)
        again = [self.clients.client.right(TEXT, asked(i)) for i in range(N_KINDS)]
        texts = [one["choices"][0]["text"] for one in again]
        self.wrong += [f"{i} differs afterwards" for i in range(N_KINDS)
                       if texts[i] != self.clients.alone[i]]  # fmt: skip
        cpu_s, took_s = self._cpu_s(), self._elapsed()
        time.sleep(_QUIET_S)
        idle = self.server.figures(took_s, self.n_acts)
        self.ends.append(("SIGTERM", self.server.end(signal.SIGTERM)))
        return {
            "seconds": round(took_s), "processor_s": round(cpu_s), "acts": self.n_acts,
            "seen": dict(self.clients.seen), "cut_by_an_end": self.n_cut, "hung": n_hung,
            "ends": self.ends, "wrong": self.wrong, "rss_mib_idle_at_the_end": idle.rss >> 20,
            "lives": [_of_life(figures, i) for i in range(1, self.server.life + 1)],
        }  # fmt: skip


def _of_life(figures: list[Figures], life: int) -> dict[str, Any]:
    """How the figures of one life went: memory by least squares over its second half."""
    mine = [one for one in figures if one.life == life]
    half = mine[len(mine) // 2 :]
    slope = 0.0
    if len(half) > 2:
        xs, ys = [one.acts for one in half], [one.rss for one in half]
        slope = float(np.polyfit(np.array(xs, float), np.array(ys, float), 1)[0])
    return {
        "rss_mib_first_half_last": [one.rss >> 20 for one in (mine[0], half[0], mine[-1])],
        "rss_bytes_per_act": round(slope, 1),
        "descriptors": [min(f.descriptors for f in mine), max(f.descriptors for f in mine)],
        "threads": [min(f.threads for f in mine), max(f.threads for f in mine)],
    } if mine else {}  # fmt: skip


def main() -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--share", type=float, default=0.5, help="of one core, at most")
    parser.add_argument("--kill-every", type=float, default=1200, metavar="S")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path, default=Path(os.devnull))
    options = parser.parse_args()
    os.environ["PYLLAMA_SPEC_COSTS"] = "off"
    with tempfile.TemporaryDirectory() as name, options.log.open("w", encoding="utf-8") as log:
        folder = Path(name)
        soak = Soak(folder, options.seed, options.share, options.kill_every, log)
        found = soak.run(options.seconds)
        told = (folder / "server.log").read_text(errors="replace").splitlines()
    found["server_said"] = told[:20]
    print(json.dumps(found, indent=1))
    return 1 if found["wrong"] or found["hung"] or any("Traceback" in line for line in told) else 0


if __name__ == "__main__":
    sys.exit(main())
