"""Reports a run's progress, a bar on a terminal, lines in a file; defers Ctrl-C in a step."""

from __future__ import annotations

import math
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, TextIO

from pyllama_spec.terminal import ProgressBar, fitted

# Seconds between two states of the bar, and between two lines of a file that say the same.
_BAR_EVERY_S, _LINE_EVERY_S = 0.2, 60.0
# The share of a stage, or the seconds of it, from which on the time left is told.
_SURE, _FIRST_GUESS_S = 0.005, 30.0
_NEARLY = 0.999
# The share of a run's text after which the whole run's time is estimated.
_KNOWN = 0.02
# Training over text, in time: 22 to 47.5 minutes without AVX-512, 42 to 34 with it. A larger target
# writes more slowly, while the head grows less.
_LEAST_TRAINING, _MOST_TRAINING, _EPOCHS = 0.4, 1.3, 2.6


class Reporter:
    """Receives the progress of a run; this one prints nothing."""

    def line(self, text: str) -> None:
        """Prints a lasting line, such as a finished stage or a measurement."""

    def progress(self, stage: str, fraction: float, note: str) -> None:
        """Reports a stage's progress, 0.0 .. 1.0, with its current figures."""


def time_of_run(epochs: float, reporter: Reporter) -> Callable[[float], None]:
    """Prints the time of text and training once, when the pace of the text is known.

    The function that it returns takes the done part of the text, 0.0 .. 1.0.
    """
    begun_s, begun, is_reported = monotonic(), -1.0, False

    def note(fraction: float) -> None:
        nonlocal begun_s, begun, is_reported
        if begun < 0:
            begun_s, begun = monotonic(), fraction
        if is_reported or fraction - begun < _KNOWN:
            return
        is_reported = True
        all_s = (monotonic() - begun_s) / (fraction - begun)
        least, most = (
            epochs / _EPOCHS * share * all_s for share in (_LEAST_TRAINING, _MOST_TRAINING)
        )
        reporter.line(
            f"the text takes about {_minutes(all_s * (1 - fraction))} more here, and the training "
            f"after it {_minutes(least)} to {_minutes(most)}, as in other runs"
        )

    return note


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 60 else "1 min"


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
            if self._stage:
                self._bar.clear()
            self._stage, self._started, self._from, self._most = stage, now, fraction, fraction
            self._bar = ProgressBar(stage, self._bar_stream)
            # A bar is there at once; stages of seconds leave no line in a file.
            self._shown_at = -math.inf if self._has_bar else now
        # Sequences that wait to be judged may be dropped: progress may go back then.
        self._most = fraction = max(self._most, fraction)
        if now - self._shown_at < (_BAR_EVERY_S if self._has_bar else _LINE_EVERY_S):
            return
        self._shown_at = now
        left = self._left(now, fraction)
        if self._has_bar:
            self._bar.draw(fraction, note, left)
        else:
            self.line(f"{stage}: {100 * fraction:3.0f}% {note}{left}")

    def _left(self, now: float, fraction: float) -> str:
        done = fraction - self._from
        # The first sequences are short or slow by chance; half a minute is worth a first guess.
        is_nearly = fraction >= _NEARLY  # the remaining work cannot be counted
        if is_nearly or done <= 0 or (done < _SURE and now - self._started < _FIRST_GUESS_S):
            return ""
        seconds = (now - self._started) * (1 - fraction) / done
        return f", {seconds / 60:.0f} min left" if seconds >= 60 else f", {seconds:.0f} s left"


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
