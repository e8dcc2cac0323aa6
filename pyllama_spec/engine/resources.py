"""What the machine has: cores for a context's threads."""

from __future__ import annotations

import os
import warnings
from pathlib import Path


def default_n_threads() -> int:
    """The physical cores that this process may use: more threads than that only wait."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    if usable is None:
        return max(os.cpu_count() or 1, 1)
    return max(len({_siblings(cpu) for cpu in usable}), 1)


def bounded_n_threads(n_threads: int | None) -> int:
    """The number of a context's threads: what was asked for, and no more than there are cores.

    Threads wait for one another at each step of a graph, and spin meanwhile, so that one without a
    core of its own makes all of them wait: three on two busy cores took 12 s for a token. Hardware
    threads count as cores here.
    """
    if n_threads is None:
        return default_n_threads()
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    n_cores = max(len(usable) if usable is not None else os.cpu_count() or 1, 1)
    if n_threads > n_cores:
        warnings.warn(
            f"n_threads={n_threads}: this process may use {n_cores} "
            f"core{'s' * (n_cores > 1)}, so that {n_cores} {'are' if n_cores > 1 else 'is'} made; "
            "more would only wait for one another",
            stacklevel=2,
        )
    return min(n_threads, n_cores)


def _siblings(cpu: int) -> str:
    """The hardware threads of one core share this text."""
    try:
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return str(cpu)
