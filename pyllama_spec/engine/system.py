"""The engine's version, features and devices."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyllama_spec.engine.binding import check, ffi, lib
from pyllama_spec.engine.checks import text
from pyllama_spec.errors import ArgumentError, warn


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
    sizes = []
    with contextlib.suppress(AttributeError, OSError, ValueError):  # not on Windows
        sizes.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # "max" where there is none
            sizes.append(int(Path(limit).read_text()))
    return min((size for size in sizes if size > 0), default=sys.maxsize)


def default_n_threads() -> int:
    """The physical cores that this process may use: further threads only wait."""
    return max(len({_siblings(cpu) for cpu in _usable()}), 1)


def _usable() -> Collection[int]:
    """The hardware threads that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return range(os.cpu_count() or 1)


def bounded_n_threads(n_threads: int | None) -> int:
    """The thread count of a context: the requested one, at most the number of cores.

    Threads wait for one another at each step of a graph, so one thread without a core delays all.
    Hardware threads count as cores here.
    """
    if n_threads is None:
        return default_n_threads()
    n_cores = max(len(_usable()), 1)
    if n_threads > n_cores:
        warn(
            f"`n_threads={n_threads}`: this process may use {n_cores} core{'s' * (n_cores > 1)}, "
            "so the context gets as many threads; more would only wait for one another",
        )
    return min(n_threads, n_cores)


def _siblings(cpu: int) -> str:
    """The list of a core's hardware threads, the same text for each of them."""
    try:
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return str(cpu)
