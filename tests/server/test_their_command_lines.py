"""Command lines of llama-server and of llama-cpp-python's server, and their meaning here."""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from pyllama_spec import Llama
from pyllama_spec.cli import serve
from pyllama_spec.cli.entry import command_parser, main
from pyllama_spec.errors import ArgumentError, PyllamaSpecError, UnsupportedError
from pyllama_spec.llama.open_options import OpenOptions
from pyllama_spec.llama_cpp import server as llama_cpp_server
from pyllama_spec.server import llama_server
from pyllama_spec.server.api_errors import for_client
from pyllama_spec.server.keys import Keys
from pyllama_spec.server.llama_server_flags import FLAGS, IDLE, REFUSED, read
from pyllama_spec.server.settings import LOOPBACK
from tests.models import model_path

_EAGLE3 = (
    "-m t.gguf -md e.gguf --spec-type draft-eagle3 --spec-draft-n-max 4 --spec-draft-p-min 0.5 "
    "-c 8192 -np 1 -ngl 99 -fa on --port 8081 --jinja --temp 0"
)
_OVERRIDES = (
    "-m t.gguf --override-kv a.b=int:4 --override-kv c=bool:true,d=str:x --rope-scale 4 "
    "-lm mmap+mlock"
)
# As they stand in pull requests and pages.
_LINES: dict[str, tuple[str, dict[str, Any]]] = {
    "eagle3": (
        _EAGLE3,
        {"model_path": "t.gguf", "draft": "e.gguf", "n_draft": 4, "p_min": 0.5, "n_ctx": 8192,
         "n_parallel": 1, "n_gpu_layers": 99, "flash_attn": True},
    ),
    "mtp": ("-m t.gguf --spec-type draft-mtp --draft-max 3 -ngl all -fa auto",
            {"draft": "mtp", "n_draft": 3, "n_gpu_layers": -1, "flash_attn": None}),
    "simple": ("-m t.gguf -md d.gguf --draft 16 --draft-min 1 -ngld 99",
               {"draft": "d.gguf", "n_draft": 16, "draft_gpu_layers": 99}),
    "ngram": ("-m t.gguf --spec-type ngram-mod --spec-ngram-mod-n-match 24",
              {"draft": "prompt-lookup"}),
    "both": ("-m t.gguf -md e.gguf --spec-type draft-eagle3,ngram-simple", {"draft": "e.gguf"}),
    "none": ("-m t.gguf -md e.gguf --spec-type none", {"draft": None}),
    "slots": ("-m t.gguf -c 4096 -np 4", {"n_ctx": 1024, "n_parallel": 4}),
    "shared": ("-m t.gguf -c 4096 -np 4 -kvu", {"n_ctx": 4096, "n_parallel": 4}),
    "own length": ("-m t.gguf -c 0 -np 2", {"n_ctx": 0, "n_parallel": 2}),
    "as many as it likes": ("-m t.gguf -c 2048", {"n_ctx": 2048, "n_parallel": 4}),
    "cache": ("-m t.gguf -ctk q8_0 -ctv f16 -cram 256 -t 2 -tb 4 -b 128 -ub 64 --no-mmap --mlock",
              {"type_k": "q8_0", "type_v": "f16", "prefix_cache_bytes": 256 << 20, "n_threads": 2,
               "n_threads_batch": 4, "n_batch": 128, "n_ubatch": 64, "use_mmap": False,
               "use_mlock": True}),
    "places": ("-m t.gguf -dev CUDA0,CUDA1 -ts 3,1 -sm row -mg 1 --rpc a:1,b:2",
               {"devices": ["CUDA0", "CUDA1"], "tensor_split": [3, 1], "split_mode": "row",
                "main_gpu": 1, "rpc_servers": ["a:1", "b:2"]}),
    "overrides": (_OVERRIDES,
                  {"kv_overrides": {"a.b": 4, "c": True, "d": "x"}, "rope_freq_scale": 0.25,
                   "use_mmap": True, "use_mlock": True}),
    "ranks": ("-m t.gguf --reranking", {"embedding": True, "pooling_type": "rank"}),
    "template": ("-m t.gguf --chat-template llama3", {"chat_format": "llama-3"}),
    "own template": ("-m t.gguf --chat-template {{messages}}", {"chat_template": "{{messages}}"}),
}  # fmt: skip


