"""Chooses the compiled engine: a wheel has one per CPU variant, a source build has one.

A build from source is for the processor that it was built on. A wheel (`make wheel`) holds the
engine once for each variant of its kind of processors, and the best that this one can run is
loaded: csrc/cpu_variants/ builds them, and the module that reports the processor's features.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import sys
from collections.abc import Collection
from importlib import import_module
from pathlib import Path
from types import ModuleType

_NAME = "pyllama_spec._engine"
# From the least to the best, with the features that each needs in addition:
# cpu_variants.cmake has the flags that they are compiled with.
X86: dict[str, tuple[str, ...]] = {
    "avx2": ("AVX2", "FMA", "F16C", "BMI2"),
    "avx512": ("AVX512F", "AVX512CD", "AVX512VL", "AVX512DQ", "AVX512BW", "AVX512VNNI"),
    "avx512bf16": ("AVX512BF16",),
}
ARM: dict[str, tuple[str, ...]] = {
    "neon": (),
    "dotprod": ("ASIMDDP", "ASIMDHP"),
    "i8mm": ("I8MM", "BF16"),
}
CPU_VARIANTS = ARM if platform.machine() in {"aarch64", "arm64"} else X86
VARIABLE = "PYLLAMA_SPEC_LEVEL"
# The messages of the loaders of glibc and of musl.
_MISSING = re.compile(
    r"^(?:Error loading shared library )?(?P<name>lib[\w+-]+\.so[.\d]*): "
    r"(?:cannot open shared object file|No such file)"
)
_CUDA = re.compile(r"lib(cublas|cublasLt|cudart)\.so\.(?P<major>\d+)$")


def choose(
    features: Collection[str], wanted: str = "", built: Collection[str] | None = None
) -> str:
    """The best of the built variants for a processor with these features, or the requested one."""
    built = CPU_VARIANTS if built is None else built
    if wanted and wanted not in built:
        raise ImportError(
            f"{VARIABLE}={wanted!r} is not a level; expected one of {', '.join(built)}"
        )
    best, lacking = "", ""
    for variant, needed in CPU_VARIANTS.items():
        lacking = ", ".join(name for name in needed if name not in features)
        if lacking:
            break
        if variant in built:
            best = variant
        if variant == wanted:
            return variant
    if wanted:
        raise ImportError(
            f"{VARIABLE}={wanted} asks for instructions that this processor lacks ({lacking}): "
            "unset it"
        )
    if not best:
        needed = next(iter(CPU_VARIANTS.values()))
        raise ImportError(
            f"this wheel of pyllama_spec needs a processor with {', '.join(needed)}, and this one "
            f"lacks {lacking}: build it here from its source, with `pip install .` in a checkout"
        )
    return best


def load_engine() -> ModuleType:
    """Imports the engine's module."""
    try:
        return _load()
    except ImportError as error:
        raise explained(error) from None


def _load() -> ModuleType:
    if _NAME in sys.modules:
        return sys.modules[_NAME]
    try:
        processor = import_module("pyllama_spec._processor")
    except ModuleNotFoundError:
        return _load_one()
    own = Path(str(processor.__file__))
    paths = {
        variant: own.with_name(own.name.replace("_processor", f"_engine_{variant}"))
        for variant in CPU_VARIANTS
    }
    built = [variant for variant, path in paths.items() if path.exists()]
    path = paths[choose(str(processor.features()).split(), os.environ.get(VARIABLE, ""), built)]
    spec = importlib.util.spec_from_file_location(_NAME, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a module of this Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_NAME] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[_NAME]
        raise
    return module


def _load_one() -> ModuleType:
    """Imports the only engine of a source build."""
    try:
        return import_module(_NAME)
    except ModuleNotFoundError as error:
        if error.name != _NAME:
            raise
        # Python looks in the current folder first, and a checkout has a folder of this name.
        folder = Path(__file__).resolve().parent.parent
        raise ImportError(
            f"{folder} has no compiled engine: it is the source of pyllama_spec, not an installed "
            "package. Run Python in another folder to use the package that `pip install .` made, "
            "or in this one the environment of `make demo` (.venv/bin/python)",
            name=_NAME,
        ) from None


def explained(error: ImportError) -> ImportError:
    """The same error with the remedy, if it names a library that a backend needs."""
    match = _MISSING.search(str(error))
    if match is None:
        return error
    name = match["name"]
    remedy = "install the package that it belongs to, or build it here again: pip install ."
    if (cuda := _CUDA.match(name)) is not None:
        # Their names had the version in them before 13.
        end = "" if int(cuda["major"]) >= 13 else f"-cu{cuda['major']}"
        remedy = (
            f"pip install nvidia-cublas{end} nvidia-cuda-runtime{end}, beside this package, or put "
            "the toolkit's folder of libraries into LD_LIBRARY_PATH"
        )
    elif name.startswith("libcuda."):
        remedy = (
            "it comes with NVIDIA's driver. Install that, or build for machines without one: "
            "pip install . -C cmake.define.GGML_CUDA=ON -C cmake.define.GGML_CUDA_NO_VMM=ON"
        )
    elif name.startswith("libvulkan."):
        remedy = "install Vulkan's loader (on Debian and Ubuntu: apt-get install libvulkan1)"
    return ImportError(
        f"{name} was not found, which this build of pyllama_spec needs: {remedy}",
        name=error.name, path=error.path,
    )  # fmt: skip
