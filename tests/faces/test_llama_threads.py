"""Each of many threads on one model gets its own text, and nothing crashes."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pyllama_spec import (
    OutOfMemoryError,
    PromptLookup,
)
from pyllama_spec.engine import Batch
from tests.faces.tools import GREEDY, PROMPT, SAMPLED, lasting, open_tiny, text_of
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


def test_a_stream_read_by_several_threads() -> None:
    with open_tiny(PromptLookup()) as llm, ThreadPoolExecutor(4) as pool:
        whole = text_of(llm(PROMPT, max_tokens=20, **GREEDY))
        stream = llm(PROMPT, max_tokens=20, stream=True, **GREEDY)
        text = ""
        while (chunk := pool.submit(next, stream, None).result(timeout=300)) is not None:
            text += text_of(chunk)
        assert text == whole


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
            with pytest.raises(OutOfMemoryError):
                llm.create_completion("the cat", max_tokens=3)
        assert llm.create_completion("the cat", max_tokens=3)["choices"]