@pytest.mark.parametrize("name", _LINES)
def test_a_line_of_llama_server(name: str) -> None:
    line, expected = _LINES[name]
    meant = llama_server.plan(line.split(), {})
    assert {key: meant.keywords[key] for key in expected} == expected
    OpenOptions.from_keywords("t.gguf", {k: v for k, v in meant.keywords.items()
                                         if k != "model_path"})  # fmt: skip


def test_what_requests_get_where_they_do_not_say() -> None:
    line = (
        "-m t.gguf -n 64 --temp 0.5 -s 42 --top-k 9 --repeat-last-n 32 --ignore-eos --keep 4 "
        "--context-shift --reasoning-budget 100 --alias m --no-slots --metrics --no-webui"
    )
    settings = llama_server.plan(line.split(), {}).settings
    assert settings.defaults == {
        "max_tokens": 64, "temperature": 0.5, "seed": 42, "top_k": 9, "penalty_last_n": 32,
        "ignore_eos": True, "n_keep": 4, "context_shift": True,
    }  # fmt: skip
    assert settings.chat_defaults == {"reasoning_format": "auto", "thinking_token_budget": 100}
    assert (settings.alias, settings.has_slots, settings.has_metrics) == ("m", False, True)
    assert not settings.has_page
    off = ["-m", "t.gguf", "--reasoning", "off"]
    assert llama_server.plan(off, {}).settings.chat_defaults["reasoning_effort"] == "none"
    plain = llama_server.plan(["-m", "t.gguf"], {}).settings
    assert plain.defaults == {"max_tokens": -1, "temperature": 0.8}


def test_the_environment_counts_where_a_flag_does_not() -> None:
    environment = {
        "LLAMA_ARG_MODEL": "e.gguf", "LLAMA_ARG_CTX_SIZE": "512", "LLAMA_ARG_N_PARALLEL": "1",
        "LLAMA_API_KEY": "k", "LLAMA_ARG_ENDPOINT_METRICS": "1", "LLAMA_ARG_KV_UNIFIED": "off",
    }  # fmt: skip
    meant = llama_server.plan(["-c", "256"], environment)
    assert (meant.keywords["model_path"], meant.keywords["n_ctx"]) == ("e.gguf", 256)
    assert meant.settings.has_metrics
    assert Keys(meant.settings.api_keys).caller_of("k")
    assert Keys(meant.settings.api_keys).caller_of("x") is None


@pytest.mark.parametrize("line, words, kind", [
    ("--port 1", "no model", ArgumentError),
    ("-m t.gguf --what -x", "--what -x", ArgumentError),
    ("-m t.gguf -c", "-c has no value", ArgumentError),
    ("-m t.gguf -c many", "-c: 'many' is not a whole number", ArgumentError),
    ("-m t.gguf --temp hot", "--temp: 'hot' is not a number", ArgumentError),
    ("-m t.gguf -np 0", "-np 0", ArgumentError),
    (r"-m t.gguf -r \xff", "is not UTF-8", ArgumentError),
    ("-m t.gguf --spec-type eagle", "'eagle' is not one of", ArgumentError),
    ("-m t.gguf --spec-type draft-eagle3", "needs the file of a draft", ArgumentError),
    ("-m t.gguf -lm fast", "'fast' is not one of", ArgumentError),
    ("-m t.gguf --override-kv a=int:x", "KEY=TYPE:VALUE", ArgumentError),
    ("-m t.gguf --lora-scaled a:b", "FILE:SCALE", ArgumentError),
    ("-m t.gguf -fa perhaps", "on, off or auto", ArgumentError),
    ("-m t.gguf --chat-template-file /no/where", "cannot read the file", ArgumentError),
    ("-m t.gguf --chat-template-kwargs {", "not JSON", ArgumentError),
    ("-m t.gguf --reasoning-format xml", "'xml' is not one of", ArgumentError),
    ("-m t.gguf --ssl-key-file k", "belong together", ArgumentError),
    ("-m t.gguf --models-dir d", "pyllama-spec serve --config FILE.toml", UnsupportedError),
    ("-m t.gguf --log-file", "--log-file has no value", ArgumentError),
    ("-m t.gguf --allowed-hosts a:1", "is not a host name", ArgumentError),
    ("-hf ggml-org/x", "-hf: no model is fetched", UnsupportedError),
    ("-m t.gguf -mm x", "-mm: models see no images", UnsupportedError),
])  # fmt: skip
def test_a_line_that_is_refused(line: str, words: str, kind: type[PyllamaSpecError]) -> None:
    with pytest.raises(kind, match=words.replace("+", r"\+")):
        llama_server.plan(line.split(), {})


