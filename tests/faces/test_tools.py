"""Tools: what is asked, what is answered, and the calls of a dozen families' templates."""

from __future__ import annotations

import json
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pyllama_spec import ArgumentError
from pyllama_spec.engine import ChatParser, Model
from pyllama_spec.generation.chat_template import ChatTemplate
from pyllama_spec.llama.chat_formats import FORMATS
from pyllama_spec.llama.tools import ToolChats, ToolRequest
from tests.faces.tools import Forced, open_tiny
from tests.models import model_path
from tools.fetch_smollm2 import cache_directory

USER = {"role": "user", "content": "Weather in Paris?"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather", "description": "The weather of a city.",
        "parameters": {
            "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
        },
    },
}  # fmt: skip
TIME = {
    "type": "function",
    "function": {"name": "get_time", "description": "", "parameters": {"type": "object"}},
}
ARGUMENTS = {"city": "Paris"}
JSON_CALL = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
HERMES = f"<tool_call>\n{JSON_CALL}\n</tool_call>"
# Of each family: its published template, and a call as its models write it.
FAMILIES = {
    "Qwen-Qwen2.5-7B-Instruct": HERMES,
    "Qwen-Qwen3-0.6B": HERMES,
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": HERMES,
    "Qwen3-Coder": (
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n"
        "</tool_call>"
    ),
    "meta-llama-Llama-3.1-8B-Instruct": '{"name": "get_weather", "parameters": {"city": "Paris"}}',
    "mistralai-Mistral-Nemo-Instruct-2407": (
        '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "123456789"}]'
    ),
    "meetkai-functionary-medium-v3.2": 'get_weather\n{"city": "Paris"}',
    "moonshotai-Kimi-K2": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        '<|tool_call_argument_begin|>{"city": "Paris"}<|tool_call_end|>'
        "<|tool_calls_section_end|>"
    ),
    "GLM-4.6": (
        "\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
        "</tool_call>\n"
    ),
    "ibm-granite-granite-4.0": HERMES,
    "LFM2-8B-A1B": '<|tool_call_start|>[get_weather(city="Paris")]<|tool_call_end|>',
    "openai-gpt-oss-120b": (
        "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
        '{"city": "Paris"}'
    ),
}


@cache
def templates() -> dict[str, str]:
    """The published templates that come with the engine's source."""
    archives = sorted(cache_directory().glob("xllamacpp-*.tar.gz"))
    assert archives, "the engine's source, which the build has fetched, is not in the cache"
    found = {}
    with tarfile.open(archives[-1]) as archive:
        for member in archive:
            path = Path(member.name)
            if path.suffix == ".jinja" and path.parent.name == "templates":
                data = archive.extractfile(member)
                assert data is not None
                found[path.stem] = data.read().decode()
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_of_families(family: str) -> None:
    with Model(model_path("llama")) as model:
        chats = ToolChats(model, ChatTemplate(templates()[family]))
        request = ToolRequest.read([WEATHER, TIME], "auto", None, None)
        variables = {"enable_thinking": False}
        rendered, reader = chats.begin([USER], request, variables)
        assert "get_weather" in rendered.text
        assert rendered.text.count("Weather in Paris?") == 1
        assert rendered.located != "nothing"
        ids = model.vocab.tokenize(FAMILIES[family], add_special=False, parse_special=True)
        answer = reader.read(ids, FAMILIES[family], 0, partial=False)
        assert [name for name, _ in answer.calls] == ["get_weather"]
        assert json.loads(answer.calls[0][1]) == ARGUMENTS
        assert not answer.content.strip()
        chats.close()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_the_grammar_of_a_call_takes_it_and_nothing_else(family: str, choice: str) -> None:
    """With a processor that dictates the call: the grammar would refuse what is none."""
    text = FAMILIES[family]
    with open_tiny(chat_template=templates()[family], n_ctx=8192) as llm:
        plan, reader = llm._chat(
            [USER], ToolRequest.read([WEATHER], choice, None, None),
            {"enable_thinking": False}, {"max_tokens": None},
        )  # fmt: skip
        n_prompt = len(plan.record.prompt_tokens)
        plan.close()
        assert reader is not None
        script = llm.tokenize(text.encode(), add_bos=False, special=True)
        found = llm.create_chat_completion(
            [USER], tools=[WEATHER], tool_choice=choice, temperature=0.0, max_tokens=400,
            chat_template_kwargs={"enable_thinking": False},
            logits_processor=Forced(n_prompt, script),
        )["choices"][0]  # fmt: skip
        assert found["finish_reason"] == "tool_calls"
        call = found["message"]["tool_calls"][0]
        assert call["type"] == "function"
        assert call["function"]["name"] == "get_weather"
        assert json.loads(call["function"]["arguments"]) == ARGUMENTS


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "pick"}}])
@pytest.mark.parametrize("family", ["chatml-function-calling", "Qwen-Qwen2.5-7B-Instruct"])
def test_a_call_that_has_to_be_is_not_talked_around(family: str, choice: Any) -> None:
    """A model that never ends a sentence would never come to the call: this one is random."""
    source = FORMATS[family].source if family in FORMATS else templates()[family]
    with open_tiny(chat_template=source, n_ctx=4096) as llm:
        for seed in range(3):
            options: dict[str, Any] = {"seed": seed, "temperature": 1.0, "max_tokens": 400}
            found = llm.create_chat_completion([USER], tools=[SMALL], tool_choice=choice, **options)
            message = found["choices"][0]["message"]
            assert message["content"] is None
            call = message["tool_calls"][0]["function"]
            assert json.loads(call["arguments"])["color"] in ("red", "blue")


