"""--help lists every option with its default, without Python's own names."""

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


def test_every_command_is_looked_at() -> None:
    assert {"generate", "chat", "convert", "quantize", "doctor", "bench"} < set(COMMANDS)
    assert {"train eagle3", "train dflash"} < set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_says_what_it_is_and_its_default(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parser = COMMANDS[command]
    monkeypatch.setenv("COLUMNS", "80")
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction | argparse._HelpAction):
            continue
        if isinstance(action, argparse._VersionAction):
            continue
        name = "/".join(action.option_strings) or action.dest
        formatter = parser._get_formatter()
        said = formatter._expand_help(action) if action.help else ""
        assert said, f"{command} {name} says nothing"
        is_value = action.nargs != 0 and bool(action.option_strings)
        if is_value and action.default not in (None, []):
            assert said.endswith("]") and "[" in said, f"{command} {name}: {said}"
        if is_value and action.type in (int, float) and not action.required:
            assert "[" in said or "without it" in said, f"{command} {name}: {said}"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_and_shows_nothing_of_python(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = COMMANDS[command].format_help()
    assert max(map(len, text.splitlines())) <= 80
    for unwanted in ("None", "()", "[[]]", "SUPPRESS", "2,3,4", "PosixPath", "%("):
        assert unwanted not in text, unwanted
