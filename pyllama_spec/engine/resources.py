"""What the machine has: memory for a context, cores for its threads."""

from __future__ import annotations

import os
from pathlib import Path

from pyllama_spec.engine.errors import OutOfMemoryError
from pyllama_spec.engine.model import Model

# Bytes of a number of the KV cache.
_KV_BYTES = {
    "f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 1.0625, "q5_1": 0.75, "q5_0": 0.6875,
    "q4_1": 0.625, "q4_0": 0.5625,
}  # fmt: skip


def check_fits(model: Model, n_ctx: int, type_k: str, type_v: str) -> None:
    """Refuses a KV cache that cannot fit: the kernel would kill the process on first use."""
    if model.info.is_recurrent:
        return
    head = model.info.n_embd / max(model.info.n_head, 1)
    per_token = model.info.n_layer * max(model.info.n_head_kv, 1) * head
    need = n_ctx * per_token * (_KV_BYTES[type_k] + _KV_BYTES[type_v])
    available = _available_bytes()
    if need > available:
        raise OutOfMemoryError(
            f"n_ctx={n_ctx} needs about {need / 1e9:.1f} GB for its KV cache, and "
            f"{available / 1e9:.1f} GB of memory are free; choose a smaller n_ctx or KV type"
        )


def _available_bytes() -> float:
    return min(_free_in_machine(), _free_in_container())


def _free_in_container() -> float:
    """What a container's limit leaves (cgroup v2); the machine's own figures do not know of it."""
    folder = Path("/sys/fs/cgroup")
    try:
        limit = (folder / "memory.max").read_text(encoding="ascii").strip()
        used = (folder / "memory.current").read_text(encoding="ascii").strip()
        return float("inf") if limit == "max" else float(limit) - float(used)
    except (OSError, ValueError):
        return float("inf")


def _free_in_machine() -> float:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return float(line.split()[1]) * 1024
    except OSError:
        pass
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return float(os.sysconf("SC_PHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE")
    return float("inf")


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
