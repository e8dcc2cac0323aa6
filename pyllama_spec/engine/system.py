"""What the engine is, and what it runs on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyllama_spec.engine.binding import check, ffi, lib, module_file


@dataclass(frozen=True, slots=True)
class Device:
    """Something that the engine computes on."""

    name: str
    description: str
    free_bytes: int
    total_bytes: int


def devices() -> tuple[Device, ...]:
    """The devices of this build on this machine."""
    all_devices: list[Device] = []
    name, description = ffi.new("char **"), ffi.new("char **")
    free, total = ffi.new("uint64_t *"), ffi.new("uint64_t *")
    for i in range(lib.llama_spec_n_devices()):
        check(lib.llama_spec_device(i, name, description, free, total), "cannot read a device")
        all_devices.append(Device(_text(name[0]), _text(description[0]), free[0], total[0]))
    return tuple(all_devices)


def backends() -> dict[str, int]:
    """How many devices each backend of this build finds here, as in {"CUDA": 0, "CPU": 1}."""
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


def build_stamp() -> int:
    """When this build was installed: its file's time, in nanoseconds; 0 where it has no file."""
    with contextlib.suppress(OSError):
        return Path(module_file).stat().st_mtime_ns
    return 0


def system_info() -> str:
    """The instruction sets and features that the engine was compiled with."""
    return _text(lib.llama_spec_system_info())


def row_kernels() -> dict[str, str]:
    """Our CPU kernels for the few rows of a verify batch in this build.

    Returns:
        The instructions by type of the weights, as in {"BF16": "AVX2"}; other types, and all where
        there are none, are computed by the engine's own kernels, at about the cost of single rows.

    """
    text = _text(lib.llama_spec_row_kernels())
    return dict(part.split(" ", 1) for part in text.split(", ") if part)


@contextlib.contextmanager
def stock_kernels() -> Iterator[None]:
    """Decodes of this thread by the engine's own kernels alone, for comparisons.

    Rows of a batch are not equal to single ones in there, whatever `Context.exact_rows` says.
    """
    lib.llama_spec_set_stock_kernels(True)
    try:
        yield
    finally:
        lib.llama_spec_set_stock_kernels(False)


def supports_gpu() -> bool:
    """Whether this build finds a GPU, or a server of another machine, to put layers on."""
    return bool(lib.llama_spec_supports_gpu())


def _text(pointer: Any) -> str:
    return str(ffi.string(pointer).decode(errors="replace"))
