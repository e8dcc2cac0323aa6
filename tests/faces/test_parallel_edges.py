"""Parallel requests: failures of one, of all, and of callbacks that call back."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from pyllama_spec import ArgumentError, CancelledError, Draft, DraftRequest, Llama
from pyllama_spec.drafters import NO_DRAFT, Drafter
from pyllama_spec.speculative import SequenceRun, Step
from tests.faces.tools import GREEDY, PROMPT, Forced, open_tiny, text_of
from tests.models import model_path
from tests.scripted import Perfect

N = len(PROMPT)


@contextmanager
def side_by_side(n_parallel: int = 2, draft: Any = None, **options: Any) -> Iterator[Llama]:
    """A tiny model for some requests at once."""
    values: dict[str, Any] = {
        "n_ctx": 1024, "n_threads": 1, "draft": draft, "controller": "fixed", **options,
    }  # fmt: skip
    with Llama(model_path("llama"), n_parallel=n_parallel, **values) as llm:
        yield llm


def plain(prompt: Sequence[int], n: int) -> str:
    """The text of a model for one request at a time."""
    with open_tiny(n_ctx=1024) as llm:
        return text_of(llm(list(prompt), max_tokens=n, **GREEDY))


def asked(llm: Llama, prompt: Sequence[int], options: dict[str, Any]) -> dict[str, Any]:
    """A completion, for a pool of threads."""
    return dict(llm(prompt, **options))


def fails_once(llm: Llama, error: BaseException) -> None:
    """The next round raises."""
    step = llm._runtime.round.step

    def failing(runs: Sequence[SequenceRun]) -> list[tuple[SequenceRun, Step]]:
        llm._runtime.round.step = step  # type: ignore[method-assign]
        raise error

    llm._runtime.round.step = failing  # type: ignore[method-assign]


def test_a_round_that_fails_ends_its_requests_and_no_others() -> None:
    """Requests in line run next, and each reader gets its own exception."""
    prompts = [[*PROMPT, 97 + i] for i in range(4)]
    gate, entered = threading.Event(), threading.Event()

    def waits(ids: Any, scores: Any) -> Any:
        entered.set()
        assert gate.wait(30)
        return scores

    with side_by_side() as llm, ThreadPoolExecutor(4) as pool:
        runner: Any = llm._runtime.runner
        futures = []
        for i, prompt in enumerate(prompts):
            # The first one holds the first round up; with the second it shares the next one.
            options = {**GREEDY, "max_tokens": 9, **({"logits_processor": waits} if i == 0 else {})}
            futures.append(pool.submit(asked, llm, prompt, options))
            while len(runner._line.placed) + len(runner._line.waiting) <= i:
                time.sleep(0.001)
            assert entered.wait(30)  # else a busy machine may break the first round already
        fails_once(llm, RuntimeError("the round is broken"))
        gate.set()
        errors: list[Any] = [future.exception(timeout=300) for future in futures[:2]]
        assert [str(error) for error in errors] == ["the round is broken"] * 2
        assert errors[0] is not errors[1]
        assert [len(error.partial_tokens) for error in errors] == [1, 0]
        assert plain(prompts[0], 9).startswith(errors[0].partial_text)
        texts = [text_of(future.result(timeout=300)) for future in futures[2:]]
        assert texts == [plain(p, 9) for p in prompts[2:]]


def test_one_of_a_list_fails() -> None:
    """The others are answered, and the error carries their answers."""
    prompts = [[*PROMPT, 96 + i] for i in range(5)]
    for n_parallel in (1, 3):
        with side_by_side(n_parallel) as llm:
            expected = [text_of(llm(prompt, max_tokens=9, **GREEDY)) for prompt in prompts]

            def processor(tokens: Any, logits: Any) -> Any:
                if tokens[N] == 97:
                    raise ZeroDivisionError
                return logits

            with pytest.raises(ZeroDivisionError) as caught:
                llm(prompts, max_tokens=9, logits_processor=processor, **GREEDY)
            found: Any = caught.value
            texts = [choice and choice["text"] for choice in found.partial_choices]
            assert texts == [expected[0], None, *expected[2:]]


def test_a_list_that_is_cancelled_leaves_nothing_to_compute() -> None:
    """If the first one's callback cancels, the others are withdrawn and their places are free."""
    with side_by_side(3) as llm:

        def processor(tokens: Any, logits: Any) -> Any:
            llm.cancel()
            return logits

        with pytest.raises(CancelledError) as caught:
            llm([PROMPT, [*PROMPT, 97], [*PROMPT, 98], [*PROMPT, 99], [*PROMPT, 100]],
                max_tokens=900, logits_processor=processor, **GREEDY)  # fmt: skip
        assert "the engine says" not in str(caught.value)
        found: Any = caught.value
        assert found.partial_choices == [None] * 5
        runner: Any = llm._runtime.runner
        assert not runner._line.waiting
        start = time.perf_counter()
        while runner._line.placed:
            assert time.perf_counter() - start < 10
            time.sleep(0.001)
        assert sum(len(state.tokens) for state in runner.idle()) < 3 * 300
        assert text_of(llm(PROMPT, max_tokens=9, **GREEDY)) == plain(PROMPT, 9)


def lingering(ids: Any, scores: Any) -> Any:
    """A logits processor that keeps a text of 1000 tokens from its end for some seconds."""
    time.sleep(0.005)
    return scores


