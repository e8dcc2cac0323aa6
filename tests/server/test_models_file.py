"""The file that lists a server's models, and the command line that takes it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from pyllama_spec.errors import ArgumentError, UnsupportedError
from pyllama_spec.server import read_models
from tests.models import model_path
from tests.server.models_world import written

WHOLE = """
memory_mib = 6000
max_loaded = 3
load_timeout_s = 20
default = "small"

[defaults]
n_ctx = 2048
keep_alive_s = 600
requests.temperature = 0.5

[models.large]
model_path = "files/large.gguf"
draft = "drafts/eagle3.gguf"
n_parallel = 2
type_k = "q8_0"
kv_overrides = {"llama.context_length" = 512}

[models.small]
model_path = "/elsewhere/small.gguf"
aliases = ["gpt-4o-mini", "any/thing"]
draft = "auto"
mmproj_path = "eyes.gguf"
n_ctx = 4096
keep_alive_s = 0
preload = true
requests = {max_tokens = 99, stop = ["END"], reasoning_format = "none"}
[models.small.adapters]
poet = "poet.gguf"
clerk = {path = "clerk.gguf", scale = 0.5}
"""


def test_a_whole_file(tmp_path: Path) -> None:
    found = read_models(written(tmp_path, WHOLE))
    assert (found.memory_bytes, found.max_loaded, found.load_timeout_s, found.default) == (
        6000 << 20, 3, 20.0, "small",
    )  # fmt: skip
    large, small = found.specs
    assert large.keywords == {
        "model_path": str(tmp_path / "files/large.gguf"), "n_ctx": 2048, "n_parallel": 2,
        "draft": str(tmp_path / "drafts/eagle3.gguf"), "max_waiting": 64, "type_k": "q8_0",
        "prefix_cache_bytes": 256 << 20, "kv_overrides": {"llama.context_length": 512},
        "mmproj_path": "auto",
    }  # fmt: skip
    assert (large.keep_alive_s, large.is_preloaded, large.defaults) == (
        600, False, {"temperature": 0.5},
    )  # fmt: skip
    assert small.keywords["model_path"] == "/elsewhere/small.gguf"
    assert (small.keywords["draft"], small.keywords["n_ctx"]) == ("auto", 4096)
    assert small.keywords["mmproj_path"] == str(tmp_path / "eyes.gguf")
    assert small.names == ("small", "gpt-4o-mini", "any/thing", "poet", "clerk")
    assert small.adapters == {
        "poet": (tmp_path / "poet.gguf", 1.0), "clerk": (tmp_path / "clerk.gguf", 0.5),
    }  # fmt: skip
    assert small.defaults == {"max_tokens": 99, "stop": ["END"]}
    assert small.chat_defaults == {"reasoning_format": "none"}
    assert (small.keep_alive_s, small.is_preloaded) == (0, True)


def test_paths_from_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    text = '[models.a]\nmodel_path = "~/a.gguf"\nlora_path = "~/l.gguf"\n'
    (found,) = read_models(written(tmp_path, text)).specs
    files = [Path(found.keywords[key]) for key in ("model_path", "lora_path")]
    assert files == [Path("/home/ann/a.gguf"), Path("/home/ann/l.gguf")]
    with pytest.raises(ArgumentError, match=r"models\.a: '~nobody-here/a.gguf': the home folder"):
        read_models(written(tmp_path, '[models.a]\nmodel_path = "~nobody-here/a.gguf"\n'))


A = '[models.a]\nmodel_path = "a.gguf"\n'


@pytest.mark.parametrize("text", [
    "", "models = 1", "[models.a", '[models.a]\nn_ctx = 1', A + "n_ctc = 4", A + "n_ctx = 'many'",
    A + "keep_alive_s = -1", A + "aliases = 'b'", A + "lora_path = 7", A + "draft_memory = 7",
    A + "aliases = ['a']",
    A + "adapters = {b = {scale = 1}}", A + "requests = {temperatur = 1}",
    A + "requests = {temperature = 'hot'}", A + "requests = {reasoning_effort = 7}",
    A + "requests = {reasoning_format = 'x'}", A + "requests = {chat_template_kwargs = [1]}",
    "default = 'b'\n" + A, 'memory_mib = 0\n' + A,
    'turn_s = -1\n' + A, 'what = 1\n' + A, "[defaults]\naliases = ['b']\n" + A,
])  # fmt: skip
def test_what_a_file_cannot_say(text: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"models\.toml: "):
        read_models(written(tmp_path, text))


def test_a_template_that_cannot_be_compiled(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"models\.toml: models\.a: "):
        read_models(written(tmp_path, A + "chat_template = '{{ x'"))


@pytest.mark.slow
def test_the_command_serves_the_models_of_a_file(tmp_path: Path) -> None:
    file = written(tmp_path, f"""
        [defaults]
        n_ctx = 256
        n_threads = 1
        [models.a]
        model_path = "{model_path("llama")}"
        draft = "prompt-lookup"
        preload = true
        [models."b/c"]
        model_path = "{model_path("llama", seed=1)}"
        requests = {{max_tokens = 3}}
    """)  # fmt: skip
    words = ["-m", "pyllama_spec.cli", "serve", "--config", str(file), "--port", "0"]
    environment = {**os.environ, "PYLLAMA_SPEC_API_KEY": ""}
    with subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=environment,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            line = next(one for one in process.stdout if "http://" in one)
            assert line.startswith("2 models at ")
            url = line.split()[-1]
            asked: dict[str, Any] = {"prompt": "xyz", "temperature": 0, "ignore_eos": True}
            answer = httpx.post(f"{url}/v1/completions", json={**asked, "model": "b/c"}, timeout=60)
            assert answer.json()["usage"]["completion_tokens"] == 3, answer.text
            listed = httpx.get(f"{url}/v1/models/b/c", timeout=60).json()
            assert listed["state"] == "loaded"
        finally:
            process.send_signal(signal.SIGTERM)
            rest = process.stdout.read() if process.stdout else ""
        assert process.wait(60) == 0, rest
        assert "model=b/c" in rest
        assert "xyz" not in rest
