"""Parallel requests each get the text that they get alone, and leave nothing behind."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pyllama_spec import (
    ContextFullError,
    UnsupportedError,
)
from tests.faces.parallel_tools import (
    DRAFTS,
    Slow,
    alone,
    nothing_stays_behind,
    open_wide,
    request,
)
from tests.faces.tools import GREEDY, PROMPT, SAMPLED, finish_of, lasting, open_tiny, text_of

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


def test_other_work_comes_between_rounds() -> None:
    with open_wide(n_parallel=3) as llm, ThreadPoolExecutor(1) as pool:
        before = llm(PROMPT, max_tokens=12, **GREEDY)
        state = llm.save_state()
        slow = Slow()
        running = pool.submit(
            lambda: llm([*PROMPT, 97], max_tokens=60, logits_processor=slow, **GREEDY)
        )
        assert slow.began.wait(30)
        llm.reset()
        llm.load_state(state)
        assert lasting(llm(PROMPT, max_tokens=12, **GREEDY)) == lasting(before)
        assert running.result(timeout=300)["usage"]["completion_tokens"] == 60


def test_a_conversation_finds_its_own_place_again() -> None:
    with open_wide(n_parallel=4) as llm:
        chats = [request(i)[0] * 5 for i in range(4)]
        for _ in range(3):
            for chat in chats:
                generation = llm.generate_steps(chat, max_tokens=6, **GREEDY)
                list(generation)
                chat += generation.record.tokens
        held = [state.n_decoded for state in llm._runtime.runner.idle()]
        assert sorted(held) == sorted(len(chat) - 1 for chat in chats)


def test_one_place_is_computed_in_the_callers_thread() -> None:
    threads = set()

    def note(ids: Any, scores: Any) -> Any:
        threads.add(threading.get_ident())
        return scores

    with open_tiny() as llm:
        llm(PROMPT, max_tokens=3, logits_processor=note)
        assert threads == {threading.get_ident()}
    with open_wide() as llm:
        assert llm.n_parallel == 8
        assert llm.n_ctx() == 256
        chunks = list(llm(PROMPT, max_tokens=3, stream=True, logits_processor=note))
        assert finish_of(chunks[-1]) == "length"
        assert len(threads) == 2