@pytest.mark.parametrize("line, words, others", [
    ("--slot-save-path d --hf-repo a/b --models-dir m --bogus 3",
     ("--slot-save-path:", "--cache-dir DIR", "--hf-repo:", "--models-dir:",
      "not known here: --bogus 3;"), (" d ",)),
    ("--bogus -c many --samplers a -t x --other", ("--bogus --other;", "-c: 'many'", "-t: 'x'",
                                                   "--samplers:"), (" a;",)),
    ("--temp hot --models-max -1 -n x", ("--temp: 'hot'", "--models-max:", "-n: 'x'"), ("-1",)),
    ("--what --temp hot", ("--what;", "--temp: 'hot'"), ()),
    ("-c", ("-c has no value", "LLAMA_ARG_PORT: 'high'"), ()),
])  # fmt: skip
def test_all_that_is_wrong_is_said_at_once(
    line: str, words: tuple[str, ...], others: tuple[str, ...]
) -> None:
    with pytest.raises(PyllamaSpecError) as caught:
        llama_server.plan(line.split(), {"LLAMA_ARG_PORT": "high"})
    said = str(caught.value)
    assert [word for word in (*words, "LLAMA_ARG_PORT") if word not in said] == []
    assert [word for word in others if word in said] == []


@pytest.mark.parametrize("given, environment, names", [
    ("-a smol", {}, ("smol",)), ("-a smol,gpt-4o", {}, ("smol", "gpt-4o")),
    ("--alias a,,b,b", {}, ("a", "b")), ("", {"LLAMA_ARG_ALIAS": "x,y"}, ("x", "y")), ("", {}, ()),
])  # fmt: skip
def test_names_of_a_model(given: str, environment: dict[str, str], names: tuple[str, ...]) -> None:
    settings = llama_server.plan(["-m", "t.gguf", *given.split()], environment).settings
    assert (settings.alias, *settings.aliases) == (names or (None,))
    words = ["--alias", ",".join(names)] if names else []
    ours = serve._settings(command_parser().parse_args(["serve", "-m", "t.gguf", *words]))
    assert (ours.alias, *ours.aliases) == (names or (None,))


def test_a_key_of_the_environment_is_not_warned_of() -> None:
    told = llama_server.plan(["-m", "t.gguf"], {"LLAMA_API_KEY": "k"})
    assert not any("--api-key" in note for note in told.notes)
    assert Keys(told.settings.api_keys).caller_of("k")
    both = llama_server.plan(["-m", "t.gguf", "--api-key", "a"], {"LLAMA_API_KEY": "k"})
    assert any("seen by all" in note for note in both.notes)


@pytest.mark.parametrize("line, level, file", [
    ("", logging.INFO, None), ("--log-disable", logging.WARNING, None),
    ("-lv 1", logging.ERROR, None), ("-lv 2", logging.WARNING, None), ("-lv 5", logging.INFO, None),
    ("--log-file a.log --log-verbosity 3", logging.INFO, Path("a.log")),
])  # fmt: skip
def test_what_is_logged_under_their_flags(line: str, level: int, file: Path | None) -> None:
    meant = llama_server.plan(["-m", "t.gguf", *line.split()], {})
    assert (meant.log_level, meant.log_file) == (level, file)
    assert not any("log" in note for note in meant.notes)


