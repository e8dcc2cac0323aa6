"""Behaviour that apps for llama-cpp-python rely on, each on a toy."""

from __future__ import annotations

import json
import pickle
import re
import warnings
from typing import Any

import numpy as np
import pytest

from pyllama_spec import ArgumentError, ContextFullError
from pyllama_spec.engine import SamplerParams
from pyllama_spec.llama_cpp import LlamaGrammar, llama_chat_format, llama_grammar
from pyllama_spec.llama_cpp.llama_chat_format import register_chat_format
from tests.faces.families import USER as QUESTION
from tests.faces.families import WEATHER
from tests.faces.tools import GREEDY, PROMPT, open_tiny, text_of

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


def test_a_whole_float_is_a_whole_number() -> None:
    whole: dict[str, Any] = {"max_tokens": 6.0, "seed": 4.0, "top_k": 40.0}
    with open_tiny() as llm:
        expected = text_of(llm(PROMPT, max_tokens=6, seed=4))
        assert text_of(llm(PROMPT, **whole)) == expected
        half: Any = 6.5
        with pytest.raises(ArgumentError):
            llm(PROMPT, max_tokens=half)


def test_numbers_of_numpy_are_numbers() -> None:
    given: dict[str, Any] = {
        "temperature": np.float32(0.5), "top_p": np.float16(0.5), "top_k": np.int64(7),
    }  # fmt: skip
    assert SamplerParams(**given) == SamplerParams(temperature=0.5, top_p=0.5, top_k=7)
    with open_tiny() as llm:
        plain = llm(PROMPT, temperature=0.5, top_p=0.5, top_k=7, seed=1, max_tokens=8)
        given["max_tokens"] = np.int32(8)
        assert text_of(llm(PROMPT, **given, seed=1)) == text_of(plain)


# ---- findings of apps written for llama-cpp-python, each on a toy


CALL = {
    "id": "call_1", "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
}  # fmt: skip


class Dumped:
    """Imitates a pydantic object: it gives its fields, and is not a dict."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def model_dump(self, exclude_none: bool = False) -> dict[str, Any]:
        """Returns the fields, as pydantic does."""
        return {k: v for k, v in self.fields.items() if v is not None or not exclude_none}


def _prompt(llm: Any, messages: list[Any]) -> str:
    return str(llm.template.render(messages).text)


def test_a_chat_format_that_is_set_later_counts() -> None:
    with open_tiny(chat_format="llama-2") as opened:
        expected = _prompt(opened, [QUESTION])
    with open_tiny() as llm:
        before = _prompt(llm, [QUESTION])
        llm.create_chat_completion([QUESTION], max_tokens=1, **GREEDY)
        llm.chat_format = "llama-2"
        assert llm.chat_format == "llama-2"
        assert _prompt(llm, [QUESTION]) == expected != before
        found = llm.create_chat_completion([QUESTION], max_tokens=1, **GREEDY)
        n_prompt = len(llm.tokenize(expected.encode()))
        assert found["usage"]["prompt_tokens"] == n_prompt
        with pytest.raises(ArgumentError, match="nope"):
            llm.chat_format = "nope"
        assert llm.chat_format == "llama-2"
        assert _prompt(llm, [QUESTION]) == expected


def test_a_registered_format_and_a_handler_of_ones_own() -> None:
    @register_chat_format("of-a-newcomer")
    def formatter(messages: Any, **more: Any) -> Any:
        del messages, more
        return llama_chat_format.ChatFormatterResponse(prompt="the cat")

    try:
        llm: Any  # what a handler gives has no type, and properties change
        with open_tiny(chat_format="of-a-newcomer") as llm:
            llm.create_chat_completion([QUESTION], max_tokens=1, **GREEDY)
            assert llm.chat_handler is not None
            llm.chat_format = "chatml"
            assert llm.chat_handler is None
            llm.chat_handler = lambda **keywords: keywords["stop"]
            llm.chat_format = "of-a-newcomer"
            assert llm.create_chat_completion([QUESTION]) == []
        with open_tiny(chat_format="of-a-newcomer", chat_handler=lambda **_: "mine") as llm:
            assert llm.create_chat_completion([QUESTION]) == "mine"
    finally:
        registry = llama_chat_format.LlamaChatCompletionHandlerRegistry()
        registry.unregister_chat_handler("of-a-newcomer")


def test_messages_may_be_objects_of_the_package_openai() -> None:
    said = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    told = {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}
    forms: list[list[Any]] = [
        [QUESTION, said, told, QUESTION],
        [QUESTION, Dumped(**said, function_call=None), told, QUESTION],
        [QUESTION, {**said, "tool_calls": [Dumped(**CALL)]}, told, QUESTION],
        [QUESTION, Dumped(**{**said, "tool_calls": [CALL]}, audio=None), Dumped(**told), QUESTION],
    ]
    with open_tiny(chat_format="chatml-function-calling", n_ctx=2048) as llm:
        found = [
            llm.create_chat_completion(form, tools=[WEATHER], max_tokens=4, **GREEDY)
            for form in forms
        ]
    counts = [one["usage"]["prompt_tokens"] for one in found]
    assert counts == [counts[0]] * 4
    assert len({one["choices"][0]["message"]["content"] for one in found}) == 1


def test_a_handler_can_add_to_what_ends_a_text() -> None:
    """llama-cpp-python's handlers compute `stop + [...]`, which needs a list."""
    with open_tiny(chat_handler=lambda **keywords: keywords["stop"] + ["zzz"]) as llm:
        found: Any = llm.create_chat_completion([QUESTION])
        assert found == ["zzz"]


