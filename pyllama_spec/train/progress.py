"""What a run says while it goes: a bar on a terminal, a line per stage and measurement."""

from __future__ import annotations

import sys
from time import monotonic
from typing import Protocol, TextIO

_BAR_WIDTH = 24
# A terminal need not be written to more often.
_EVERY_S = 0.2


class Reporter(Protocol):
    """Is told how a run goes."""

    def line(self, text: str) -> None:
        """Something that stays: a stage that is done, a measurement."""
        ...

    def progress(self, stage: str, fraction: float, note: str) -> None:
        """How far a stage is, 0.0 .. 1.0, with its figures of the moment."""
        ...


class SilentReporter:
    """Says nothing."""

    def line(self, text: str) -> None:
        """Says nothing."""

    def progress(self, stage: str, fraction: float, note: str) -> None:
        """Says nothing."""


class TerminalReporter:
    """Draws a bar with the time left where there is a terminal, and prints lines everywhere.

    Args:
        stream: where to; stderr by default.

    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._is_terminal = self._stream.isatty()
        self._stage, self._started, self._from = "", 0.0, 0.0
        self._drawn = 0.0

    def line(self, text: str) -> None:
        """Prints it, in place of the bar."""
        clear = "\r\x1b[K" if self._is_terminal else ""
        self._stream.write(f"{clear}{text}\n")
        self._stream.flush()

    def progress(self, stage: str, fraction: float, note: str) -> None:
        """Draws the bar."""
        now = monotonic()
        if stage != self._stage:
            self._stage, self._started, self._from = stage, now, fraction
        if not self._is_terminal or now - self._drawn < _EVERY_S:
            return
        self._drawn = now
        filled = int(_BAR_WIDTH * min(fraction, 1.0))
        bar = "#" * filled + "." * (_BAR_WIDTH - filled)
        left = self._left(now, fraction)
        self._stream.write(f"\r\x1b[K{stage} [{bar}] {100 * fraction:3.0f}% {note}{left}")
        self._stream.flush()

    def _left(self, now: float, fraction: float) -> str:
        done = fraction - self._from
        if done < 0.005:
            return ""
        seconds = (now - self._started) * (1 - fraction) / done
        return f", {seconds / 60:.0f} min left" if seconds >= 60 else f", {seconds:.0f} s left"
