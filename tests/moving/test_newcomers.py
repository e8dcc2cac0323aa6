"""Findings of apps written for llama-cpp-python, each on a toy."""

from __future__ import annotations

from typing import Any

import pytest

from pyllama_spec import ArgumentError
from pyllama_spec.llama_cpp import llama_chat_format
from pyllama_spec.llama_cpp.llama_chat_format import register_chat_format
from tests.faces.families import USER, WEATHER
from tests.faces.tools import GREEDY, open_tiny

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
        expected = _prompt(opened, [USER])
    with open_tiny() as llm:
        before = _prompt(llm, [USER])
        llm.create_chat_completion([USER], max_tokens=1, **GREEDY)
        llm.chat_format = "llama-2"
        assert llm.chat_format == "llama-2"
        assert _prompt(llm, [USER]) == expected != before
        found = llm.create_chat_completion([USER], max_tokens=1, **GREEDY)
        n_prompt = len(llm.tokenize(expected.encode()))
        assert found["usage"]["prompt_tokens"] == n_prompt
        with pytest.raises(ArgumentError, match="nope"):
            llm.chat_format = "nope"
        assert llm.chat_format == "llama-2"
        assert _prompt(llm, [USER]) == expected


def test_a_registered_format_and_a_handler_of_ones_own() -> None:
    @register_chat_format("of-a-newcomer")
    def formatter(messages: Any, **more: Any) -> Any:
        del messages, more
        return llama_chat_format.ChatFormatterResponse(prompt="the cat")

    try:
        llm: Any  # what a handler gives has no type, and properties change
        with open_tiny(chat_format="of-a-newcomer") as llm:
            llm.create_chat_completion([USER], max_tokens=1, **GREEDY)
            assert llm.chat_handler is not None
            llm.chat_format = "chatml"
            assert llm.chat_handler is None
            llm.chat_handler = lambda **keywords: keywords["stop"]
            llm.chat_format = "of-a-newcomer"
            assert llm.create_chat_completion([USER]) == []
        with open_tiny(chat_format="of-a-newcomer", chat_handler=lambda **_: "mine") as llm:
            assert llm.create_chat_completion([USER]) == "mine"
    finally:
        registry = llama_chat_format.LlamaChatCompletionHandlerRegistry()
        registry.unregister_chat_handler("of-a-newcomer")


def test_messages_may_be_objects_of_the_package_openai() -> None:
    said = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    told = {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}
    forms: list[list[Any]] = [
        [USER, said, told, USER],
        [USER, Dumped(**said, function_call=None), told, USER],
        [USER, {**said, "tool_calls": [Dumped(**CALL)]}, told, USER],
        [USER, Dumped(**{**said, "tool_calls": [CALL]}, audio=None), Dumped(**told), USER],
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
        found: Any = llm.create_chat_completion([USER])
        assert found == ["zzz"]
