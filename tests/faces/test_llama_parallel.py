"""Many requests at once: each gets the text that it gets alone, whatever happens to the others."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pyllama_spec import (
    BusyError,
    CancelledError,
    ContextFullError,
    OutOfMemoryError,
    UnsupportedError,
)
from tests.faces.parallel_tools import (
    DRAFTS,
    Slow,
    alone,
    ask,
    nothing_stays_behind,
    open_wide,
    request,
)
from tests.faces.tools import (
    GREEDY,
    PROMPT,
    SAMPLED,
    finish_of,
    lasting,
    open_tiny,
    text_of,
)

__all__ = ["nothing_stays_behind"]


@pytest.mark.parametrize("draft", DRAFTS)
def test_streams_of_one_thread_share_rounds(draft: str) -> None:
    kinds = [i for i in range(40) if "logprobs" not in request(i)[1]][:8]
    with open_wide(draft) as llm:
        streams = [llm(request(i)[0], stream=True, **request(i)[1]) for i in kinds]
        texts = dict.fromkeys(kinds, "")
        left = dict(zip(kinds, streams, strict=True))
        while left:
            for i in list(left):
                chunk = next(left[i], None)
                if chunk is None:
                    del left[i]
                else:
                    texts[i] += text_of(chunk)
    for i in kinds:
        assert texts[i] == alone(i)["choices"][0]["text"]


def test_a_list_of_prompts() -> None:
    prompts = [request(i)[0] for i in range(20)]
    expected = []
    with open_tiny() as llm:
        expected = [text_of(llm(prompt, max_tokens=15, **SAMPLED)) for prompt in prompts]
    for n_parallel in (1, 3, 8):
        with open_wide(n_parallel=n_parallel) as llm:
            result = llm.create_completion(prompts, max_tokens=15, **SAMPLED)
            assert [choice["text"] for choice in result["choices"]] == expected
            assert [choice["index"] for choice in result["choices"]] == list(range(20))
            assert result["usage"]["completion_tokens"] == 20 * 15
            assert result["usage"]["prompt_tokens"] == sum(map(len, prompts))
            n_rounds = sum(choice["speculation"]["rounds"] for choice in result["choices"])
            assert result["speculation"]["rounds"] == n_rounds
            assert result["timing"]["wall_s"] > 0
    with open_wide() as llm:
        texts: list[str | bytes] = ["the cat", b"sat on", "the mat"]
        one_by_one = [text_of(llm(text, max_tokens=5, **GREEDY)) for text in texts]
        result = llm(texts, max_tokens=5, echo=True, **GREEDY)
        assert [c["text"] for c in result["choices"]] == [
            ("the cat", "sat on", "the mat")[i] + text for i, text in enumerate(one_by_one)
        ]
        with pytest.raises(UnsupportedError):
            llm(texts, stream=True)
        with pytest.raises(ContextFullError):
            llm([[97], [97] * 300, [98]], max_tokens=3, **GREEDY)
        assert text_of(llm(PROMPT, max_tokens=3, **GREEDY))


def test_a_stream_waits_for_its_reader() -> None:
    drawn: list[int] = []

    def count(ids: Any, scores: Any) -> Any:
        drawn.append(len(ids))
        return scores

    with open_wide(n_ctx=512) as llm:
        stream = llm(PROMPT, max_tokens=400, stream=True, logits_processor=count, **GREEDY)
        text = text_of(next(stream))
        runner: Any = llm._runtime.runner
        deadline = time.monotonic() + 60
        while runner._thread is not None:  # it ends where there is nothing to compute
            assert time.monotonic() < deadline
            time.sleep(0.001)
        n_last = len(drawn)
        assert 20 < n_last < 150, "some pieces ahead of its reader, and no more"
        assert text_of(llm(PROMPT, max_tokens=20, **GREEDY))
        assert len(drawn) == n_last
        text += "".join(map(text_of, stream))
        assert len(drawn) == 400
    with open_tiny(n_ctx=512) as plain:
        assert text == text_of(plain(PROMPT, max_tokens=400, **GREEDY))


PLACES = pytest.mark.parametrize("n_parallel", [1, 2])


def test_what_fails_in_one_request_ends_that_one_alone() -> None:
    def broken(ids: Any, scores: Any) -> Any:
        if len(ids) > len(PROMPT) + 5:
            raise KeyError("broken")
        return scores

    with open_wide() as llm, ThreadPoolExecutor(8) as pool:
        good = [pool.submit(ask, llm, request(i)[0], **request(i)[1]) for i in range(4)]
        bad = [
            pool.submit(lambda: llm(PROMPT, max_tokens=20, logits_processor=broken, **GREEDY))
            for _ in range(3)
        ]
        for one in bad:
            with pytest.raises(KeyError) as caught:
                one.result(timeout=300)
            assert len(caught.value.partial_tokens) == 6  # type: ignore[attr-defined]
        for i, one in enumerate(good):
            assert lasting(one.result(timeout=300)) == alone(i)
        with pytest.raises(ContextFullError):
            llm([97] * 300)


@PLACES
def test_cancel_ends_what_runs(n_parallel: int) -> None:
    """What waits for a place is not touched, and the next text is as ever."""
    with open_wide(n_parallel=n_parallel) as llm, ThreadPoolExecutor(3) as pool:
        slow = [Slow() for _ in range(n_parallel)]
        options = {"max_tokens": 200, **GREEDY}
        llm.cancel()  # nothing runs: nothing happens
        running = [pool.submit(ask, llm, PROMPT, logits_processor=one, **options) for one in slow]
        assert all(one.began.wait(30) for one in slow)
        waiting = pool.submit(ask, llm, PROMPT, max_tokens=5, **GREEDY)
        time.sleep(0.05)
        llm.cancel()
        for one in running:
            with pytest.raises(CancelledError) as caught:
                one.result(timeout=300)
            assert caught.value.partial_tokens
            assert caught.value.partial_text
        assert waiting.result(timeout=300)["usage"]["completion_tokens"] == 5
        with open_tiny() as fresh:
            assert lasting(llm(PROMPT, max_tokens=9, **SAMPLED)) == lasting(
                fresh(PROMPT, max_tokens=9, **SAMPLED)
            )


def test_cancel_ends_embeddings_between_their_texts() -> None:
    texts = ["the cat sat on the mat " * 2] * 1000
    with open_tiny(embedding=True) as llm, ThreadPoolExecutor(1) as pool:
        expected = llm.embed("the cat")
        running = pool.submit(lambda: [llm.embed(texts) for _ in range(1000)])
        while not running.done():
            time.sleep(0.01)
            llm.cancel()
        with pytest.raises(CancelledError):
            running.result()
        assert llm.embed("the cat") == expected


@PLACES
def test_callbacks_that_reach_back_get_errors(n_parallel: int) -> None:
    """They run in the computing thread, where waiting for another text would never end."""
    with open_wide(n_parallel=n_parallel) as llm:
        other = llm([*PROMPT, 97], max_tokens=200, stream=True, **GREEDY)
        next(other)

        def reaches(action: Any) -> Any:
            def processor(ids: Any, scores: Any) -> Any:
                action()
                return scores

            return processor

        for action in (
            lambda: llm(PROMPT), llm.close, llm.reset, llm.save_state, lambda: list(other),
        ):  # fmt: skip
            with pytest.raises(BusyError):
                llm(PROMPT, max_tokens=2, logits_processor=reaches(action))
        assert finish_of(list(other)[-1]) == "length"
        with pytest.raises(CancelledError):
            llm(PROMPT, max_tokens=20, logits_processor=reaches(llm.cancel))
        assert llm(PROMPT, max_tokens=2)["usage"]["completion_tokens"] == 2


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
        with monkeypatch.context() as patched, pytest.raises(OutOfMemoryError):
            patched.setattr(threading.Thread, "start", start)
            llm.create_completion("the cat", max_tokens=3)
        assert llm.create_completion("the cat", max_tokens=3)["choices"]
