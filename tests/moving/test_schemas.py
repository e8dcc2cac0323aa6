"""Schemas of programs: the output always fits, and is the same with every draft."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from pyllama_spec import Llama
from tests.faces.tools import open_tiny
from tests.moving.schemas import SCHEMAS, fits

PROMPT = [{"role": "user", "content": "Answer."}]


@pytest.fixture(scope="module", params=[None, "grammar", "prompt-lookup"])
def llm(request: pytest.FixtureRequest) -> Iterator[Llama]:
    with open_tiny(request.param, n_ctx=2048) as opened:
        yield opened


_TEXTS: dict[int, str] = {}


@pytest.mark.parametrize("number", range(len(SCHEMAS)))
def test_what_comes_out_fits(llm: Llama, number: int) -> None:
    """The weights are random, so everything right comes from the grammar."""
    schema = SCHEMAS[number]
    form = {"type": "json_schema", "json_schema": {"schema": schema}}
    found = llm.create_chat_completion(
        PROMPT, response_format=form, seed=number, temperature=1.0, max_tokens=1500
    )
    text = found["choices"][0]["message"]["content"]
    assert found["choices"][0]["finish_reason"] == "stop", text
    assert fits(json.loads(text), schema), text
    assert text == _TEXTS.setdefault(number, text)


def test_long_keys_are_drafted_for_nothing() -> None:
    form = {"type": "json_object", "schema": SCHEMAS[-1]}
    with open_tiny("grammar", n_ctx=2048) as llm:
        found = llm.create_chat_completion(PROMPT, response_format=form, seed=1, max_tokens=1500)
        speculation = found["speculation"]
        # The toy's tokens are bytes. The white space between is the model's, and it likes it.
        n_keys = sum(map(len, SCHEMAS[-1]["properties"]))
        assert speculation["accepted"] > 0.8 * n_keys
        assert speculation["accepted"] > 0.6 * speculation["drafted"]
