"""A parallel request that fails, is cancelled or closed does not affect the others."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pyllama_spec import (
    BusyError,
    CancelledError,
    ClosedError,
    ContextFullError,
)
from tests.faces.parallel_tools import (
    Slow,
    alone,
    ask,
    nothing_stays_behind,
    open_wide,
    request,
)
from tests.faces.tools import GREEDY, PROMPT, first_decode, lasting

__all__ = ["nothing_stays_behind"]


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


def test_cancel_ends_what_runs() -> None:
    with open_wide(n_parallel=2) as llm, ThreadPoolExecutor(3) as pool:
        slow = [Slow(), Slow()]

        options = {"max_tokens": 200, **GREEDY}
        running = [pool.submit(ask, llm, PROMPT, logits_processor=one, **options) for one in slow]
        assert all(one.began.wait(30) for one in slow)
        waiting = pool.submit(ask, llm, PROMPT, max_tokens=5, **GREEDY)
        time.sleep(0.05)
        llm.cancel()
        for one in running:
            with pytest.raises(CancelledError) as caught:
                one.result(timeout=300)
            assert caught.value.partial_tokens
        assert waiting.result(timeout=300)["usage"]["completion_tokens"] == 5
        llm.cancel()  # nothing runs: nothing happens
        assert llm(PROMPT, max_tokens=5)["usage"]["completion_tokens"] == 5


def test_cancel_while_prompts_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = [97 + i * i % 26 for i in range(12_000)]
    with open_wide(n_parallel=2, n_ctx=16_384) as llm, ThreadPoolExecutor(2) as pool:
        has_begun = first_decode(monkeypatch)
        running = [pool.submit(ask, llm, [*prompt, i], max_tokens=1) for i in range(2)]
        assert has_begun.wait(60)
        runner: Any = llm._runtime.runner
        while len(runner._line.placed) < 2:  # in line it would outlive cancel()
            time.sleep(0.001)
        start = time.perf_counter()
        llm.cancel()
        for one in running:
            with pytest.raises(CancelledError):
                one.result(timeout=300)
        assert time.perf_counter() - start < 5
        assert llm(PROMPT, max_tokens=5)["usage"]["completion_tokens"] == 5


def test_close_while_others_generate() -> None:
    llm = open_wide(n_parallel=2)
    slow = [Slow(), Slow()]
    with ThreadPoolExecutor(3) as pool:
        running = [
            pool.submit(ask, llm, PROMPT, max_tokens=200, logits_processor=p, **GREEDY)
            for p in slow
        ]
        assert all(one.began.wait(30) for one in slow)
        waiting = pool.submit(ask, llm, PROMPT, max_tokens=2)
        time.sleep(0.05)
        llm.close()
        for one in (*running, waiting):
            with pytest.raises(ClosedError):
                one.result(timeout=300)
    llm.close()
    with pytest.raises(ClosedError):
        llm(PROMPT)


def test_close_under_open_streams() -> None:
    llm = open_wide(n_parallel=3)
    streams = [llm(PROMPT, max_tokens=100, stream=True, **GREEDY) for _ in range(2)]
    for stream in streams:
        next(stream)
    llm.close()
    for stream in streams:
        with pytest.raises(ClosedError) as caught:
            list(stream)
        assert caught.value.partial_tokens
        stream.close()


def test_callbacks_that_reach_back_get_errors() -> None:
    with open_wide() as llm:

        def reaches(action: Any) -> Any:
            def processor(ids: Any, scores: Any) -> Any:
                action()
                return scores

            return processor

        for action in (lambda: llm(PROMPT), llm.close, llm.reset, llm.save_state):
            with pytest.raises(BusyError, match="callback"):
                llm(PROMPT, max_tokens=2, logits_processor=reaches(action))
        with pytest.raises(CancelledError):
            llm(PROMPT, max_tokens=20, logits_processor=reaches(llm.cancel))
        assert llm(PROMPT, max_tokens=2)["usage"]["completion_tokens"] == 2
