"""close() under a request gives ClosedError, at whichever moment it comes.

A decode that close() interrupts fails with CancelledError inside; between two decodes nothing
fails. The caller cannot know which happened, so both must raise the same error.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from pyllama_spec import CancelledError, ClosedError, Llama
from pyllama_spec.engine import Batch, Context
from pyllama_spec.llama.embedding import Embedder
from tests.faces.tools import GREEDY, PROMPT, open_tiny
from tests.models import model_path

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


def opened(way: str, n_parallel: int, draft: str | None = None) -> Llama:
    """A model for one way of using it."""
    if way == "embeddings":
        llm = open_tiny(embedding=True)
        llm.embed("the cat")  # makes the context
        return llm
    return open_tiny(draft, n_parallel=n_parallel, n_ubatch=8, logits_all=way.startswith("logp"))


def is_closing(llm: Llama) -> bool:
    """Whether close() has begun: it may be waiting for the request."""
    runner: Any = llm._runtime.runner
    return bool(runner._is_closed)


class Interrupted:
    """Holds one decode of a context back until close() has interrupted it.

    Args:
        monkeypatch: ends it with the test. Earlier models are not affected.

    """

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
        embedder = llm._embeddings._embedder
        self._context = llm.context if embedder is None else embedder.context


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Interrupted:
    """Interrupts the test's model."""
    return Interrupted(monkeypatch)


def refuses(future: Future[Any]) -> None:
    """The request in another thread ended because the model was closed."""
    with pytest.raises(ClosedError):
        future.result(timeout=TIMEOUT_S)


@pytest.mark.parametrize(("way", "n_parallel"), WAYS)
def test_before_a_request(way: str, n_parallel: int) -> None:
    llm = opened(way, n_parallel)
    llm.close()
    with pytest.raises(ClosedError):
        ALL[way](llm)


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


@pytest.mark.parametrize("draft", ["prompt-lookup", "eagle3"])
@pytest.mark.parametrize("n_parallel", [1, 2])
def test_during_a_decode_that_verifies_a_draft(
    draft: str, n_parallel: int, held: Interrupted
) -> None:
    path = str(model_path("eagle3")) if draft == "eagle3" else draft
    llm = opened("text", n_parallel, path)
    held.watch(llm, 4)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(GENERATING["text"], llm)
        assert held.has_begun.wait(TIMEOUT_S)
        llm.close()
        with pytest.raises(ClosedError) as caught:
            running.result(timeout=TIMEOUT_S)
    assert caught.value.partial_tokens
    assert caught.value.partial_text


@pytest.mark.parametrize("n_parallel", [1, 2])
@pytest.mark.parametrize("n_tokens", range(3))
def test_between_two_decodes(n_parallel: int, n_tokens: int) -> None:
    """If a callback of the request closes the model, the next decode never begins."""
    llm = opened("text", n_parallel)
    has_begun = threading.Event()

    def waits(ids: Any, scores: Any) -> Any:
        if len(ids) == len(PROMPT) + n_tokens:
            has_begun.set()
            while not is_closing(llm):
                time.sleep(0.001)
        return scores

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(lambda: llm(PROMPT, logits_processor=waits, **LONG))
        assert has_begun.wait(TIMEOUT_S)
        llm.close()
        with pytest.raises(ClosedError) as caught:
            running.result(timeout=TIMEOUT_S)
    assert len(caught.value.partial_tokens) >= n_tokens


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


@pytest.mark.parametrize("n_parallel", [1, 2])
@pytest.mark.parametrize("n_read", range(3))
@pytest.mark.parametrize("is_chat", [False, True])
def test_while_a_stream_waits_to_be_read(is_chat: bool, n_read: int, n_parallel: int) -> None:
    llm = opened("stream", n_parallel)
    stream: Any = (
        llm.create_chat_completion(MESSAGES, stream=True, **LONG)
        if is_chat
        else llm(PROMPT, stream=True, **LONG)
    )
    for _ in range(n_read):
        next(stream)
    llm.close()
    with pytest.raises(ClosedError):
        list(stream)


def test_while_the_context_of_embeddings_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request that opens the context frees it and is refused, since close() saw none."""
    llm, contexts = open_tiny(embedding=True), list[Context]()
    open_embedder = Embedder.__init__

    def closing(this: Embedder, *args: Any) -> None:
        open_embedder(this, *args)
        contexts.append(this.context)
        llm.close()

    monkeypatch.setattr(Embedder, "__init__", closing)
    with pytest.raises(ClosedError):
        ALL["embeddings"](llm)
    assert [context.is_closed for context in contexts] == [True]


class _LateLock:
    """The lock of a runner, which one thread gets only after something has happened."""

    def __init__(self, lock: Any, late: int, happened: Callable[[], bool]) -> None:
        self._lock, self._late, self._happened = lock, late, happened

    def __enter__(self) -> None:
        until = time.perf_counter() + 5
        while threading.get_ident() == self._late and not self._happened():
            assert time.perf_counter() < until, "it did not happen"
            time.sleep(0.001)
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.mark.parametrize("n_parallel", [1, 2])
def test_close_between_a_round_and_its_end(n_parallel: int) -> None:
    """The round is returned, but its thread has not reported its end."""
    llm = open_tiny("prompt-lookup", n_parallel=n_parallel)
    runner: Any = llm._runtime.runner
    lock, hand_out = runner._lock, runner._hand_out

    def handed_out(outcomes: Any) -> None:
        hand_out(outcomes)
        runner._hand_out = hand_out
        runner._lock = _LateLock(lock, threading.get_ident(), lambda: runner._is_closed)
        closing.start()

    runner._hand_out = handed_out
    closing = threading.Thread(target=llm.close, daemon=True)
    raised: list[type[BaseException]] = []

    def read() -> None:
        try:
            llm(PROMPT, max_tokens=200, **GREEDY)
        except BaseException as error:  # noqa: BLE001 - looked at below
            raised.append(type(error))

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    reading.join(20)
    assert raised == [ClosedError], "its reader waits for ever"
    closing.join(20)
    assert not closing.is_alive()


@pytest.mark.parametrize("n_parallel", [1, 2])
def test_abort_between_a_round_and_its_end(n_parallel: int) -> None:
    """The request is over at once, and its place is free, though nobody reads it any more."""
    with open_tiny(n_parallel=n_parallel) as llm:
        runner: Any = llm._runtime.runner
        hand_out = runner._hand_out

        def handed_out(outcomes: Any) -> None:
            hand_out(outcomes)
            runner._hand_out = hand_out
            stream.abort()
            ended.append(stream.status.stage)

        ended: list[str] = []
        stream: Any = llm(PROMPT, max_tokens=200, stream=True, **GREEDY)
        runner._hand_out = handed_out
        with contextlib.suppress(CancelledError):
            next(stream)
            list(stream)
        assert ended == ["ended"]
        assert llm(PROMPT, max_tokens=4, **GREEDY)["choices"]
