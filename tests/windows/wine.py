"""Runs Python for Windows in Wine, with a wheel and what its tests import.

    python -m tests.windows.wine prepare DIR WHEEL
    python -m tests.windows.wine run DIR ARGUMENT ...

DIR/python is that of tools/windows_python.py. The tests run in DIR/checkout, which has no folder
pyllama_spec: it is the wheel that is imported.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.windows.wine_libraries import add_libraries
from tools.packaged_models import cache_directory

_ROOT = Path(__file__).parents[2]
_LINKS = ("docs", "examples", "models", "pyproject.toml", "tests", "tools", "vendor")
_PIP = (
    sys.executable, "-m", "pip", "install", "-q", "--upgrade", "--only-binary=:all:",
    "--platform", "win_amd64", "--python-version", "3.13", "--implementation", "cp",
)  # fmt: skip


def _wine(folder: Path, *command: str | os.PathLike[str]) -> int:
    """Runs a program in Wine; its output goes through a pipe, which Python needs there."""
    env = {
        **os.environ, "WINEPREFIX": os.fspath(folder / "wine"), "WINEDEBUG": "-all", "DISPLAY": "",
        "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1",
        "PYLLAMA_SPEC_TEST_CACHE": f"Z:{folder / 'models'}",
        "PYLLAMA_SPEC_CACHE": f"Z:{cache_directory()}",
    }  # fmt: skip
    with subprocess.Popen(
        ["wine", *command], cwd=folder / "checkout", env=env, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        while data := os.read(process.stdout.fileno(), 1 << 16):
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
    return process.returncode


def prepare(folder: Path, wheel: Path) -> None:
    """Installs the packages and the wheel, and begins a Windows 10."""
    packages = folder / "python" / "Lib" / "site-packages"
    if not (packages / "pytest").exists():
        subprocess.run([*_PIP, "--target", packages, "--group", "emulated"], cwd=_ROOT, check=True)
        add_libraries(packages, folder / "python")
    subprocess.run([*_PIP, "--no-deps", "--target", packages, wheel], check=True)
    for name in ("models", "checkout"):
        (folder / name).mkdir(exist_ok=True)
    for name in _LINKS:
        link = folder / "checkout" / name
        link.unlink(missing_ok=True)
        link.symlink_to(_ROOT / name)
    _wine(folder, "winecfg", "-v", "win10")
    # One of 2016: Python there has no socket options of later ones, which Wine 8 lacks.
    key = r"HKLM\Software\Microsoft\Windows NT\CurrentVersion"
    _wine(folder, "reg", "add", key, "/v", "CurrentBuildNumber", "/d", "14393", "/f")


def main() -> None:
    """Reads the command line."""
    todo, where, *rest = sys.argv[1:]
    folder = Path(where).resolve()
    if todo == "prepare":
        prepare(folder, Path(rest[0]).resolve())
    else:
        sys.exit(_wine(folder, folder / "python" / "python.exe", *rest))


if __name__ == "__main__":
    main()
