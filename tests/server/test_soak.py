"""Many clients of all kinds at once: each whole answer is right, and nothing stays behind."""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.faces.tools import open_tiny
from tests.models import model_path
from tests.server.test_noise import _FIELDS, body
from tests.server.world import PATIENCE_S, Client, events_of, is_idle, served, until

TEXT = "/v1/completions"
N_CLIENTS, N_KINDS = 8, 12


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


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def resident_bytes() -> int:
    gc.collect()
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    "n", [120, pytest.param(10_000, marks=pytest.mark.release)], ids=["short", "long"]
)
def test_clients_of_every_temper(n: int) -> None:
    llm = open_tiny("prompt-lookup", n_parallel=3, max_waiting=6, n_ctx=128,
                    prefix_cache_bytes=1 << 20, embedding=True, pooling_type="mean")  # fmt: skip
    with served(llm, has_slots=True, send_timeout_s=20.0) as client:
        clients = Clients(client)
        with ThreadPoolExecutor(N_CLIENTS) as pool:
            list(pool.map(clients.come, range(n // 2)))
            until(lambda: is_idle(client))
            n_files, n_bytes = open_files(), resident_bytes()
            list(pool.map(clients.come, range(n // 2, n)))
        until(lambda: is_idle(client))
        until(lambda: open_files() <= n_files)
        assert resident_bytes() < n_bytes + (64 << 20)
        seen = clients.seen
        assert sum(seen.values()) == n
        assert min(seen[what] for what in ("whole", "streamed", "left", "mute", "noise")) > n // 30
        # And it is as it was.
        assert client.right(TEXT, asked(3))["choices"][0]["text"] == clients.alone[3]
        assert not llm.context.is_closed


@contextmanager
def a_life(folder: Path, end: signal.Signals) -> Iterator[Client]:
    """A server process that keeps prefixes in a folder, and ends by a signal."""
    words = ["-m", str(model_path("llama")), "-d", "prompt-lookup", "--n-ctx", "128", "--parallel",
             "3", "--max-waiting", "20", "--port", "0", "--slots", "--cache-dir", str(folder),
             "--stop-timeout", "1", "-q"]  # fmt: skip
    with subprocess.Popen(
        [sys.executable, "-m", "pyllama_spec.cli", "serve", *words], stdout=subprocess.PIPE,
        text=True, env={**os.environ, "PYLLAMA_SPEC_COSTS": "off"},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        line = process.stdout.readline()
        assert " at http" in line, line
        yield Client(line.split(" at ")[1].split(",")[0].strip())
        process.send_signal(end)
        assert process.wait(PATIENCE_S) == (0 if end == signal.SIGTERM else -end)


@pytest.mark.slow
def test_a_server_that_is_killed_in_the_middle(tmp_path: Path) -> None:
    """The next one at the same folder of prefixes answers all with the same texts."""
    first: list[str] = []
    for end in (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM):
        with a_life(tmp_path, end) as client:
            clients = Clients(client)
            first = first or clients.alone
            assert clients.alone == first
            with ThreadPoolExecutor(N_CLIENTS) as pool:
                list(pool.map(clients.whole, map(random.Random, range(30))))
            raw = json.dumps({**asked(0), "max_tokens": 10**6, "ignore_eos": True,
                              "context_shift": True, "stream": True}).encode()  # fmt: skip
            connection, response = client.send("POST", TEXT, raw)
            assert response.readline()
        response.close()
        connection.close()
