"""The handle of a request: ended at any stage without waiting, read by an event loop, told about.

A gate in a logits processor or in a decode holds a round up. The action that must not wait for a
round happens while the gate is closed, so that no test depends on a clock.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from pyllama_spec import (
    ArgumentError,
    BusyError,
    CancelledError,
    DeadlineError,
    Llama,
    QueueFullError,
    Stream,
)
from tests.faces.parallel_tools import nothing_stays_behind, open_wide
from tests.faces.test_close import Interrupted, held
from tests.faces.tools import GREEDY, PROMPT, SAMPLED, lasting, open_tiny, text_of

__all__ = ["held", "nothing_stays_behind"]

LONG = [97 + i * i % 26 for i in range(100)]
MESSAGES = [{"role": "user", "content": "the cat"}]
PLACES = pytest.mark.parametrize("n_parallel", [1, 2])


class Gate:
    """A logits processor that holds up the round in which a text has n tokens."""

    def __init__(self, n: int = 0) -> None:
        self.n, self.calls = n, 0
        self.entered, self.opened = threading.Event(), threading.Event()

    def __call__(self, ids: Any, scores: Any) -> Any:
        self.calls += 1
        if self.calls > self.n:
            self.entered.set()
            assert self.opened.wait(60)
        return scores


@contextmanager
def full(llm: Llama) -> Iterator[list[Gate]]:
    """A model whose places all have a request in them, which is held up in a round."""
    gates = [Gate() for _ in range(llm.n_parallel)]
    with ThreadPoolExecutor(llm.n_parallel) as pool:
        options: dict[str, Any] = {"max_tokens": 3, **GREEDY}
        running = [pool.submit(text_of_whole, llm, PROMPT, logits_processor=gates[0], **options)]
        assert gates[0].entered.wait(60)
        # In a round of several the first one holds all of them up.
        running += [
            pool.submit(text_of_whole, llm, [*PROMPT, 97 + i], **options)
            for i in range(llm.n_parallel - 1)
        ]
        try:
            yield gates
        finally:
            gates[0].opened.set()
            for one in running:
                assert one.result(timeout=60)


def text_of_whole(llm: Llama, prompt: list[int], **options: Any) -> str:
    return text_of(dict(llm.create_completion(prompt, **options)))


def stream_of(llm: Llama, prompt: list[int], **options: Any) -> Stream[Any]:
    options = {"max_tokens": 60, "stream": True, **GREEDY, **options}
    handle: Any = llm.create_completion(prompt, **options)
    stream: Stream[Any] = handle
    return stream


def until(condition: Callable[[], bool]) -> None:
    """Waits for what another thread does."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def plain(prompt: list[int], n: int = 60, **options: Any) -> str:
    """The text of a model with one request."""
    with open_tiny() as llm:
        return text_of_whole(llm, prompt, max_tokens=n, **{**GREEDY, **options})


# ---- ended at each stage


@PLACES
@pytest.mark.parametrize("way", ["abort", "close"])
def test_in_line(n_parallel: int, way: str) -> None:
    """A stream that waits in line closes at once."""
    with open_wide(n_parallel=n_parallel) as llm, ThreadPoolExecutor(2) as pool, full(llm) as gates:
        runner: Any = llm._runtime.runner
        if n_parallel > 1:
            until(lambda: len(runner._line.everyone()) == n_parallel)
        handles = [stream_of(llm, [*LONG, i]) for i in range(2)]
        reading = []
        for i, handle in enumerate(handles):
            reading.append(pool.submit(list, handle))
            until(lambda handle=handle: handle.status.stage == "queued")  # type: ignore[misc]
            assert handle.status.queue_position == i + n_parallel - 1
        getattr(handles[0], way)()
        assert handles[0].status.stage == "ended"
        assert handles[1].status.queue_position == n_parallel - 1
        with pytest.raises(CancelledError):
            reading[0].result(timeout=60)
        assert not gates[0].opened.is_set(), "all of it without a round"
        gates[0].opened.set()
        assert "".join(map(text_of, reading[1].result(timeout=60))) == plain([*LONG, 1])


