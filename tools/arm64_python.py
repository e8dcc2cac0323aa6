"""Makes a folder with a Python for ARM64 that runs here, in qemu.

    python -m tools.arm64_python DIR WHEEL

Debian's python3 for arm64 is unpacked into DIR, nothing is installed on this machine, and pip puts
the wheel and what its tests import beside it. DIR/python is the interpreter, in a script for
this machine's kernel; the variable QEMU_CPU names a processor. Needs apt-get, dpkg and qemu-user.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_PACKAGES = ("python3", "libstdc++6")
_MANYLINUX = ("_2_28", "_2_27", "_2_24", "_2_17", "2014")
_WRAPPER = """#!/bin/sh
OPENBLAS_CORETYPE=ARMV8 OPENBLAS_NUM_THREADS=1 exec qemu-aarch64 -L {root} {python} "$@"
"""
# A child process has to start the script too: the kernel does not know the processor.
_EXECUTABLE = "import sys; sys.executable = {wrapper!r}; sys.dont_write_bytecode = True\n"


def unpack_python(root: Path, work: Path) -> Path:
    """Unpacks Python and what it needs into a folder; returns the interpreter."""
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (work / folder).mkdir(parents=True, exist_ok=True)
    (work / "status").touch()
    settings = {
        "APT::Architecture": "arm64", "APT::Architectures": "arm64", "APT::Sandbox::User": "root",
        "Acquire::Languages": "none", "Dir::Cache": work / "cache", "Dir::State": work / "state",
        "Dir::State::status": work / "status",
    }  # fmt: skip
    apt = ["apt-get", "-q", "-y", *(f"-o{name}={value}" for name, value in settings.items())]
    _run([*apt, "update"])
    _run([*apt, "--no-install-recommends", "--download-only", "install", *_PACKAGES])
    for folder in ("lib", "bin"):
        (root / "usr" / folder).mkdir(parents=True)
        (root / folder).symlink_to(f"usr/{folder}")
    for package in sorted((work / "cache/archives").glob("*.deb")):
        _run(["dpkg-deb", "--extract", package, root])
    return (root / "usr/bin/python3").resolve()


def install(python: Path, wheel: Path) -> Path:
    """Lets pip of this Python unpack wheels for that one; returns the folder."""
    version = python.name.removeprefix("python")
    site = python.parents[1] / "local" / "lib" / python.name / "dist-packages"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "install"]
    pip += ["--only-binary=:all:", "--python-version", version, "--target", str(site)]
    for platform in _MANYLINUX:
        pip += ["--platform", f"manylinux{platform}_aarch64"]
    _run([*pip, "--group", "emulated", wheel])
    return site


def main() -> None:
    """Makes the folder that the command line names."""
    out, wheel = (Path(name).resolve() for name in sys.argv[1:])
    shutil.rmtree(out, ignore_errors=True)
    root, wrapper = out / "root", out / "python"
    python = unpack_python(root, out / "apt")
    site = install(python, wheel)
    (site / "qemu.pth").write_text(_EXECUTABLE.format(wrapper=str(wrapper)), encoding="utf-8")
    wrapper.write_text(_WRAPPER.format(root=root, python=python), encoding="utf-8")
    wrapper.chmod(0o755)
    _run([wrapper, "tools/installed_first.py"])


def _run(command: Sequence[str | Path]) -> None:
    subprocess.run(command, check=True, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})


if __name__ == "__main__":
    main()
