"""Checkpoints that are not plain files or expand to far more than their size, and full disks."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pyllama_spec.errors import ConversionError
from tests.convert.tools import convert, make_head, write_head

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
