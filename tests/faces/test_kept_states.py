"""Cached states serve requests that were made before the cache was set."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from pyllama_spec import Llama
from pyllama_spec.llama.caches import LlamaRAMCache
from pyllama_spec.speculative.sequence import n_common
from tests.faces.tools import open_tiny

LONG = [97 + (i * i + i // 7) % 26 for i in range(100)]
OTHER = [98 + (i * 5) % 20 for i in range(100)]
OPTIONS: dict[str, Any] = {"max_tokens": 8, "temperature": 0.0}


def opened(**more: Any) -> Llama:
    llm = open_tiny("prompt-lookup", prefix_cache_bytes=0, **more)
    llm.set_cache(LlamaRAMCache())
    return llm


def read(handle: Any) -> tuple[str, int]:
    """The text of a stream, and how much of its prompt was not read."""
    chunks = list(handle)
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    return text, chunks[-1]["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("n_parallel", [1, 2])
@pytest.mark.parametrize("more", [[], [101, 102, 103]], ids=["equal", "longer"])
def test_a_request_that_waited_behind_an_equal_prompt(n_parallel: int, more: list[int]) -> None:
    with opened(n_parallel=n_parallel) as llm:
        prompts = [LONG, OTHER, [*OTHER, 99], [*LONG, *more]]
        handles = [llm.create_completion(one, stream=True, **OPTIONS) for one in prompts]
        answers = [read(one) for one in handles]
    with open_tiny() as alone:
        texts = [alone.create_completion(one, **OPTIONS)["choices"][0]["text"] for one in prompts]
    assert [text for text, _ in answers] == texts
    assert answers[0][1] == 0
    assert answers[3][1] >= len(LONG) - 1


def test_a_state_gives_what_is_alike_and_no_more() -> None:
    with opened() as llm:
        first, second, third = (
            llm.create_completion(one, stream=True, **OPTIONS)
            for one in (LONG, [*LONG[:20], 99, *LONG[20:]], [120, *LONG])
        )
        read(first)
        assert 19 <= read(second)[1] <= 21
        assert read(third)[1] == 0


def test_who_does_not_wait_any_more_is_forgotten() -> None:
    with opened() as llm:
        handles = [llm.create_completion(LONG, stream=True, **OPTIONS) for _ in range(3)]
        waiting = llm._completions._states._waiting
        assert len(waiting) == 3
        read(handles.pop())
        assert len(waiting) == 2
        handles.clear()
        gc.collect()
        assert len(waiting) == 0


def test_texts_alike() -> None:
    for a, b, n in (((), (1,), 0), ((1,), (1,), 1), ((1, 2, 3), (1, 2, 4, 5), 2), ((2,), (1,), 0)):
        assert n_common(a, b) == n_common(b, a) == n
    long = list(range(1000))
    for n in (*range(0, 1000, 37), 511, 512, 513, 1000):
        assert n_common(long, [*long[:n], -1, *long[n:]]) == n
