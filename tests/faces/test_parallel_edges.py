"""Parallel requests: failures of one, of all, and behind the end of a text."""

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

from pyllama_spec import Llama
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
