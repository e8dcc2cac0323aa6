"""The command with closed streams, with another encoding, and with endless ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.robust.tools import tiny


def _run(
    words: list[str | Path], before: Callable[[], None] | None = None, **options: Any
) -> subprocess.CompletedProcess[bytes]:
    env = {**os.environ, "NO_COLOR": "1", **options.pop("env", {})}
    return subprocess.run(
        [sys.executable, "-m", "pyllama_spec.cli", *words],
        preexec_fn=before, env=env, timeout=300, check=False,
        **{"stdin": subprocess.DEVNULL, "stdout": -1, "stderr": -1, **options},
    )  # fmt: skip


def _generate(*words: str | Path) -> list[str | Path]:
    return ["generate", "-m", tiny(), "-n", "6", "-t", "1", *words]


def _fails_in_a_line(done: subprocess.CompletedProcess[bytes], says: str) -> None:
    assert done.returncode == 1, done
    assert says in done.stderr.decode(), done.stderr
    assert done.stderr.count(b"\n") == 1, done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("fd", [0, 2])
def test_a_closed_stream(fd: int) -> None:
    done = _run(_generate("-p", "Hello"), lambda: os.close(fd))
    assert done.returncode == 0, done
    assert done.stdout and b"Traceback" not in done.stderr


@pytest.mark.parametrize("words", [["--help"], ["doctor"], _generate("-p", "Hello", "--json")])
def test_an_answer_that_nobody_can_read(words: list[str | Path]) -> None:
    _fails_in_a_line(_run(words, lambda: os.close(1)), "standard output is closed")


def test_closed_stdin_as_the_prompt() -> None:
    _fails_in_a_line(_run(_generate("-f", "-"), lambda: os.close(0)), "nothing on stdin")
    assert _run(["chat", "-m", tiny(), "-t", "1"], lambda: os.close(0)).returncode == 0


def test_stdin_that_is_no_text() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pyllama_spec.cli", *_generate("-f", "-")],
        env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"},
        input=b"\xff\xfe\x80", capture_output=True, check=False, timeout=300,
    )  # fmt: skip
    _fails_in_a_line(done, "not text")


def test_an_encoding_that_lacks_characters() -> None:
    """Tokens of the tiny model are bytes: with --temp 5 some of them are not ASCII."""
    words = _generate("-p", "\u4e2d", "--temp", "5", "--seed", "1", "--top-k", "0")
    done = _run(words, env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr


def test_prompts_without_end() -> None:
    _fails_in_a_line(_run(_generate("-f", "/dev/zero")), "is a device")
    _fails_in_a_line(_run(_generate("-p", "a", "--grammar", "/dev/zero")), "is a device")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_behind_stdout() -> None:
    with Path("/dev/full").open("wb") as full:
        _fails_in_a_line(_run(_generate("-p", "Hello", "--json"), stdout=full), "No space left")


def _answer_ctrl_c() -> None:
    # What a shell starts in the background does not.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_ctrl_c_prints_the_object_of_what_there_is() -> None:
    words = _generate("-p", "Hello", "--json", "-c", "60000", "-n", "50000")
    for patience_s in (1.0, 2.0, 4.0, 8.0, 16.0):  # the model has to be open by then
        with subprocess.Popen(
            [sys.executable, "-m", "pyllama_spec.cli", *words],
            preexec_fn=_answer_ctrl_c,  # noqa: PLW1509 - this process has one thread
            stdout=-1, stderr=-1,
        ) as process:  # fmt: skip
            time.sleep(patience_s)
            process.send_signal(signal.SIGINT)
            out, said = process.communicate(timeout=300)
        if out:
            break
    found = json.loads(out)
    assert found["text"] and found["tokens"] and found["finish_reason"] is None
    assert process.returncode == 130
    assert said == b"pyllama-spec: interrupted\n"
