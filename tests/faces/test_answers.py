"""Parsed answers in every family's form, cut anywhere and with thoughts, lose nothing."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from pyllama_spec import ChatTemplate
from pyllama_spec.chat.answers import Answer, AnswerReader
from pyllama_spec.chat.tools import ToolChats, ToolRequest
from pyllama_spec.engine import Model
from tests.faces.chat_world import SCHEMAS, Said, open_family
from tests.faces.families import ARGUMENTS, FAMILIES, TIME, USER, WEATHER, templates
from tests.models import model_path

# How an answer of these families begins before its text.
_HEADS = {
    "openai-gpt-oss-120b": "<|channel|>final<|message|>",
    "meetkai-functionary-medium-v3.2": "all\n",
}
# Of each family that has one which no call ends: how a thought is written.
_THOUGHTS = dict.fromkeys(("Qwen-Qwen3-0.6B", "GLM-4.6"), "<think>{}</think>")
# Of those that write calls alike one is enough at every turn.
_QUICK = ("Qwen-Qwen3-0.6B", "Qwen3-Coder", "mistralai-Mistral-Nemo-Instruct-2407")
_ALL = [one if one in _QUICK else pytest.param(one, marks=pytest.mark.slow) for one in FAMILIES]
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def reader_of(model: Model, family: str, choice: Any = "auto") -> AnswerReader:
    chats = ToolChats(model, ChatTemplate(templates()[family]))
    request = ToolRequest.read([WEATHER, TIME], choice, None, None)
    _, reader = chats.begin([USER], request, {})
    chats.close()
    return reader


def is_beginning(part: Answer, answer: Answer) -> bool:
    """Whether the streamed part is a prefix of the whole answer."""
    texts = ((part.content, answer.content), (part.reasoning, answer.reasoning))
    calls = zip(part.calls, answer.calls[: len(part.calls)], strict=True)
    return all(whole.startswith(begun) for begun, whole in texts) and all(
        one.name == other.name and other.arguments.startswith(one.arguments) for one, other in calls
    )


def bare(text: str) -> str:
    """Without white space, the tags of a thought, and the names of control tokens."""
    return "".join(
        re.sub(r"</?think>|<\|\w+\|>|^all\n|(?<=>)(?:final|analysis)(?=<)", "", text).split()
    )


@pytest.mark.parametrize("family", _ALL)
def test_an_answer_that_is_cut_anywhere(family: str) -> None:
    """The answer holds the text up to the cut, and contradicts nothing that follows."""
    head = _HEADS.get(family, "")
    thought = _THOUGHTS.get(family, "").format("Hm, <tool_call> then")
    with Model(model_path("llama")) as model:
        for said in (f"{head}Look \u00e9: {FAMILIES[family]}", f"{thought}{FAMILIES[family]}"):
            reader = reader_of(model, family)
            parts = [reader.read(said[:n], has_ended=False) for n in range(len(said) + 1)]
            for n in range(len(said) + 1):
                answer = reader.read(said[:n], has_ended=True)
                assert all(is_beginning(part, answer) for part in parts[: n + 1])
                if not answer.calls:
                    assert bare(answer.reasoning + answer.content) == bare(said[:n])
            assert all(call.is_whole for call in answer.calls)


@pytest.mark.parametrize("family", [*_THOUGHTS, "openai-gpt-oss-120b"])
def test_a_call_that_a_thought_mentions_wakes_no_grammar(family: str) -> None:
    start = re.match(r"\s*(<\S*?>|<\|\w+\|>|\W*)", FAMILIES[family])
    assert start is not None
    mention = (
        f"I could say {start[0] if family != 'openai-gpt-oss-120b' else ' to=functions.x'} or not"
    )
    thought = _THOUGHTS.get(family, "<|channel|>analysis<|message|>{}<|end|><|start|>assistant")
    thought = thought.format(mention)
    with open_family(family) as llm:
        for answer in ("Done.", FAMILIES[family]):
            head = _HEADS.get(family, "") if answer == "Done." else ""
            said = llm.tokenize(f"{thought}{head}{answer}".encode(), add_bos=False, special=True)
            found = llm.create_chat_completion(
                [USER], tools=[WEATHER], temperature=0.0, max_tokens=300,
                logits_processor=Said(said),
            )["choices"][0]["message"]  # fmt: skip
            assert found["reasoning_content"].strip() == mention
            if answer == "Done.":
                assert found["content"] == answer
            else:
                assert json.loads(found["tool_calls"][0]["function"]["arguments"]) == ARGUMENTS


@pytest.mark.parametrize("family", _ALL)
def test_tools_with_a_response_format(family: str) -> None:
    """The answer is a call, or a text in the response format; a call if one is required."""
    form = {"type": "json_schema", "json_schema": {"schema": SCHEMAS[1]}}
    head = _HEADS.get(family, "") if family.startswith("openai") else ""
    with open_family(family) as llm:
        for said, choice in (
            (FAMILIES[family], "auto"), (f'{head}{{"city": "Rome"}}', "auto"),
            ("Hello you", "auto"), (FAMILIES[family], "required"), (FAMILIES[family], NAMED),
        ):  # fmt: skip
            ids = llm.tokenize(said.encode(), add_bos=False, special=True)
            found = llm.create_chat_completion(
                [USER], tools=[WEATHER], tool_choice=choice, response_format=form,
                temperature=0.0, max_tokens=300, logits_processor=Said(ids),
            )["choices"][0]  # fmt: skip
            message = found["message"]
            if said == FAMILIES[family]:
                assert found["finish_reason"] == "tool_calls"
                assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == ARGUMENTS
            elif found["finish_reason"] == "stop":
                assert json.loads(message["content"])["city"] in ("Paris", "Rome")
            assert said == "Hello you" or found["finish_reason"] != "length"
