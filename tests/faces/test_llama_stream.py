"""Streams equal whole results, and a dropped stream leaves nothing behind."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from pyllama_spec import PromptLookup
from tests.faces.tools import (
    GREEDY,
    PROMPT,
    SAMPLED,
    Forced,
    counts_of,
    drafters,
    finish_of,
    lasting,
    open_tiny,
    text_of,
)
from tests.scripted import Perfect

N = len(PROMPT)
SCRIPT = list("naïve 日本 🙂 STOP after".encode())
MESSAGES = [{"role": "user", "content": "the cat"}]


def test_stream_equals_the_whole() -> None:
    for draft in drafters([*PROMPT, *SCRIPT]):
        for stop in (None, "STOP", ["nothing", "🙂 ST"]):
            with open_tiny(draft) as llm:
                options: dict[str, Any] = {
                    "max_tokens": 28, "stop": stop, "logits_processor": Forced(N, SCRIPT),
                    "logprobs": 2,
                }  # fmt: skip
                whole = llm.create_completion(PROMPT, **options)
                chunks = list(llm.create_completion(PROMPT, stream=True, **options))
            assert "".join(map(text_of, chunks)) == text_of(whole)
            assert [finish_of(chunk) for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
            assert finish_of(chunks[-1]) == finish_of(whole)
            assert counts_of(chunks[-1]) == counts_of(whole)
            assert {"speculation", "timing"} <= set(chunks[-1])
            assert "usage" not in chunks[0]
            for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                given = [x for c in chunks[:-1] for x in c["choices"][0]["logprobs"][key]]
                if key != "text_offset":
                    assert given == whole["choices"][0]["logprobs"][key]


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
