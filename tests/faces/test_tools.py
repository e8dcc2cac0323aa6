"""Tools: requests, answers, and calls in a dozen families' templates."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest

from pyllama_spec import ArgumentError
from pyllama_spec.chat.template import ChatTemplate
from pyllama_spec.chat.tools import ToolChats, ToolRequest
from pyllama_spec.engine import Model
from pyllama_spec.llama.chat_formats import FORMATS
from pyllama_spec.llama.responses import Deltas
from tests.faces.families import FAMILIES, HERMES, JSON_CALL, TIME, USER, WEATHER, templates
from tests.faces.tools import open_tiny
from tests.models import model_path

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


# The id stands behind the arguments, and a stream's first chunk of a call has it.
_IDS_LAST = "mistralai-Mistral-Nemo-Instruct-2407"
_NAMED = {"type": "function", "function": {"name": "get_weather"}}


@pytest.mark.parametrize("family", [*FAMILIES, "chatml-function-calling", "chatml"])
@pytest.mark.parametrize("choice", ["auto", "required", _NAMED])
def test_arguments_are_streamed_while_they_are_written(family: str, choice: Any) -> None:
    """For each way to request the call; a longer answer gives more of the arguments."""
    named = FORMATS[family].source if family in FORMATS else templates()[family]
    long = "Paris-sur-Mer in the north"
    said = FAMILIES.get(family, HERMES if family != "chatml" else JSON_CALL).replace("Paris", long)
    with Model(model_path("llama")) as model, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chats = ToolChats(model, ChatTemplate(named))
        request = ToolRequest.read([WEATHER, TIME], choice, None, None)
        _, reader = chats.begin([USER], request, {"enable_thinking": False})
        deltas = Deltas("answer")
        found: list[dict[str, Any]] = []
        for n in range(1, len(said) + 1):
            found += deltas.of(reader.read(said[:n], has_ended=False))
        n_before = len(found)
        found += deltas.of(reader.read(said, has_ended=True))
        whole = reader.read(said, has_ended=True)
        chats.close()
    if family == "chatml" and choice == "auto":
        assert not whole.calls  # it knows no tools, and nothing says that this is a call
        return
    calls = [call for delta in found for call in delta.get("tool_calls", ())]
    assert calls[0]["id"]
    assert calls[0]["function"]["name"] == whole.calls[0].name == "get_weather"
    assert "".join(call["function"]["arguments"] for call in calls) == whole.calls[0].arguments
    assert json.loads(whole.calls[0].arguments) == {"city": long}
    if family == _IDS_LAST:
        assert len(calls) == 1
        return
    assert all(set(call) == {"index", "function"} for call in calls[1:])
    assert len(calls) >= len(long)
    assert n_before >= len(long)


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
        # The older form is in streams too, as in the whole answer.
        older = [delta["function_call"] for delta in deltas if "function_call" in delta]
        assert older[0]["name"] == "pick"
        assert "".join(one.get("arguments", "") for one in older) == arguments
        free = llm.create_chat_completion([USER], tools=[SMALL], stream=True, **OPTIONS)
        assert not any("function_call" in chunk["choices"][0]["delta"] for chunk in free)
        none = llm.create_chat_completion(
            [USER], tools=[SMALL], tool_choice="none", max_tokens=5, temperature=0.0
        )
        assert isinstance(none["choices"][0]["message"]["content"], str)
        with pytest.raises(ArgumentError):
            llm.create_chat_completion([USER], tools=[SMALL], grammar='root ::= "a"')
