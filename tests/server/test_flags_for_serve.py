"""Messages for flags of llama-server in a command line of `serve`."""

from __future__ import annotations

import argparse
import subprocess
import sys

import pytest

from pyllama_spec.cli import serve
from pyllama_spec.cli.entry import main
from pyllama_spec.server.llama_server_flags import BY_NAME, IDLE, REFUSED
from tests.server.test_their_command_lines import options_of


@pytest.mark.parametrize("line, words", [
    ("-np 4 --jinja --log-disable", ("-np is --parallel here", "-c 2048 --parallel 4 here")),
    ("--jinja", ("; leave out --jinja: ", "; pyllama-spec-llama-server takes")),
    ("--ssl-cert-file a --ctx-size 9", ("--ssl-cert-file is --tls-cert here",
                                        "--ctx-size is -c here")),
    ("--slot-save-path d", ("--slot-save-path: slots are not saved", "pyllama-spec-llama-server")),
    ("-ctk q8_0 -fa on", ("-ctk is type_k in a file of --config", "-fa is --flash-attn here")),
    ("-md draft.gguf --cache_type_v q8_0", ("-md is -d here", "--cache-type-v is type_v in a")),
    ("--no-webui --log_file f", ("--no-webui is --no-page here", "--log-file is 2>>FILE of the")),
    ("-n 5", ("-n is requests.max_tokens in a file of --config",)),  # and not -ngl 5
    ("-cb -cmoe", ("leave out -cb: requests are always batched", "-cmoe: whole layers lie on a")),
])  # fmt: skip
def test_flags_of_llama_server_for_serve(
    line: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "-m", "t.gguf", *line.split()]) == 2
    said = capsys.readouterr().err
    assert [word for word in ("unrecognized arguments", *words) if word not in said] == []
    assert main(["serve", "-m", "t.gguf", "--max-tokans", "3"]) == 2
    said = capsys.readouterr().err
    assert "llama-server" not in said
    assert "--max-tokens" in said  # the guess


def test_flags_of_llama_server_are_told_without_the_server_s_packages() -> None:
    program = """
import sys
sys.modules.update(dict.fromkeys(("msgspec", "starlette", "uvicorn", "prometheus_client")))
from pyllama_spec.cli import main
sys.exit(main(["serve", "-m", "t.gguf", "-ctk", "q8_0"]))
"""
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 2, ended.stderr
    assert "-ctk is type_k in a file of --config" in ended.stderr


def test_no_short_flag_of_llama_server_is_taken_for_another_option(
    capsys: pytest.CaptureFixture[str],
) -> None:
    parser = argparse.ArgumentParser()
    serve.add_serve(parser.add_subparsers())
    ours = {word for action in options_of(parser) for word in action.option_strings}
    for word in {*BY_NAME, *IDLE, *REFUSED} - ours:
        if not word.startswith("--"):
            assert main(["serve", "-m", "t.gguf", word, "1"]) == 2
            assert f"unrecognized arguments: {word}" in capsys.readouterr().err
    assert main(["generate", "-m", "t.gguf", "-p", "a", "--jinja"]) == 2
    assert "llama-server" not in capsys.readouterr().err
