"""Texts from files and pipes that the user names."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from pyllama_spec import ArgumentError
from pyllama_spec.files import read_text
from pyllama_spec.llama_cpp import LlamaGrammar
from pyllama_spec.llama_cpp import server as llama_cpp_server


@pytest.mark.posix
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


@pytest.mark.posix
def test_a_pipe_with_a_name_is_opened_by_nobody(tmp_path: Path) -> None:
    path = tmp_path / "pipe.json"
    os.mkfifo(path)
    for call in (
        lambda: LlamaGrammar.from_file(path),
        lambda: llama_cpp_server.plan(["--config_file", str(path)], {}),
    ):  # fmt: skip
        with pytest.raises(ArgumentError):
            call()
