"""Parallel requests each get the text that they get alone, and leave nothing behind."""

from __future__ import annotations

import asyncio
import gc
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pyllama_spec import (
    ArgumentError,
    ContextFullError,
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
from tests.faces.tools import GREEDY, PROMPT, SAMPLED, finish_of, lasting, open_tiny, text_of
from tests.oracles import ROOT, rss_bytes

__all__ = ["nothing_stays_behind"]


@pytest.mark.slow
@pytest.mark.parametrize("draft", DRAFTS)
def test_two_hundred_requests_of_sixteen_threads(draft: str) -> None:
    """Whole texts and streams, some of them abandoned, closed or cancelled at random."""
    n_kinds = 40
    for i in range(n_kinds):
        alone(i)

    def work(seed: int) -> int:
        rng, n_compared = random.Random(seed), 0
        for _ in range(13):
            i = rng.randrange(n_kinds)
            prompt, options = request(i)
            expected, way = alone(i), rng.randrange(6)
            if way < 2:
                assert lasting(llm(prompt, **options)) == expected
                n_compared += 1
                continue
            stream, text = llm(prompt, stream=True, **options), ""
            n_read = 10**9 if way < 4 else rng.randrange(12)
            for chunk in stream:
                text += text_of(chunk)
                n_read -= 1
                if n_read == 0:
                    break
            whole = expected["choices"][0]["text"]
            assert text == whole if n_read > 0 else whole.startswith(text)
            n_compared += 1
            if way == 4:
                stream.close()
            del stream  # else it is dropped
        return n_compared

    with open_wide(draft) as llm, ThreadPoolExecutor(16) as pool:
        done = [pool.submit(work, seed) for seed in range(16)]
        assert sum(one.result(timeout=300) for one in done) == 208
        assert lasting(llm(PROMPT, max_tokens=9, **GREEDY)) == lasting(
            open_tiny()(PROMPT, max_tokens=9, **GREEDY)
        )


def sizes_of_turns() -> list[int]:
    """Bytes of the process after each of twelve turns of 48 streams that are left midway."""
    sizes = []
    with open_wide(), ThreadPoolExecutor(8) as pool, open_wide() as llm:

        def work(i: int) -> None:
            prompt, options = request(i % 20)
            stream = llm(prompt, stream=True, **options)
            for _, _chunk in zip(range(i % 9), stream, strict=False):
                pass

        for turn in range(12):
            list(pool.map(work, range(turn, turn + 48)))
            gc.collect()
            sizes.append(rss_bytes())
    return sizes


@pytest.mark.slow
def test_memory_is_flat() -> None:
    """The measurement runs in its own process, whose heap no other test has filled."""
    code = "from tests.faces import test_llama_parallel as t; print(*t.sizes_of_turns())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    sizes = [int(word) for word in done.stdout.split()]
    assert len(sizes) == 12
    assert max(sizes[6:]) - min(sizes[4:6]) < 6e6, sizes


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
        with pytest.raises(UnsupportedError, match="stream"):
            llm(texts, stream=True)
        with pytest.raises(ContextFullError, match="shorten prompt 1 of the list"):
            llm([[97], [97] * 300, [98]], max_tokens=3, **GREEDY)
        assert text_of(llm(PROMPT, max_tokens=3, **GREEDY))


def test_streams_that_nobody_reads_give_their_places_back() -> None:
    with open_wide(n_parallel=2, n_ctx=512) as llm, ThreadPoolExecutor(1) as pool:
        whole = text_of(llm(PROMPT, max_tokens=300, **GREEDY))
        first = llm(PROMPT, max_tokens=300, stream=True, **GREEDY)
        second = llm(PROMPT, max_tokens=300, stream=True, **GREEDY)
        text = text_of(next(first))
        next(second)
        # Nobody reads them: who waits gets their places, this thread and others.
        assert whole.startswith(text_of(llm(PROMPT, max_tokens=2, **GREEDY)))
        choices = llm([PROMPT, PROMPT], max_tokens=2, **GREEDY)["choices"]
        assert all(whole.startswith(choice["text"]) for choice in choices)
        waiting = pool.submit(ask, llm, PROMPT, max_tokens=300, **GREEDY)
        assert text_of(waiting.result(timeout=300)) == whole
        second.close()
        assert text + "".join(map(text_of, first)) == whole
        dropped = [llm(PROMPT, max_tokens=300, stream=True, **GREEDY) for _ in range(2)]
        for stream in dropped:
            next(stream)
        del stream, dropped
        assert text_of(llm(PROMPT, max_tokens=300, **GREEDY)) == whole


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


def test_asyncio() -> None:
    with open_wide() as llm:

        async def ask(i: int) -> dict[str, Any]:
            prompt, options = request(i % 10)
            return lasting(await asyncio.to_thread(lambda: llm(prompt, **options)))

        async def everything() -> list[dict[str, Any]]:
            return list(await asyncio.gather(*(ask(i) for i in range(40))))

        assert asyncio.run(asyncio.wait_for(everything(), 120)) == [
            alone(i % 10) for i in range(40)
        ]


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


@pytest.mark.parametrize("n_parallel", [0, -1, 2.5, "8", True, None])
def test_numbers_out_of_range(n_parallel: Any) -> None:
    with pytest.raises(ArgumentError, match="n_parallel"):
        open_tiny(n_parallel=n_parallel)


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
