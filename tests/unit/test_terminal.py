"""The progress bar of every command."""

from __future__ import annotations

import io

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
