"""Reads messages from a terminal, with editing keys, history, several lines and pasted text."""

from __future__ import annotations

import contextlib
import importlib
import select
import sys
from pathlib import Path
from typing import Any, Protocol

from pyllama_spec.errors import ArgumentError
from pyllama_spec.files import check_no_pipe

_PROMPT, _GOES_ON = "> ", ". "
# What is pasted arrives at once; nobody types a line within this of the last one.
_PASTE_S = 0.03


class LineEditor(Protocol):
    """The source of the chat's messages."""

    def read(self) -> str | None:
        """The next message, or None at the end of the input.

        Raises:
            KeyboardInterrupt: Ctrl-C: the message is dropped.

        """
        ...

    def close(self) -> None:
        """Saves the history, and discards unread input."""
        ...


def open_editor(history: Path | None = None) -> LineEditor:
    """Opens the best installed editor: prompt_toolkit, readline, or plain lines of a pipe.

    Args:
        history: the file of earlier messages; None for none.

    Raises:
        ArgumentError: it is a pipe or a socket.

    """
    if history is not None:
        try:
            check_no_pipe(history)
        except OSError as error:
            raise ArgumentError(f"--history {history}: {error.strerror}") from None
    # None where it was closed before the program began.
    if sys.stdin is None or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return _Lines()
    with contextlib.suppress(ImportError):
        return _Toolkit(history)
    return _Readline(history)


class _Lines:
    """Takes each line as a message, and skips empty lines."""

    def read(self) -> str | None:
        for line in sys.stdin or ():
            if line.strip():
                return line.rstrip("\r\n")
        return None

    def close(self) -> None:
        """Does nothing."""


class _Toolkit:
    """Edits with prompt_toolkit: Enter sends, Alt-Enter starts a new line."""

    def __init__(self, history: Path | None) -> None:
        # Loaded by name: it is an extra, and types of it are not needed here.
        load = importlib.import_module
        toolkit, histories = load("prompt_toolkit"), load("prompt_toolkit.history")
        keys: Any = load("prompt_toolkit.key_binding").KeyBindings()
        keys.add("enter")(lambda event: event.current_buffer.validate_and_handle())
        # Not Ctrl-J too: it is what Enter sends while the answer before it is still being written.
        keys.add("escape", "enter")(lambda event: event.current_buffer.insert_text("\n"))
        file_history = histories.FileHistory(str(history)) if history is not None else None
        self._session = toolkit.PromptSession(
            multiline=True, key_bindings=keys, history=file_history, prompt_continuation=_GOES_ON
        )

    def read(self) -> str | None:
        try:
            return str(self._session.prompt(_PROMPT))
        except EOFError:
            return None

    def close(self) -> None:
        _drop_typed()


class _Readline:
    r"""Edits with readline: a line that ends with \ continues, and so does pasted text."""

    def __init__(self, history: Path | None) -> None:
        self._history = history
        self._readline: Any = None
        with contextlib.suppress(ImportError):  # not on every platform
            self._readline = importlib.import_module("readline")
        if self._readline is None:
            return
        if "libedit" not in (self._readline.__doc__ or ""):
            self._readline.parse_and_bind("set enable-bracketed-paste on")
        if history is not None and history.exists():
            self._readline.read_history_file(history)

    def read(self) -> str | None:
        lines: list[str] = []
        while True:
            try:
                line = input(_GOES_ON if lines else _PROMPT)
            except EOFError:
                return "\n".join(lines) if lines else None
            goes_on = line.endswith("\\")
            lines.append(line[:-1] if goes_on else line)
            if not goes_on and not _is_more_pasted():
                return "\n".join(lines)

    def close(self) -> None:
        _drop_typed()
        if self._readline is not None and self._history is not None:
            self._history.touch(mode=0o600)
            self._readline.write_history_file(self._history)


def _is_more_pasted() -> bool:
    """Whether another pasted line waits, in a terminal that does not mark pasted text."""
    try:
        return bool(select.select([sys.stdin], [], [], _PASTE_S)[0])
    except (OSError, ValueError):  # Windows waits for sockets only
        return False


def _drop_typed() -> None:
    """Discards unread input, which a shell would run as commands."""
    try:
        termios = importlib.import_module("termios")
        termios.tcflush(sys.stdin, termios.TCIFLUSH)
    except (ImportError, OSError, ValueError):  # no terminal, or no POSIX
        return
