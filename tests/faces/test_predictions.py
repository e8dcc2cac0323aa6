"""A request's prediction: the same text, in fewer rounds if the prediction is right."""

from __future__ import annotations

import random
from typing import Any

import pytest

from pyllama_spec import Drafter
from tests.faces.tools import GREEDY, PROMPT, SAMPLED, open_tiny
from tests.scripted import Hostile, Perfect, Wrong

MESSAGES = [{"role": "user", "content": "the cat"}]
N = 60
# Of letters that no token joins: what is read again as text has the tokens that were written.
LETTERS: dict[str, Any] = {"temperature": 0.9, "seed": 4, "grammar": "root ::= [0-9A-H]+"}


def plain(options: dict[str, Any]) -> tuple[list[int], str]:
    """The text without a draft: its tokens, and itself."""
    with open_tiny() as llm:
        record = llm.generate_steps(PROMPT, max_tokens=N, **options).read_all()
        return record.tokens, record.text


def edited(rng: random.Random, text: str) -> str:
    """A text with something left out, put in or exchanged at some places."""
    for _ in range(rng.randrange(6)):
        at = rng.randrange(len(text) + 1)
        kind = rng.randrange(3)
        put = "".join(chr(97 + rng.randrange(26)) for _ in range(rng.randrange(1, 8)))
        text = text[:at] + ("" if kind == 0 else put) + text[at + (0 if kind == 1 else 5) :]
    return text


@pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("n_parallel", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_text_is_the_same_whatever_is_predicted(
    options: dict[str, Any], n_parallel: int
) -> None:
    tokens, text = plain(options)
    rng = random.Random(n_parallel)
    reference = [*PROMPT, *tokens]
    drafts: list[Drafter | str] = [
        "prompt-lookup", Perfect(reference, 4), Wrong(reference), Hostile(reference, 320, 2),
    ]  # fmt: skip
    predictions = [text, edited(rng, text), edited(rng, text), text[::-1], " " * 50]
    for draft in drafts:
        with open_tiny(draft, n_parallel=n_parallel) as llm:
            for prediction in predictions:
                generation = llm.generate_steps(
                    PROMPT, max_tokens=N, prediction=prediction, **options
                )
                record = generation.read_all()
                assert (record.tokens, record.text) == (tokens, text)


def test_what_is_predicted_saves_rounds() -> None:
    tokens, text = plain(LETTERS)
    assert len(tokens) == len(text) == N
    with open_tiny(Wrong([])) as llm:

        def rounds(prediction: str | None, **more: Any) -> int:
            generation = llm.generate_steps(
                PROMPT, max_tokens=N, prediction=prediction, **LETTERS, **more
            )
            record = generation.read_all()
            assert record.tokens == tokens
            return record.stats.rounds

        without = rounds(None)
        assert rounds(text) < without / 3
        # It is found again behind what was changed: put in, left out, exchanged, at the beginning.
        for changed in (
            text[:20] + "QQQQ" + text[20:], text[:20] + text[26:], text[:20] + "Q" + text[21:],
            "QQ" + text, text[5:],
        ):  # fmt: skip
            assert rounds(changed) < without / 2
        assert rounds("Q" * 200) == without
        assert rounds("") == without
        assert rounds(text, n_draft=0) == N - 1


def test_it_is_a_copy_in_the_figures() -> None:
    _, text = plain(LETTERS)
    with open_tiny("prompt-lookup") as llm:
        answer: Any = llm.create_completion(
            bytes(PROMPT), max_tokens=N, prediction=text, return_token_sources=True, **LETTERS
        )
    sources = {one["source"] for one in answer["choices"][0]["token_sources"]}
    assert sources == {"copy", "target"}
    speculation = answer["speculation"]
    assert speculation["by_source"]["prediction"]["rounds"] > 5
    of_prediction = speculation["by_source"]["prediction"]
    assert of_prediction["accepted"] == speculation["accepted"] > 5
    assert of_prediction["rounds"] > 1
    for count in ("proposed", "drafted", "accepted"):
        assert sum(one[count] for one in speculation["by_source"].values()) == speculation[count]
    assert of_prediction["accepted"] > 5
