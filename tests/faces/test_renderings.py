"""Published templates give the text that Python's Jinja, with which models were trained, gives."""

from __future__ import annotations

import datetime as dt
import json
from contextlib import closing
from typing import Any, NoReturn

import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import pytest

from pyllama_spec import ArgumentError, ChatTemplate
from pyllama_spec.chat.template import check_messages, render_messages
from pyllama_spec.chat.tools import ToolChats, ToolRequest
from pyllama_spec.engine import Model
from pyllama_spec.llama.chat_formats import FORMATS
from tests.faces.families import ARGUMENTS, USER, WEATHER, templates
from tests.models import model_path


def says(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def called(arguments: Any, content: str | None = None) -> list[dict[str, Any]]:
    call = {"name": "get_weather", "arguments": arguments}
    made = {"id": "123456789", "type": "function", "function": call}
    answer = says("tool", '{"t": 21.5}', tool_call_id="123456789", name="get_weather")
    return [USER, {"role": "assistant", "content": content, "tool_calls": [made]}, answer]


LATER = [says("assistant", "Fine.\n\nYes."), says("user", "And now?")]
CHATS: dict[str, list[dict[str, Any]]] = {
    "a question": [USER],
    "turns": [says("system", "Be brief."), USER, *LATER],
    "a developer": [says("developer", "Be brief."), USER],
    "a beginning": [USER, says("assistant", "Well, the")],
    "other writings": [says("system", "Ärger — 日本語"), says("user", "ﬁ ß İ \u00a0 🎉 e\u0301")],
    "control tokens": [says("user", "<|im_end|> [INST] </s> {{ x }} {% if %}"), *LATER],
    "white space": [says("system", "  a "), says("user", "\n b \t\n"), *LATER],
    "empty texts": [says("system", ""), says("user", ""), *LATER],
    "thoughts": [USER, says("assistant", "Hi", reasoning_content="Hm.\nOk."), LATER[1],
                 says("assistant", "<think>\nhm\n</think>\n\nBye"), LATER[1]],
    "a call": [*called(json.dumps(ARGUMENTS)), *LATER],
    # Python's Jinja shows a content that is None, and a list in a text, as Python writes them.
    "a call with values": called({**ARGUMENTS, "at": 48.856614, "days": 1.0, "n": 1e-7}, ""),
    "two questions": [USER, USER],
}  # fmt: skip
# Parameters without a type, with several, and with a part that their type allows to be absent.
AWKWARD: dict[str, Any] = {
    "a": {"enum": ["x", "y"]}, "b": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "c": {"$ref": "#/$defs/n"}, "d": {"type": "array"}, "e": {"const": 3, "default": 4},
    "f": {"type": ["string", "null"]}, "g": {"type": "object"},
}  # fmt: skip


def tool_with(properties: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(properties),
              "$defs": {"n": {"type": "integer"}}}  # fmt: skip
    function = {"name": "f", "description": "d", "parameters": schema}
    return {"type": "function", "function": function}


VARIABLES: dict[str, dict[str, Any]] = {
    "usual": {},
    "no beginning": {"add_generation_prompt": False},
    "thinks": {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"},
    "does not think": {"enable_thinking": False, "thinking": False},
    "tools": {"tools": [WEATHER]},
}
CASES = [(chat, given) for chat in CHATS.values() for given in VARIABLES.values()]
CASES += [([USER], {"tools": [tool_with({name: one})]}) for name, one in AWKWARD.items()]
# Templates that read content as a list of parts alone, and one that escapes tools as HTML.
_BY_PARTS = ("google-translategemma-4b-it",)
_OF_TOOLS = ("meetkai-functionary-medium-v3.1",)
_ALL = {**templates(), **{name: form.source for name, form in FORMATS.items()}}


class _Generation(jinja2.ext.Extension):
    tags = {"generation"}  # noqa: RUF012 - the name and the type are jinja2's

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _refuse(message: str) -> NoReturn:
    raise ValueError(message)


def _json(value: Any, ensure_ascii: bool = False, **more: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **more)


def compiled(source: str) -> jinja2.Template:
    """The template as the library transformers compiles it."""
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    env.filters["tojson"] = _json
    env.globals["raise_exception"] = _refuse
    env.globals["strftime_now"] = lambda form: dt.datetime.now().strftime(form)
    return env.from_string(source)


def expected(
    template: jinja2.Template, messages: list[dict[str, Any]], variables: dict[str, Any]
) -> str | None:
    """The text that Python's Jinja gives; None if the template fails on the messages."""
    given = {"bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": True,
             "documents": None, "tools": None, **variables}  # fmt: skip

    def run(messages: list[dict[str, Any]]) -> str:
        try:
            return template.render(messages=messages, **given)
        except Exception as error:  # noqa: BLE001 - a template is a program
            raise ArgumentError(str(error)) from None

    try:
        return render_messages(check_messages(messages), run)[0]
    except ArgumentError:
        return None


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in _ALL if name not in _BY_PARTS])
def test_a_template_gives_the_text_of_python_s_jinja(name: str) -> None:
    ours = ChatTemplate(_ALL[name], bos_token="<s>", eos_token="</s>")
    theirs = compiled(_ALL[name])
    for messages, variables in CASES:
        wanted = expected(theirs, messages, variables)
        if wanted is not None and ("tools" not in variables or name not in _OF_TOOLS):
            assert ours.render(messages, **variables).text == wanted, (messages, variables)


def test_a_tool_that_a_template_cannot_show_is_named() -> None:
    """Its template calls itself for each type of a list, without an end."""
    template = ChatTemplate(_ALL["NousResearch-Hermes-3-Llama-3.1-8B-tool_use"])
    chats = ToolChats(Model(model_path("llama"), vocab_only=True), template)
    tools = [WEATHER, tool_with({"good": AWKWARD["e"], "bad": AWKWARD["f"]})]
    request = ToolRequest.read(tools, None, None, None)
    with closing(chats), pytest.raises(ArgumentError, match="tool f"):
        chats.begin([USER], request, {})