@pytest.mark.parametrize("n_parallel", [1, 2])
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
        with side_by_side(n_parallel, draft) as llm:
            processors = [Forced(N, script), breaks]
            response = llm(PROMPT, max_tokens=20, logits_processor=processors, **ends)
            found.append(response["choices"])
            with pytest.raises(ZeroDivisionError):
                llm(PROMPT, max_tokens=20, logits_processor=processors)
    assert found[0] == found[1]
    assert found[0][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("n_parallel", [1, 3])
def test_a_state_that_was_loaded_is_the_last_one(n_parallel: int) -> None:
    """save_state() after load_state() returns it, and a second save does not replace it."""
    with side_by_side(n_parallel, "prompt-lookup") as llm:
        states = []
        for i in range(2):
            llm([*PROMPT, 97 + i], max_tokens=9 + i, **GREEDY)
            states.append(llm.save_state())
        llm.reset()
        for state in states:
            llm.load_state(state)
            assert llm.save_state().tokens == state.tokens
        if n_parallel > 1:
            held = [s.tokens for s in llm._runtime.runner.idle()]
            assert all(list(state.tokens) in held for state in states)


def test_ctrl_c_in_a_reader_brings_its_text() -> None:
    """The interrupt carries the text, and the request's place is free again."""

    def interrupts(ids: Any, scores: Any) -> Any:
        if len(ids) == N + 20:
            os.kill(os.getpid(), signal.SIGINT)
        return lingering(ids, scores)

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with side_by_side() as llm:
            with pytest.raises(KeyboardInterrupt) as caught:
                llm(PROMPT, max_tokens=1000, logits_processor=interrupts, **GREEDY)
            text = caught.value.partial_text  # type: ignore[attr-defined]
            assert text
            assert plain(PROMPT, 1000).replace("\ufffd", "").startswith(text)
            assert text_of(llm(PROMPT, max_tokens=9, **GREEDY)) == plain(PROMPT, 9)
    finally:
        signal.signal(signal.SIGINT, handler)


def test_as_many_as_a_batch_takes() -> None:
    prompts = [[*PROMPT, 97 + i] for i in range(6)]
    with side_by_side(3, "prompt-lookup", n_batch=3) as llm:
        choices = llm(prompts, max_tokens=12, **GREEDY)["choices"]
    assert [choice["text"] for choice in choices] == [plain(p, 12) for p in prompts]


def test_cancel_reaches_a_request_that_is_just_beginning() -> None:
    """A cancel() before or after the request begins is never lost."""
    for delay in (0.0, 0.0005, 0.001, 0.002):
        with side_by_side() as llm, ThreadPoolExecutor(1) as pool:
            runner: Any = llm._runtime.runner
            options = {"max_tokens": 1000, "logits_processor": lingering, **GREEDY}
            running = pool.submit(asked, llm, PROMPT, options)
            while not runner._line.placed:
                time.sleep(0)
            time.sleep(delay)
            llm.cancel()
            with pytest.raises(CancelledError):
                running.result(timeout=300)


class Raises(Drafter):
    """Raises once, after a few rounds."""

    def __init__(self, error: BaseException, before: Any = None) -> None:
        self.error: BaseException | None = error
        self.before = before
        self.n = 0

    def propose_one(self, request: DraftRequest) -> Draft:
        self.n += 1
        if self.n > 5 and self.error is not None:
            error, self.error = self.error, None
            if self.before is not None:
                self.before()
            raise error
        return NO_DRAFT


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_an_exit_in_a_drafter_leaves_nobody_waiting(kind: type[BaseException]) -> None:
    prompts = [[*PROMPT, 96 + i] for i in range(6)]
    with side_by_side(2, Raises(kind("once"))) as llm, ThreadPoolExecutor(6) as pool:
        options = {"max_tokens": 9, **GREEDY}
        futures = [pool.submit(asked, llm, prompt, options) for prompt in prompts]
        errors = [future.exception(timeout=300) for future in futures]
        assert {type(error) for error in errors if error} == {kind}
        for prompt, future, error in zip(prompts, futures, errors, strict=True):
            assert error or text_of(future.result()) == plain(prompt, 9)


def test_a_cancel_does_not_outlast_a_round_that_broke() -> None:
    drafter = Raises(KeyboardInterrupt("once"))
    with side_by_side(2, drafter) as llm:
        drafter.before = llm.cancel
        with pytest.raises(KeyboardInterrupt):
            llm(PROMPT, max_tokens=30, **GREEDY)
        for _ in range(2):
            assert text_of(llm(PROMPT, max_tokens=9, **GREEDY)) == plain(PROMPT, 9)


@pytest.mark.parametrize("kind", [StopIteration, GeneratorExit])
@pytest.mark.parametrize("where", ["logits_processor", "stopping_criteria"])
def test_what_would_end_a_generator_is_an_error(kind: type[BaseException], where: str) -> None:
    def act(ids: Any, logits: Any) -> Any:
        if len(ids) > N + 3:
            raise kind
        return logits if where == "logits_processor" else False

    with open_tiny() as llm, pytest.raises(ArgumentError) as caught:
        llm(PROMPT, max_tokens=12, **{where: act}, **GREEDY)
    assert caught.value.partial_tokens


@pytest.mark.parametrize("where", ["logits_processor", "stopping_criteria"])
@pytest.mark.parametrize("n_parallel", [1, 2])
def test_a_callback_may_only_read_the_target(where: str, n_parallel: int) -> None:
    with open_tiny(n_parallel=n_parallel) as llm:

        def clear(ids: Any, logits: Any) -> Any:
            if len(ids) == N + 3:
                llm.context.memory.clear()
            return logits if where == "logits_processor" else False

        with pytest.raises(ArgumentError) as caught:
            llm(PROMPT, max_tokens=12, **{where: clear}, **GREEDY)
        assert len(caught.value.partial_tokens) >= 3
        assert text_of(llm(PROMPT, max_tokens=12, **GREEDY)) == plain(PROMPT, 12)
