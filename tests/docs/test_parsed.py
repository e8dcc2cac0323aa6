"""Checks of the documents that run nothing: languages, punctuation, command lines, options."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from tests.docs.blocks import ROOT, RUNS, TEXT, blocks_of, inline_commands, pages
from tests.docs.commands import fault, lines_of, unknown_options

PAGES = pages()


def name(page: Path) -> str:
    """The page, by its path."""
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_block_says_what_it_is(page: Path) -> None:
    for block in blocks_of(page):
        assert block.language in RUNS + TEXT, f"{block}: fence it, with one of {RUNS + TEXT}"
        assert not block.mark or block.language in RUNS, f"{block}: nothing runs it anyway"
        if block.language == "json":
            for line in block.code.splitlines() if "\n{" in block.code else [block.code]:
                json.loads(line)
        if block.language == "toml":
            msgspec.toml.decode(block.code)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_exist(page: Path) -> None:
    faults = []
    for block in blocks_of(page):
        if block.language == "bash":
            checked = [(words, fault(words)) for words in lines_of(block.code)]
            faults += [f"{block}: {' '.join(words)}: {why}" for words, why in checked if why]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_options_within_sentences_exist(page: Path) -> None:
    for command in inline_commands(page):
        assert not unknown_options(command.split()[1:]), command


def test_python_that_is_not_run_compiles() -> None:
    for page in PAGES:
        for block in blocks_of(page):
            if block.language == "python":
                compile(block.code, str(block), "exec")


@pytest.mark.parametrize("command", ["pyllama-spec bench -m x --no-such", "make nothing"])
def test_a_wrong_command_is_seen(command: str) -> None:
    [words] = lines_of(command)
    assert fault(words)
    assert unknown_options(["bench", "--no-such", "-m", "x"]) == ["--no-such"]
