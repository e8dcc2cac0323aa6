"""Log levels of the process and of a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from pyllama_spec.engine import Model, set_log_level, thread_log_level
from tests.models import model_path


@pytest.fixture(autouse=True)
def _silence() -> Iterator[None]:
    set_log_level("none")
    yield
    set_log_level("none")


def printed(capfd: pytest.CaptureFixture[str]) -> str:
    """The stderr output of loading a model."""
    capfd.readouterr()
    Model(model_path("llama")).close()
    return capfd.readouterr().err


def test_a_thread_hears_what_the_process_does_not(capfd: pytest.CaptureFixture[str]) -> None:
    assert printed(capfd) == ""
    with thread_log_level("info"):
        assert "llama_model_loader" in printed(capfd)
        with thread_log_level("none"):
            assert printed(capfd) == ""
        assert "llama_model_loader" in printed(capfd), "the outer block's level is back"
    assert printed(capfd) == ""


def test_other_threads_keep_the_process_s_level(capfd: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    with thread_log_level("info"):
        thread = threading.Thread(target=lambda: lines.append(printed(capfd)))
        thread.start()
        thread.join()
    assert lines == [""]
