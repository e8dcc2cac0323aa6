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


def bounded_n_threads(asked: int | None) -> int:
    """The number of a context's threads: what was asked for, and no more than there are cores.

    Threads wait for one another at each step of a graph, and spin meanwhile, so that one without a
    core of its own makes all of them wait: three on two busy cores took 12 s for a token. Hardware
    threads count as cores here.
    """
    if asked is None:
        return default_n_threads()
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    most = max(len(usable) if usable is not None else os.cpu_count() or 1, 1)
    if asked > most:
        warnings.warn(
            f"n_threads={asked}: this process may use {most} core{'s' * (most > 1)}, so that "
            f"{most} {'are' if most > 1 else 'is'} made; more would only wait for one another",
            stacklevel=2,
        )
    return min(asked, most)


def _siblings(cpu: int) -> str:
    """The hardware threads of one core share this text."""
    try:
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return str(cpu)
