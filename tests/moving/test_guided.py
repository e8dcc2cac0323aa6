"""Regular expressions and Lark grammars: the output matches them with every draft."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from time import process_time
from typing import Any

import pytest

from pyllama_spec import ArgumentError, Llama, PyllamaSpecError, UnsupportedError
from pyllama_spec.constraints import Guide
from pyllama_spec.llama_cpp import LlamaGrammar
from tests.faces.tools import open_tiny

PROMPT = "Answer: "
REGEXES = [
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}",
    r"(red|green|blue)( (red|green|blue)){2,5}",
    "[äöü€\U0001f600]{3}",
    r"a{0,6}b",
]
SUMS = r"""%llguidance {}
start: product (("+" | "-") product)~1..3
product: atom ("*" atom)~0..2
atom: NUMBER | "(" NUMBER ")"
NUMBER: /[1-9][0-9]{0,2}/
"""


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


@pytest.mark.parametrize("seed", range(5))
def test_a_text_follows_lark_rules(llm: Llama, seed: int) -> None:
    text = answer(llm, "lark", seed, grammar=SUMS, seed=seed, temperature=1.0)
    assert re.fullmatch(r"[-+*()0-9]+", text), text
    # Brackets fit, and no operator is left over, or Python would not compute it.
    assert isinstance(eval(text, {"__builtins__": {}}), int)


def test_every_way_to_say_one_gives_the_same() -> None:
    regex, lark = "[ab]{3}", 'start: "yes" | "no"'
    with open_tiny() as llm:
        texts = {
            answer(llm, **options, temperature=1.0, seed=4)
            for options in (
                {"grammar": LlamaGrammar.from_regex(regex)},
                {"grammar": Guide("regex", regex)},
                {"response_format": {"type": "regex", "regex": regex}},
                {
                    "response_format": {
                        "type": "grammar", "syntax": "regex", "definition": regex,
                    }
                },
            )
        }  # fmt: skip
        assert len(texts) == 1
        _TEXTS.clear()
        by_lark = {
            answer(llm, **options, temperature=1.0, seed=4)
            for options in (
                {"grammar": LlamaGrammar.from_lark(lark)},
                {"grammar": "%llguidance {}\n" + lark},
                {"response_format": {"type": "grammar", "syntax": "lark", "definition": lark}},
                {"response_format": {"type": "grammar", "grammar": 'root ::= "yes" | "no"'}},
            )
        }
        assert len(by_lark) == 1
        assert by_lark <= {"yes", "no"}


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
        {"grammar": "%llguidance {}\nstart: undefined"},
    ],
)
def test_what_cannot_be_followed_is_refused(options: dict[str, Any]) -> None:
    with open_tiny() as llm:
        with pytest.raises(ArgumentError):
            llm.create_completion(PROMPT, max_tokens=5, **options)
        assert llm.create_completion(PROMPT, max_tokens=2)["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize(
    "guide",
    [
        Guide("lark", "start: start"),
        Guide("lark", 'start: %json {"$ref": "http://example.com/x"}'),
        Guide("regex", "(" * 5000 + "a" + ")" * 5000),
    ],
)
def test_one_that_was_made_to_hurt_ends_in_one_line(guide: Guide) -> None:
    with open_tiny() as llm:
        with pytest.raises(PyllamaSpecError) as caught:
            llm.create_completion(PROMPT, grammar=guide, max_tokens=3, temperature=1.0, seed=1)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 400
        assert llm.create_completion(PROMPT, max_tokens=2)["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize(
    "guide", [Guide("lark", 'start: x~1..100000000\nx: "a"'), Guide("regex", "(.*a){200}")]
)
def test_a_large_one_costs_little(guide: Guide) -> None:
    with open_tiny() as llm:
        start = process_time()
        found = llm.create_completion(PROMPT, grammar=guide, max_tokens=3, seed=1)
        assert found["usage"]["completion_tokens"] >= 1
        assert process_time() - start < 10


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with open_tiny() as llm:
        with pytest.raises(UnsupportedError, match=r"pip install pyllama_spec\[llguidance\]"):
            llm.create_completion(PROMPT, grammar=LlamaGrammar.from_regex("a"))
        assert llm.create_completion(PROMPT, max_tokens=2)["usage"]["completion_tokens"] == 2
