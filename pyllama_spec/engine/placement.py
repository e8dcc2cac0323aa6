"""Reports the devices of a model's layers, and warns if they are not those requested."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyllama_spec.engine.binding import check, ffi, lib
from pyllama_spec.engine.checks import text
from pyllama_spec.errors import ArgumentError, warn


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


def placement(handle: Any) -> dict[str, int]:
    """The number of layers by device, the output included; {} for a vocabulary."""
    layers: dict[str, int] = {}
    name, n_layers = ffi.new("char **"), ffi.new("int32_t *")
    while True:
        code = lib.llama_spec_model_device(handle, len(layers), name, n_layers)
        check(code, "cannot read where the layers lie")
        if name[0] == ffi.NULL:
            return layers
        layers[ffi.string(name[0]).decode(errors="replace")] = n_layers[0]


def in_words(placed: dict[str, int]) -> str:
    """The placement in words: "the CPU", "Vulkan0", "CPU 12 layers, Vulkan0 19"."""
    if len(placed) == 1:
        only = next(iter(placed))
        return "the CPU" if only == "CPU" else only
    first, *rest = (f"{name} {n}" for name, n in placed.items())
    return ", ".join([f"{first} layers", *rest])


def warn_of_fewer(name: str, n_gpu_layers: int, n_placed: int, n_layers: int) -> None:
    """Warns if fewer layers are on devices than requested."""
    n_wanted = n_layers if n_gpu_layers < 0 else min(n_gpu_layers, n_layers)
    if n_placed >= n_wanted:
        return
    why = "" if lib.llama_spec_supports_gpu() else ": this build finds no GPU (see doctor)"
    where = "all are on the CPU" if not n_placed else f"{n_placed} of them are there"
    warn(
        f"n_gpu_layers={n_gpu_layers} puts {n_wanted} layers of {name} on a device, "
        f"but {where}{why}",
    )
