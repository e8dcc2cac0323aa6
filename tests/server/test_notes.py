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
# One that has a word for them and leaves them out.
DEAF = "{# tools #}" + CHATML_TEMPLATE


@pytest.mark.filterwarnings("ignore:the chat template knows no tools")
def test_the_answer_has_a_note(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "pyllama_spec.server")
    path, chat = "/v1/chat/completions", {**ASKED, "tools": [TOOL]}
    with served(open_tiny(chat_template=DEAF)) as client:
        whole = client.right(path, chat)
        *_, last, behind = client.chunks(path, {**chat, "stream_options": {"include_usage": True}})
        message = client.right("/v1/messages", {**ASKED, "tools": [OTHERS]})
        function = {"type": "function", "name": "look_up", "parameters": {"type": "object"}}
        response = client.right(
            "/v1/responses", {"input": "a", "max_output_tokens": 2, "tools": [function]}
        )
        for answer in (whole, last, message, response):
            assert answer["note"].startswith(SAID)
        assert not behind["choices"]
    assert [record.message for record in caplog.records].count(whole["note"]) == 1
