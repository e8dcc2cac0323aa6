"""Many clients of all kinds at once: each whole answer is right, and nothing stays behind."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.faces.tools import open_tiny
from tests.server.soak import N_CLIENTS, TEXT, Clients, asked
from tests.server.world import is_idle, served, until


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


@pytest.mark.slow
def test_a_server_that_is_killed_in_the_middle() -> None:
    """The soak's own command, for some seconds."""
    command = [sys.executable, "-m", "tests.server.soak", "--seconds", "12", "--kill-every", "4",
               "--share", "1.5"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["acts"] > 10
    assert [how for how, _ in found["ends"][:1]] == ["SIGKILL"]
