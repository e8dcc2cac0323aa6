"""chat: a conversation at the terminal."""

from __future__ import annotations

import argparse
import contextlib
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

from pyllama_spec.cli.generate import (
    DEFAULTS_APART,
    colour_lines,
    end_lines,
    figure_lines,
    part_of_file,
    print_notes,
    print_pieces,
    request_options,
)
from pyllama_spec.cli.options import add_model_options, add_sampling_options, open_llama
from pyllama_spec.errors import PyllamaSpecError
from pyllama_spec.llama import Llama
from pyllama_spec.terminal import dim

_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

# The limit for a model whose answers do not end.
_MAX_TOKENS = 1024
_HELP = """\
/help              this text
/image FILE        show a picture with the next message; /audio FILE plays a sound
/reset             begin anew; the system message stays
/quit              leave; so does Ctrl-D, on Windows Ctrl-Z and Enter
Ctrl-C             end the answer, or drop what is typed
Several lines: paste them, or end a line with \\"""


def add_chat(commands: _Commands) -> None:
    """Adds the command `chat`."""
    parser = commands.add_parser(
        "chat", help="talk with a model; /help lists the commands", epilog=DEFAULTS_APART
    )
    add_model_options(parser)
    add_sampling_options(parser)
    parser.add_argument("--system", default=None, help="a system message")
    parser.set_defaults(run=run_chat, max_tokens=_MAX_TOKENS)


def run_chat(args: argparse.Namespace) -> int:
    """Reads messages until the input ends; the memory keeps the conversation."""
    with open_llama(args) as llama:
        with warnings.catch_warnings(record=True) as noted:
            warnings.simplefilter("always")
            _ = llama.template
        for one in noted:
            print(dim(f"[{one.message}]", sys.stderr), file=sys.stderr)
        if llama.mmproj_path is not None:
            able = zip(("/image FILE", "/audio FILE"), llama.modalities.values(), strict=True)
            commands = ", ".join(command for command, can in able if can)
            print_notes([f"projector {llama.mmproj_path.name}: {commands}"])
        is_typed = sys.stdin.isatty() and sys.stdout.isatty()
        if is_typed:
            print(dim("/help says what can be done, /quit leaves", sys.stdout))
            with contextlib.suppress(ImportError):  # not on every platform
                # What is pasted is one message then.
                import_module("readline").parse_and_bind("set enable-bracketed-paste on")
        chat = _Chat(llama, args)
        while (text := _next_message(is_typed)) is not None:
            if not chat.take(text):
                break
    return 0


def _next_message(is_typed: bool) -> str | None:
    """The next message, or None at the end of the input; without a terminal a line is one."""
    if not is_typed:
        return next((line.rstrip("\r\n") for line in sys.stdin if line.strip()), None)
    lines: list[str] = []
    try:
        while not lines or lines[-1].endswith("\\"):
            lines.append(input(". " if lines else "> "))
    except KeyboardInterrupt:
        print()
        return ""
    except EOFError:
        return None
    return "\n".join(line.removesuffix("\\") for line in lines)


class _Chat:
    """The conversation, and its commands."""

    def __init__(self, llama: Llama, args: argparse.Namespace) -> None:
        self._llama, self._options = llama, request_options(args)
        self._head: list[dict[str, Any]] = []
        if args.system is not None:
            self._head.append({"role": "system", "content": args.system})
        self._has_figures, self._is_first = not args.quiet, True
        self._turns: list[dict[str, Any]] = []
        self._media: list[dict[str, Any]] = []  # of the next message

    def take(self, text: str) -> bool:
        """Answers a message, or executes a command; returns False to quit."""
        name, _, given = text.strip().partition(" ")
        if name in ("/quit", "/exit"):
            return False
        if name == "/help":
            print(_HELP)
        elif name in ("/image", "/audio"):
            self._take_file(Path(given.strip().strip("'\"")).expanduser(), name[1:])
        elif name == "/reset":
            self._turns, self._media = [], []
            print("A new conversation.")
        elif name.startswith("/") and name[1:].isalpha() and "\n" not in text:
            print(f"There is no {name}; /help lists the commands.")
        elif text.strip():
            self._answer(text)
        return True

    def _take_file(self, path: Path, kind: str) -> None:
        try:
            self._media.append(part_of_file(path, kind))
        except PyllamaSpecError as error:
            print(error, file=sys.stderr)

    def _answer(self, text: str) -> None:
        parts = [*self._media, {"type": "text", "text": text}]
        self._turns.append({"role": "user", "content": parts if self._media else text})
        self._media = []
        generation = None
        try:
            generation = self._llama.generate_chat_steps(
                [*self._head, *self._turns], **self._options
            )
            with generation:
                print_pieces(generation, silent=False)
        except KeyboardInterrupt:
            # Ctrl-C ends the answer, not the conversation.
            if generation is None:
                print()  # after the terminal's ^C
        except PyllamaSpecError as error:
            print(f"{error}\nThe conversation stands; /reset begins anew.", file=sys.stderr)
        if generation is None or not generation.record.text:
            # A message without an answer would precede the next one.
            self._turns.pop()
            return
        print_notes(end_lines(generation, self._options["max_tokens"]))
        if self._has_figures:
            stats, timing = generation.record.stats, generation.record.timing
            print_notes(colour_lines(generation.record.token_sources))
            print_notes(figure_lines(stats, timing, has_load=self._is_first))
        self._is_first = False
        self._turns.append({"role": "assistant", "content": generation.record.text})
