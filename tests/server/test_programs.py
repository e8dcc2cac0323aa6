"""The programs that serve, and the command lines of `serve` and of llama-cpp-python's server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from pyllama_spec import server
from pyllama_spec.cli import serve
from pyllama_spec.cli.entry import command_parser, main
from pyllama_spec.errors import ArgumentError, PyllamaSpecError, UnsupportedError
from pyllama_spec.llama.open_options import OpenOptions
from pyllama_spec.llama_cpp import server as llama_cpp_server
from pyllama_spec.server import llama_server
from pyllama_spec.server.models import Keys
from pyllama_spec.server.programs import serve_plan
from pyllama_spec.server.settings import LOOPBACK
from tests.models import model_path


def test_names_of_hosts_beside_those_of_the_machine() -> None:
    def hosts(line: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        words = ["-m", "t.gguf", *line.split()]
        theirs = llama_server.plan(words, {}).settings.allowed_hosts
        ours, *_ = serve._settings(command_parser().parse_args(["serve", *words]))
        return theirs, ours.allowed_hosts

    of_python = llama_cpp_server.plan(
        ["--model", "m", "--allowed_hosts", "LLM.example", "a.example"], {"ALLOWED_HOSTS": "b"}
    )
    assert of_python.settings.allowed_hosts == ("llm.example", "a.example", *LOOPBACK)
    assert hosts("") == (LOOPBACK, LOOPBACK)
    assert hosts("--host 0.0.0.0") == ((), ())
    for line in ("--allowed-hosts llm.example", "--host 0.0.0.0 --allowed-hosts LLM.example"):
        assert hosts(line) == (("llm.example", *LOOPBACK),) * 2


def test_keys_of_a_file_can_change(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("one\n")
    words = ["-m", "t.gguf", "--api-key-file", str(keys)]
    theirs = llama_server.plan([*words, "--api-key", "two"], {}).settings
    ours, *_ = serve._settings(command_parser().parse_args(["serve", *words]))
    keys.write_text("three # name\n")
    for settings, expected in ((theirs, ["two", "three # name"]), (ours, ["three # name"])):
        assert settings.read_keys is not None
        assert list(settings.read_keys()) == expected


@pytest.mark.parametrize("line", [
    "--max-waiting -1", "--parallel 0", "--max-tokens 0", "--stop-timeout nan", "--max-time -1.0",
    "--send-timeout inf", "--max-body 0", "--port 99999",
])  # fmt: skip
def test_a_bound_is_refused_before_a_model_is_opened(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "-m", "/no/where.gguf", *line.split()]) == 1
    told = capsys.readouterr().err
    assert line in told
    assert "where.gguf" not in told


# ---- llama-cpp-python's server


def test_options_of_llama_cpp_pythons_server(tmp_path: Path) -> None:
    line = (
        "--model m.gguf --n_ctx 512 --n_gpu_layers=-1 --host 0.0.0.0 --api_key k --n_threads -1 "
        "--draft_model prompt-lookup-decoding --draft_model_num_pred_tokens 6 --cache true "
        "--cache_size 1000 --tensor_split 0.5 0.5 --use_mlock False --kv_overrides a.b=int:4 "
        "--chat_format chatml --model_alias gpt --verbose false --interrupt_requests 1"
    )
    environment = {"N_CTX": "99", "PORT": "9000", "SEED": "7", "DEVICES": "not ours"}
    meant = llama_cpp_server.plan(line.split(), environment)
    expected = {
        "model_path": "m.gguf", "n_ctx": 512, "n_gpu_layers": -1, "n_threads": os.cpu_count(),
        "draft": "prompt-lookup", "n_draft": 6, "prefix_cache_bytes": 1000,
        "tensor_split": [0.5, 0.5], "use_mlock": False, "kv_overrides": {"a.b": 4},
        "chat_format": "chatml", "seed": 7, "verbose": False, "n_parallel": 4,
    }  # fmt: skip
    assert {key: meant.keywords[key] for key in expected} == expected
    assert "devices" not in meant.keywords
    assert (meant.listening.host, meant.listening.port) == ("0.0.0.0", 9000)
    assert meant.settings.alias == "gpt"
    assert Keys(meant.settings.api_keys).caller_of("k")
    OpenOptions.from_keywords("m.gguf", {k: v for k, v in meant.keywords.items()
                                         if k != "model_path"})  # fmt: skip

    file = tmp_path / "config.json"
    models: list[dict[str, Any]] = [{"model": "f.gguf", "n_ctx": 64, "draft": "mtp"}]
    file.write_text(json.dumps({"host": "127.0.0.1", "port": 1, "models": models}))
    meant = llama_cpp_server.plan(["--n_ctx", "32"], {"CONFIG_FILE": str(file), "PORT": "5"})
    assert (meant.keywords["model_path"], meant.keywords["n_ctx"]) == ("f.gguf", 32)
    assert meant.keywords["draft"] == "mtp"
    line = "--model m.gguf --clip_model_path p.gguf --chat_format llava-1-5"
    eyes = llama_cpp_server.plan(line.split(), {}).keywords
    assert (eyes["mmproj_path"], eyes["chat_format"]) == ("p.gguf", "llava-1-5")
    plain = llama_cpp_server.plan(["--model", "m.gguf"], {})
    assert (plain.listening.host, plain.listening.port) == ("localhost", 8000)
    assert plain.keywords["n_ctx"] == 2048


@pytest.mark.parametrize("line, kind", [
    ("--n_ctx 5", ArgumentError), ("--model", ArgumentError),
    ("--model m --n_ctx many", ArgumentError), ("--model m --what 3", ArgumentError),
    ("--model m --ssl_keyfile k", ArgumentError),
    ("--model m --cache true --cache_type disk", UnsupportedError),
    ("--config_file c.yaml", UnsupportedError), ("--config_file /no/where.json", ArgumentError),
])  # fmt: skip
def test_options_that_are_refused(line: str, kind: type[PyllamaSpecError]) -> None:
    with pytest.raises(kind):
        llama_cpp_server.plan(line.split(), {})


def test_a_config_file_of_several_models(tmp_path: Path) -> None:
    """One model is loaded at a time: the first at the start and for unknown names."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps({
        "n_ctx": 64, "port": 1,
        "models": [
            {"model": "a.gguf", "model_alias": "a", "n_ctx": 32, "chat_template_kwargs": {"x": 1}},
            {"model": "b.gguf", "draft_model": "prompt-lookup-decoding"},
        ],
    }))  # fmt: skip
    meant = llama_cpp_server.plan(["--config_file", str(file), "--n_batch", "99"], {"SEED": "7"})
    assert (meant.listening.port, meant.settings.chat_defaults) == (1, {})
    assert meant.models is not None
    first, second = meant.models.specs
    assert (first.name, second.name, meant.models.default) == ("a", "b.gguf", "a")
    assert (first.is_preloaded, second.is_preloaded, meant.models.max_loaded) == (True, False, 1)
    assert first.keywords == meant.keywords
    assert [one.keywords["n_ctx"] for one in (first, second)] == [32, 64]
    assert all(
        one.keywords["n_batch"] == 99 and one.keywords["seed"] == 7 for one in (first, second)
    )
    assert second.keywords["draft"] == "prompt-lookup"
    assert first.chat_defaults == {"chat_template_kwargs": {"x": 1}}
    assert meant.models.takes_any_name