def test_names_of_hosts_beside_those_of_the_machine() -> None:
    def hosts(line: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        words = ["-m", "t.gguf", *line.split()]
        theirs = llama_server.plan(words, {}).settings.allowed_hosts
        return theirs, serve._settings(command_parser().parse_args(["serve", *words])).allowed_hosts

    of_python = llama_cpp_server.plan(
        ["--model", "m", "--allowed_hosts", "LLM.example", "a.example"], {"ALLOWED_HOSTS": "b"}
    )
    assert of_python.settings.allowed_hosts == ("llm.example", "a.example", *LOOPBACK)
    assert llama_cpp_server.plan(["--model", "m"], {}).settings.allowed_hosts == LOOPBACK
    assert hosts("") == (LOOPBACK, LOOPBACK)
    assert hosts("--host 0.0.0.0") == ((), ())
    for line in ("--allowed-hosts llm.example", "--host 0.0.0.0 --allowed-hosts LLM.example"):
        assert hosts(line) == (("llm.example", *LOOPBACK),) * 2


def test_keys_of_a_file_can_change(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("one\n")
    words = ["-m", "t.gguf", "--api-key-file", str(keys)]
    theirs = llama_server.plan([*words, "--api-key", "two"], {}).settings
    ours = serve._settings(command_parser().parse_args(["serve", *words]))
    keys.write_text("three # name\n")
    for settings, expected in ((theirs, ["two", "three"]), (ours, ["three"])):
        assert settings.read_keys is not None
        assert list(settings.read_keys()) == expected
    keys.unlink()
    os.mkfifo(keys)  # it would be waited for, in the event loop
    for settings in (theirs, ours):
        assert settings.read_keys is not None
        with pytest.raises(ArgumentError, match="not a file that can be read again"):
            settings.read_keys()
    assert llama_server.plan(["-m", "t.gguf", "--api-key", "two"], {}).settings.read_keys is None


@pytest.mark.parametrize("line, said", [
    ("--max-waiting -1", "--max-waiting -1"), ("--parallel 0", "--parallel 0"),
    ("--max-tokens 0", "--max-tokens 0"), ("--stop-timeout nan", "--stop-timeout nan is not"),
    ("--max-time -1", "--max-time -1.0"), ("--send-timeout inf", "--send-timeout inf is not"),
    ("--max-body 0", "--max-body 0 is outside 1 .. 2047"), ("--port 99999", "--port 99999 is out"),
    ("--allowed-hosts https://a", "not a host name"),
])  # fmt: skip
def test_a_bound_is_refused_before_a_model_is_opened(
    line: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "-m", "/no/where.gguf", *line.split()]) == 1
    told = capsys.readouterr().err
    assert said in told
    assert "where.gguf" not in told


def test_every_flag_is_in_one_table() -> None:
    """The notes list the flags without effect."""
    names = [name for flag in FLAGS for name in flag.names]
    assert len(names) == len(set(names))
    assert not set(names) & set(REFUSED)
    assert not set(IDLE) & {*names, *REFUSED}
    wanted = read(["--jinja", "--draft-min", "2", "--no-perf"], {})
    assert wanted.values == {}
    assert [note.split()[0] for note in wanted.notes] == ["--jinja", "--draft-min", "--no-perf"]


def test_adapters_and_keys_of_a_file(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("one\ntwo\n")
    line = f"-m t.gguf --lora a,b --lora-scaled c:d:0.5 --api-key-file {keys} --api-key three,four"
    meant = llama_server.plan(line.split(), {})
    assert meant.adapters == [("a", 1.0), ("b", 1.0), ("c:d", 0.5)]
    assert all(
        Keys(meant.settings.api_keys).caller_of(key) for key in ("one", "two", "three", "four")
    )
    assert any("seen by all" in note for note in meant.notes)


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
    plain = llama_cpp_server.plan(["--model", "m.gguf"], {})
    assert (plain.listening.host, plain.listening.port) == ("localhost", 8000)
    assert plain.keywords["n_ctx"] == 2048


@pytest.mark.parametrize("line, environment, expected", [
    ("", {}, ("f.gguf", 64, "a.gguf", 6, "127.0.0.1", 1)),
    ("", {"N_CTX": "99", "MODEL": "e.gguf"}, ("f.gguf", 64, "a.gguf", 6, "127.0.0.1", 1)),
    ("", {"DRAFT": "b.gguf", "N_DRAFT": "9"}, ("f.gguf", 64, "a.gguf", 6, "127.0.0.1", 1)),
    ("", {"HOST": "::1", "PORT": "5"}, ("f.gguf", 64, "a.gguf", 6, "::1", 5)),
    ("--host localhost --port 7 --n_ctx 32", {"HOST": "::1", "PORT": "5", "N_CTX": "99"},
     ("f.gguf", 32, "a.gguf", 6, "localhost", 7)),
    ("--draft_model c.gguf", {"DRAFT": "b.gguf"}, ("f.gguf", 64, "c.gguf", 6, "127.0.0.1", 1)),
], ids=["file", "environment", "draft", "address", "line", "line's draft"])  # fmt: skip
def test_which_place_counts_before_which(
    line: str, environment: dict[str, str], expected: tuple[Any, ...], tmp_path: Path
) -> None:
    file = tmp_path / "config.json"
    model = {
        "model": "f.gguf", "n_ctx": 64, "draft_model": "a.gguf", "draft_model_num_pred_tokens": 6,
    }  # fmt: skip
    file.write_text(json.dumps({"host": "127.0.0.1", "port": 1, "models": [model]}))
    meant = llama_cpp_server.plan(line.split(), {**environment, "CONFIG_FILE": str(file)})
    found = tuple(meant.keywords[name] for name in ("model_path", "n_ctx", "draft", "n_draft"))
    assert (*found, meant.listening.host, meant.listening.port) == expected


def test_the_environment_counts_where_no_file_says_otherwise(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"models": [{"model": "f.gguf"}]}))
    environment = {"CONFIG_FILE": str(file), "N_CTX": "99", "DRAFT": "b.gguf"}
    meant = llama_cpp_server.plan([], environment)
    assert (meant.keywords["n_ctx"], meant.keywords["draft"]) == (99, "b.gguf")
    assert (meant.listening.host, meant.listening.port) == ("localhost", 8000)