@PLACES
def test_while_its_prompt_is_read(n_parallel: int, held: Interrupted) -> None:
    """The decode that computes for it alone is interrupted: nothing more is read."""
    with open_wide(n_parallel=n_parallel, n_ubatch=16) as llm, ThreadPoolExecutor(1) as pool:
        held.watch(llm, 2)
        handle = stream_of(llm, LONG)
        reading = pool.submit(list, handle)
        assert held.has_begun.wait(60)
        status = handle.status
        assert (status.stage, status.n_prompt, status.n_read) == ("reading", 100, 32)
        handle.abort()
        with pytest.raises(CancelledError):
            reading.result(timeout=60)
        assert held.n_before == -1
        assert text_of_whole(llm, LONG, max_tokens=60, **GREEDY) == plain(LONG)


@PLACES
def test_while_it_generates(n_parallel: int) -> None:
    """It ends with the current round."""
    with open_wide(n_parallel=n_parallel) as llm, ThreadPoolExecutor(1) as pool:
        gate = Gate(5)
        handle = stream_of(llm, PROMPT, logits_processor=gate)
        reading = pool.submit(handle.result)
        assert gate.entered.wait(60)
        assert handle.status.stage == "generating"
        n_calls = gate.calls
        handle.abort()
        handle.abort()
        gate.opened.set()
        with pytest.raises(CancelledError) as caught:
            reading.result(timeout=60)
        assert plain(PROMPT).startswith(caught.value.partial_text)
        # A draft in that round is looked at to its end.
        assert gate.calls <= n_calls + 8
        assert text_of_whole(llm, PROMPT, max_tokens=60, **GREEDY) == plain(PROMPT)


# ---- an event loop


@PLACES
def test_an_event_loop_never_waits(n_parallel: int) -> None:
    """While a round is held up, requests begin, are polled and end in the loop's thread."""
    with open_wide(n_parallel=n_parallel) as llm:

        async def main() -> None:
            gate = Gate()
            held = asyncio.ensure_future(
                llm.acreate_completion(PROMPT, max_tokens=9, logits_processor=gate, **GREEDY)
            )
            while not gate.entered.is_set():
                await asyncio.sleep(0.001)
            stream: Any = await llm.acreate_completion(LONG, max_tokens=9, stream=True, **GREEDY)
            chat = asyncio.ensure_future(llm.acreate_chat_completion(MESSAGES, max_tokens=9))
            one = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0.05)
            assert not one.done()
            assert stream.status.stage == "queued"
            one.cancel()  # as a server does when its client has gone
            with pytest.raises(asyncio.CancelledError):
                await one
            assert stream.status.stage == "ended"
            chat.cancel()
            with pytest.raises(asyncio.CancelledError):
                await chat
            with pytest.raises(DeadlineError):
                await llm.acreate_completion(PROMPT, timeout_s=0.01)
            assert not gate.opened.is_set()
            gate.opened.set()
            assert text_of(await held) == plain(PROMPT, 9)

        asyncio.run(asyncio.wait_for(main(), 120))


# ---- bounds


@PLACES
def test_a_deadline_in_line_and_in_a_place(n_parallel: int) -> None:
    with open_wide(n_parallel=n_parallel) as llm:
        with full(llm) as gates:
            with pytest.raises(DeadlineError):
                list(stream_of(llm, LONG, timeout_s=0.01))
            assert not gates[0].opened.is_set()

        def slow(ids: Any, scores: Any) -> Any:
            time.sleep(0.01)
            return scores

        with pytest.raises(DeadlineError) as caught:
            llm(PROMPT, max_tokens=200, timeout_s=0.05, logits_processor=slow, **GREEDY)
        assert isinstance(caught.value, TimeoutError)
        assert plain(PROMPT, 200).startswith(caught.value.partial_text)
        assert text_of_whole(llm, PROMPT, max_tokens=60, timeout_s=600, **GREEDY) == plain(PROMPT)
        for wrong in (-1, "soon", float("nan")):
            with pytest.raises(ArgumentError):
                llm(PROMPT, timeout_s=wrong)


