"""Programs that end without closing anything: exit code 0, and nothing on stderr."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap

import pytest

from pyllama_spec.engine import Model
from tests.robust.tools import tiny

JOBS = (
    "without_close", "with_a_live_stream", "in_a_cycle", "with_a_thread_in_a_decode",
    "streams_dropped_in_cycles",
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


def test_import_in_a_thread() -> None:
    program = """
        import threading
        def work():
            import pyllama_spec.engine as engine
            engine.devices()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    """
    done = python("-c", textwrap.dedent(program))
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")


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


# ---- a forked child gets a typed error for inherited objects: no hang, crash or busy thread


@pytest.mark.parametrize("job", ["while_decoding", "with_requests_that_compute"])
def test_a_fork(job: str) -> None:
    done = python("-W", "ignore::DeprecationWarning", "-m", "tests.robust.exit_jobs", job)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")
