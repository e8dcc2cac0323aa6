"""Notes in answers: of tools that a template ignores, and of what a schema loses."""

from __future__ import annotations

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
def test_the_answer_has_a_note() -> None:
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


def test_what_a_loose_schema_leaves_out_is_noted() -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    form = {"type": "json_schema", "json_schema": {"name": "a", "strict": False, "schema": schema}}
    with served(open_tiny()) as client:
        loose = client.right("/v1/chat/completions", {**ASKED, "response_format": form})
    assert "uniqueItems" in loose["note"]
