"""The conversation at the terminal: typing, pasting and commands."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faces.tools import cli
from tests.models import model_path

_WAIT_S = 60.0
_READY = r"(?s)leaves.*>"
_AGAIN = r".*tokens/s.*\n.*>"
_RUN = "import sys; from pyllama_spec.cli import main; sys.exit(main(sys.argv[1:]))"


class Terminal:
    """A chat that believes to be at a terminal."""

    def __init__(self, *args: object) -> None:
        self._pid, self._main = pty.fork()
        if self._pid == 0:
            # A job in the background of a script ignores it, and so would what it starts.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.environ.update(TERM="xterm", NO_COLOR="1")
            command = [sys.executable, "-c", _RUN, "chat", *map(str, args)]
            os.execv(sys.executable, command)
        self._shown = ""

    def wait_for(self, pattern: str, n: int = 1) -> str:
        """All that was shown, once the pattern was in it n times."""
        end = time.monotonic() + _WAIT_S
        while len(re.findall(pattern, self._shown)) < n:
            assert time.monotonic() < end, f"{pattern!r} not seen in {self._shown!r}"
            self._read(0.1)
        return self._shown

    def send(self, text: str) -> None:
        os.write(self._main, text.encode())

    def exit_code(self) -> int:
        """Waits for the end of the program."""
        end = time.monotonic() + _WAIT_S
        while True:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._pid = 0
                return os.waitstatus_to_exitcode(status)
            assert time.monotonic() < end, f"still there: {self._shown!r}"
            self._read(0.05)

    def close(self) -> None:
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        os.close(self._main)

    def _read(self, seconds: float) -> None:
        if select.select([self._main], [], [], seconds)[0]:
            try:
                self._shown += os.read(self._main, 65536).decode(errors="replace")
            except OSError:  # the other side is closed
                time.sleep(seconds)


@pytest.fixture(scope="module")
def perm() -> Path:
    return model_path("perm")


@pytest.fixture
def at_terminal(perm: Path) -> Iterator[Terminal]:
    terminal = Terminal("-m", perm, "-n", 4, "-t", 1)
    yield terminal
    terminal.close()


def test_a_line_of_a_pipe_is_a_message(perm: Path) -> None:
    done = cli("chat", "-m", perm, "-n", 4, "-t", 1, stdin="hello\n\n  \nagain\n")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("tokens/s") == 2


def test_what_is_pasted_is_one_message(at_terminal: Terminal) -> None:
    at_terminal.wait_for(_READY)
    at_terminal.send("\x1b[200~def f():\n\n    return 1\nf()\x1b[201~")
    at_terminal.send("\r")
    at_terminal.wait_for("tokens/s")
    at_terminal.send("again\r")
    shown = at_terminal.wait_for(_READY + 2 * _AGAIN)
    assert shown.count("tokens/s") == 2
    at_terminal.send("\x04")
    assert at_terminal.exit_code() == 0


def test_ctrl_c_ends_the_answer_only(smollm2_bf16: Path) -> None:
    terminal = Terminal("-m", smollm2_bf16, "-n", 2000, "-t", 1)
    try:
        terminal.wait_for(_READY)
        terminal.send("Write a very long story about a lighthouse, a storm and a ship.\r")
        terminal.wait_for("(?s)ship.*the ")
        terminal.send("\x03")
        shown = terminal.wait_for(_READY + _AGAIN)
        found = re.search(r"(\d+) tokens in", shown)
        assert found is not None
        assert int(found.group(1)) < 200
        terminal.send("/quit\r")
        assert terminal.exit_code() == 0
    finally:
        terminal.close()


def test_the_commands(perm: Path) -> None:
    lines = ["/help", "hello", "/nothing", "/reset", "again", "/quit", "never answered"]
    done = cli(
        "chat", "-m", perm, "-n", 4, "-t", 1, "-d", "prompt-lookup", stdin="\n".join(lines) + "\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("tokens/s") == 2
    for words in ("/reset  ", "There is no /nothing", "A new conversation."):
        assert words in done.stdout


def test_a_message_that_does_not_fit_is_dropped_and_the_chat_goes_on(perm: Path) -> None:
    done = cli("chat", "-m", perm, "-n", 4, "-t", 1, "-c", 64, stdin="x " * 200 + "\nhello\n")
    assert done.returncode == 0, done.stderr
    assert "/reset begins anew" in done.stderr
    assert done.stderr.count("tokens/s") == 1
