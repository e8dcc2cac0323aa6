"""Command lines of the documents, held against what there is: parsers, files, targets, extras."""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

from pyllama_spec.cli.entry import command_parser
from pyllama_spec.errors import PyllamaSpecError
from pyllama_spec.llama_cpp import server as llama_cpp_server
from pyllama_spec.server import llama_server
from tests.docs.blocks import ROOT

# Of the system, or of others.
_FOREIGN = frozenset((
    ".", "git", "cd", "curl", "docker", "echo", "hf", "ln", "mkdir", "llama-server", "bash",
    "python3", "export",
))  # fmt: skip
_PLANS: dict[str, Callable[[list[str], dict[str, str]], object]] = {
    "pyllama_spec.llama_cpp.server": llama_cpp_server.plan,
    "pyllama_spec.server.llama_server": llama_server.plan,
}
_MODULES_OF_OTHERS = frozenset(("pytest", "pip", "venv"))


def lines_of(code: str) -> Iterator[list[str]]:
    """The words of each command of a block."""
    joined = re.sub(r"\\\n\s*", " ", code)
    # A text in single quotes, at the end of a line begun and of others ended: one word.
    joined = re.sub(r" '[^'\n]*\n[^']*'(?=\n|$)", " 'some lines'", joined)
    for line in joined.splitlines():
        bare = line.replace("<this repository>", "REPOSITORY")
        reader = shlex.shlex(bare, posix=True, punctuation_chars=";|&")
        reader.whitespace_split = True  # a word ends at a blank, or at one of these signs
        words = list(reader)
        part: list[str] = []
        for word in [*words, "&&"]:
            if word not in ("&&", ";", "&", "|"):
                part.append(word)
            elif part:
                yield part
                part = []


def fault(words: list[str]) -> str | None:
    """The fault of a command; None if everything that it names exists."""
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    if not words:
        return None
    name = words[0].rpartition("/")[2]
    known: dict[str, Callable[[list[str]], str | None]] = {
        "pyllama-spec": _ours, "make": _make, "pip": _pip, "python": _python,
        "pyllama-spec-llama-server": _planned(llama_server.plan),
    }  # fmt: skip
    if name in known:
        return known[name](words[1:])
    return None if name in _FOREIGN else f"what is {name!r}?"


def _planned(
    plan: Callable[[list[str], dict[str, str]], object],
) -> Callable[[list[str]], str | None]:
    """Parses a program with others' flags by its own reader."""

    def fault_of(words: list[str]) -> str | None:
        try:
            plan(words, {"MODEL": "model.gguf"})
        except PyllamaSpecError as error:
            return str(error)
        return None

    return fault_of


def _ours(words: list[str]) -> str | None:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            command_parser().parse_args(words)
    except SystemExit as stop:
        return None if not stop.code else said.getvalue().strip().splitlines()[-1]
    return None


def unknown_options(words: list[str]) -> list[str]:
    """Options of a command of ours, perhaps not a whole one, that its parser does not have."""
    parser, unknown = command_parser(), []
    for word in words:
        below = next(
            (a for a in parser._actions if isinstance(a, argparse._SubParsersAction)), None
        )
        if below is not None and word in below.choices:
            parser = below.choices[word]
        elif re.fullmatch(r"--?[a-z][a-z-]*", word) and word not in parser._option_string_actions:
            unknown.append(word)
    return unknown


def _make(words: list[str]) -> str | None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    for word in words:
        if "=" in word or word.startswith("models/"):
            continue
        if not re.search(rf"^{re.escape(word)}:", text, re.MULTILINE):
            return f"make has no target {word!r}"
    return None


def _pip(words: list[str]) -> str | None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = text[text.index("[project.optional-dependencies]") :].partition("\n\n")[0]
    for word in words:
        for extras in re.findall(r"(?:\.|pyllama_spec)\[([\w,]+)\]", word):
            for extra in extras.split(","):
                if not re.search(rf"^{extra} = ", section, re.MULTILINE):
                    return f"there is no extra {extra!r}"
    return None


def _python(words: list[str]) -> str | None:
    if words[:1] == ["-m"]:
        module, rest = words[1], words[2:]
        if module in _PLANS:
            return _planned(_PLANS[module])(rest)
        if module in _MODULES_OF_OTHERS:
            paths = [word for word in rest if word.startswith("tests/")]
            gone = [path for path in paths if not (ROOT / path.partition("::")[0]).exists()]
            return f"there is no {gone[0]}" if gone else None
        base = ROOT / module.replace(".", "/")
        source = next(
            (p for p in (base.with_suffix(".py"), base / "__main__.py") if p.is_file()), None
        )
    else:
        # Newcomers stand beside their clone.
        source, rest = ROOT / words[0].removeprefix("pyllama_spec/"), words[1:]
    if source is None or not source.is_file():
        return f"there is no {words}"
    return _options_in_source(source, rest)


def _options_in_source(path: Path, words: list[str]) -> str | None:
    """Options stand in the source of the program, or of what its folder shares."""
    text = path.read_text(encoding="utf-8")
    for word in words:
        option = word.partition("=")[0]
        if option.startswith("--") and f'"{option}"' not in text:
            return f"{path.name} has no {option}"
    return None
