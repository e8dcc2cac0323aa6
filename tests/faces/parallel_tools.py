"""Helpers for tests of parallel requests, each compared with the same request alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from pyllama_spec import Llama
from pyllama_spec.llama.llama import THREADS
from tests.faces.tools import open_tiny


def open_wide(n_parallel: int = 8, **options: Any) -> Llama:
    """A tiny model with several places."""
    return open_tiny("prompt-lookup", n_parallel=n_parallel, **options)


@pytest.fixture(autouse=True)
def nothing_stays_behind() -> Iterator[None]:
    """No thread of a model outlives a test; those that make requests serve all models."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + 10
    while left := [
        t
        for t in threading.enumerate()
        if t not in before and t.name.startswith("pyl") and not t.name.startswith(THREADS)
    ]:
        assert time.monotonic() < deadline, left
        time.sleep(0.01)


class Slow:
    """A logits processor that takes its time, and says when it was called."""

    def __init__(self) -> None:
        self.began = threading.Event()

    def __call__(self, ids: Any, scores: Any) -> Any:
        self.began.set()
        time.sleep(0.01)
        return scores


def ask(llm: Llama, prompt: list[int], **options: Any) -> dict[str, Any]:
    """A whole completion; a pool's submit() cannot tell it from a stream."""
    return dict(llm.create_completion(prompt, **options))
