"""chat: a conversation at the terminal."""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

from pyllama_spec.cli.generate import (
    DEFAULTS_APART,
    colour_lines,
    end_lines,
    figure_lines,
    print_notes,
    print_pieces,
    request_options,
)
from pyllama_spec.cli.line_editor import LineEditor
from pyllama_spec.cli.options import add_model_options, add_sampling_options, open_llama
from pyllama_spec.errors import PyllamaSpecError
from pyllama_spec.llama import Llama
from pyllama_spec.terminal import dim

_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

# The limit for a model whose answers do not end.
_MAX_TOKENS = 1024
_HELP = """\
/help              this text
/reset             begin anew; the system message stays
/system TEXT       set the system message; without TEXT, take it away
/save FILE         the conversation as one line of JSON, as --prompts of bench and train take it
/quit, Ctrl-D      leave
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
        if sys.stdin.isatty():
            print(dim("/help says what can be done, Ctrl-D leaves", sys.stdout))
        chat = _Chat(llama, args)
        with closing(LineEditor()) as editor:
            while (text := _next_message(editor)) is not None:
                if not chat.take(text):
                    break
    return 0


def _next_message(editor: LineEditor) -> str | None:
    try:
        return editor.read()
    except KeyboardInterrupt:
        print()
        return ""


class _Chat:
    """The conversation, and its commands."""

    def __init__(self, llama: Llama, args: argparse.Namespace) -> None:
        self._llama, self._options = llama, request_options(args)
        self._system: str | None = args.system
        self._has_figures, self._is_first = not args.quiet, True
        self._turns: list[dict[str, Any]] = []
        self._commands: dict[str, Callable[[str], None]] = {
            "/help": lambda _: print(_HELP),
            "/reset": self._reset,
            "/system": self._set_system,
            "/save": self._save,
        }

    def take(self, text: str) -> bool:
        """Answers a message, or executes a command; returns False to quit."""
        name, _, rest = text.strip().partition(" ")
        if name in ("/quit", "/exit"):
            return False
        if name in self._commands:
            self._commands[name](rest.strip())
        elif name.startswith("/") and name[1:].isalpha() and "\n" not in text:
            print(f"There is no {name}; /help lists the commands.")
        elif text.strip():
            self._answer(text)
        return True

    @property
    def _messages(self) -> list[dict[str, Any]]:
        head = [] if self._system is None else [{"role": "system", "content": self._system}]
        return head + self._turns

    def _answer(self, text: str) -> None:
        self._turns.append({"role": "user", "content": text})
        generation = None
        try:
            generation = self._llama.generate_chat_steps(self._messages, **self._options)
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

    def _reset(self, _: str) -> None:
        self._turns = []
        print("A new conversation" + ("." if self._system is None else ", same system message."))

    def _set_system(self, text: str) -> None:
        self._system = text or None
        print("The system message is set." if text else "There is no system message now.")

    def _save(self, text: str) -> None:
        if not text:
            print("/save FILE")
            return
        chat = {"id": "chat", "category": "chat", "messages": self._messages}
        try:
            path = Path(text).expanduser()
            path.write_text(json.dumps(chat, ensure_ascii=False) + "\n", encoding="utf-8")
            print(f"{path}: {len(chat['messages'])} messages")
        except (OSError, RuntimeError) as error:  # the second where no home folder is known
            reason = getattr(error, "strerror", None) or error
            print(f"{text} cannot be written: {reason}")
