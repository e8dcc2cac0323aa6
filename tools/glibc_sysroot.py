"""Makes a folder in which GCC finds the headers and symbols of glibc 2.28.

    python -m tools.glibc_sysroot DIR x86_64|aarch64

An engine that is linked with the builder's own libc needs that version or a newer one. With
`--sysroot=DIR -L DIR/usr/lib -D__GLIBC_MINOR__=28` it runs on each Linux since 2018, as PEP 600
wants of manylinux_2_28. Headers and stubs of the libraries come from the package ziglang, the
compiler stays GCC: the engine's guard needs its -fnon-call-exceptions. It is for libraries: a
program still starts with the builder's crt1.o, which needs the builder's glibc.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

MINOR = 28
# What GCC's static libstdc++ takes from newer versions.
_COMPAT = """
#include <stdint.h>
#include <sys/random.h>
#define HIDDEN __attribute__((visibility("hidden")))
HIDDEN char __libc_single_threaded = 0;
HIDDEN uint32_t arc4random(void) {
    uint32_t n = 0;
    while (getrandom(&n, sizeof n, 0) != sizeof n) {}
    return n;
}
"""
_LIBRARIES = {"m": 6, "dl": 2, "pthread": 0, "rt": 1}
_LIBC = "GROUP ( libc.so.6 AS_NEEDED ( {libraries} libld.so.2 ) libc_nonshared.a libcompat.a )\n"


def make_sysroot(out: Path, machine: str) -> None:
    """Fills a folder, which is replaced if it exists."""
    shutil.rmtree(out, ignore_errors=True)
    include, lib = out / "usr" / "include", out / "usr" / "lib"
    lib.mkdir(parents=True)
    package = importlib.util.find_spec("ziglang")
    if package is None or package.origin is None:
        raise SystemExit("the package ziglang is missing: pip install --group portable")
    headers = Path(package.origin).parent / "lib" / "libc" / "include"
    family = "x86" if machine == "x86_64" else machine
    for part in ("any-linux-any", f"{family}-linux-any", "generic-glibc", f"{family}-linux-gnu"):
        shutil.copytree(headers / part, include, dirs_exist_ok=True)
    # Of the system what has nothing to do with its C library: Vulkan's, and Debian's for Python.
    folder = Path("/usr/include", f"{machine}-linux-gnu")
    (include / folder.name).mkdir()
    pythons = (f"{folder.name}/{found.name}" for found in folder.glob("python3*"))
    for name in ("vulkan", "vk_video", "spirv", *pythons):
        (include / name).symlink_to(f"/usr/include/{name}")
    # libstdc++ asks whether it is there, and this version has it not.
    (include / "sys" / "single_threaded.h").unlink()
    with tempfile.TemporaryDirectory() as work:
        _copy_stubs(Path(work), lib, machine)
        compiler = _compiler(machine)
        source, built = Path(work) / "compat.c", Path(work) / "compat.o"
        source.write_text(_COMPAT, encoding="utf-8")
        flags = [f"--sysroot={out}", f"-D__GLIBC_MINOR__={MINOR}", "-D_GNU_SOURCE", "-O2", "-fPIC"]
        _run([compiler, *flags, "-c", source, "-o", built])
        _run([compiler.replace("gcc", "gcc-ar"), "rcs", lib / "libcompat.a", built])
    for name, version in _LIBRARIES.items():
        (lib / f"lib{name}.so").symlink_to(f"lib{name}.so.{version}")
    libraries = " ".join(f"lib{name}.so.{version}" for name, version in _LIBRARIES.items())
    (lib / "libc.so").write_text(_LIBC.format(libraries=libraries), encoding="utf-8")


def _copy_stubs(work: Path, lib: Path, machine: str) -> None:
    """Links an empty library, for which zig makes a stub of each of glibc's."""
    source, cache = work / "empty.c", work / "cache"
    source.write_text("int f(void) { return 0; }\n", encoding="utf-8")
    target = f"{machine}-linux-gnu.2.{MINOR}"
    command = [sys.executable, "-m", "ziglang", "cc", "-target", target, "-shared", "-o"]
    environment = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": str(cache)}
    _run([*command, work / "empty.so", source], environment)
    for name in ("lib*.so.*", "libc_nonshared.a"):
        for found in cache.glob(f"o/*/{name}"):
            shutil.copy(found, lib)


def _compiler(machine: str) -> str:
    return "gcc" if machine == os.uname().machine else f"{machine}-linux-gnu-gcc"


def _run(command: list[str | Path], environment: dict[str, str] | None = None) -> None:
    subprocess.run(command, check=True, env=environment)


if __name__ == "__main__":
    make_sysroot(Path(sys.argv[1]).resolve(), sys.argv[2])
