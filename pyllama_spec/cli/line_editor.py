"""Reads messages from a terminal, with editing keys, history, several lines and pasted text."""

from __future__ import annotations

import contextlib
import importlib
import select
import sys
from pathlib import Path
from types import ModuleType

from pyllama_spec.errors import ArgumentError
from pyllama_spec.files import check_no_pipe

_PROMPT, _GOES_ON = "> ", ". "
# What is pasted arrives at once; nobody types a line within this of the last one.
_PASTE_S = 0.03


class LineEditor:
    r"""Edits with readline: a line that ends with \ continues, and so does pasted text.

    Without a terminal each line is a message, except for empty ones.
    """

    def __init__(self, history: Path | None = None) -> None:
        self._history = history
        self._readline: ModuleType | None = None
        if history is not None:
            try:
                check_no_pipe(history)
            except OSError as error:
                raise ArgumentError(
                    "history", history, problem=f"cannot be used: {error.strerror}"
                ) from None
        # None where it was closed before the program began.
        self._is_typed = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
        if self._is_typed:
            with contextlib.suppress(ImportError):  # not on every platform
                self._readline = importlib.import_module("readline")
        if self._readline is not None:
            if "libedit" not in (self._readline.__doc__ or ""):
                self._readline.parse_and_bind("set enable-bracketed-paste on")
            if history is not None and history.exists():
                self._readline.read_history_file(history)

    def read(self) -> str | None:
        """The next message, or None at the end of the input."""
        if not self._is_typed:
            return next((line.rstrip("\r\n") for line in sys.stdin or () if line.strip()), None)
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
        """Saves the history, and discards unread input, which a shell would run as commands."""
        if not self._is_typed:
            return
        with contextlib.suppress(ImportError):  # not on every platform
            termios = importlib.import_module("termios")
            termios.tcflush(sys.stdin, termios.TCIFLUSH)
        if self._readline is not None and self._history is not None:
            self._history.touch(mode=0o600)
            self._readline.write_history_file(self._history)


def _is_more_pasted() -> bool:
    """Whether another pasted line waits, in a terminal that does not mark pasted text."""
    try:
        return bool(select.select([sys.stdin], [], [], _PASTE_S)[0])
    except (OSError, ValueError):  # Windows waits for sockets only
        return False
