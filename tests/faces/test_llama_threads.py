"""Each of many threads on one model gets its own text, and nothing crashes."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pyllama_spec import (
    BusyError,
    CancelledError,
    ClosedError,
    OutOfMemoryError,
    PromptLookup,
)
from pyllama_spec.engine import Batch
from tests.faces.tools import GREEDY, PROMPT, SAMPLED, first_decode, lasting, open_tiny, text_of
from tests.oracles import tiny, tiny_context


def prompt_of(i: int) -> list[int]:
    return [*PROMPT, 97 + i, 98 + i % 3]


def test_eight_threads_get_what_one_would() -> None:
    with open_tiny() as llm:
        expected = [lasting(llm(prompt_of(i), max_tokens=6, **SAMPLED)) for i in range(8)]
    with open_tiny(PromptLookup()) as llm, ThreadPoolExecutor(8) as pool:

        def work(i: int) -> None:
            for turn in range(12):
                options: dict[str, Any] = {"max_tokens": 6, **SAMPLED}
                if turn % 3 == 0:
                    stream = llm(prompt_of(i), stream=True, **options)
                    text = "".join(map(text_of, stream))
                    assert text == expected[i]["choices"][0]["text"]
                else:
                    assert lasting(llm(prompt_of(i), **options)) == expected[i]

        for done in [pool.submit(work, i) for i in range(8)]:
            done.result(timeout=300)


def cpu_s_of_a_pause() -> float:
    """Seconds of processors that this process takes while it does nothing."""
    before = time.process_time()
    time.sleep(0.05)
    return time.process_time() - before


def test_the_workers_sleep_once_a_text_is_done() -> None:
    """Workers use no CPU time in a pause, after a text or a few milliseconds after a decode.

    A worker that polls, as the stock engine's does, would use all of it.
    """
    with (
        open_tiny(PromptLookup(), n_threads=2) as llm,
        tiny_context(tiny("llama"), n_threads=2) as polling,
    ):
        whole = text_of(llm(PROMPT, max_tokens=20, **GREEDY))
        after_text = after_decode = 0.0
        batch = Batch(1)
        for i, n in enumerate((1, 20) * 3):
            assert whole.startswith(text_of(llm(PROMPT, max_tokens=n, **GREEDY)))
            after_text += cpu_s_of_a_pause()
            batch.clear()
            batch.add(7, i)
            polling.decode(batch)
            after_decode += cpu_s_of_a_pause()
            polling.pause_threads()
        # Six pauses of 0.05 s of each kind.
        assert after_text < 0.1, "a worker is polling"
        assert after_decode < 0.15, "a worker is polling"


def test_pausing_threads_may_come_at_any_time() -> None:
    with open_tiny(PromptLookup(), n_threads=2) as llm, ThreadPoolExecutor(1) as pool:
        context = llm.context
        expected = text_of(llm(PROMPT, max_tokens=40, **GREEDY))
        text = ""
        for chunk in llm(PROMPT, max_tokens=40, stream=True, **GREEDY):
            text += text_of(chunk)
            pool.submit(context.pause_threads).result(timeout=300)
            context.pause_threads()
        assert text == expected
    context.pause_threads()  # closed: nothing to do


def test_asyncio_does_not_starve() -> None:
    with open_tiny(PromptLookup()) as llm:

        async def ask(i: int) -> str:
            return await asyncio.to_thread(
                lambda: text_of(llm(prompt_of(i), max_tokens=6, **GREEDY))
            )

        async def everything() -> list[str]:
            return list(await asyncio.gather(*(ask(i % 4) for i in range(24))))

        texts = asyncio.run(asyncio.wait_for(everything(), 60))
        assert texts[:4] * 6 == texts


def test_a_stream_read_by_several_threads() -> None:
    with open_tiny(PromptLookup()) as llm, ThreadPoolExecutor(4) as pool:
        whole = text_of(llm(PROMPT, max_tokens=20, **GREEDY))
        stream = llm(PROMPT, max_tokens=20, stream=True, **GREEDY)
        text = ""
        while (chunk := pool.submit(next, stream, None).result(timeout=300)) is not None:
            text += text_of(chunk)
        assert text == whole


class _Slow:
    """A logits processor that lets others in between, and says when it was called."""

    def __init__(self) -> None:
        self.began = threading.Event()

    def __call__(self, ids: Any, scores: Any) -> Any:
        self.began.set()
        time.sleep(0.01)
        return scores


def test_cancel_from_another_thread() -> None:
    with open_tiny(PromptLookup()) as llm, ThreadPoolExecutor(1) as pool:
        slow = _Slow()
        running = pool.submit(lambda: llm(PROMPT, max_tokens=200, logits_processor=slow, **GREEDY))
        assert slow.began.wait(30)
        time.sleep(0.05)
        llm.cancel()
        with pytest.raises(CancelledError) as caught:
            running.result(timeout=300)
        assert caught.value.partial_tokens
        assert caught.value.partial_text
        with open_tiny() as fresh:
            assert lasting(llm(PROMPT, max_tokens=9, **SAMPLED)) == lasting(
                fresh(PROMPT, max_tokens=9, **SAMPLED)
            )


def test_cancel_while_the_prompt_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = [97 + i * i % 26 for i in range(12_000)]
    with open_tiny(n_ctx=16_384, n_ubatch=512) as llm, ThreadPoolExecutor(1) as pool:
        has_begun = first_decode(monkeypatch)
        running = pool.submit(llm, prompt, max_tokens=1)
        assert has_begun.wait(60)
        start = time.perf_counter()
        llm.cancel()
        with pytest.raises(CancelledError):
            running.result(timeout=300)
        assert time.perf_counter() - start < 5
        llm(PROMPT, max_tokens=1)


def test_close_while_another_thread_generates() -> None:
    llm = open_tiny(PromptLookup())
    slow = _Slow()
    with ThreadPoolExecutor(3) as pool:
        running = pool.submit(lambda: llm(PROMPT, max_tokens=200, logits_processor=slow, **GREEDY))
        assert slow.began.wait(30)
        waiting = pool.submit(llm, PROMPT, max_tokens=2)
        llm.close()
        with pytest.raises(ClosedError):
            running.result(timeout=300)
        with pytest.raises(ClosedError):
            waiting.result(timeout=300)
    llm.close()
    with pytest.raises(ClosedError):
        llm(PROMPT)
    with pytest.raises(ClosedError):
        llm.tokenize("a")


def test_close_under_an_open_stream() -> None:
    llm = open_tiny()
    stream = llm(PROMPT, max_tokens=30, stream=True, **GREEDY)
    next(stream)
    llm.close()
    with pytest.raises(ClosedError) as caught:
        list(stream)
    assert len(caught.value.partial_tokens) == 1
    stream.close()


def test_callbacks_that_reach_back_get_errors() -> None:
    with open_tiny() as llm:

        def reaches(action: Any) -> Any:
            def processor(ids: Any, scores: Any) -> Any:
                action()
                return scores

            return processor

        for action in (lambda: llm(PROMPT), llm.close, llm.reset, llm.save_state):
            with pytest.raises(BusyError):
                llm(PROMPT, max_tokens=2, logits_processor=reaches(action))
        with pytest.raises(CancelledError):
            llm(PROMPT, max_tokens=20, logits_processor=reaches(llm.cancel))
        assert llm(PROMPT, max_tokens=2)["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("is_closing", [False, True])
def test_embeddings_are_ended_like_texts(is_closing: bool) -> None:
    """cancel() and close() end an embed() between its texts."""
    texts = ["the cat sat on the mat " * 2] * 1000
    with open_tiny(embedding=True) as llm, ThreadPoolExecutor(1) as pool:
        expected = llm.embed("the cat")

        def work() -> None:
            while True:
                llm.embed(texts)

        running = pool.submit(work)
        while not running.done():
            time.sleep(0.01)
            (llm.close if is_closing else llm.cancel)()
        with pytest.raises(ClosedError if is_closing else CancelledError):
            running.result()
        if is_closing:
            with pytest.raises(ClosedError):
                llm.embed("the cat")
        else:
            assert llm.embed("the cat") == expected


def test_threads_share_one_context_of_embeddings() -> None:
    texts = [f"the cat {i}" for i in range(24)]
    with open_tiny(embedding=True) as llm:
        expected = [llm.embed(text) for text in texts]
    with open_tiny(embedding=True) as llm, ThreadPoolExecutor(8) as pool:
        assert list(pool.map(llm.embed, texts)) == expected


def test_a_thread_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system has no room for one more; the next request finds some."""

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with open_tiny(n_parallel=2) as llm:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", start)
            with pytest.raises(OutOfMemoryError, match="can't start new thread"):
                llm.create_completion("the cat", max_tokens=3)
        assert llm.create_completion("the cat", max_tokens=3)["choices"]
