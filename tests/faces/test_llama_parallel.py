"""Many requests at once: each gets the text that it gets alone, whatever happens to the others."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pyllama_spec import (
    CancelledError,
    ContextFullError,
    UnsupportedError,
)
from tests.faces.parallel_tools import Slow, ask, nothing_stays_behind, open_wide
from tests.faces.tools import (
    GREEDY,
    PROMPT,
    SAMPLED,
    Forced,
    lasting,
    open_tiny,
    text_of,
)
from tests.scripted import Perfect

__all__ = ["nothing_stays_behind"]

N = len(PROMPT)


def test_a_list_of_prompts() -> None:
    prompts = [[*PROMPT[: 3 + i % 9], 97 + i] for i in range(20)]
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


# ---- failures of one, of all, and behind the end of a text


def plain(prompt: Sequence[int], n: int) -> str:
    """The text of a model for one request at a time."""
    with open_tiny(n_ctx=1024) as llm:
        return text_of(llm(list(prompt), max_tokens=n, **GREEDY))


def lingering(ids: Any, scores: Any) -> Any:
    """A logits processor that keeps a text of 1000 tokens from its end for some seconds."""
    time.sleep(0.005)
    return scores


@PLACES
@pytest.mark.parametrize("how", ["stop string", "criterion"])
def test_what_fails_behind_the_end_of_a_text_does_not_matter(n_parallel: int, how: str) -> None:
    """Plain decoding never gets there, so with a draft the text ends as well as without."""
    script = list(b"some words and no more")

    def breaks(ids: Any, scores: Any) -> Any:
        if len(ids) >= N + 15:
            raise ZeroDivisionError
        return scores

    def criterion(ids: Any, logits: Any) -> bool:
        return len(ids) == N + 10

    ends: dict[str, Any] = {"stop": "and"} if how == "stop string" else {}
    if how == "criterion":
        ends["stopping_criteria"] = criterion
    found = []
    for draft in (None, Perfect([*PROMPT, *script], 8)):
        with open_tiny(draft, n_parallel=n_parallel) as llm:
            processors = [Forced(N, script), breaks]
            response = llm(PROMPT, max_tokens=20, logits_processor=processors, **ends)
            found.append(response["choices"])
            with pytest.raises(ZeroDivisionError):
                llm(PROMPT, max_tokens=20, logits_processor=processors)
    assert found[0] == found[1]
    assert found[0][0]["finish_reason"] == "stop"


@PLACES
def test_ctrl_c_in_a_reader_brings_its_text(n_parallel: int) -> None:
    """The interrupt carries the text, and the request's place is free again."""

    def interrupts(ids: Any, scores: Any) -> Any:
        if len(ids) == N + 20:
            os.kill(os.getpid(), signal.SIGINT)
        return lingering(ids, scores)

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with open_tiny(n_ctx=1024, n_parallel=n_parallel) as llm:
            with pytest.raises(KeyboardInterrupt) as caught:
                llm(PROMPT, max_tokens=1000, logits_processor=interrupts, **GREEDY)
            text = caught.value.partial_text  # type: ignore[attr-defined]
            assert text
            assert plain(PROMPT, 1000).startswith(text)
            assert text_of(llm(PROMPT, max_tokens=9, **GREEDY)) == plain(PROMPT, 9)
    finally:
        signal.signal(signal.SIGINT, handler)
