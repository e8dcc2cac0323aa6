"""What the grammar of a call allows, its reader reads whole, and it fits the tool's schema."""

from __future__ import annotations

import datetime as dt
import json
import re
import warnings
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from pyllama_spec import ArgumentError, ChatTemplate
from pyllama_spec.chat.answers import EngineReader
from pyllama_spec.chat.tools import ToolChats, ToolRequest
from pyllama_spec.engine import Model, Sampler, SamplerParams
from pyllama_spec.engine.chat import ends_in_thought
from pyllama_spec.llama.chat_formats import FORMATS
from tests.faces.families import FAMILIES, USER, templates
from tests.gbnf import Texts
from tests.models import model_path
from tests.tiers import release_except

_OWN = "chatml-function-calling"
_ALL = {**templates(), _OWN: FORMATS[_OWN].source}
# Of each parameter, which a call has to have, its schema and what fits it.
PARAMETERS: dict[str, tuple[dict[str, Any], Callable[[Any], Any]]] = {
    "text": ({"type": "string"}, lambda v: isinstance(v, str)),
    "enum": ({"type": "string", "enum": ["a", "b < c"]}, lambda v: v in ("a", "b < c")),
    "untyped": ({"enum": ["a", "b", 3]}, lambda v: v in ("a", "b", 3)),
    "const": ({"const": "x"}, lambda v: v == "x"),
    "pattern": (
        {"type": "string", "pattern": "^[A-Z<]{2}[0-9]+$"},
        lambda v: re.fullmatch("[A-Z<]{2}[0-9]+", v),
    ),
    "length": ({"type": "string", "minLength": 2, "maxLength": 5}, lambda v: 2 <= len(v) <= 5),
    "format": ({"type": "string", "format": "date"}, dt.date.fromisoformat),
    "nullable": (
        {"anyOf": [{"type": "string", "enum": ["u", "v"]}, {"type": "null"}]},
        lambda v: v in ("u", "v", None),
    ),
    "mixed": (
        {"type": ["string", "integer"], "maxLength": 3, "minimum": 5},
        lambda v: len(v) <= 3 if isinstance(v, str) else v >= 5,
    ),
    "number": ({"$ref": "#/$defs/n"}, lambda v: v in range(5, 40)),
    "array": (
        {"type": "array", "items": {"enum": ["p", "q"]}, "minItems": 1},
        lambda v: v and set(v) <= {"p", "q"},
    ),
    "anything": ({"type": "array"}, lambda v: isinstance(v, list)),
    "object": (
        {"type": "object", "properties": {"k": {"type": "boolean"}, "l": {"type": "string"}},
         "required": ["k"], "additionalProperties": False},
        lambda v: isinstance(v["k"], bool) and set(v) <= {"k", "l"},
    ),
}  # fmt: skip


def tool_of(name: str) -> dict[str, Any]:
    schema = {
        "type": "object", "properties": {name: PARAMETERS[name][0], "other": {"type": "string"}},
        "required": [name], "additionalProperties": False,
        "$defs": {"n": {"type": "integer", "minimum": 5, "maximum": 39}},
    }  # fmt: skip
    return {"type": "function", "function": {"name": "f", "parameters": schema, "strict": True}}


def drawn(reader: EngineReader, n: int) -> list[str]:
    """Answers that the grammar allows."""
    session, triggers = reader._session, reader.options.get("grammar_triggers", ())
    texts = Texts(reader.options["grammar"], seed=n)
    if not session.is_lazy:
        begun = session.generation_prompt
        return [texts.draw(begun)[len(begun) :] for _ in range(n)]
    # A lazy grammar begins after the thought.
    is_open = ends_in_thought(session.generation_prompt, session.thought_tags)
    before = session.thinking_ends[0] if is_open else ""
    found = [texts.draw() for _ in range(n)]
    return [
        before + text
        for text in found
        if any(re.match(one.removesuffix("$"), text) for one in triggers)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("template", _ALL)
@pytest.mark.parametrize("n", release_except([3, 40], [3]))
def test_a_text_of_the_grammar_is_read_back(template: str, n: int) -> None:
    """Or the template cannot write the parameter, and the error names it."""
    n_read = 0
    model = Model(model_path("llama"), vocab_only=True)
    with model, closing(ToolChats(model, ChatTemplate(_ALL[template]))) as chats:
        for name, (_, fits) in PARAMETERS.items():
            for choice in ("required", "auto"):
                request = ToolRequest.read([tool_of(name)], choice, None, None)
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        _, reader = chats.begin([USER], request, {"enable_thinking": False})
                except ArgumentError as error:
                    assert f"tool f, parameter {name}: " in str(error)
                    continue
                if not isinstance(reader, EngineReader) or "grammar" not in reader.options:
                    continue
                Sampler(model, SamplerParams(grammar=reader.options["grammar"])).close()
                for text in drawn(reader, n):
                    answer = reader.read(text, has_ended=True)
                    assert answer.calls, text
                    for call in answer.calls:
                        arguments = json.loads(call.arguments)
                        assert call.name == "f"
                        assert set(arguments) in ({name}, {name, "other"}), text
                        assert fits(arguments[name]), text
                    n_read += 1
    assert n_read or template not in FAMILIES


@pytest.mark.parametrize("kind", [["object", "null"], "array"])
def test_the_arguments_of_a_call_are_an_object(kind: Any) -> None:
    """Whatever else the schema of a function's parameters allows."""
    tool = tool_of("enum")
    tool["function"]["strict"] = False
    tool["function"]["parameters"]["type"] = kind
    model = Model(model_path("llama"), vocab_only=True)
    source = ChatTemplate(_ALL["google-gemma-4-31B-it"])
    with model, closing(ToolChats(model, source)) as chats, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, reader = chats.begin([USER], ToolRequest.read([tool], "required", None, None), {})
        assert isinstance(reader, EngineReader)
        for text in drawn(reader, 6):
            calls = reader.read(text, has_ended=True).calls
            assert calls, text
            assert isinstance(json.loads(calls[0].arguments), dict)


@pytest.mark.parametrize("template", ["Qwen3-Coder", "google-gemma-4-31B-it"])
def test_a_name_may_have_half_a_character(template: str) -> None:
    tool = tool_of("enum")
    tool["function"]["name"] = "f\ud800"
    model = Model(model_path("llama"), vocab_only=True)
    with model, closing(ToolChats(model, ChatTemplate(_ALL[template]))) as chats:
        chats.begin([USER], ToolRequest.read([tool], "required", None, None), {})


@pytest.mark.parametrize(
    ("template", "name", "choice", "is_strict", "found"),
    [
        ("MiniMax-M3", "array", "auto", True, ArgumentError),
        ("MiniMax-M3", "array", "auto", False, UserWarning),
        ("meta-llama-Llama-3.1-8B-Instruct", "enum", "auto", True, UserWarning),
        ("meta-llama-Llama-3.1-8B-Instruct", "enum", "required", True, None),
    ],
)
def test_a_schema_that_a_form_cannot_keep_is_no_secret(
    template: str, name: str, choice: str, is_strict: bool, found: type[Exception] | None
) -> None:
    tool = tool_of(name)
    tool["function"]["strict"] = is_strict
    model = Model(model_path("llama"), vocab_only=True)
    with model, closing(ToolChats(model, ChatTemplate(_ALL[template]))) as chats:
        request = ToolRequest.read([tool], choice, None, None)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            if found is None:
                chats.begin([USER], request, {})
                return
            with pytest.raises(found, match=rf"f, parameter {name}|strict of f"):
                chats.begin([USER], request, {})