SMALL = {
    "type": "function",
    "function": {
        "name": "pick",
        "parameters": {
            "type": "object", "properties": {"color": {"enum": ["red", "blue"]}},
            "required": ["color"],
        },
    },
}  # fmt: skip
OPTIONS: dict[str, Any] = {"seed": 2, "temperature": 1.0, "max_tokens": 300}


@pytest.mark.parametrize(
    "choice",
    ["required", "any", {"type": "function", "function": {"name": "pick"}}, {"name": "pick"}],
)
def test_a_call_that_has_to_be_where_the_template_knows_no_tools(choice: Any) -> None:
    texts = []
    for draft in (None, "grammar", "prompt-lookup"):
        with open_tiny(draft, chat_format="chatml", n_ctx=2048) as llm:
            found = llm.create_chat_completion([USER], tools=[SMALL], tool_choice=choice, **OPTIONS)
        choice_0 = found["choices"][0]
        assert choice_0["finish_reason"] == "tool_calls"
        function = choice_0["message"]["tool_calls"][0]["function"]
        assert function["name"] == "pick"
        assert json.loads(function["arguments"])["color"] in ("red", "blue")
        texts.append(function["arguments"])
        if draft is not None:
            assert found["speculation"]["accepted"] > 0
    assert len(set(texts)) == 1


def test_the_older_form_and_streams() -> None:
    functions = [SMALL["function"]]
    with open_tiny(chat_format="chatml", n_ctx=2048) as llm:
        found = llm.create_chat_completion(
            [USER], functions=functions, function_call={"name": "pick"}, **OPTIONS
        )
        message = found["choices"][0]["message"]
        assert message["function_call"] == message["tool_calls"][0]["function"]
        chunks = list(
            llm.create_chat_completion(
                [USER], tools=[SMALL], tool_choice={"name": "pick"}, stream=True, **OPTIONS
            )
        )
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        calls = [one for delta in deltas for one in delta.get("tool_calls", [])]
        assert calls[0]["function"]["name"] == "pick"
        assert all("name" not in call["function"] for call in calls[1:])
        arguments = "".join(call["function"].get("arguments", "") for call in calls)
        assert json.loads(arguments) == json.loads(message["function_call"]["arguments"])
        assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
        assert deltas[0] == {"role": "assistant"}
        none = llm.create_chat_completion(
            [USER], tools=[SMALL], tool_choice="none", max_tokens=5, temperature=0.0
        )
        assert isinstance(none["choices"][0]["message"]["content"], str)
        for bad, words in (({"tools": [SMALL], "grammar": 'root ::= "a"'}, "grammar or tools"),):
            with pytest.raises(ArgumentError, match=words):
                llm.create_chat_completion([USER], **bad)


def test_reasoning_comes_apart() -> None:
    said = "<think>\nHm.\n</think>\n\nSunny."
    with open_tiny(chat_template=templates()["Qwen-Qwen3-0.6B"], n_ctx=2048) as llm:
        for form, content in (("auto", "Sunny."), ("none", said), (None, said)):
            n_prompt = len(llm.generate_chat_steps([USER]).record.prompt_tokens)
            script = llm.tokenize(said.encode(), add_bos=False)
            message = llm.create_chat_completion(
                [USER], reasoning_format=form, temperature=0.0, max_tokens=100,
                logits_processor=Forced(n_prompt, script),
            )["choices"][0]["message"]  # fmt: skip
            assert message["content"].strip() == content
            assert ("reasoning_content" in message) == (form == "auto")


def test_what_is_no_call_is_text() -> None:
    with Model(model_path("llama")) as model:
        parser = ChatParser(model, FORMATS["chatml-function-calling"].source)
        session = parser.begin({"messages": [USER], "tools": [WEATHER]})
        for text in ("Hello.", "<tool_call>\n{", "[" * 300, '{"name": "x"}'):
            ids = model.vocab.tokenize(text, add_special=False)
            chats = ToolChats(model, ChatTemplate(FORMATS["chatml-function-calling"].source))
            _, reader = chats.begin([USER], ToolRequest.read([WEATHER], None, None, None), {})
            answer = reader.read(ids, text, 0, partial=False)
            assert answer.content == text
        session.parse([], partial=True)
        parser.close()
