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
    "without_close", "with_a_live_stream", "in_an_exception", "in_a_cycle",
    "with_a_thread_in_a_decode", "with_a_request_that_nobody_reads", "streams_dropped_in_cycles",
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


FORKS = (
    "while_idle", "while_decoding", "while_opening", "with_a_llama", "with_requests_that_compute",
    "with_embeddings_that_compute", "by_multiprocessing",
)  # fmt: skip


@pytest.mark.parametrize("job", FORKS)
def test_a_fork(job: str) -> None:
    done = python("-W", "ignore::DeprecationWarning", "-m", "tests.robust.fork_jobs", job)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")


# ---- in a second interpreter of the same process, the package works or says that it cannot


_CODE = """
import sys
try:
    import {module} as interpreters
except ImportError:
    interpreters = None
inner = '''
try:
    from pyllama_spec import Llama
    with Llama({path!r}, n_ctx=64, n_threads=1) as llm:
        llm.create_completion([1, 2, 3], max_tokens=2)
    print("works")
except ImportError as error:
    print("refused")
except Exception as error:
    print("raised", type(error).__name__)
'''
from pyllama_spec import Llama
llm = Llama({path!r}, n_ctx=64, n_threads=1)
number = interpreters.create()
interpreters.run_string(number, inner)
interpreters.destroy(number)
print(llm.create_completion([1, 2, 3], max_tokens=2)["usage"]["completion_tokens"])
"""


def test_a_second_interpreter() -> None:
    import sys

    module = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
    done = python("-W", "ignore", "-c", _CODE.format(module=module, path=str(tiny())))
    assert done.returncode == 0, done.stderr[-2000:]
    said, n = done.stdout.split("\n")[:2]
    assert said in ("works", "refused")
    assert n == "2"
