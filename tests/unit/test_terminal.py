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
