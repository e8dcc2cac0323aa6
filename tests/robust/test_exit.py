"""Programs that end without closing anything: exit code 0, and nothing on stderr."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap

import pytest

from pyllama_spec import Llama
from pyllama_spec.engine import Model
from tests.robust.tools import tiny

JOBS = (
    "without_close", "with_a_live_stream", "in_an_exception", "in_a_cycle",
    "with_a_thread_in_a_decode", "with_live_streams_side_by_side",
    "with_a_request_that_nobody_reads", "streams_dropped_in_cycles",
)  # fmt: skip


def python(*words: str) -> subprocess.CompletedProcess[str]:
    """Runs an interpreter that shows every warning, such as of a file that was left open."""
    return subprocess.run(
        [sys.executable, "-X", "dev", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


@pytest.mark.parametrize("job", JOBS)
def test_exit_is_silent(job: str) -> None:
    done = python("-m", "tests.robust.exit_jobs", job)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")


@pytest.mark.parametrize("where", ["thread", "daemon"])
def test_import_in_a_thread(where: str) -> None:
    program = f"""
        import threading
        def work():
            import pyllama_spec.engine as engine
            engine.devices()
        thread = threading.Thread(target=work, daemon={where == "daemon"})
        thread.start()
        thread.join()
    """
    done = python("-c", textwrap.dedent(program))
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")


def test_interrupt_ends_a_generation() -> None:
    """Ctrl-C in an answer is a KeyboardInterrupt, and the model stays usable."""
    program = """
        import os, signal, threading, time
        from tests.robust.tools import tiny
        from pyllama_spec import Llama
        # A shell that runs this in the background has it ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        model = Llama(tiny(), n_ctx=8192, n_threads=2)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            model.create_completion("abc", max_tokens=8000)
        except KeyboardInterrupt:
            model.create_completion("abc", max_tokens=4)
            print("interrupted")
    """
    done = python("-c", textwrap.dedent(program))
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "interrupted\n")


def test_a_signal_while_a_model_is_loaded() -> None:
    """The exception of its handler is raised, not a ModelLoadError."""

    class SignalError(Exception):
        pass

    def fail(*_: object) -> None:
        raise SignalError

    def load(seconds: float) -> bool:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            Model(tiny()).close()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except SignalError:
            return True
        return False

    before = signal.signal(signal.SIGALRM, fail)
    try:
        seen = [load(0.0002 + 0.00005 * (i % 100)) for i in range(200)]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert any(seen)
    Model(tiny()).close()


@pytest.mark.parametrize("n_parallel", [1, 2])
@pytest.mark.parametrize("chat", [False, True])
def test_interrupt_between_two_pieces(
    n_parallel: int, chat: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The turn is returned, and the exception holds the text so far."""
    with Llama(tiny(), n_ctx=1024, n_parallel=n_parallel, verbose=False) as model:
        runner = model._runtime.runner
        check, n_calls = runner.check_reader, 0

        def interrupted() -> None:
            nonlocal n_calls
            n_calls += 1
            if n_calls == 4:
                raise KeyboardInterrupt
            check()

        monkeypatch.setattr(runner, "check_reader", interrupted)
        try:
            if chat:
                model.create_chat_completion([{"role": "user", "content": "a"}], max_tokens=100)
            else:
                model.create_completion("a", max_tokens=100)
        except KeyboardInterrupt as error:
            # While it is alive, its traceback holds the generation.
            assert error.partial_tokens  # type: ignore[attr-defined]
            assert model.create_completion("a", max_tokens=4)["usage"]["completion_tokens"] == 4
        else:
            pytest.fail("no interrupt was seen")
