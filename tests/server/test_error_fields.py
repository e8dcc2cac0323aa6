"""Errors for clients: the field that is at fault, and JSON's words."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from pyllama_spec.errors import MAX_MESSAGE
from pyllama_spec.server.api_errors import ApiError
from pyllama_spec.server.error_fields import complete, in_json
from tests.faces.tools import open_tiny
from tests.server.world import Client, served

USER = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "json_schema", "json_schema": {"schema": {"type": "nope"}}}
TOOL = {"type": "function", "function": {"name": "a", "parameters": {"type": "nope"}}}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    llm = open_tiny("prompt-lookup", embedding=True, pooling_type="mean")
    with served(llm) as client:
        yield client


@pytest.mark.parametrize("path, body, param, words", [
    ("/v1/chat/completions", {}, "messages", ""),
    ("/v1/chat/completions", {"messages": []}, "messages", ""),
    ("/v1/chat/completions", {"messages": [{"role": "user"}]}, "messages[0]", "give a string"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": 5}]}, "messages[0]",
     "content of type integer; expected a string or a list"),
    ("/v1/chat/completions", {"messages": [{"content": "a"}]}, "messages[0]", "role null"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a" * 9999}]}, "messages",
     "Requested tokens"),
    ("/v1/chat/completions", {"messages": [*USER, {"role": "usr", "content": "a"}]},
     "messages[1].role", "expected system, developer, user,"),
    ("/apply-template", {"messages": [{"role": "ser", "content": "a"}]}, "messages[0].role", ""),
    ("/v1/chat/completions", {"messages": USER, "stop": [""]}, "stop", ""),
    ("/v1/chat/completions", {"messages": USER, "top_logprobs": 2}, "top_logprobs",
     'needs "logprobs": true'),
    ("/v1/chat/completions", {"messages": USER, "tools": [{"type": "function"}]},
     "tools[0].function", 'tools[0].function is null; expected {"name": ...}'),
    ("/v1/chat/completions", {"messages": USER, "response_format": {"type": "a"}},
     "response_format.type", "response_format.type is 'a'; there are"),
    ("/v1/chat/completions", {"messages": USER, "tool_choice": {"type": "x" * 90}}, "tool_choice",
     'tool_choice={"type": "xxx'),
    ("/v1/completions", {"prompt": "a", "seed": 2**32}, "seed", "from 0 to 4294967295"),
    ("/v1/completions", {}, "prompt", "prompt is missing"),
    ("/v1/chat/completions", {"messages": USER, "functions": [{"x": 1}]}, "functions[0]",
     "functions[0] is"),
    ("/v1/chat/completions", {"messages": USER, "tools": [TOOL], "tool_choice": "required"},
     "tools", "the JSON schema"),
    ("/v1/chat/completions", {"messages": USER, "response_format": SCHEMA}, "response_format", ""),
    ("/v1/chat/completions",
     {"messages": USER, "response_format": {"type": "json_object", "schema": 3}},
     "response_format", "is an object or its text, or true for"),
    ("/v1/chat/completions", {"messages": USER, "json_schema": {"type": "nope"}}, "json_schema",
     ""),
    ("/v1/chat/completions", {"messages": USER, "grammar": "root ::= ("}, "grammar", ""),
    ("/v1/chat/completions", {"messages": USER, "reasoning_effort": "None True"},
     "reasoning_effort", "='None True' is not one of null, none,"),
    ("/v1/chat/completions", {"messages": USER, "stream_options": {}}, "stream_options",
     '"include_usage": false'),
    ("/v1/chat/completions",
     {"messages": USER, "functions": [{"name": "a"}], "function_call": {"name": "b"}},
     "function_call", 'function_call={"name": "b"}'),
    ("/v1/completions", {"prompt": [10**7]}, "prompt", ""),
    ("/v1/completions", {"prompt": ["a", [10**7]]}, "prompt", ""),
    ("/v1/completions", {"prompt": "a", "suffix": "b"}, "suffix", ""),
    ("/v1/completions", {"prompt": "a", "stop_token_ids": [-5]}, "stop_token_ids", ""),
    ("/v1/completions", {"prompt": "a", "logit_bias": {"a b": 1}}, "logit_bias",
     "its keys are token ids"),
    ("/v1/completions", {"prompt": "a", "temperature": "x"}, "temperature",
     "Expected `number | null`, got `string`, in temperature"),
    ("/v1/completions", {"prompt": "a", "max_tokens": 1.5}, "max_tokens",
     "Expected `integer | null`, got `number`"),
    ("/v1/completions", {"prompt": "a", "speculation": {"n_draft": -1}}, "speculation.n_draft",
     "Invalid 'speculation.n_draft'"),
    ("/v1/completions", {"prompt": "a", "speculation": {"int": 1}}, "speculation.int",
     "there is no field speculation.int; speculation takes draft, n_draft,"),
    ("/completion", {"prompt": "a", "n_probs": -1}, "n_probs", "Invalid 'n_probs'"),
    ("/infill", {"input_prefix": "a", "input_suffix": "b"}, "input_suffix", ""),
    ("/infill", {"input_prefix": "a", "input_suffix": "b", "input_extra": [{}]},
     "input_extra[0].text", ""),
    ("/v1/embeddings", {"input": ""}, "input", "a text to embed"),
    ("/detokenize", {"tokens": [-1]}, "tokens", ""),
    ("/v1/responses", {}, "input", "input is null;"),
    ("/v1/responses", {"input": "a", "max_output_tokens": 0}, "max_output_tokens", ""),
    ("/v1/responses", {"input": "a", "temperature": True}, "temperature", "is true, not a"),
    ("/v1/responses", {"input": "a", "reasoning": {"effort": 5}}, "reasoning.effort", ""),
    ("/v1/responses", {"input": "a", "background": True}, "background", "background=true is"),
    ("/v1/responses", {"input": [{"role": "x", "content": "a"}]}, "input[0].role", ""),
])  # fmt: skip
def test_an_error_names_its_field(
    client: Client, path: str, body: dict[str, Any], param: str, words: str
) -> None:
    status, answer = client.post(path, body)
    assert (status, answer["error"]["param"]) == (400, param), answer
    assert words in answer["error"]["message"]


@pytest.mark.parametrize("body", [b"", {"max_tokens": 2, "messages": USER}])
def test_a_message_has_its_id_under_the_names_of_its_dialect(client: Client, body: Any) -> None:
    connection, response = client.send("POST", "/v1/messages", body)
    with closing(connection):
        answer = json.loads(response.read())
    id_ = response.getheader("request-id")
    assert id_ is not None
    assert id_ == response.getheader("x-request-id")
    assert answer.get("request_id") == (None if response.status == 200 else id_)


@pytest.mark.parametrize("message, told", [
    ("x=None is not True or False", "x=null is not true or false"),
    ("'x' is a str, not an int", "'x' is a string, not an integer"),
    ("the model's True is 'None', as \"a str\" is", "the model's true is 'None', as \"a str\" is"),
    ("x is a NoneType, not a dict or a list", "x is null, not an object or a list"),
    ("content of type list; NoneOfIt", "content of type array; NoneOfIt"),
])  # fmt: skip
def test_words_of_python_are_those_of_json(message: str, told: str) -> None:
    assert in_json(message) == told


_CUT = f"{['a' * 99]!r:.60}"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("message, told", [
    ("a={'b': True, 'c': [None, {'d': \"e\"}]} is", 'a={"b": true, "c": [null, {"d": "e"}]} is'),
    ("the text \"{'a': 1}\" is {'a': 1}", "the text \"{'a': 1}\" is {\"a\": 1}"),
    ("a={'b' is 1}", "a={'b' is 1}"),
    ("a={'b': '" + "c" * 60 + " is", 'a={"b": "' + "c" * 60 + " is"),
    ("tools[0]=['a', None] is", 'tools[0]=["a", null] is'),
    ("a=[1, [{'b': -2.5}]], ['it\\'s \"x\"'] is", 'a=[1, [{"b": -2.5}]], ["it\'s \\"x\\""] is'),
    ("[a-z] is no [None of them], ['b' of c]", "[a-z] is no [null of them], ['b' of c]"),
    ("(as {'name': ...}, or [1, ...])", "(as {'name': ...}, or [1, ...])"),
    # Of what was cut no quote is paired with one behind it.
    (f"x is {_CUT}; expected \"None\" of type dict, not 'None'",
     f"x is [\"{'a' * 58}; expected \"None\" of type object, not 'None'"),
    (f"x={_CUT[1:]}a is not 'None' or None", f"x={_CUT[1:]}a is not 'None' or null"),
    (f"x={_CUT} is not in ['b', None]", f"x=[\"{'a' * 58} is not in [\"b\", null]"),
    # Whole values that are longer, of JSON and of Python.
    (f"x={['ab', None] * 9} is None", f"x={json.dumps(['ab', None] * 9)} is null"),
    (f"x={[['ab'] * 20, ('b',), 'None']}, None", f"x={[['ab'] * 20, ('b',), 'None']}, null"),
    ("x=['\\d', 'None'] is", "x=['\\d', 'None'] is"),
    ("x=['\u4e2d', '\\ud800\\u202e', '\\t'] is", 'x=["\u4e2d", "\\ud800\\u202e", "\\t"] is'),
])  # fmt: skip
def test_a_dict_of_python_is_an_object_of_json(message: str, told: str) -> None:
    assert in_json(message) == told


_VALUES: tuple[Any, ...] = (
    ["a", None], {"b": ["it's", "c" * 60]}, [{"it's": "a\\b\n\u0007", "text": [None, True]}],
    ["a" * 30, "b" * 30], {"a": "\U000e0001" * 9}, [[1.5, -2, True, *[None] * 20]],
)  # fmt: skip


@pytest.mark.parametrize("value", _VALUES)
def test_a_value_is_json_up_to_where_it_is_cut(value: Any) -> None:
    for n in range(20):  # each shifts the cut by one
        one = ["a" * n, value]
        told = in_json(f"x={one!r:.60} is")
        assert json.dumps(one).startswith(told[2:-3]), told
        assert len(told) > 20


@pytest.mark.parametrize("path, body", [
    ("/v1/messages", {"messages": USER, "max_tokens": 2, "temperature": None}),
    ("/v1/responses", {"input": "a", "temperature": None}),
    ("/v1/chat/completions", {"messages": USER, "response_format": {"type": None}}),
    ("/completion", {"prompt": "a", "response_format": {"type": None}}),
    ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": None}]}]}),
])  # fmt: skip
@pytest.mark.parametrize("value", _VALUES)
def test_every_face_tells_a_value_in_json(
    client: Client, path: str, body: dict[str, Any], value: Any
) -> None:
    raw = json.dumps(body).replace("null", json.dumps(value)).encode()
    status, answer = client.post(path, raw)
    told = answer["error"]["message"]
    assert status == 400
    assert json.dumps(value)[:40] in told


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/messages"])
def test_an_empty_body_is_said(client: Client, path: str) -> None:
    status, answer = client.post(path, b"")
    assert (status, answer["error"]["message"]) == (400, "the body is empty")


def test_a_long_value_costs_no_time(client: Client) -> None:
    """Megabytes of what the patterns look for."""
    for text in ("int " * 500_000, "\\'" * 500_000, "'" * 1_000_000, "None" * 400_000):
        for body in (
            {"input": "a", "encoding_format": text}, {"input": "a", text: 1, "dimensions": 3},
        ):  # fmt: skip
            begin = time.monotonic()
            status, answer = client.post("/v1/embeddings", body)
            assert time.monotonic() - begin < 5
            assert (status, len(answer["error"]["message"]) < 3000) == (400, True)


@pytest.mark.parametrize(
    "part", ["\\'", '\\"', "'\\", '"\\', "{'", "' \"", "int '", "['", "[[", "[1, "]
)
def test_the_time_grows_with_the_length(part: str) -> None:
    """Quotes that nothing closes were each looked at to the end: five seconds."""
    begin = time.process_time()
    in_json(part * 10_000)
    assert time.process_time() - begin < 1


@pytest.mark.parametrize("value", ["\x01", "\u4e2d", None, {"a": True}])
def test_a_message_is_no_longer_in_json(value: Any) -> None:
    error = ApiError(400, f"x={[value]} is, " * 300, "invalid", "x")
    complete(error, ())
    assert len(error.message) <= MAX_MESSAGE
    assert error.message.startswith('x=[{"a": true}] is' if value == {"a": True} else "x=[")


@pytest.mark.parametrize("role", ["observation", "ipython", "environment", "tool_response"])
def test_a_role_that_a_template_may_write_without_naming_it_passes(
    client: Client, role: str
) -> None:
    """Templates such as GLM-4's print any role; only a misspelt one is a fault."""
    messages = [*USER, {"role": role, "content": "a"}]
    assert client.ask("POST", "/apply-template", {"messages": messages})[0] == 200