@pytest.mark.parametrize("line, words, kind", [
    ("--n_ctx 5", "no model", ArgumentError),
    ("--model", "--model has no value", ArgumentError),
    ("--model m --n_ctx many", "--n_ctx='many'", ArgumentError),
    ("--model m --what 3", "unknown options: --what", ArgumentError),
    ("--model m --use_mmap perhaps", "expected true or false", ArgumentError),
    ("--model m --chat_template_kwargs []", "expected an object", ArgumentError),
    ("--model m --kv_overrides a=list:x", "KEY=TYPE:VALUE", ArgumentError),
    ("--model m --ssl_keyfile k", "belong together", ArgumentError),
    ("--model m --clip_model_path c", "no images", UnsupportedError),
    ("--model m --hf_model_repo_id c", "download the model", UnsupportedError),
    ("--model m --cache true --cache_type disk", "kept in memory", UnsupportedError),
    ("--config_file c.yaml", "write it as .json", UnsupportedError),
    ("--config_file /no/where.json", "cannot be read", ArgumentError),
])  # fmt: skip
def test_options_that_are_refused(line: str, words: str, kind: type[PyllamaSpecError]) -> None:
    with pytest.raises(kind, match=words):
        llama_cpp_server.plan(line.split(), {})


@pytest.mark.parametrize("models", [None, [], [1], [{"model": "a"}, {"model": "b", "what": 1}],
                                    [{"model": "a", "what": 1}],
                                    [{"model": "a", "clip_model_path": "c"}]])  # fmt: skip
def test_a_config_file_that_is_refused(models: Any, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"models": models}))
    with pytest.raises(PyllamaSpecError, match=r"config\.json"):
        llama_cpp_server.plan(["--config_file", str(file)], {})


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
            assert answer.json()["error"]["message"] == "this server gives no embeddings"
            asked = {"prompt": [97] * 300}
            answer = httpx.post(f"{url.strip(',')}/v1/completions", json=asked, timeout=60)
            assert answer.json()["error"]["code"] == "context_length_exceeded"
            assert answer.json()["error"]["message"].endswith("; shorten the prompt")
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
                version, *lines = (one[24:] for one in log.read_text().splitlines())
                assert re.fullmatch(r"version \S+, llama.cpp \S+", version)
                name = model_path("llama").name
                assert f"server is listening on {url} with {name}, draft none" in lines
                assert "--jinja changes nothing: templates are always Jinja's" in lines
        finally:
            process.kill()


def test_the_options_that_errors_name_are_there() -> None:
    parser = argparse.ArgumentParser()
    serve.add_serve(parser.add_subparsers())
    for flag in serve.FLAGS.values():
        assert any(flag in command.option_strings for command in options_of(parser))
    ours = llama_server.plan(["-m", "t.gguf"], {}).settings.flags
    assert {*ours.values()} <= {""} | {name for flag in FLAGS for name in flag.names}
    theirs = llama_cpp_server.plan(["--model", "m"], {}).settings.flags
    for flag in filter(None, theirs.values()):
        words = flag.split() if " " in flag else [flag, "2"]
        assert llama_cpp_server.plan(["--model", "m", *words], {}).keywords
    for flags in (serve.FLAGS, ours, theirs):
        for keyword in flags:
            name, is_, value = keyword.partition("=")
            OpenOptions.from_keywords("m.gguf", {name: value == "True" if is_ else None})


