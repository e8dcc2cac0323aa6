"""Texts from files and pipes that the user names."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from pyllama_spec import ArgumentError, files
from pyllama_spec.chat.prompt_file import read_prompt_file
from pyllama_spec.files import check_no_pipe, read_text
from pyllama_spec.llama_cpp import LlamaGrammar
from pyllama_spec.llama_cpp import server as llama_cpp_server


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)

    def write() -> None:
        with path.open("w", encoding="utf-8") as pipe:
            for word in ("a", "é" * 100_000, "b\r\n"):
                pipe.write(word)
                pipe.flush()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert read_text(path, "the prompt") == "a" + "é" * 100_000 + "b\n"
    finally:
        writer.join(60)


def test_a_pipe_that_nobody_writes_to_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_PIPE_S", 0.1)
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(ArgumentError):
        read_prompt_file(path)


def test_a_pipe_with_a_name_is_opened_by_nobody(tmp_path: Path) -> None:
    """By what opens files itself, such as ssl and logging; each of them would wait for ever."""
    path = tmp_path / "pipe.json"
    os.mkfifo(path)
    link = tmp_path / "link.json"
    link.symlink_to(path)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        for one in (path, link, tmp_path / "socket"):
            with pytest.raises(OSError, match="it is a pipe or a socket"):
                check_no_pipe(one)
    reading, writing = os.pipe()
    for kept in (__file__, tmp_path, tmp_path / "none", "/dev/null", f"/dev/fd/{reading}"):
        check_no_pipe(kept)
    os.close(reading)
    os.close(writing)
    for call in (
        lambda: LlamaGrammar.from_file(path),
        lambda: llama_cpp_server.plan(["--config_file", str(path)], {}),
    ):  # fmt: skip
        with pytest.raises(ArgumentError):
            call()
