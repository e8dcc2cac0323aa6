"""Reports a run's progress, a bar on a terminal, lines in a file; defers Ctrl-C in a step."""

from __future__ import annotations

import math
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, TextIO

from pyllama_spec.terminal import ProgressBar, fitted

# Seconds between two states of the bar, and between two lines of a file that say the same.
_BAR_EVERY_S, _LINE_EVERY_S = 0.2, 60.0
# The share of a stage from which on the time left is told.
_SURE = 0.005


class Reporter:
    """Receives the progress of a run; this one prints nothing."""

    def line(self, text: str) -> None:
        """Prints a lasting line, such as a finished stage or a measurement."""

    def progress(self, stage: str, fraction: float, note: str) -> None:
        """Reports a stage's progress, 0.0 .. 1.0, with its current figures."""


class TerminalReporter(Reporter):
    """Prints lines and a stage's progress with the remaining time.

    Progress is a bar on a terminal, and otherwise a line each minute: in the log of a job, or under
    nohup, an hour of silence looks like a hang.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._bar_stream, self._stream = stream, stream or sys.stderr
        self._stage, self._started, self._from, self._most = "", 0.0, 0.0, 0.0
        self._bar = ProgressBar("", stream)
        self._has_bar = self._bar.is_shown
        self._shown_at = 0.0

    def line(self, text: str) -> None:
        """Prints a line in place of the bar."""
        self._bar.clear()
        self._stream.write(f"{fitted(text, self._stream, 2)}\n")
        self._stream.flush()

    def progress(self, stage: str, fraction: float, note: str) -> None:
        """Draws the bar; without a terminal, prints a line a minute."""
        now = monotonic()
        if stage != self._stage:
            self._bar.clear()
            self._stage, self._started, self._from, self._most = stage, now, fraction, fraction
            self._bar = ProgressBar(stage, self._bar_stream)
            # A bar is there at once; stages of seconds leave no line in a file.
            self._shown_at = -math.inf if self._has_bar else now
        # Sequences that wait to be judged may be dropped: progress may go back then.
        self._most = fraction = max(self._most, fraction)
        if now - self._shown_at < (_BAR_EVERY_S if self._has_bar else _LINE_EVERY_S):
            return
        self._shown_at, done = now, fraction - self._from
        left = (now - self._started) * (1 - fraction) / done if done >= _SURE else 0.0
        said = f", {left / 60:.0f} min left" if left >= 60 else ""
        if self._has_bar:
            self._bar.draw(fraction, note, said)
        else:
            self.line(f"{stage}: {100 * fraction:3.0f}% {note}{said}")


@contextmanager
def interruptions() -> Iterator[threading.Event]:
    """Records the first Ctrl-C instead of raising within a step; a second one raises.

    The caller checks the event after each step, and raises KeyboardInterrupt. Only the main
    thread gets Ctrl-C, and a process that ignores it keeps ignoring it.
    """
    event = threading.Event()
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    if not is_main or before is not signal.default_int_handler:
        yield event
        return

    def note(number: int, frame: Any) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    signal.signal(signal.SIGINT, note)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)
