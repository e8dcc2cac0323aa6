"""Reads messages from a terminal, with editing keys, several lines and pasted text."""

from __future__ import annotations

import contextlib
import importlib
import select
import sys

_PROMPT, _GOES_ON = "> ", ". "
# What is pasted arrives at once; nobody types a line within this of the last one.
_PASTE_S = 0.03


class LineEditor:
    r"""Edits with readline: a line that ends with \ continues, and so does pasted text.

    Without a terminal each line is a message, except for empty ones.
    """

    def __init__(self) -> None:
        self._is_typed = sys.stdin.isatty() and sys.stdout.isatty()
        if self._is_typed:
            with contextlib.suppress(ImportError):  # not on every platform
                readline = importlib.import_module("readline")
                if "libedit" not in (readline.__doc__ or ""):
                    readline.parse_and_bind("set enable-bracketed-paste on")

    def read(self) -> str | None:
        """The next message, or None at the end of the input."""
        if not self._is_typed:
            return next((line.rstrip("\r\n") for line in sys.stdin if line.strip()), None)
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
        """Discards unread input, which a shell would run as commands."""
        if self._is_typed:
            with contextlib.suppress(ImportError):  # not on every platform
                termios = importlib.import_module("termios")
                termios.tcflush(sys.stdin, termios.TCIFLUSH)


def _is_more_pasted() -> bool:
    """Whether another pasted line waits, in a terminal that does not mark pasted text."""
    try:
        return bool(select.select([sys.stdin], [], [], _PASTE_S)[0])
    except (OSError, ValueError):  # Windows waits for sockets only
        return False