# ---- findings of the probe beside llama-cpp-python (tools/comparison), each on a toy


TWO: dict[str, Any] = {
    "type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
}  # fmt: skip


def test_a_pickle_opens_the_same_again() -> None:
    with open_tiny("prompt-lookup", n_ctx=128, last_n_tokens_size=7) as llm:
        expected = text_of(llm(PROMPT, max_tokens=8, **GREEDY))
        kept = pickle.dumps(llm)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = pickle.loads(kept)
    with again:
        assert again.n_ctx() == 128
        assert again.last_n_tokens_size == 7
        found = again(PROMPT, max_tokens=8, **GREEDY)
        assert text_of(found) == expected
        assert found["speculation"]["drafter"] == "prompt-lookup"


def test_offsets_of_a_text_begin_behind_its_prompt() -> None:
    text = "the cat"
    with open_tiny() as llm:
        whole = llm(text, max_tokens=4, logprobs=1, **GREEDY)["choices"][0]["logprobs"]
        assert whole["text_offset"][0] == len(text)
        ids = llm(llm.tokenize(text.encode()), max_tokens=4, logprobs=1, **GREEDY)
        assert ids["choices"][0]["logprobs"]["text_offset"] == whole["text_offset"]
        pieces = [
            chunk["choices"][0]["logprobs"]
            for chunk in llm(text, max_tokens=4, logprobs=1, stream=True, **GREEDY)
        ]
        streamed = [at for piece in pieces if piece for at in piece["text_offset"]]
        assert streamed == whole["text_offset"]


def test_white_space_of_a_schema_is_a_blank_at_most() -> None:
    """Lines and indents cost a round each, so the answer has none."""
    form = {"type": "json_object", "schema": TWO}
    with open_tiny(n_ctx=1024) as llm:
        for seed in range(5):
            options: dict[str, Any] = {"seed": seed, "temperature": 1.0, "max_tokens": 200}
            found = llm.create_chat_completion(USER, response_format=form, **options)
            text = found["choices"][0]["message"]["content"]
            assert set(json.loads(text)) == {"a", "b"}
            assert "\n" not in text
            assert "  " not in text
            assert "\t" not in text


@pytest.mark.parametrize(
    ("name", "begins"), [("JSON_ARR_GBNF", "["), ("JSON_GBNF", "{"), ("LIST_GBNF", "- ")]
)
def test_grammars_by_name(name: str, begins: str) -> None:
    grammar = LlamaGrammar.from_string(getattr(llama_grammar, name))
    with open_tiny() as llm:
        assert text_of(llm(PROMPT, max_tokens=12, grammar=grammar, seed=1)).startswith(begins)


def test_a_state_says_what_it_holds() -> None:
    with open_tiny() as llm:
        llm.eval(PROMPT)
        state = llm.save_state()
        assert state.input_ids.dtype == np.intc
        assert state.input_ids.tolist() == PROMPT
        assert isinstance(state.llama_state, bytes)
        assert 0 < len(state.llama_state) <= state.llama_state_size
