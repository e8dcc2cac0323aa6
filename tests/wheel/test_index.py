"""The index of wheels by backend: pip finds the wheel of each, and refuses a changed one."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tools.wheel_index import write_index

PLAIN, CUDA = "0.1.0", "0.1.0+cu130"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of two wheels without content."""
    folder = tmp_path_factory.mktemp("index")
    wheels = []
    for version in (PLAIN, CUDA):
        wheels.append(folder / f"pyllama_spec-{version}-py3-none-any.whl")
        info = f"pyllama_spec-{version}.dist-info"
        metadata = f"Metadata-Version: 2.1\nName: pyllama_spec\nVersion: {version}\n"
        with zipfile.ZipFile(wheels[-1], "w") as archive:
            archive.writestr(f"{info}/METADATA", f"{metadata}Requires-Python: >=3.10\n")
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", "")
    write_index(folder / "whl", wheels)
    return folder / "whl"


def download(out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """What pip says when it gets the package from an index, and from nowhere else."""
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--isolated",
        "download",
        "--no-cache-dir",
        "--dest",
        str(out),
    ]
    command = [*pip, *words, "pyllama_spec"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("backends", "version"), [(["cpu"], PLAIN), (["cu130"], CUDA), (["cpu", "cu130"], CUDA)]
)
def test_pip_takes_the_wheel_of_the_backend(
    index: Path, backends: list[str], version: str, tmp_path: Path
) -> None:
    first, *more = [(index / backend).as_uri() for backend in backends]
    words = [f"--extra-index-url={url}" for url in more]
    said = download(tmp_path, f"--index-url={first}", *words)
    assert said.returncode == 0, said.stderr
    assert [path.name.split("-")[1] for path in tmp_path.iterdir()] == [version]


def test_a_wheel_that_was_changed_is_refused(index: Path, tmp_path: Path) -> None:
    changed = tmp_path / "changed" / "pyllama-spec"
    changed.mkdir(parents=True)
    for path in (index / "cpu" / "pyllama-spec").iterdir():
        (changed / path.name).write_bytes(path.read_bytes() + b" ")
    said = download(tmp_path / "out", f"--index-url={changed.parent.as_uri()}")
    assert said.returncode != 0 and "sha256" in said.stderr
