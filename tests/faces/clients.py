"""Clients that come and go: in threads and in an event loop, some of which leave at any stage."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pyllama_spec import CancelledError, DeadlineError, Llama, Stream
from tests.faces.tools import GREEDY, PROMPT, SAMPLED, open_tiny, text_of

N_KINDS = 24
STAGES = ("new", "queued", "reading", "generating", "aside", "ended")
# For how long a client watches for a stage that its request may have passed.
_WATCH_S = 1.0


def asked(i: int) -> tuple[list[int], dict[str, Any]]:
    """A random request: a prompt of one part or of ten, greedy, sampled, bounded."""
    rng = random.Random(i)
    beginning = PROMPT * rng.choice([1, 1, 3, 9])
    prompt = [*beginning, *(97 + rng.randrange(26) for _ in range(rng.randrange(1, 20)))]
    options: dict[str, Any] = {"max_tokens": rng.randrange(1, 60)}
    options |= rng.choice([GREEDY, {**SAMPLED, "seed": i}, {"temperature": 1.2, "seed": i}])
    if rng.random() < 0.2:
        options["stop"] = [chr(97 + rng.randrange(26)), "zz"]
    if rng.random() < 0.15:
        options["grammar"] = "root ::= [a-m]+"
    return prompt, options


def texts_alone(**opened: Any) -> list[str]:
    """The text of each kind with a model to itself, without a draft."""
    texts = []
    for i in range(N_KINDS):
        with open_tiny(**opened) as llm:
            prompt, options = asked(i)
            texts.append(text_of(llm(prompt, **options)))
    return texts


class Clients:
    """Requests of many clients to one model, each compared with what it gives alone.

    Args:
        llm: the model.
        texts: the text of each kind, alone.
        lag_s: the longest pause of a slow reader.

    Attributes:
        seen: the count of each event, and of each stage at which a request was aborted.

    """

    def __init__(self, llm: Llama, texts: Sequence[str], lag_s: float = 0.05) -> None:
        self.llm, self.texts, self.lag_s = llm, texts, lag_s
        self.seen: Counter[str] = Counter()
        self._lock = threading.Lock()

    def serve(self, n_clients: int, n_requests: int, seed: int) -> Counter[str]:
        """Half of the clients in threads, half in an event loop; so many requests of all."""
        n_each = -(-n_requests // n_clients)
        n_threads = n_clients // 2

        async def in_loop() -> None:
            await asyncio.gather(
                *(self._async_client(seed + k, n_each) for k in range(n_threads, n_clients))
            )

        with ThreadPoolExecutor(max(n_threads, 1)) as pool:
            done = [pool.submit(self._client, seed + k, n_each) for k in range(n_threads)]
            asyncio.run(in_loop())
            for one in done:
                one.result()
        return self.seen

    def _count(self, *what: str) -> None:
        with self._lock:
            self.seen.update(what)

    # ---- in a thread

    def _client(self, seed: int, n: int) -> None:
        rng = random.Random(seed)
        ways: list[Callable[[random.Random, int], None]] = [
            self._whole, self._whole, self._stream, self._leave, self._aborted, self._deadline,
            self._handle,
        ]  # fmt: skip
        for _ in range(n):
            rng.choice(ways)(rng, rng.randrange(N_KINDS))
            self._count("requests")

    def _open(self, i: int, **more: Any) -> Stream:
        prompt, options = asked(i)
        handle = self.llm.create_completion(prompt, stream=True, **options, **more)
        assert isinstance(handle, Stream)
        return handle

    def _whole(self, rng: random.Random, i: int) -> None:
        prompt, options = asked(i)
        assert text_of(dict(self.llm.create_completion(prompt, **options))) == self.texts[i]
        self._count("whole")

    def _stream(self, rng: random.Random, i: int) -> None:
        text, lag_s = "", rng.choice([0, 0, self.lag_s])
        for k, chunk in enumerate(self._open(i)):
            text += text_of(chunk)
            if k == 1:
                time.sleep(lag_s)
        assert text == self.texts[i]
        self._count("streams")

    def _handle(self, rng: random.Random, i: int) -> None:
        handle = self._open(i)
        handle.start()
        time.sleep(rng.choice([0, self.lag_s / 4]))
        assert text_of(handle.result()) == self.texts[i]
        self._count("handles")

    def _leave(self, rng: random.Random, i: int) -> None:
        stream, text = self._open(i), ""
        for _, chunk in zip(range(rng.randrange(5)), stream, strict=False):
            text += text_of(chunk)
        assert self.texts[i].startswith(text)
        if rng.random() < 0.6:
            stream.close()
        self._count("left")

    def _aborted(self, rng: random.Random, i: int) -> None:
        """Another thread reads, this one waits for a stage and aborts."""
        stream, text = self._open(i), [""]

        def read() -> None:
            for chunk in stream:
                text[0] += text_of(chunk)
                if stage == "aside":
                    time.sleep(self.lag_s)

        stage = rng.choice(STAGES)
        with ThreadPoolExecutor(1) as pool:
            if stage == "new":
                self._count("aborted: new")
                stream.abort()
            reading = pool.submit(read)
            end = time.monotonic() + _WATCH_S
            while stream.status.stage not in (stage, "ended") and time.monotonic() < end:
                time.sleep(0.0005)
            self._count(f"aborted: {stream.status.stage}")
            stream.abort()
            error = reading.exception()
        self._check_end(i, error, text[0])

    def _deadline(self, rng: random.Random, i: int) -> None:
        text, error = "", None
        try:
            for chunk in self._open(i, timeout_s=rng.choice([0.0, 0.001, 0.02, 60.0])):
                text += text_of(chunk)
        except DeadlineError as late:
            error = late
            self._count("deadlines")
        self._check_end(i, error, text)

    def _check_end(self, i: int, error: BaseException | None, text: str) -> None:
        """An end before its time, or the whole text."""
        if error is None:
            assert text == self.texts[i]
            return
        assert isinstance(error, CancelledError), repr(error)
        assert self.texts[i].startswith(text)
        # What was computed and not read yet is in the error too, without bytes that are not text.
        assert error.partial_text.startswith(text.replace("\ufffd", ""))

    # ---- in an event loop

    async def _async_client(self, seed: int, n: int) -> None:
        rng = random.Random(seed)
        ways: list[Callable[[random.Random, int], Awaitable[None]]] = [
            self._awaited, self._awaited, self._astream, self._aleave, self._acancelled,
            self._aaborted,
        ]  # fmt: skip
        for _ in range(n):
            await rng.choice(ways)(rng, rng.randrange(N_KINDS))
            self._count("requests", "of an event loop")

    async def _astart(self, i: int, **more: Any) -> Stream:
        prompt, options = asked(i)
        handle = await self.llm.acreate_completion(prompt, stream=True, **options, **more)
        assert isinstance(handle, Stream)
        return handle

    async def _awaited(self, rng: random.Random, i: int) -> None:
        prompt, options = asked(i)
        answer: Any = await self.llm.acreate_completion(prompt, **options)
        assert text_of(answer) == self.texts[i]
        self._count("awaited")

    async def _astream(self, rng: random.Random, i: int) -> None:
        text, lag_s, k = "", rng.choice([0, 0, self.lag_s]), 0
        async for chunk in await self._astart(i):
            text += text_of(chunk)
            k += 1
            if k == 2:
                await asyncio.sleep(lag_s)
        assert text == self.texts[i]
        self._count("async streams")

    async def _aleave(self, rng: random.Random, i: int) -> None:
        n, text = rng.randrange(5), ""
        async with await self._astart(i) as stream:
            async for chunk in stream:
                text += text_of(chunk)
                n -= 1
                if n < 0:
                    break
        assert self.texts[i].startswith(text)
        self._count("left")

    async def _acancelled(self, rng: random.Random, i: int) -> None:
        """Cancels the task, as a server does for a client that has disconnected."""
        prompt, options = asked(i)
        task = asyncio.ensure_future(self.llm.acreate_completion(prompt, **options))
        await asyncio.sleep(rng.choice([0.0, 0.001, 0.01, 0.05]))
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            answer: Any = await task
            assert text_of(answer) == self.texts[i]
        self._count("cancelled tasks")

    async def _aaborted(self, rng: random.Random, i: int) -> None:
        stage, text, error = rng.choice(STAGES[1:]), "", None
        stream = await self._astart(i)
        end = time.monotonic() + _WATCH_S
        while stream.status.stage not in (stage, "ended") and time.monotonic() < end:
            await asyncio.sleep(0.001)
        self._count(f"aborted: {stream.status.stage}")
        stream.abort()
        try:
            async for chunk in stream:
                text += text_of(chunk)
        except CancelledError as aborted:
            error = aborted
        self._check_end(i, error, text)
