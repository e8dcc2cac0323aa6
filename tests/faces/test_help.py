"""--help of every command fits a terminal, and shows nothing of Python."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pytest

from pyllama_spec.cli.entry import command_parser


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """All commands, and those below them."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                yield from parsers(one)


COMMANDS = {one.prog.removeprefix("pyllama-spec").strip(): one for one in parsers(command_parser())}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_and_shows_nothing_of_python(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = COMMANDS[command].format_help()
    assert max(map(len, text.splitlines())) <= 80
    for unwanted in ("None", "()", "[[]]", "SUPPRESS", "2,3,4", "PosixPath", "%("):
        assert unwanted not in text, unwanted
