"""close() under a request gives ClosedError, at whichever moment it comes.

A decode that close() interrupts fails with CancelledError inside; between two decodes nothing
fails. The caller cannot know which happened, so both must raise the same error.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from pyllama_spec import ClosedError, Llama
from pyllama_spec.engine import Batch, Context
from tests.faces.tools import GREEDY, PROMPT, open_tiny

MESSAGES = [{"role": "user", "content": "the cat"}]
LONG: dict[str, Any] = {"max_tokens": 100, **GREEDY}
TIMEOUT_S = 60
Use = Callable[[Llama], Any]

GENERATING: dict[str, Use] = {
    "text": lambda llm: llm(PROMPT, **LONG),
    "stream": lambda llm: list(llm(PROMPT, stream=True, **LONG)),
    "list of prompts": lambda llm: llm([PROMPT, [*PROMPT, 97], [*PROMPT, 98]], **LONG),
    "chat": lambda llm: llm.create_chat_completion(MESSAGES, **LONG),
    "stream of a chat": lambda llm: list(llm.create_chat_completion(MESSAGES, stream=True, **LONG)),
    "steps": lambda llm: list(llm.generate_steps(PROMPT, **LONG)),
    "low level": lambda llm: list(llm.generate(PROMPT, temp=0)),
}
# They compute in the caller's thread. Of a model with several places close() waits for their end.
EXCLUSIVE: dict[str, Use] = {
    "eval": lambda llm: deque(map(llm.eval, [PROMPT] * 10)),
    "logprobs of a prompt": lambda llm: llm(PROMPT * 8, echo=True, logprobs=1, **LONG),
    "embeddings": lambda llm: llm.embed(["the cat sat on the mat"] * 1000),
}
ALL = {**GENERATING, **EXCLUSIVE}
WAYS = [
    *((way, n_parallel) for way in GENERATING for n_parallel in (1, 2)),
    *((way, 1) for way in EXCLUSIVE),
]


def opened(way: str, n_parallel: int) -> Llama:
    """A model for one way of using it."""
    if way == "embeddings":
        llm = open_tiny(embedding=True)
        llm.embed("the cat")  # makes the context
        return llm
    return open_tiny(n_parallel=n_parallel, n_ubatch=8, logits_all=way.startswith("logp"))


class Interrupted:
    """Holds one decode of a context back until close() has interrupted it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.has_begun, self._is_cancelled = threading.Event(), threading.Event()
        self._context: Context | None = None
        self.n_before = 0
        decode, cancel = Context.decode, Context.cancel

        def held_back(this: Context, batch: Batch, *, encode: bool = False) -> None:
            if this is self._context:
                self.n_before -= 1
                if self.n_before == -1:
                    self.has_begun.set()
                    assert self._is_cancelled.wait(TIMEOUT_S), "close() interrupts no decode"
            decode(this, batch, encode=encode)

        def noted(this: Context, value: bool = True) -> None:
            cancel(this, value)
            if this is self._context and value:
                self._is_cancelled.set()

        monkeypatch.setattr(Context, "decode", held_back)
        monkeypatch.setattr(Context, "cancel", noted)

    def watch(self, llm: Llama, n_before: int) -> None:
        """From now on so many decodes pass, and the next one is held back."""
        self.n_before = n_before
        self._context = llm._embeddings.context or llm.context


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Interrupted:
    """Interrupts the test's model."""
    return Interrupted(monkeypatch)


def refuses(future: Future[Any]) -> None:
    """The request in another thread ended because the model was closed."""
    with pytest.raises(ClosedError):
        future.result(timeout=TIMEOUT_S)


@pytest.mark.parametrize("n_before", range(5))
@pytest.mark.parametrize(("way", "n_parallel"), WAYS)
def test_during_a_decode(way: str, n_parallel: int, n_before: int, held: Interrupted) -> None:
    """The first decodes read the prompt, in parts of 8 tokens; the others generate."""
    llm = opened(way, n_parallel)
    held.watch(llm, n_before)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(ALL[way], llm)
        assert held.has_begun.wait(TIMEOUT_S)
        llm.close()
        refuses(running)


@pytest.mark.parametrize("n_parallel", [1, 2])
@pytest.mark.parametrize("way", [*GENERATING, "eval", "embeddings"])
def test_while_waiting_in_line(way: str, n_parallel: int, held: Interrupted) -> None:
    """A request that waits in line gets the error too, while others compute in every place."""
    llm, first = opened(way, n_parallel), "embeddings" if way == "embeddings" else "text"
    held.watch(llm, 1)
    with ThreadPoolExecutor(n_parallel + 1) as pool:
        running = [pool.submit(ALL[first], llm) for _ in range(n_parallel)]
        assert held.has_begun.wait(TIMEOUT_S)
        waiting = pool.submit(ALL[way], llm)
        time.sleep(0.02)  # it waits, or is about to: both give the error
        llm.close()
        for future in (*running, waiting):
            refuses(future)
