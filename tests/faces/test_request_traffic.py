"""Clients in threads and event loops, some of which leave: every text is the one alone."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections import Counter
from typing import Any

import pytest

from pyllama_spec.requests import line, runner
from tests.faces.clients import STAGES, Clients, texts_alone
from tests.faces.tools import open_tiny
from tests.models import model_path

Way = tuple[str, str | None, int, int]
# Of (target, draft, n_parallel, clients).
WAYS: list[Way] = [
    ("llama", "prompt-lookup", 1, 6), ("llama", None, 2, 12), ("llama", "eagle3", 3, 8),
    ("llama", "prompt-lookup", 4, 32), ("llama", None, 1, 1), ("llama", "dflash", 2, 9),
    ("qwen35", "prompt-lookup", 3, 16), ("gemma3", "prompt-lookup", 2, 8), ("mamba2", None, 2, 6),
    ("lfm2", "prompt-lookup", 4, 24),
]  # fmt: skip
# Of all ways together, at a release: PYLLAMA_SPEC_REQUESTS says another number.
N_RELEASE = int(os.environ.get("PYLLAMA_SPEC_REQUESTS", "10000"))


def nothing_is_left(llm: Any) -> None:
    """All places are idle, nobody is in line, no thread computes."""
    own = llm._runtime.runner
    gc.collect()
    begin = time.monotonic()
    while own._line.everyone() or own._thread or own._computer:
        assert time.monotonic() - begin < 60, own._line.everyone()
        time.sleep(0.001)
    assert sorted(s.seq_id for s in own.idle()) == list(range(llm.n_parallel))


@pytest.mark.parametrize("way", WAYS[:2])
def test_clients_that_come_and_go(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    come_and_go(way, 72, monkeypatch)


@pytest.mark.release
@pytest.mark.parametrize("way", WAYS)
def test_ten_thousand_requests(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = come_and_go(way, -(-N_RELEASE // len(WAYS)), monkeypatch)
    if way[3] > way[2] and N_RELEASE >= 10_000:
        assert {f"aborted: {stage}" for stage in STAGES if stage != "aside"} <= set(seen)


def come_and_go(way: Way, n_requests: int, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """No error without a cause, no BusyError at all, and nothing stays behind."""
    kind, draft, n_parallel, n_clients = way
    # Streams are put aside at the first pause of their readers.
    monkeypatch.setattr(line, "_PATIENCE_S", 0.002)
    monkeypatch.setattr(runner, "_MAX_AHEAD", 6)
    texts = texts_alone(kind=kind)
    path: Any = str(model_path(draft)) if draft in ("eagle3", "dflash") else draft
    with open_tiny(path, kind, n_parallel=n_parallel, n_ubatch=16) as llm:
        clients = Clients(llm, texts, lag_s=0.02)
        seen = clients.serve(n_clients, n_requests, seed=n_clients)
        print(kind, draft, n_parallel, n_clients, dict(seen))
        nothing_is_left(llm)
        assert seen["requests"] >= n_requests
    assert not [t for t in threading.enumerate() if t.name == "pyllama_spec"]
    return seen
