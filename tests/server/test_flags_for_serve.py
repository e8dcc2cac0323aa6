"""Messages for flags of llama-server in a command line of `serve`."""

from __future__ import annotations

import pytest

from pyllama_spec.cli.entry import main


@pytest.mark.parametrize("line", ["-np 4 --jinja", "--ctx-size 9", "-ctk q8_0", "-md draft.gguf"])
def test_flags_of_llama_server_are_refused(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "-m", "t.gguf", *line.split()]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_other_command_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "-m", "t.gguf", "--jinja"]) == 2
    assert "pyllama-spec-llama-server" in capsys.readouterr().err
    assert main(["serve", "-m", "t.gguf", "--max-tokans", "3"]) == 2
    said = capsys.readouterr().err
    assert "llama-server" not in said
    assert "--max-tokens" in said  # the guess