@PLACES
def test_a_line_of_bounded_length(n_parallel: int) -> None:
    with open_wide(n_parallel=n_parallel, max_waiting=2) as llm:
        runner: Any = llm._runtime.runner
        with ThreadPoolExecutor(2) as pool, full(llm):
            until(lambda: len(runner._line.everyone()) == n_parallel)
            waiting = []
            for i in range(2):
                waiting.append(pool.submit(text_of_whole, llm, [*LONG, i], max_tokens=3, **GREEDY))
                until(lambda i=i: len(runner._line.everyone()) > n_parallel + i)  # type: ignore[misc]
            with pytest.raises(QueueFullError):
                llm(PROMPT)

            async def refused() -> None:
                with pytest.raises(QueueFullError):
                    await llm.acreate_completion(PROMPT)

            asyncio.run(refused())
        for i, one in enumerate(waiting):
            assert one.result(timeout=60) == plain([*LONG, i], 3)
        assert llm(PROMPT, max_tokens=2)["usage"]["completion_tokens"] == 2
    for wrong in (-1, "2", 1.5, True):
        with pytest.raises(ArgumentError):
            open_tiny(max_waiting=wrong)


# ---- what the memory holds


@pytest.mark.parametrize("n_parallel", [1, 2])
def test_echo_and_states_wait_in_line(n_parallel: int) -> None:
    """With all places busy, they wait instead of raising BusyError or IndexError."""
    with open_wide(n_parallel=n_parallel) as llm:
        expected = lasting(llm(PROMPT, max_tokens=2, echo=True, logprobs=1, **GREEDY))
        streams = [stream_of(llm, [*PROMPT, i], max_tokens=200) for i in range(n_parallel)]
        for stream in streams:
            next(stream)
        assert lasting(llm(PROMPT, max_tokens=2, echo=True, logprobs=1, **GREEDY)) == expected
        state = llm.save_state()
        llm.load_state(state)
        llm.eval([97, 98])
        for i, stream in enumerate(streams):
            text = "".join(map(text_of, stream))
            assert plain([*PROMPT, i], 200).endswith(text)
            assert len(text) > 20
        with pytest.raises(BusyError):
            llm(PROMPT, logits_processor=lambda ids, scores: llm.save_state())


@pytest.mark.parametrize("n_parallel", [1, 2])
def test_an_error_of_one_answer_in_a_stream_ends_the_others(n_parallel: int) -> None:
    calls = []

    def fail_once(ids: Any, scores: Any) -> Any:
        calls.append(len(ids))
        if len(calls) == 9:
            raise ValueError("of one answer")
        return scores

    with open_wide(n_parallel=n_parallel) as llm:
        stream = stream_of(llm, PROMPT, n=2, max_tokens=10**6, logits_processor=fail_once,
                           ignore_eos=True, context_shift=True)  # fmt: skip
        with pytest.raises(ValueError, match="of one answer"):
            list(stream)
        until(lambda: all(one.stage == "ended" for one in stream.statuses))


# ---- streams that nobody reads


@PLACES
def test_unread_streams_give_their_places_to_others(n_parallel: int) -> None:
    """More streams than places, read in turns, from one thread."""
    prompts = [[*PROMPT, 97], PROMPT * 3, [*PROMPT * 3, 98], PROMPT * 2]
    options: dict[str, Any] = {"max_tokens": 100, **SAMPLED}
    with open_tiny() as llm:
        texts = [text_of_whole(llm, p, **options) for p in prompts]
    with open_wide(n_parallel=n_parallel) as llm:
        streams = [stream_of(llm, p, **options) for p in prompts]
        found, left = [""] * len(prompts), list(range(len(prompts)))
        while left:
            for i in list(left):
                chunk = next(streams[i], None)
                if chunk is None:
                    left.remove(i)
                else:
                    found[i] += text_of(chunk)
        assert found == texts


@PLACES
@pytest.mark.parametrize("way", ["start", "event loop"])
def test_a_stream_that_is_dropped_before_its_first_read(n_parallel: int, way: str) -> None:
    """It ends at once; else it would compute on, and count against max_waiting for good."""
    with open_wide(n_parallel=n_parallel, max_waiting=1, n_ctx=512) as llm:
        for i in range(4):
            gate = Gate()
            options: Any = {"max_tokens": 200, "stream": True, "logits_processor": gate, **GREEDY}
            if way == "start":
                handle: Any = llm.create_completion([*PROMPT, i], **options)
                handle.start()
            else:
                handle = asyncio.run(llm.acreate_completion([*PROMPT, i], **options))
            assert gate.entered.wait(60)
            ticket = handle._runs[0]
            del handle
            gate.opened.set()
            until(lambda t=ticket: t.is_over)  # type: ignore[misc]
            assert ticket.is_cancelled and gate.calls < 200
            assert text_of_whole(llm, PROMPT, max_tokens=3, **GREEDY)
