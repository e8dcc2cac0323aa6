"""What the machine has: cores for a context's threads."""

from __future__ import annotations

import os
from pathlib import Path


def default_n_threads() -> int:
    """The physical cores that this process may use: more threads than that only wait."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    if usable is None:
        return max(os.cpu_count() or 1, 1)
    return max(len({_siblings(cpu) for cpu in usable}), 1)


def _siblings(cpu: int) -> str:
    """The hardware threads of one core share this text."""
    try:
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return str(cpu)
