"""Errors for clients: the field that is at fault, and JSON's words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.faces.tools import open_tiny
from tests.server.world import Client, served

USER = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "json_schema", "json_schema": {"schema": {"type": "nope"}}}
TOOL = {"type": "function", "function": {"name": "a", "parameters": {"type": "nope"}}}
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    llm = open_tiny("prompt-lookup", embedding=True, pooling_type="mean")
    with served(llm) as client:
        yield client


@pytest.mark.parametrize("path, body, param", [
    (CHAT, {"messages": []}, "messages"),
    (CHAT, {"messages": [{"role": "user"}]}, "messages[0]"),
    (CHAT, {"messages": [{"role": "user", "content": "a" * 9999}]}, "messages"),
    (CHAT, {"messages": USER, "top_logprobs": 2}, "top_logprobs"),
    (CHAT, {"messages": USER, "tools": [{"type": "function"}]}, "tools[0].function"),
    (CHAT, {"messages": USER, "tools": [{"type": "function", "function": {
        "name": "f", "parameters": 7}}]}, "tools[0].function.parameters"),
    (CHAT, {"messages": USER, "response_format": {"type": "a"}}, "response_format.type"),
    (TEXT, {"prompt": "a", "seed": 2**32}, "seed"),
    (CHAT, {"messages": USER, "tools": [TOOL], "tool_choice": "required"}, "tools"),
    (CHAT, {"messages": USER, "response_format": SCHEMA}, "response_format"),
    (CHAT, {"messages": USER, "grammar": "root ::= ("}, "grammar"),
    (CHAT, {"messages": USER, "functions": [{"name": "a"}], "function_call": {"name": "b"}},
     "function_call"),
    (TEXT, {"prompt": [10**7]}, "prompt[0]"),
    (TEXT, {"prompt": "a", "logit_bias": {"-1": 1}}, "logit_bias[0]"),
    (TEXT, {"prompt": "a", "speculation": {"n_draft": -1}}, "speculation.n_draft"),
    (TEXT, {"prompt": "a", "speculation": {"acceptance": "fast"}}, "speculation.acceptance"),
    ("/completion", {"prompt": "a", "n_probs": -1}, "n_probs"),
    (TEXT, {"prompt": "a", "temperature": -3, "top_p": 1.5}, "top_p"),
    ("/v1/embeddings", {"input": "a", "encoding_format": "int8"}, "encoding_format"),
    ("/infill", {"input_prefix": "a", "input_suffix": "b", "input_extra": [{}]},
     "input_extra[0].text"),
    ("/v1/embeddings", {"input": ""}, "input"), ("/detokenize", {"tokens": [-1]}, "tokens"),
    ("/v1/responses", {"input": "a", "background": True}, "background"),
    ("/v1/responses", {"input": [{"role": "x", "content": "a"}]}, "input[0].role"),
])  # fmt: skip
def test_an_error_names_its_field(
    client: Client, path: str, body: dict[str, Any], param: str
) -> None:
    status, answer = client.post(path, body)
    assert (status, answer["error"]["param"]) == (400, param), answer
