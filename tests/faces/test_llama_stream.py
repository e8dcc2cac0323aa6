"""Streams equal whole results, and a dropped stream leaves nothing behind."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from pyllama_spec import PromptLookup
from tests.faces.tools import (
    GREEDY,
    PROMPT,
    SAMPLED,
    Forced,
    drafters,
    lasting,
    open_tiny,
    text_of,
)
from tests.scripted import Perfect

N = len(PROMPT)


def half_read(stream: Iterator[Any], n: int) -> None:
    for _ in range(n):
        next(stream)


@pytest.mark.parametrize("n", [0, 1, 2, 5, 11])
@pytest.mark.parametrize("way", ["close", "drop", "with", "cycle"])
def test_a_stream_left_early_leaves_the_model_as_new(way: str, n: int) -> None:
    follow = [*PROMPT, *b" and then"]
    with open_tiny() as fresh:
        expected = lasting(fresh(follow, max_tokens=20, **SAMPLED))
    with open_tiny() as plain:
        generation = plain.generate_steps(PROMPT, max_tokens=30, **GREEDY)
        list(generation)
    for draft in (PromptLookup(), Perfect([*PROMPT, *generation.record.tokens])):
        with open_tiny(draft) as llm:
            stream = llm.create_completion(PROMPT, max_tokens=30, stream=True, **GREEDY)
            half_read(stream, n)
            if way == "close":
                stream.close()
                stream.close()
                assert list(stream) == []
            elif way == "with":
                with stream:
                    pass
            elif way == "cycle":
                knot: list[Any] = [stream]
                knot.append(knot)
                del knot, stream
            else:
                del stream
            assert lasting(llm(follow, max_tokens=20, **SAMPLED)) == expected


@pytest.mark.timeout(120)
def test_a_stream_may_be_collected_at_any_point_of_the_next_request() -> None:
    """Also between a check and a wait, where the notification finds nobody."""
    thresholds = gc.get_threshold()
    with open_tiny() as llm:
        try:
            gc.freeze()  # what others left in this process is not looked through each time
            for n in range(100, 260):
                gc.collect()
                gc.disable()
                knot: list[Any] = [llm.create_completion(PROMPT, stream=True, **GREEDY)]
                half_read(knot[0], 5)
                knot.append(knot)
                del knot
                gc.set_threshold(n, 1_000_000, 1_000_000)
                gc.enable()
                assert text_of(llm([*PROMPT, 116], max_tokens=3, **GREEDY))
        finally:
            gc.set_threshold(*thresholds)
            gc.unfreeze()
            gc.enable()


def test_errors_carry_what_was_generated() -> None:
    script = list(b"some words before it breaks")

    def breaks(ids: Any, scores: Any) -> Any:
        if len(ids) == N + 9:
            raise ZeroDivisionError("of the user's")
        return scores

    for draft in drafters([*PROMPT, *script]):
        with open_tiny(draft) as llm:
            processors = [Forced(N, script), breaks]
            with pytest.raises(ZeroDivisionError) as caught:
                llm(PROMPT, max_tokens=20, logits_processor=processors)
            assert caught.value.partial_text == "some word"  # type: ignore[attr-defined]
            assert caught.value.partial_tokens == tuple(script[:9])  # type: ignore[attr-defined]
            stream = llm(PROMPT, max_tokens=20, stream=True, logits_processor=processors)
            with pytest.raises(ZeroDivisionError):
                list(stream)
            assert list(stream) == []
            with open_tiny() as fresh:
                assert lasting(llm(PROMPT, max_tokens=9, **SAMPLED)) == lasting(
                    fresh(PROMPT, max_tokens=9, **SAMPLED)
                )


@pytest.mark.parametrize("n_parallel", [1, 2])
@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_error_keeps_no_model(n_parallel: int, is_streamed: bool) -> None:
    """Its traceback holds the frames of the call, and so the model, which must not hold it."""

    def breaks(ids: Any, scores: Any) -> Any:
        raise ZeroDivisionError

    llm = open_tiny(n_parallel=n_parallel)
    gc.disable()
    try:
        with suppress(ZeroDivisionError):
            list(llm(PROMPT, stream=is_streamed, logits_processor=breaks))
        model = weakref.ref(llm)
        del llm
        assert model() is None
    finally:
        gc.enable()
