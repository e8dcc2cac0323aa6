"""The facts of a measurement: versions, machine, files, load, and memory bandwidth."""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import platform
import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from pyllama_spec._version import __version__
from pyllama_spec.engine import devices, engine_version, row_kernels, system_info

_MIB = 2**20
# A file up to this size is hashed whole, a larger one at both ends: a benchmark should not first
# read 40 GB.
_WHOLE_FILE_BYTES = 512 * _MIB
_CACHE_FOLDER = Path("/sys/devices/system/cpu/cpu0/cache")
_MIN_BUFFER_BYTES, _MAX_BUFFER_BYTES = 256 * _MIB, 1024 * _MIB
_PASSES = 5


@dataclass(frozen=True, slots=True)
class Streaming:
    """The memory bandwidth of np.sum and np.copyto over float64, in their fastest passes."""

    n_threads: int
    buffer_bytes: int
    sum_bytes_per_s: float
    copy_bytes_per_s: float

    @property
    def bytes_per_s(self) -> float:
        """The faster of the two measurements."""
        return max(self.sum_bytes_per_s, self.copy_bytes_per_s)

    @property
    def method(self) -> str:
        """The method of the measurement, in words."""
        return (
            f"NumPy sum and copy of {self.buffer_bytes / _MIB:.0f} MiB of float64 on "
            f"{self.n_threads} thread(s), the fastest of {_PASSES} passes, the better of the two"
        )


def measure_streaming(n_threads: int, buffer_bytes: int | None = None) -> Streaming:
    """Reads a buffer much larger than the caches on some threads. Takes about a second."""
    if buffer_bytes is None:
        buffer_bytes = min(max(8 * _cache_bytes(), _MIN_BUFFER_BYTES), _MAX_BUFFER_BYTES)
    buffer = np.ones(buffer_bytes // 16 * 2, dtype=np.float64)
    half = buffer.size // 2
    parts = np.array_split(buffer, n_threads)
    sources = np.array_split(buffer[:half], n_threads)
    targets = np.array_split(buffer[half:], n_threads)
    with ThreadPoolExecutor(n_threads) as pool:
        sum_s = _fastest(lambda: list(pool.map(np.sum, parts)))
        copy_s = _fastest(lambda: list(pool.map(np.copyto, targets, sources)))
    # A copy of one half onto the other reads half the buffer and writes half.
    return Streaming(n_threads, buffer.nbytes, buffer.nbytes / sum_s, buffer.nbytes / copy_s)


def _fastest(work: Callable[[], object]) -> float:
    seconds: list[float] = []
    for _ in range(_PASSES):
        start = perf_counter()
        work()
        seconds.append(perf_counter() - start)
    return min(seconds)


def _cache_bytes() -> int:
    """The size of the first core's largest cache; 0 if the system does not report it."""
    sizes = [0]
    for file in _CACHE_FOLDER.glob("index*/size"):
        size = re.fullmatch(r"(\d+)([KM]?)", _text(file))
        if size:
            sizes.append(int(size[1]) * {"": 1, "K": 1024, "M": _MIB}[size[2]])
    return max(sizes)


def versions() -> dict[str, str]:
    """The versions of everything that a figure may depend on."""
    return {
        "pyllama_spec": __version__,
        "engine": engine_version(),
        "python": sys.version.split()[0],
        "numpy": np.__version__,
    }


def describe_machine() -> dict[str, Any]:
    """The processor, memory, devices and system."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    return {
        "cpu_model": _cpu_model(),
        "n_cpus": os.cpu_count(),
        "n_cpus_usable": len(usable) if usable is not None else os.cpu_count(),
        "last_level_cache_bytes": _cache_bytes(),
        "platform": platform.platform(),
        "system_info": system_info().strip(),
        "row_kernels": row_kernels(),
        "devices": [asdict(device) for device in devices()],
    }


def _cpu_model() -> str:
    for line in _text(Path("/proc/cpuinfo")).split("\n"):
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model") and value.strip():
            return value.strip()
    return platform.processor() or platform.machine()


def describe_file(path: Path) -> dict[str, Any]:
    """The name, size and hash of a model's file."""
    size = path.stat().st_size
    digest = hashlib.sha256()
    with path.open("rb") as file:
        if size <= _WHOLE_FILE_BYTES:
            while data := file.read(_MIB):
                digest.update(data)
            what = "the whole file"
        else:
            digest.update(file.read(_MIB))
            file.seek(-_MIB, os.SEEK_END)
            digest.update(file.read(_MIB))
            what = "the first and the last MiB"
    return {"name": path.name, "size_bytes": size, "sha256": digest.hexdigest(), "sha256_of": what}


def load_average() -> list[float] | None:
    """The load averages of 1, 5 and 15 minutes; None where the system has none."""
    try:
        return [round(x, 2) for x in os.getloadavg()]
    except (OSError, AttributeError):
        return None


def now() -> str:
    """The time in UTC, ISO 8601."""
    return dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