def options_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    (commands,) = (one for one in parser._actions if isinstance(one.choices, dict))
    assert isinstance(commands.choices, dict)
    return list(commands.choices["serve"]._actions)


@pytest.mark.parametrize("message, told, keyword", [
    ("shorten the prompt or choose a larger n_ctx", "shorten the prompt", "n_ctx"),
    ("the queue is full (1 waiting for a place): max_waiting=1 allows no more; try again later",
     "the queue is full; try again later", "max_waiting"),
    ("(1 waiting): max_waiting=2 allows no more", "(1 waiting): the server allows no more",
     "max_waiting"),
    ("the 8 that n_ctx and n_batch have room for (b); choose larger ones, or truncate=True",
     "the 8 that the server has room for (b); shorten it", "n_ctx"),
    ("it takes 9 MiB, and all may take 5 (memory_mib): allow more, or give it a smaller n_ctx",
     "it takes 9 MiB, and all may take 5", "memory_mib"),
    ("a.gguf: the KV cache needs 9 GB; choose a smaller n_ctx", "a.gguf: the KV cache needs 9 GB",
     "n_ctx"),
    ("cannot decode: the server 10.0.0.9:1 was lost: it left; close the model and open it again",
     "cannot decode: a server with layers was lost: it left", "rpc_servers"),
    ("cannot load a: the server 10.0.0.9:1 cannot be reached: Connection refused",
     "cannot load a: a server with layers cannot be reached: Connection refused", "rpc_servers"),
    ("stop=1 is no text", "stop=1 is no text", ""),
])  # fmt: skip
def test_clients_are_not_told_of_options(message: str, told: str, keyword: str) -> None:
    assert for_client(message) == (told, keyword)


@pytest.mark.parametrize("message, told", [
    ("n_batch=0: expected an int", "-b 0: expected an int"),
    ("a smaller n_ctx or n_parallel, or type_k", "a smaller -c or -np, or -ctk"),
    ("n_ctx_train, draft_n_ctx, embedding", "n_ctx_train, draft_n_ctx, embedding"),
])  # fmt: skip
def test_a_message_with_flags(message: str, told: str) -> None:
    assert llama_server.with_flags(message) == told


def test_a_reader_of_the_help_may_go() -> None:
    program = "import sys; from pyllama_spec.server.llama_server import main; sys.exit(main())"
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as out:
        ended = subprocess.run(
            [sys.executable, "-c", program, "--help"], stdout=out, stderr=subprocess.PIPE,
            timeout=100, check=False,
        )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.parametrize("main, name", [
    (llama_server.main, "pyllama-spec-llama-server"),
    (llama_cpp_server.main, "pyllama_spec.llama_cpp.server"),
])  # fmt: skip
def test_a_program_says_what_it_cannot_do(
    main: Any, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["--help"]) == 0
    assert main(["--nonsense"]) == 2
    missing = ["--model", "/no/where.gguf"]
    assert main(missing) == 1
    out, err = capfd.readouterr()
    assert "--model" in out
    assert "--nonsense" in err
    assert "/no/where.gguf" in err
    own = [line for line in err.splitlines() if ": error: " in line]
    assert len(own) == 2
    assert all(line.startswith(f"{name}: error: ") for line in own)


@pytest.mark.parametrize(
    ("kind", "beside", "draft", "told"),
    [
        ("llama", None, "auto", "draft auto (suffix)"),
        ("llama", "eagle3", "auto", "draft auto (eagle3)"),
        ("bert", None, "auto", "draft auto"),
        ("llama", None, "prompt-lookup", "draft prompt-lookup"),
        ("llama", None, "none", "draft none"),
    ],
)
def test_the_first_line_says_what_auto_took(
    kind: str, beside: str | None, draft: str, told: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = Path(shutil.copy(model_path(kind), tmp_path))
    if beside is not None:
        shutil.copy(model_path(beside), tmp_path)
    args = argparse.Namespace(model=path, parallel=4, draft=draft)
    is_encoder = kind == "bert"
    with Llama(path, n_ctx=64, n_threads=1, draft=draft, embedding=is_encoder) as llm:
        serve._say("http://127.0.0.1:1", args, llm)
    line = f"{path.name} answers at http://127.0.0.1:1, 4 requests at once, {told}\n"
    assert capsys.readouterr().out == line
