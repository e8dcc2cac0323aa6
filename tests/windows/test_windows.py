"""What Windows does in another way than Linux; all of it holds on both."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyllama_spec import Llama
from pyllama_spec.engine import quantize
from pyllama_spec.engine.system import default_n_threads, memory_bytes
from pyllama_spec.errors import ArgumentError
from pyllama_spec.files import lock, whole_file
from pyllama_spec.llama.caches import LlamaDiskCache
from pyllama_spec.server.process import Listening, _bound
from tests.faces.tools import GREEDY
from tests.models import model_path

NAME = "модель-ü-模型"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder and a model in it whose names no code page of Windows has."""
    folder = tmp_path_factory.mktemp(NAME)
    quantize(model_path("llama"), folder / f"{NAME}.gguf", "Q8_0", n_threads=1)
    return folder


@pytest.mark.parametrize("use_mmap", [True, False])
def test_names_of_other_scripts(folder: Path, use_mmap: bool) -> None:
    """A model, a memory and a state are written and read again."""
    options: dict[str, Any] = {"draft_memory": folder / f"{NAME}.memory", "n_threads": 1}
    texts = []
    for _ in range(2):
        with Llama(folder / f"{NAME}.gguf", use_mmap=use_mmap, draft="suffix", **options) as llm:
            llm.cache = LlamaDiskCache(folder / "states")
            found: Any = llm.create_completion([1, 2, 3] * 9, max_tokens=8, **GREEDY)
            texts.append(found["choices"][0]["text"])
    assert texts[0] == texts[1]
    assert list((folder / "states").iterdir())


def test_the_command_line_writes_utf8(folder: Path) -> None:
    """Into a pipe, whatever the code page; it is a letter that no code page has."""
    model = os.fspath(folder / f"{NAME}.gguf")
    command = [sys.executable, "-m", "pyllama_spec", "generate", "-m", model]
    out = subprocess.run(
        [*command, "-p", "日本", "-n", "4", "-t", "1"], check=True, stdout=subprocess.PIPE
    )
    assert "\ufffd" in out.stdout.decode()


def test_a_whole_file_replaces_another(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for text in ("one", "two"):
        with whole_file(path) as part:
            part.write_text(text)
        assert path.read_text() == text
    assert list(tmp_path.iterdir()) == [path]


def test_a_lock_ends_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    for _ in range(2):
        with path.open("ab") as one, path.open("ab") as other:
            lock(one)
            with pytest.raises(OSError):
                lock(other)


def test_a_port_has_one_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(ArgumentError):
            _bound(Listening(port=port))
    with _bound(Listening(port=port)) as first, pytest.raises(ArgumentError):
        first.listen()
        _bound(Listening(port=port))


@pytest.mark.parametrize("most", [default_n_threads, memory_bytes])
def test_the_machine_is_measured(most: Callable[[], int]) -> None:
    limits = {default_n_threads: os.cpu_count() or 1, memory_bytes: 1 << 46}
    assert 1 <= most() <= limits[most]