def test_a_model_that_only_embeds_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[str]()
    monkeypatch.setattr(server, "serve", lambda *_, on_start: on_start("URL"), raising=False)
    plan = llama_server.plan(["-m", str(model_path("bert")), "--embeddings", "-c", "64"], {})
    serve_plan(plan, said.append)
    assert "URL" in said[0]


_PROGRAMS = [
    ("pyllama_spec.cli serve", "-m {model} -c 256 --parallel 1 --port 0 -d none"),
    ("pyllama_spec.server.llama_server", "-m {model} -c 256 -np 1 --port 0 --temp 0 --jinja"),
    ("pyllama_spec.llama_cpp.server", "--model {model} --n_ctx 256 --port 0 --n_parallel 1"),
]
# With what a program's first and last lines begin; the log's lines stand between them.
_FIRST_AND_LAST = {
    "pyllama_spec.cli serve": ("", "stopped: no request was running"),
    "pyllama_spec.server.llama_server": ("pyllama-spec-llama-server: ", ""),
    "pyllama_spec.llama_cpp.server": ("pyllama_spec.llama_cpp.server: ", ""),
}
_TOLD = {
    "pyllama_spec.cli serve": ("--embeddings", "--n-ctx"),
    "pyllama_spec.server.llama_server": ("--embeddings", "-c"),
    "pyllama_spec.llama_cpp.server": ("--embedding true", "--n_ctx"),
}


@pytest.mark.parametrize("program, line", _PROGRAMS)
def test_a_program_serves_until_it_is_told_to_stop(program: str, line: str, tmp_path: Path) -> None:
    """It prints nothing about clients' schemas, though the library warns of a keyword."""
    words = [*program.split(), *line.format(model=model_path("llama")).split()]
    is_theirs, log = program.endswith(".llama_server"), tmp_path / "a.log"
    if is_theirs:
        words += ["--log-file", str(log)]
    with subprocess.Popen(
        [sys.executable, "-m", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            assert process.stdout is not None
            first = next(line for line in process.stdout if "http://" in line)
            begin, last = _FIRST_AND_LAST[program]
            assert first.startswith(begin)
            url = next(one for one in first.split() if "http://" in one)
            asked = {"prompt": "abc", "max_tokens": 3, "temperature": 0}
            answer = httpx.post(f"{url.strip(',')}/v1/completions", json=asked, timeout=60)
            assert answer.status_code == 200, answer.text
            assert answer.json()["usage"]["completion_tokens"] == 3
            schema = {"type": "string", "a client's own word": 1}
            asked |= {"json_schema": schema, "max_tokens": 40}
            answer = httpx.post(f"{url.strip(',')}/v1/completions", json=asked, timeout=60)
            assert answer.status_code == 200, answer.text
            embedding, n_ctx = _TOLD[program]  # the log names the program's own options
            answer = httpx.post(f"{url.strip(',')}/v1/embeddings", json={"input": "a"}, timeout=60)
            assert answer.json()["error"]["code"] == "unsupported"
            asked = {"prompt": [97] * 300}
            answer = httpx.post(f"{url.strip(',')}/v1/completions", json=asked, timeout=60)
            assert answer.json()["error"]["code"] == "context_length_exceeded"
            process.send_signal(signal.SIGHUP)
            said = ""
            while "SIGHUP: " not in said:  # which would have ended it
                said += (added := process.stdout.readline())
                assert added, said
            assert " 200 " in said  # each has a line for each request
            assert f" error=unsupported option={embedding}\n" in said
            assert f" error=context_length_exceeded option={n_ctx}\n" in said
            answer = httpx.get(f"{url.strip(',')}/v1/models", timeout=60)
            assert answer.status_code == 200
            process.send_signal(signal.SIGTERM)
            said += process.stdout.read()
            assert process.wait(60) == 0
            assert said.splitlines()[-1].startswith(last)
            assert "client's own" not in said
            assert "Warning" not in said
            if is_theirs:
                lines = log.read_text()
                assert " 200 " in lines
        finally:
            process.kill()
