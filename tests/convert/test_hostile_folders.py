"""Checkpoints that are not plain files or expand to far more than their size, and full disks."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pyllama_spec.errors import ConversionError
from tests.convert.tools import convert, convert_head, make_head, write_head, write_target

FILES = ("config.json", "model.safetensors", "model.safetensors.index.json")


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _folder(path: Path) -> None:
    path.mkdir()


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("make", [_pipe, _device, _folder, _loop])
def test_what_is_no_file(tmp_path: Path, file: str, make: Callable[[Path], None]) -> None:
    """A pipe and /dev/zero are refused instead of read."""
    folder = write_head(tmp_path / "draft", "specforge", make_head())
    (folder / file).unlink(missing_ok=True)
    make(folder / file)
    # A loop is not a file at all to who only looks whether it is there.
    if make is _loop and file == FILES[2]:
        convert(folder)
        return
    with pytest.raises(ConversionError, match=r"not a file|symbolic links|holds no tensors"):
        convert(folder)


def test_links_to_files_are_followed(tmp_path: Path) -> None:
    """Links are followed: the Hugging Face download cache consists of them."""
    folder = write_head(tmp_path / "draft", "specforge", make_head())
    blob = tmp_path / "blob"
    (folder / "model.safetensors").rename(blob)
    (folder / "model.safetensors").symlink_to(blob)
    assert convert(folder).n_tensors > 10


_CONVERT = """
import resource, sys
from pathlib import Path
from pyllama_spec.cli.entry import main
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
sys.exit(main(["convert", *sys.argv[2:]]))
"""


def test_the_system_refuses_to_write(tmp_path: Path) -> None:
    """If the disk fills up in mid-file, the error is one line and the old file stays."""
    whole = convert_head(tmp_path, "specforge", make_head()).path
    before = whole.read_bytes()
    target = write_target(tmp_path / "target.gguf")
    words = [str(tmp_path / "specforge"), "--target", str(target), "-o", str(whole)]
    done = subprocess.run(
        [sys.executable, "-c", _CONVERT, str(len(before) // 2), *words],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 1
    assert "cannot be written: the disk may be full" in done.stderr
    assert done.stderr.count("\n") == 1
    assert whole.read_bytes() == before
    assert not list(tmp_path.glob("*.part"))
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
