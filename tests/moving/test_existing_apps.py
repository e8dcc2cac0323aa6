"""Behaviour that apps for llama-cpp-python rely on, each on a toy."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from pyllama_spec import (
    ArgumentError,
    ContextFullError,
    UnknownKeywordError,
)
from pyllama_spec.engine import SamplerParams
from tests.faces.tools import PROMPT, open_tiny, text_of

USER = [{"role": "user", "content": "Hi"}]
# Its own server looks for these words, and so do apps that shorten a chat and try again.
TOO_LONG = re.compile(r"Requested tokens \((\d+)\) exceed context window of (\d+)")


def test_numbers_are_found_in_the_error_of_a_long_prompt() -> None:
    with open_tiny(n_ctx=32) as llm:
        prompts: tuple[Any, ...] = ([97] * 40, ["a", [97] * 40])
        for prompt in prompts:
            with pytest.raises(ContextFullError) as failed:
                llm(prompt, max_tokens=4)
            found = TOO_LONG.match(str(failed.value))
            assert found
            assert found.groups() == ("40", "32")
        with pytest.raises(ValueError, match=TOO_LONG):
            llm.create_chat_completion([{"role": "user", "content": "a" * 60}])


def test_an_unknown_keyword_of_a_request_is_a_type_error() -> None:
    with open_tiny() as llm:
        calls: tuple[tuple[Any, Any, dict[str, Any]], ...] = (
            (llm, PROMPT, {"users": "Ann"}), (llm.create_chat_completion, USER, {"best_of": 1}),
        )  # fmt: skip
        for call, given, keyword in calls:
            with pytest.raises(TypeError) as failed:
                call(given, **keyword)
            assert isinstance(failed.value, UnknownKeywordError)
            assert isinstance(failed.value, ArgumentError)


def test_a_whole_float_is_a_whole_number() -> None:
    whole: dict[str, Any] = {"max_tokens": 6.0, "seed": 4.0, "top_k": 40.0}
    with open_tiny() as llm:
        expected = text_of(llm(PROMPT, max_tokens=6, seed=4))
        assert text_of(llm(PROMPT, **whole)) == expected
        half: Any = 6.5
        with pytest.raises(ArgumentError, match=r"max_tokens=6.5 is a float"):
            llm(PROMPT, max_tokens=half)


def test_none_of_a_cut_or_a_penalty_is_its_default() -> None:
    with open_tiny() as llm:
        options: dict[str, Any] = {"max_tokens": 12, "temperature": 1.0, "seed": 3}
        expected = text_of(llm(PROMPT, **options))
        nothing: dict[str, Any] = dict.fromkeys(
            ("top_k", "top_p", "min_p", "typical_p", "repeat_penalty", "frequency_penalty",
             "presence_penalty")
        )  # fmt: skip
        assert text_of(llm(PROMPT, **options, **nothing)) == expected


def test_numbers_of_numpy_are_numbers() -> None:
    given: dict[str, Any] = {
        "temperature": np.float32(0.5), "top_p": np.float16(0.5), "top_k": np.int64(7),
    }  # fmt: skip
    assert SamplerParams(**given) == SamplerParams(temperature=0.5, top_p=0.5, top_k=7)
    with open_tiny() as llm:
        plain = llm(PROMPT, temperature=0.5, top_p=0.5, top_k=7, seed=1, max_tokens=8)
        given["max_tokens"] = np.int32(8)
        assert text_of(llm(PROMPT, **given, seed=1)) == text_of(plain)
