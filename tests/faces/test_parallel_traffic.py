"""Many threads use a model for several requests at once, in every way."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pyllama_spec import BusyError, CancelledError, ClosedError, Llama
from pyllama_spec.llama.open_model import LlamaState
from pyllama_spec.speculative.controller.profit import REASON
from tests.faces.tools import GREEDY, PROMPT, SAMPLED, open_tiny, text_of
from tests.models import model_path

N_TEXTS, N_THREADS = 16, 5


def prompt_of(i: int) -> list[int]:
    """Prompts that share beginnings."""
    return [*PROMPT, *[97 + (i * 7 + j) % 26 for j in range(i % 9)]]


def options_of(i: int) -> dict[str, Any]:
    """Greedy and sampled, of different lengths."""
    return {"max_tokens": 5 + i % 20, **(SAMPLED if i % 2 else GREEDY)}


class User:
    """One thread's use of a model.

    Args:
        llm: the model.
        texts: the text of each prompt alone.
        seed: the seed of the choices.

    """

    def __init__(self, llm: Llama, texts: list[str], seed: int) -> None:
        self.llm, self.texts, self.rng = llm, texts, random.Random(seed)
        self.state: LlamaState | None = None

    def work(self, n: int) -> None:
        """Does something n times."""
        ways: list[Callable[[int], None]] = [
            self.whole, self.whole, self.stream, self.leave, self.several, self.started,
            self.failing, self.two_readers, self.save_or_load, self.forget,
        ]  # fmt: skip
        for _ in range(n):
            self.rng.choice(ways)(self.rng.randrange(N_TEXTS))

    def _open(self, i: int) -> Any:
        return self.llm(prompt_of(i), stream=True, **options_of(i))

    def whole(self, i: int) -> None:
        """A text in one piece."""
        assert text_of(self.llm(prompt_of(i), **options_of(i))) == self.texts[i]

    def stream(self, i: int) -> None:
        """A text as it comes, sometimes read slowly."""
        text = ""
        for chunk in self._open(i):
            text += text_of(chunk)
            if self.rng.random() < 0.1:
                time.sleep(0.001)
        assert text == self.texts[i]

    def leave(self, i: int) -> None:
        """A stream that is closed, or dropped, before its end."""
        stream = self._open(i)
        for _ in range(self.rng.randrange(4)):
            next(stream, None)
        if self.rng.random() < 0.5:
            stream.close()

    def several(self, i: int) -> None:
        """A list of prompts."""
        wanted = [(i + k) % N_TEXTS for k in (0, 2, 4)]
        options = {**options_of(i), "max_tokens": 8}
        choices = self.llm([prompt_of(k) for k in wanted], **options)["choices"]
        for k, choice in zip(wanted, choices, strict=True):
            a, b = self.texts[k], str(choice["text"])
            assert a.startswith(b) or b.startswith(a)

    def started(self, i: int) -> None:
        """A request that computes before it is read, if it is."""
        steps = self.llm.generate_steps(prompt_of(i), **options_of(i))
        steps.start()
        if self.rng.random() < 0.5:
            steps.close()
        else:
            assert "".join(piece.text for piece in steps) == self.texts[i]

    def failing(self, i: int) -> None:
        """A callback that raises."""
        n_most = len(prompt_of(i)) + self.rng.randrange(3)

        def breaks(ids: Any, scores: Any) -> Any:
            if len(ids) > n_most:
                raise ZeroDivisionError
            return scores

        with pytest.raises(ZeroDivisionError) as caught:
            self.llm(prompt_of(i), logits_processor=breaks, **options_of(i))
        n_tokens = len(caught.value.partial_tokens)  # type: ignore[attr-defined]
        assert n_tokens == n_most + 1 - len(prompt_of(i))

    def two_readers(self, i: int) -> None:
        """Two threads read one stream."""
        stream, chunks = self._open(i), [list[str](), list[str]()]

        def read(out: list[str]) -> None:
            out.extend(text_of(chunk) for chunk in stream)

        threads = [threading.Thread(target=read, args=(out,)) for out in chunks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sum(len(text) for out in chunks for text in out) == len(self.texts[i])

    def save_or_load(self, i: int) -> None:
        """The state of whatever came last; there may be no place without a request."""
        try:
            if self.state is None or i % 2:
                self.state = self.llm.save_state()
            else:
                self.llm.load_state(self.state)
        except BusyError:
            pass

    def forget(self, i: int) -> None:
        """Drops the tokens of idle sequences."""
        self.llm.reset()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "draft", "n_parallel"),
    [
        ("llama", "prompt-lookup", 3), ("llama", None, 2), ("llama", "eagle3", 3),
        ("qwen35", "prompt-lookup", 4), ("gemma3", "prompt-lookup", 3),
    ],
)  # fmt: skip
def test_every_use_at_once(kind: str, draft: str | None, n_parallel: int) -> None:
    with open_tiny(kind=kind) as llm:
        texts = [text_of(llm(prompt_of(i), **options_of(i))) for i in range(N_TEXTS)]
    path = model_path("eagle3") if draft == "eagle3" else draft
    with Llama(
        model_path(kind), draft=path, n_ctx=256, n_threads=1, n_ubatch=16, n_parallel=n_parallel
    ) as llm:
        with ThreadPoolExecutor(N_THREADS) as pool:
            users = [User(llm, texts, seed) for seed in range(N_THREADS)]
            for done in [pool.submit(user.work, 25) for user in users]:
                done.result(timeout=600)
        runner: Any = llm._runtime.runner
        begin = time.perf_counter()
        while runner._line.placed or runner._thread:
            assert time.perf_counter() - begin < 20, "nothing is left to compute"
            time.sleep(0.001)
        assert sorted(state.seq_id for state in runner.idle()) == list(range(n_parallel))
        for i in range(N_TEXTS):
            response = llm(prompt_of(i), **options_of(i))
            assert text_of(response) == texts[i]
            assert response["speculation"]["reason_off"] in {None, REASON}


@pytest.mark.parametrize("n_parallel", [1, 2, 3])
def test_close_at_any_time(n_parallel: int) -> None:
    """A thread that reads, waits or begins then gets an error at once; no thread stays behind."""
    rng = random.Random(n_parallel)

    def use(llm: Llama, turn: int) -> None:
        while True:
            with contextlib.suppress(CancelledError):
                if turn % 3 == 0:
                    llm(PROMPT, max_tokens=200, **GREEDY)
                elif turn % 3 == 1:
                    list(llm(PROMPT, max_tokens=200, stream=True, **GREEDY))
                else:
                    llm([PROMPT] * 3, max_tokens=100, **GREEDY)

    for _ in range(12):
        llm = open_tiny("prompt-lookup", n_parallel=n_parallel)
        with ThreadPoolExecutor(N_THREADS) as pool:
            running = [pool.submit(use, llm, turn) for turn in range(N_THREADS)]
            for _ in range(rng.randrange(3)):
                time.sleep(rng.random() * 0.02)
                llm.cancel()
            time.sleep(rng.random() * 0.02)
            llm.close()
            for done in running:
                with pytest.raises(ClosedError):
                    done.result(timeout=300)
    assert not [t for t in threading.enumerate() if t.name == "pyllama_spec"]


class _LateLock:
    """The lock of a runner, which one thread gets only after something has happened."""

    def __init__(self, lock: Any, late: int, happened: Callable[[], bool]) -> None:
        self._lock, self._late, self._happened = lock, late, happened

    def __enter__(self) -> None:
        until = time.perf_counter() + 5
        while threading.get_ident() == self._late and not self._happened():
            assert time.perf_counter() < until, "it did not happen"
            time.sleep(0.001)
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.mark.parametrize("n_parallel", [1, 2])
def test_close_between_a_round_and_its_end(n_parallel: int) -> None:
    """The round is returned, but its thread has not reported its end."""
    llm = open_tiny("prompt-lookup", n_parallel=n_parallel)
    runner: Any = llm._runtime.runner
    lock, hand_out = runner._lock, runner._hand_out

    def handed_out(outcomes: Any) -> None:
        hand_out(outcomes)
        runner._hand_out = hand_out
        runner._lock = _LateLock(lock, threading.get_ident(), lambda: runner._is_closed)
        closing.start()

    runner._hand_out = handed_out
    closing = threading.Thread(target=llm.close, daemon=True)
    raised: list[type[BaseException]] = []

    def read() -> None:
        try:
            llm(PROMPT, max_tokens=200, **GREEDY)
        except BaseException as error:  # noqa: BLE001 - looked at below
            raised.append(type(error))

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    reading.join(20)
    assert raised == [ClosedError], "its reader waits for ever"
    closing.join(20)
    assert not closing.is_alive()


@pytest.mark.parametrize("n_parallel", [1, 2])
def test_abort_between_a_round_and_its_end(n_parallel: int) -> None:
    """The request is over at once, and its place is free, though nobody reads it any more."""
    with open_tiny(n_parallel=n_parallel) as llm:
        runner: Any = llm._runtime.runner
        hand_out = runner._hand_out

        def handed_out(outcomes: Any) -> None:
            hand_out(outcomes)
            runner._hand_out = hand_out
            stream.abort()
            ended.append(stream.status.stage)

        ended: list[str] = []
        stream: Any = llm(PROMPT, max_tokens=200, stream=True, **GREEDY)
        runner._hand_out = handed_out
        with contextlib.suppress(CancelledError):
            next(stream)
            list(stream)
        assert ended == ["ended"]
        assert llm(PROMPT, max_tokens=4, **GREEDY)["choices"]
