"""Completions are the same with and without drafts, wherever the text ends."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pyllama_spec import ArgumentError, ContextFullError, PromptLookup, UnsupportedError
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
from tests.scripted import Pattern, Perfect

SCRIPT = list(b"one two three four five six")
N = len(PROMPT)


def reference_of(options: dict[str, Any], n: int = 40, kind: str = "llama") -> list[int]:
    with open_tiny(kind=kind) as llm:
        generation = llm.generate_steps(PROMPT, max_tokens=n, **options)
        list(generation)
        return [*PROMPT, *generation.record.tokens]


@pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kind", ["llama", "gemma3", "lfm2"])
def test_same_with_every_drafter(kind: str, options: dict[str, Any]) -> None:
    reference = reference_of(options, kind=kind)
    seen = []
    for draft in [*drafters(reference), PromptLookup()]:
        with open_tiny(draft, kind) as llm:
            response = llm.create_completion(PROMPT, max_tokens=40, **options)
            seen.append(lasting(response))
            assert response["usage"]["completion_tokens"] == 40
            if isinstance(draft, Perfect):
                assert response["speculation"]["accepted"] > 25, response["speculation"]
                assert response["speculation"]["reason_off"] is None
    assert all(one == seen[0] for one in seen[1:])


@pytest.mark.parametrize("n", range(1, 12))
def test_max_tokens_at_each_offset_of_a_run(n: int) -> None:
    for draft in drafters([*PROMPT, *SCRIPT]):
        response = dictated(SCRIPT, draft, max_tokens=n)
        assert text_of(response) == bytes(SCRIPT[:n]).decode()
        assert finish_of(response) == "length"
        assert response["usage"] == {
            "prompt_tokens": N, "completion_tokens": n, "total_tokens": N + n,
            "prompt_tokens_details": {"cached_tokens": 0},
        }  # fmt: skip


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


@pytest.mark.parametrize(
    "options",
    [
        {"repeat_penalty": 1.5}, {"frequency_penalty": 20.0}, {"presence_penalty": 40.0},
        {"dry_multiplier": 40.0, "dry_allowed_length": 1, "dry_breakers": ()},
        {"logit_bias": {"101": 70.0, 97: -5.0}},
        {"mirostat_mode": 2, "temperature": 0.8, "seed": 5},
        {"xtc_probability": 0.5, "temperature": 1.5, "seed": 5},
        {"temperature": 2.0, "typical_p": 0.7, "seed": 5, "top_k": 0, "min_p": 0.0},
    ],
    ids=lambda options: next(iter(options)),
)  # fmt: skip
def test_each_sampler_option_counts_and_is_the_same_with_drafts(options: dict[str, Any]) -> None:
    options = {**GREEDY, **options}
    reference = reference_of(options)
    assert reference != reference_of(GREEDY)
    for draft in (Perfect(reference), Pattern(reference, range(9)), PromptLookup()):
        with open_tiny(draft) as llm:
            generation = llm.generate_steps(PROMPT, max_tokens=40, **options)
            list(generation)
        assert generation.record.tokens == reference[N:]


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


@pytest.mark.parametrize("prompt", [None, 3, [], [97, "a"], [97, True], [-1], [320], {"a": 1}])
def test_bad_prompts_are_refused(prompt: Any) -> None:
    with open_tiny() as llm, pytest.raises(ArgumentError):
        llm(prompt)


def test_json_of_random_weights_is_valid_as_far_as_it_goes() -> None:
    """The grammar bounds the white space that an untrained model writes."""
    with open_tiny() as llm:
        for seed in range(4):
            response = llm(
                PROMPT, temperature=1.0, seed=seed, max_tokens=60,
                response_format={"type": "json_object"},
            )  # fmt: skip
            text = text_of(response)
            assert text.startswith("{")
            assert " " * 21 not in text
            if finish_of(response) == "stop":
                json.loads(text)
