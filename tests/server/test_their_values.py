"""Parsing of the values, the variables and the spellings of llama-server's flags."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from pyllama_spec.errors import ArgumentError, UnsupportedError
from pyllama_spec.server import llama_server
from pyllama_spec.server.llama_server_flags import read
from pyllama_spec.server.settings import ServerSettings
from tests.models import model_path


@pytest.mark.parametrize("line, variable, value, expected", [
    ("", "LLAMA_ARG_NO_KV_OFFLOAD", "0", ("offload_kqv", False)),  # whatever its value is
    ("", "LLAMA_ARG_KV_OFFLOAD", "off", ("offload_kqv", False)),
    ("-kvo", "LLAMA_ARG_NO_KV_OFFLOAD", "1", ("offload_kqv", True)),
    ("", "LLAMA_ARG_SWA_FULL", "1", ("swa_full", True)),
    ("-c 64 -np 4", "LLAMA_ARG_KV_UNIFIED", "on", ("n_ctx", 64)),
    ("-c 64 -np 4 -kvu", "LLAMA_ARG_NO_KV_UNIFIED", "1", ("n_ctx", 64)),
    ("-c 64 -np 4", "LLAMA_ARG_NO_KV_UNIFIED", "1", ("n_ctx", 16)),
])  # fmt: skip
def test_a_variable_may_switch_off(
    line: str, variable: str, value: str, expected: tuple[str, Any]
) -> None:
    meant = llama_server.plan(["-m", "t.gguf", *line.split()], {variable: value})
    assert meant.keywords[expected[0]] == expected[1]
    both = {variable: value, "LLAMA_ARG_ENDPOINT_SLOTS": "1", "LLAMA_ARG_NO_ENDPOINT_SLOTS": "1"}
    assert not llama_server.plan(["-m", "t.gguf"], both).settings.has_slots


@pytest.mark.parametrize("line, expected", [
    ("--ctx_size 64 --n_gpu_layers 3 -np 1", {"n_ctx": 64, "n_gpu_layers": 3}),
    ("--cache_type-k q8_0 --no_mmap", {"type_k": "q8_0", "use_mmap": False}),
    ("--chat-template my_format", {"chat_format": "my_format"}),  # a value stays as it is
])  # fmt: skip
def test_a_flag_may_have_underscores(line: str, expected: dict[str, Any]) -> None:
    meant = llama_server.plan(["-m", "t.gguf", *line.split(), "--no_warmup"], {})
    assert {key: meant.keywords[key] for key in expected} == expected
    with pytest.raises(UnsupportedError, match="no model is fetched"):
        llama_server.plan(["--hf_repo", "a/b"], {})
    with pytest.raises(ArgumentError, match="not known here: --no_such"):
        llama_server.plan(["-m", "t.gguf", "--no_such"], {})


@pytest.mark.parametrize("given, meant", [
    (r"\n", "\n"), (r"\r\t\'\"\\", "\r\t'\"\\"), (r"User:\x0a", "User:\n"), (r"\\n", r"\n"),
    (r"\xe2\x82\xac", "€"), (r"\q\x4\xzz", r"\q\x4\xzz"), ("\\", "\\"), ("é", "é"),
    ("\\\n", "\\\n"),
])  # fmt: skip
@pytest.mark.parametrize("flags, is_read", [([], True), (["-e"], True), (["--no-escape"], False)])
def test_a_reverse_prompt_has_escapes(
    given: str, meant: str, flags: list[str], is_read: bool
) -> None:
    line = ["-m", "t.gguf", "-r", given, *flags, "--reverse-prompt", "END"]
    plan = llama_server.plan(line, {})
    assert plan.settings.defaults["stop"] == [meant if is_read else given, "END"]
    assert not any("scape" in note for note in plan.notes)


@pytest.mark.parametrize("origin", [
    "localhost", "app.example", "localhost:3000", "http://a/", "http://a/b", "HTTP://a", "http://A",
    "http://", "http://a b", "http://a:80", "https://a:443", "https://ü.example", "//a", "http:a",
    "http://me@a",
])  # fmt: skip
def test_an_origin_that_no_page_has_is_refused(origin: str) -> None:
    with pytest.raises(ArgumentError, match=r"--cors-origins: .*such as http://localhost:3000"):
        llama_server.plan(["-m", "t.gguf", "--cors-origins", f"https://b,{origin}"], {})
    with pytest.raises(ArgumentError, match="is not the origin"):
        llama_server.plan(["-m", "t.gguf"], {"LLAMA_ARG_CORS_ORIGINS": origin})
    with pytest.raises(ArgumentError, match="is not the origin"):
        ServerSettings(cors_origins=("*", origin))


def test_origins_that_pages_have() -> None:
    origins = (
        "*", "null", "http://localhost:3000", "https://app.example", "http://[::1]:8080",
        "http://[::80]", "https://a:80", "http://127.0.0.1", "https://xn--tda.example",
        "chrome-extension://abcdefgh",
    )  # fmt: skip
    meant = llama_server.plan(["-m", "t.gguf", "--cors-origins", ",".join(origins)], {})
    assert meant.settings.cors_origins == origins


@pytest.mark.parametrize("line, variable, value, said", [
    ("", "TOP_P", "5", "LLAMA_ARG_TOP_P=5.0 is outside 0 .. 1"),
    ("", "TOP_K", "-3", "LLAMA_ARG_TOP_K=-3 is outside -1 .. "),
    ("", "REPEAT_PENALTY", "0", "LLAMA_ARG_REPEAT_PENALTY=0.0 is outside"),
    ("", "FREQUENCY_PENALTY", "1e40", "LLAMA_ARG_FREQUENCY_PENALTY=1e+40 is not"),
    ("", "REASONING", "foo", "LLAMA_ARG_REASONING='foo' is not one of on, off, auto"),
    ("", "REASONING_EFFORT", "foo", "LLAMA_ARG_REASONING_EFFORT='foo' is not one of"),
    ("", "CHAT_TEMPLATE_KWARGS", "[1]", "LLAMA_ARG_CHAT_TEMPLATE_KWARGS: chat_template"),
    ("", "TIMEOUT", "-1", "LLAMA_ARG_TIMEOUT=-1.0 is not a finite"),
    ("", "SSE_PING_INTERVAL", "0", "LLAMA_ARG_SSE_PING_INTERVAL=0.0 is not a finite"),
    ("", "PORT", "99999", "LLAMA_ARG_PORT=99999 is outside 0 .. 65535"),
    ("", "MODEL", "", "LLAMA_ARG_MODEL: the value is empty"),
    ("", "LOG_FILE", "", "LLAMA_ARG_LOG_FILE: the value is empty"),
    ("--min-p 7", "MIN_P", "0.5", "--min-p 7.0 is outside 0 .. 1"),
    ("--mirostat 7", "", "", "--mirostat 7 is outside 0 .. 2"),
    ("-s -9", "", "", "-s -9 is not None"),
    ('-j {"type":"zz"}', "", "", "-j: the JSON schema is malformed"),
    ("--lora-scaled a:nan", "", "", "--lora-scaled 'a:nan': FILE:SCALE"),
])  # fmt: skip
def test_a_value_that_requests_would_be_refused_for_is_refused_at_the_start(
    line: str, variable: str, value: str, said: str
) -> None:
    model = [] if variable == "MODEL" else ["-m", "t.gguf"]
    with pytest.raises(ArgumentError) as error:
        llama_server.plan([*model, *line.split()], {f"LLAMA_ARG_{variable}": value})
    assert str(error.value).startswith(said)


def test_an_error_of_opening_names_the_flag(capsys: pytest.CaptureFixture[str]) -> None:
    model = str(model_path("llama"))
    assert llama_server.main(["-m", model, "-b", "0", "--port", "0"]) == 1
    assert "error: -b 0: expected an int from 1" in capsys.readouterr().err


@pytest.mark.parametrize("line, note", [
    ("-c 64 --ctx-size 128", "-c and --ctx-size: the last one counts"),
    ("--mmap --no-mmap", "--mmap and --no-mmap: the last one counts"),
    ("-lm none --mlock", "--mlock changes nothing: -lm counts"),
    ("--rope-scale 2 --rope-freq-scale 0.25", "--rope-freq-scale changes nothing: --rope-scale"),
    ("--rerank --pooling mean", "--pooling changes nothing: --rerank counts"),
    ("-md d.gguf --spec-type none", "-md changes nothing: --spec-type none names no kind"),
    ("-md d.gguf --spec-type ngram-mod", "-md changes nothing: --spec-type ngram-mod names no"),
    ("-c 64 --ctx-size 64", ""),
    ("-md d.gguf --spec-type draft-eagle3", ""),
    ("--lora a --lora b", ""),
])  # fmt: skip
def test_a_flag_of_which_another_takes_the_place_is_noted(line: str, note: str) -> None:
    notes = read(line.split(), {}).notes
    assert len(notes) == bool(note)
    assert all(one.startswith(note) for one in notes)


def test_a_log_file_that_cannot_be_written_is_said_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The message is repeated only after a success: /dev/full is a full disk."""
    record = logging.LogRecord("a", logging.INFO, "b", 1, "line", None, None)
    full = llama_server.LogFile(Path("/dev/full"))
    for _ in range(3):
        full.emit(record)
    full.close()
    assert capfd.readouterr().err == (
        "pyllama-spec-llama-server: --log-file /dev/full cannot be written: No space left on "
        "device; the server goes on\n"
    )
    folder = tmp_path / "logs"
    folder.mkdir()
    gone = llama_server.LogFile(folder / "a.log")
    for _ in range(2):
        gone.emit(record)
        shutil.rmtree(folder)
        for _ in range(3):
            gone.emit(record)
        said = capfd.readouterr().err
        assert (said.count("No such file"), said.count("\n")) == (1, 1), said
        folder.mkdir()
        gone.emit(record)
        assert (folder / "a.log").read_text() == "line\n"
    gone.close()
    with pytest.raises(ArgumentError, match="cannot be written: Is a directory"):
        llama_server.LogFile(tmp_path)
