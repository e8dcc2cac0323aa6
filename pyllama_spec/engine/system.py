"""The engine's version, features and devices."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyllama_spec.engine import windows
from pyllama_spec.engine.binding import check, ffi, lib
from pyllama_spec.engine.checks import text
from pyllama_spec.errors import ArgumentError, warn

_CPUS, _GROUPS = Path("/sys/devices/system/cpu"), Path("/sys/fs/cgroup")
# Of a processor with cores of two kinds, the small ones have up to 0.8 of the clock.
_BIG_CORE = 0.8


@dataclass(frozen=True, slots=True)
class Device:
    """A device of the engine."""

    name: str
    description: str
    free_bytes: int
    total_bytes: int


def devices() -> tuple[Device, ...]:
    """The devices of this build on this machine."""
    all_devices: list[Device] = []
    name, description = ffi.new("char **"), ffi.new("char **")
    free, total = ffi.new("uint64_t *"), ffi.new("uint64_t *")
    while True:
        code = lib.llama_spec_device(len(all_devices), name, description, free, total)
        check(code, "cannot read a device")
        if name[0] == ffi.NULL:
            return tuple(all_devices)
        all_devices.append(Device(_text(name[0]), _text(description[0]), free[0], total[0]))


def device_names(devices: Sequence[str] | None) -> list[Any]:
    """The device names as a C array; keep it while the engine reads it."""
    if devices is None:
        return []
    if isinstance(devices, (str, bytes)) or not isinstance(devices, Sequence):
        raise ArgumentError(
            "devices", devices, "a list of names", "`pyllama-spec doctor` lists them"
        )
    if not devices:
        raise ArgumentError("devices", devices, "a name", "give None for all, or `n_gpu_layers=0`")
    return [ffi.new("char[]", text(name, "devices").encode()) for name in devices]


def backends() -> dict[str, int]:
    """The number of devices per backend of this build, as in {"CUDA": 0, "CPU": 1}."""
    counts: dict[str, int] = {}
    name, n_devices = ffi.new("char **"), ffi.new("int32_t *")
    while True:
        code = lib.llama_spec_backend(len(counts), name, n_devices)
        check(code, "cannot read the backends")
        if name[0] == ffi.NULL:
            return counts
        counts[_text(name[0])] = n_devices[0]


def engine_version() -> str:
    """The engine's own version."""
    return _text(lib.llama_spec_engine_version())


def system_info() -> str:
    """The compiled instruction sets and features of the engine."""
    return _text(lib.llama_spec_system_info())


def row_kernels() -> dict[str, str]:
    """Our CPU kernels in this build for the few rows of a verify batch."""
    text = _text(lib.llama_spec_row_kernels())
    return dict(part.split(" ", 1) for part in text.split(", ") if part)


@contextlib.contextmanager
def stock_kernels() -> Iterator[None]:
    """Makes this thread load and decode for the engine's own kernels only, for comparisons.

    Within it, rows of a batch may differ from single ones, whatever `Context.exact_rows` says.
    """
    lib.llama_spec_set_stock_kernels(True)
    try:
        yield
    finally:
        lib.llama_spec_set_stock_kernels(False)


def supports_gpu() -> bool:
    """Whether this build finds a GPU, or another machine's server, for layers."""
    return bool(lib.llama_spec_supports_gpu())


def _text(pointer: Any) -> str:
    return str(ffi.string(pointer).decode(errors="replace"))


def memory_bytes() -> int:
    """The machine's memory that this process may use, as far as the system reports it."""
    if sys.platform == "win32":
        return windows.memory_bytes()
    sizes = []
    with contextlib.suppress(OSError, ValueError):
        sizes.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    limits = [*_limits("memory.max"), _read(_GROUPS / "memory/memory.limit_in_bytes")]
    sizes += [int(limit) for limit in limits if limit.isdigit()]  # "max" where there is none
    return min((size for size in sizes if size > 0), default=sys.maxsize)


def default_n_threads() -> int:
    """The physical, big cores that this process may use, at most as many as its quota of time.

    Threads wait for one another at each step of a graph: a core's second hardware thread adds
    nothing, and a slow core delays all.
    """
    if sys.platform == "win32":
        return windows.n_cores() or os.cpu_count() or 1
    if sys.platform == "darwin":
        with contextlib.suppress(OSError, ValueError, subprocess.CalledProcessError):
            return int(subprocess.check_output(("sysctl", "-n", "hw.perflevel0.physicalcpu")))
    cpus = _usable()
    clocks = {_of_cpu(cpu, "topology/thread_siblings_list") or cpu: _clock(cpu) for cpu in cpus}
    slowest = _BIG_CORE * max(clocks.values())
    return min(sum(clock >= slowest for clock in clocks.values()), _n_in_quota())


def bounded_n_threads(n_threads: int | None) -> int:
    """The thread count of a context: the requested one, at most the number of cores.

    Threads wait for one another at each step of a graph, so one thread without a core delays all.
    Hardware threads count as cores here.
    """
    if n_threads is None:
        return default_n_threads()
    n_cores = min(len(_usable()), _n_in_quota())
    if n_threads > n_cores:
        warn(
            f"`n_threads={n_threads}`: this process may use {n_cores} core{'s' * (n_cores > 1)}, "
            "so the context gets as many threads; more would only wait for one another",
        )
    return min(n_threads, n_cores)


def _usable() -> Collection[int]:
    """The hardware threads that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return range(os.cpu_count() or 1)


def _clock(cpu: int) -> int:
    """A core's highest frequency in kHz; 0 where the system reports none."""
    return int(_of_cpu(cpu, "cpufreq/cpuinfo_max_freq") or 0)


def _of_cpu(cpu: int, name: str) -> str:
    return _read(_CPUS / f"cpu{cpu}" / name)


def _n_in_quota() -> int:
    """The threads that this process's control groups have time for."""
    quotas = _limits("cpu.max")  # "max 100000" where there is none; in version 1 it is -1
    quotas.append(
        " ".join(_read(_GROUPS / f"cpu/cpu.cfs_{part}_us") for part in ("quota", "period"))
    )
    shares = [quota.split() for quota in quotas if quota[:1].isdigit()]
    return min((max(-(-int(time) // int(of)), 1) for time, of in shares), default=sys.maxsize)


def _limits(name: str) -> list[str]:
    """What this process's control group of version 2 and those above it say."""
    lines = _read(Path("/proc/self/cgroup")).split("\n")
    own = _GROUPS / next((line[4:] for line in lines if line.startswith("0::/")), "")
    return [_read(group / name) for group in (own, *own.parents)]


def _read(path: Path) -> str:
    """A small file of the system; "" if there is none."""
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
