"""The progress bar of every command."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import termios

import pytest

from pyllama_spec.terminal import ProgressBar
from pyllama_spec.train import progress


class Terminal(io.StringIO):
    """Says that it is one."""

    def isatty(self) -> bool:
        return True


def test_a_bar_is_drawn_when_it_grows_and_goes_at_the_end() -> None:
    stream = Terminal()
    bar = ProgressBar("loading", stream)
    for fraction in (0.0, 0.001, 0.5, 0.5, 1.0):
        bar(fraction)
    assert stream.getvalue().split("\r\x1b[K") == [
        "",
        f"loading [{'.' * 24}]   0%",
        f"loading [{'#' * 12}{'.' * 12}]  50%",
        f"loading [{'#' * 24}] 100%",
        "",
    ]


@pytest.mark.parametrize("columns", [50, 60, 80, 200])
def test_a_line_fits_the_terminal_and_keeps_its_end(columns: int) -> None:
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    note = "263 of 4000 tokens in 34 texts, 1940 more in 32 being written"
    with os.fdopen(side, "w", encoding="utf-8") as stream:
        bar = ProgressBar("writing text", stream)
        bar.draw(0.37, note, ", 2 min left")
        shown = os.read(main, 4096).decode().replace("\r\x1b[K", "")
    os.close(main)
    assert len(shown) < columns
    assert shown.startswith("writing text [##") and " 37% " in shown
    assert shown.endswith(", 2 min left")
    assert ("..." in shown.partition("% ")[2]) is (columns < 100)


class _Gone(io.StringIO):
    """A terminal that was closed at the other end."""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        raise OSError("gone")


def test_a_bar_without_a_terminal_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (None, closed, _Gone()):
        monkeypatch.setattr("sys.stderr", stream)
        bar = ProgressBar("work")
        for fraction in (0.0, 0.5, 1.0):
            bar(fraction)
        bar.clear()


# ---- the progress messages of a training run


def told(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> str:
    """The output of two hours of text, reported each second, and three seconds of features."""
    clock = 1000.0
    monkeypatch.setattr(progress, "monotonic", lambda: clock)
    reporter = progress.TerminalReporter(stream)
    for second in range(7200):
        clock = 1000.0 + second
        reporter.progress("writing text", second / 7200, f"{second} tokens")
    reporter.line("text: done")
    for second in range(3):
        clock = 9000.0 + second
        reporter.progress("reading features", second / 3, f"{second} tokens")
    return stream.getvalue()


def test_a_file_gets_a_line_each_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = told(io.StringIO(), monkeypatch).splitlines()
    assert lines[0] == "writing text:   1% 60 tokens, 119 min left"
    assert lines[58] == "writing text:  49% 3540 tokens, 61 min left"
    assert lines[-1] == "text: done", "what takes seconds leaves no line"
    assert len(lines) == 120
