"""The progress messages of a training run."""

from __future__ import annotations

import io
import re

import pytest

from pyllama_spec.train import progress


class Terminal(io.StringIO):
    """Says that it is one."""

    def isatty(self) -> bool:
        return True


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


def test_no_time_is_told_where_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """No "0 s left" appears while begun sequences finish after the last needed token."""
    clock = 1000.0
    monkeypatch.setattr(progress, "monotonic", lambda: clock)
    stream = Terminal()
    reporter = progress.TerminalReporter(stream)
    for fraction in (0.0, 0.5, 0.999):
        clock += 60
        reporter.progress("writing text", fraction, "a note")
    states = stream.getvalue().split("\r\x1b[K")
    assert states[2].endswith("a note, 1 min left")
    assert states[3].endswith(" 99% a note")


@pytest.mark.parametrize("make", [Terminal, io.StringIO])
def test_a_stage_does_not_go_backward(
    make: type[io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropped text does not lower the shown share; the next stage starts at its own share."""
    clock, stream = 1000.0, make()
    monkeypatch.setattr(progress, "monotonic", lambda: clock)
    reporter = progress.TerminalReporter(stream)
    for stage, fraction in (
        *(("writing text", part) for part in (0.0, 0.3, 0.6, 0.2, 0.5, 0.7)),
        *(("reading features", part) for part in (0.1, 0.4)),
    ):
        clock += 61
        reporter.progress(stage, fraction, "a note")
    told = [int(found) for found in re.findall(r"(\d+)% a note", stream.getvalue())]
    assert told == (
        [0, 30, 60, 60, 60, 70, 10, 40] if make is Terminal else [30, 60, 60, 60, 70, 40]
    )


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    text = told(Terminal(), monkeypatch)
    states = text.split("\r\x1b[K")
    assert states[1] == f"writing text [{'.' * 24}]   0% 0 tokens"
    assert states[3601].startswith(f"writing text [{'#' * 12}{'.' * 12}]  50% 3600 tokens, 60 min")
    assert text.count("\n") == 1, "only lines end"
    assert states[-1].startswith("reading features")


@pytest.mark.parametrize(
    ("first", "epochs", "left", "training"),
    [
        (0.0, 2.6, 98, "40 min to 130 min"),
        # What an earlier run wrote took none of this one's time.
        (0.5, 2.6, 48, "40 min to 130 min"),
        (0.0, 1.3, 98, "20 min to 65 min"),
    ],
)
def test_the_whole_is_estimated_once(
    first: float, epochs: float, left: int, training: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The estimate for a text of 100 minutes appears once."""
    clock = 1000.0
    monkeypatch.setattr(progress, "monotonic", lambda: clock)
    whole = progress.WholeEstimate(epochs)
    told: list[tuple[int, str]] = []

    class Listener(progress.SilentReporter):
        def line(self, text: str) -> None:
            told.append((minute, text))

    for minute in range(int(100 * (1 - first)) + 1):
        clock = 1000.0 + 60 * minute
        whole.tell(first + minute / 100, Listener())
    assert len(told) == 1
    assert 2 <= told[0][0] <= 3
    assert told[0][1].startswith(
        f"the text takes about {left + 2 - told[0][0]} min more here, and the training after it "
        f"{training}, as far"
    )
