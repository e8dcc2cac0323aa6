"""The words of the command line: defaults in every help, options in place of keywords."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from pyllama_spec.engine.checks import meant
from pyllama_spec.errors import Face, Note, escaped, shown
from pyllama_spec.terminal import dim, fitted


class HelpFormatter(argparse.HelpFormatter):
    """Prints each default in brackets, unless the help text has it."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text = action.help
        is_said = text is None or "[" in text or "%(default)" in text
        if is_said or not action.option_strings or action.nargs == 0:
            return text
        if action.default in (None, argparse.SUPPRESS) or action.default == []:
            return text
        return f"{text} [%(default)s]"


class Parser(argparse.ArgumentParser):
    """An argument parser whose commands use HelpFormatter."""

    def __init__(self, *args: object, **options: object) -> None:
        options.setdefault("formatter_class", HelpFormatter)
        # What begins as an option does is none: --api-key is no file of keys.
        options.setdefault("allow_abbrev", False)
        super().__init__(*args, **options)  # type: ignore[arg-type]

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> argparse.Namespace:
        """Parses as argparse does; the command itself reports an unknown option."""
        parsed: argparse.Namespace
        parsed, unknown = self.parse_known_args(args, namespace)
        command = self._command(parsed)
        if unknown:
            command._refuse(unknown)
        parsed.options = {
            one.dest: next(word for word in one.option_strings if word.startswith("--"))
            for one in command._actions
            if one.option_strings
        }
        return parsed

    def _refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Ends the program: the command has no such options."""
        known = [word for action in self._actions for word in action.option_strings]
        guess = meant(unknown[0].partition("=")[0], known)
        # Without values: one may be a key that no log should have.
        names = [word.partition("=")[0] for word in unknown if word.startswith("-")] or unknown
        self.error(f"unrecognized arguments: {' '.join(names)}{guess}")

    def _command(self, parsed: argparse.Namespace) -> Parser:
        """The parser of the given command, down to the last subcommand."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                name = getattr(parsed, action.dest, None)
                inner = action.choices.get(name) if isinstance(name, str) else None
                if isinstance(inner, Parser):
                    return inner._command(parsed)
        return self

    def error(self, message: str) -> NoReturn:
        """Prints the error in one line, and names --help, without the long usage."""
        self.exit(2, f"{self.prog}: {message}; {self.prog} --help tells all options\n")


def face_of(args: argparse.Namespace) -> Face:
    """A command's words for options; with names_keys they are keys of a file, and stay."""
    if getattr(args, "names_keys", False):
        return Face(is_operator=True)
    return Face(getattr(args, "options", {}), pair="{} {}", value=_word)


def _word(value: object) -> str:
    """A value as it is typed."""
    return str(value) if isinstance(value, (str, int, float, Path)) else shown(value)


@contextmanager
def notes_on_stderr(args: argparse.Namespace) -> Iterator[None]:
    """Prints warnings in the block as lines, without file and source line."""

    def show(message: Warning | str, *_: object, **__: object) -> None:
        text = message.marked if isinstance(message, Note) else str(message)
        note = f"[note: {escaped(face_of(args).text(text))}]"
        if _held:
            _held[-1].append(note)
        else:
            _print_note(note)

    with warnings.catch_warnings():
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = show
        yield


# Of texts that are being printed: the notes that came meanwhile.
_held: list[list[str]] = []


@contextmanager
def notes_held() -> Iterator[None]:
    """Around a text that is printed as it comes: notes follow it, each on a line of its own."""
    _held.append([])
    try:
        yield
    finally:
        for note in _held.pop():
            _print_note(note)


def _print_note(note: str) -> None:
    print(dim(fitted(note, sys.stderr, 1), sys.stderr), file=sys.stderr)


def say(line: str) -> None:
    """Prints a line of a command, wrapped on a narrow terminal."""
    print(fitted(line, sys.stdout, 2))
