"""A note about tools that a template ignores comes with the answer, and once in the log."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.faces.tools import open_tiny
from tests.models import CHATML_TEMPLATE
from tests.server.world import served

TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
OTHERS = {"name": "look_up", "input_schema": {"type": "object"}}
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
SAID = "the chat template knows no tools"
# One that has a word for them and leaves them out, and one that shows them.
DEAF = "{# tools #}" + CHATML_TEMPLATE
KNOWS = "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}" + (
    CHATML_TEMPLATE
)


@pytest.mark.parametrize("template", [None, DEAF], ids=["own", "deaf"])
@pytest.mark.filterwarnings("ignore:the chat template knows no tools")
def test_the_answer_has_a_note(template: str | None, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "pyllama_spec.server")
    with served(open_tiny(chat_template=template)) as client:
        chat = {**ASKED, "tools": [TOOL]}
        path = "/v1/chat/completions"
        whole = client.right(path, chat)
        *_, last = client.chunks(path, chat)
        *_, with_usage, behind = client.chunks(
            path, {**chat, "stream_options": {"include_usage": True}}
        )
        several = client.right(path, {**chat, "n": 2})
        message = client.right("/v1/messages", {**ASKED, "tools": [OTHERS]})
        response = client.right(
            "/v1/responses", {"input": "a", "max_output_tokens": 2, "tools": [
                {"type": "function", **TOOL["function"]}]},  # type: ignore[dict-item]
        )  # fmt: skip
        for answer in (whole, last, with_usage, several, message, response):
            assert answer["note"].startswith(SAID)
        assert not behind["choices"]
        none = client.right(path, {**chat, "tool_choice": "none"})
        assert "note" not in none  # the model is not to be told
        assert "note" not in client.right(path, ASKED)
    assert [record.message for record in caplog.records].count(whole["note"]) == 1


def test_tools_that_are_shown_need_none() -> None:
    with served(open_tiny(chat_template=KNOWS)) as client:
        assert "note" not in client.right("/v1/chat/completions", {**ASKED, "tools": [TOOL]})


@pytest.mark.filterwarnings("ignore:the chat template knows no tools")
def test_in_python_too() -> None:
    with open_tiny() as llm:
        given: Any = {**ASKED, "tools": [TOOL]}
        assert llm.create_chat_completion(**given)["note"].startswith(SAID)
        *_, last = llm.create_chat_completion(**given, stream=True)
        assert last["note"].startswith(SAID)
        steps = llm.generate_chat_steps(ASKED["messages"], tools=[TOOL], max_tokens=2)
        assert steps.read_all().note.startswith(SAID)
        assert "note" not in llm.create_chat_completion(**ASKED)
