"""Regular expressions: the output matches them with every draft."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from pyllama_spec import ArgumentError, Llama
from pyllama_spec.llama_cpp import LlamaGrammar
from tests.faces.tools import open_tiny

PROMPT = "Answer: "
REGEXES = [
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}",
    r"(red|green|blue)( (red|green|blue)){2,5}",
    "[äöü€\U0001f600]{3}",
    r"a{0,6}b",
]


@pytest.fixture(scope="module", params=[None, "grammar", "prompt-lookup"])
def llm(request: pytest.FixtureRequest) -> Iterator[Llama]:
    with open_tiny(request.param, n_ctx=2048) as opened:
        yield opened


_TEXTS: dict[tuple[object, ...], str] = {}


def answer(llm: Llama, *key: object, **options: Any) -> str:
    """The text, which ends by itself and is the same with every draft."""
    choice = llm.create_completion(PROMPT, max_tokens=1500, **options)["choices"][0]
    text = str(choice["text"])
    assert choice["finish_reason"] == "stop", text
    assert text == _TEXTS.setdefault(key, text)
    return text


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": 1.0, "seed": 3}])
@pytest.mark.parametrize("regex", REGEXES)
def test_a_text_matches_its_expression(llm: Llama, regex: str, options: dict[str, Any]) -> None:
    form = {"type": "regex", "pattern": regex}
    text = answer(llm, regex, repr(options), response_format=form, **options)
    assert re.fullmatch(regex, text), text


def test_every_way_to_say_one_gives_the_same() -> None:
    regex = "[ab]{3}"
    with open_tiny() as llm:
        texts = {
            answer(llm, **options, temperature=1.0, seed=4)
            for options in (
                {"grammar": LlamaGrammar.from_regex(regex)},
                {"response_format": {"type": "regex", "regex": regex}},
                {
                    "response_format": {
                        "type": "grammar", "syntax": "regex", "definition": regex,
                    }
                },
            )
        }  # fmt: skip
    assert len(texts) == 1


def test_forced_text_is_drafted() -> None:
    form = {"type": "regex", "pattern": "the identification number of the customer: [0-9]{3}"}
    with open_tiny("grammar") as llm:
        found = llm.create_completion(PROMPT, response_format=form, max_tokens=200, seed=1)
    # The toy's tokens are bytes.
    assert found["speculation"]["accepted"] >= 30
    assert found["speculation"]["rounds"] < 20


@pytest.mark.parametrize(
    "options",
    [
        {"response_format": {"type": "regex", "pattern": "("}},
        {"response_format": {"type": "grammar", "syntax": "ebnf", "definition": "a"}},
        {"response_format": {"type": "regex", "pattern": r"(a)\1"}},
        {"response_format": {"type": "regex", "pattern": "(" * 5000 + "a" + ")" * 5000}},
        {"response_format": {"type": "regex", "pattern": "(.*a){200}"}},
        {"response_format": {"type": "regex", "pattern": "(?:x|(?=a)a?)" * 300 + "c"}},
        {"response_format": {"type": "regex", "pattern": "[]"}},
        {"response_format": {"type": "regex", "pattern": "a)|(?:b"}},
        {"response_format": {"type": "regex", "pattern": r"a|\x-1"}},
    ],
)
def test_what_cannot_be_followed_is_refused(options: dict[str, Any]) -> None:
    with open_tiny() as llm:
        with pytest.raises(ArgumentError):
            llm.create_completion(PROMPT, max_tokens=5, **options)
        assert llm.create_completion(PROMPT, max_tokens=2)["usage"]["completion_tokens"] == 2
