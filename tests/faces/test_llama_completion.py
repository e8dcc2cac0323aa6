"""Completions are the same with and without drafts, wherever the text ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pyllama_spec import ContextFullError, PromptLookup, UnsupportedError
from tests.faces.tools import (
    GREEDY,
    PROMPT,
    SAMPLED,
    dictated,
    drafters,
    finish_of,
    lasting,
    open_tiny,
    text_of,
)
from tests.scripted import Perfect

SCRIPT = list(b"one two three four five six")
N = len(PROMPT)


def reference_of(options: dict[str, Any], n: int = 40, kind: str = "llama") -> list[int]:
    with open_tiny(kind=kind) as llm:
        generation = llm.generate_steps(PROMPT, max_tokens=n, **options)
        list(generation)
        return [*PROMPT, *generation.record.tokens]


def test_processor_sees_exactly_the_prefix_of_each_position() -> None:
    reference = reference_of(SAMPLED)
    for draft in drafters(reference):
        seen: list[list[int]] = []

        def spy(
            ids: npt.NDArray[np.int32],
            scores: npt.NDArray[np.float32],
            seen: list[list[int]] = seen,
        ) -> npt.NDArray[np.float32]:
            seen.append(ids.tolist())
            return scores

        with open_tiny(draft) as llm:
            llm.create_completion(PROMPT, max_tokens=40, logits_processor=[spy], **SAMPLED)
        # A round may go past max_tokens in no case: 40 tokens, 40 calls.
        assert seen == [reference[: N + i] for i in range(40)]


def test_stopping_criteria() -> None:
    for draft in drafters([*PROMPT, *SCRIPT]):
        response = dictated(SCRIPT, draft, stopping_criteria=lambda ids, logits: len(ids) >= N + 5)
        assert text_of(response) == bytes(SCRIPT[:5]).decode()
        assert finish_of(response) == "stop"
        assert response["usage"]["completion_tokens"] == 5


def test_echo_and_ids_as_prompt() -> None:
    with open_tiny() as llm:
        a = llm("the cat", max_tokens=4, echo=True, **GREEDY)
        b = llm(llm.tokenize("the cat"), max_tokens=4, **GREEDY)
        assert text_of(a) == "the cat" + text_of(b)
        assert a["object"] == "text_completion"
        with pytest.raises(UnsupportedError):
            llm("the cat", suffix="mat")


def test_context_full_ends_with_length_and_too_long_a_prompt_is_an_error() -> None:
    for draft in (None, Perfect(reference_of(GREEDY)), PromptLookup()):
        with open_tiny(draft, n_ctx=32) as llm:
            response = llm(PROMPT, max_tokens=None, **GREEDY)
            assert finish_of(response) == "length"
            assert response["usage"]["total_tokens"] == 32
            assert lasting(llm(PROMPT, max_tokens=-1, **GREEDY)) == lasting(response)
            assert llm([97] * 31, max_tokens=9)["usage"]["completion_tokens"] <= 1
            with pytest.raises(ContextFullError):
                llm([97] * 32)
            assert lasting(llm(PROMPT, max_tokens=0, **GREEDY)) == lasting(response)
