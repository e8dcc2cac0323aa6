"""Memory stays flat over models, requests and failures."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np

from .tools import tiny


def run(job: str, **options: Any) -> Any:
    """Runs a job of memory_jobs.py in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.robust.memory_jobs", job, json.dumps(options)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stderr == ""
    return json.loads(done.stdout)


def growth(figures: list[int], n_warm_up: int) -> float:
    """Bytes per step after the first ones, by the slope between two medians.

    Medians of the two halves: single figures vary by some pages with the state of the heaps.
    """
    rest = figures[n_warm_up:]
    half = len(rest) // 2
    first, second = np.median(rest[:half]), np.median(rest[-half:])
    return float(second - first) / (len(rest) - half)


# A leaked context of the small model is some 300 KB, a leaked handle with its Python objects 1 KB
# or more. Noise of a flat run is some hundred bytes per step.
FLAT = 2_000


def test_open_generate_close_is_flat() -> None:
    # Once, within the first 20 models or so, the heap grows by half a megabyte.
    figures = run("open_generate_close", path=str(tiny()), n_times=50)
    assert growth(figures, 30) < FLAT


def test_requests_are_flat() -> None:
    # Each shape of a small batch has a graph with a buffer, which is as large as it ever was: it
    # takes some hundred requests of random lengths until all have met their largest.
    assert growth(run("requests_on_llama", n_times=400), 200) < FLAT
