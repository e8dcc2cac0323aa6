"""A request that fails or is cancelled does not affect the others."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pyllama_spec import BusyError, CancelledError, ContextFullError
from tests.faces.parallel_tools import (
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
    first_decode,
    lasting,
    open_tiny,
)

__all__ = ["nothing_stays_behind"]

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


@PLACES
def test_cancel_while_prompts_are_read(n_parallel: int, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = [97 + i * i % 26 for i in range(12_000)]
    with open_wide(n_parallel=n_parallel, n_ctx=16_384) as llm, ThreadPoolExecutor(2) as pool:
        has_begun = first_decode(monkeypatch)
        running = [pool.submit(ask, llm, [*prompt, i], max_tokens=1) for i in range(n_parallel)]
        assert has_begun.wait(60)
        runner: Any = llm._runtime.runner
        while len(runner._line.placed) < n_parallel:  # in line it would outlive cancel()
            time.sleep(0.001)
        start = time.perf_counter()
        llm.cancel()
        for one in running:
            with pytest.raises(CancelledError):
                one.result(timeout=300)
        assert time.perf_counter() - start < 5
        assert llm(PROMPT, max_tokens=5)["usage"]["completion_tokens"] == 5


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
