"""Colours and progress bars for terminals."""

from __future__ import annotations

import contextlib
import os
import sys
import textwrap
from typing import TextIO

_BAR_WIDTH, _LEAST_BAR = 24, 8
# Where it is narrower still, the terminal breaks lines as it likes.
_NARROWEST = 40
# To the beginning of the line, and nothing to its end.
_CLEAR = "\r\x1b[K"


def has_colour(stream: TextIO | None) -> bool:
    """Whether to colour a stream: a terminal, unless NO_COLOR is set."""
    return (
        stream is not None
        and stream.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") != "dumb"
    )


# Who drafted a token: the name of its colour, the number that terminals have for it, and the words.
SOURCE_COLOURS = {
    "model": ("green", 32, "drafted by the model"),
    "copy": ("cyan", 36, "copied from this text"),
    "memory": ("magenta", 35, "copied from an earlier text"),
    "grammar": ("yellow", 33, "forced by the grammar"),
}


def paint(text: str, source: str) -> str:
    """Colours a text by who drafted it; unchanged for none."""
    if not text or source not in SOURCE_COLOURS:
        return text
    return f"\x1b[{SOURCE_COLOURS[source][1]}m{text}\x1b[0m"


def dim(text: str, stream: TextIO | None) -> str:
    """A text in grey, if colours are on."""
    return f"\x1b[2m{text}\x1b[0m" if has_colour(stream) else text


def columns_of(stream: TextIO | None) -> int:
    """The columns of a terminal; 0 if the stream is none or does not tell."""
    if stream is None:
        return 0
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError, AttributeError):
        return 0


def fitted(text: str, stream: TextIO | None, indent: int = 0) -> str:
    """A line, wrapped between words on a narrower terminal."""
    columns = columns_of(stream)
    if columns < _NARROWEST or len(text) <= columns:
        return text
    return textwrap.fill(
        text, columns, subsequent_indent=" " * indent, break_on_hyphens=False,
        break_long_words=False,
    )  # fmt: skip


_drawn: list[ProgressBar] = []  # the bar in the terminal's last line


def clear_bar() -> None:
    """Clears the bar before other output."""
    for bar in [*_drawn]:
        bar.clear()


class ProgressBar:
    """A bar on a terminal's stderr; silent elsewhere."""

    def __init__(self, label: str, stream: TextIO | None = None) -> None:
        self._label = label
        # None in a program without a console.
        self._stream: TextIO | None = stream or sys.stderr
        self._is_shown = False
        with contextlib.suppress(ValueError, AttributeError):  # closed, or no stream of Python's
            self._is_shown = self._stream is not None and self._stream.isatty()
        self._last = -1

    @property
    def is_shown(self) -> bool:
        """Whether the bar is visible."""
        return self._is_shown

    def __call__(self, fraction: float) -> None:
        """Draws the bar at 0.0 .. 1.0 if it has grown; clears it at 1.0."""
        percent = int(100 * fraction)
        if percent == self._last:
            return
        self._last = percent
        self.draw(fraction)
        if fraction >= 1:
            self.clear()

    def draw(self, fraction: float, note: str = "", end: str = "") -> None:
        """Draws the bar at 0.0 .. 1.0, with a few words after it.

        One line, whatever the terminal's width: where it is too long the bar is shorter, and then
        the note, of which `end` stays.
        """
        percent, width = f"{int(100 * fraction):3d}%", _BAR_WIDTH
        columns = columns_of(self._stream)
        if columns:
            n_free = columns - 1 - len(f"{self._label} [] {percent} {end}")
            width = max(min(_BAR_WIDTH, n_free - len(note)), _LEAST_BAR)
            if len(note) > n_free - width:
                note = f"{note[: max(n_free - width - 3, 0)]}..."
        _drawn.clear()
        _drawn.append(self)
        filled = int(width * min(max(fraction, 0.0), 1.0))
        bar = "#" * filled + "." * (width - filled)
        state = f"{percent} {note}{end}".rstrip()
        self._write(f"{_CLEAR}{self._label} [{bar}] {state}")

    def clear(self) -> None:
        """Removes the bar."""
        if self in _drawn:
            _drawn.remove(self)
        self._write(_CLEAR)

    def _write(self, text: str) -> None:
        if self._stream is None or not self._is_shown:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the terminal is gone: no reason to lose what is computed
            self._is_shown = False
