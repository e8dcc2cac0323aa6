"""Templates and schemas that the engine reads itself, from a file or a request."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from pyllama_spec.engine import ChatParser, Model, schema_to_grammar
from pyllama_spec.errors import ArgumentError, PyllamaSpecError, UnsupportedError
from tests.robust.tools import tiny

MESSAGES = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
# Each after what makes a template a usual one.
USUAL = "{{ messages[0]['content'] }}{% if tools %}{{ tools|tojson }}{% endif %}"
DOUBLING = "{% for i in range(60) %}{% set n.a = n.a + n.a %}{% endfor %}"
HOSTILE = {
    "a loop of a thousand million": "{% for i in range(1000000000) %}x{% endfor %}",
    "loops in loops": "{% for i in range(9999) %}{% for j in range(9999) %}x{% endfor %}"
    "{% endfor %}",
    "a long text": "{{ 'abcdefgh' * 10000000000 }}",
    "a text that doubles": "{% set n = namespace(a='abcdefgh') %}" + DOUBLING,
    "a list that doubles": "{% set n = namespace(a=[1]) %}" + DOUBLING,
    "a macro without an end": "{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}",
    "a macro that doubles": "{% macro m(x) %}{{ m(x) }}{{ m(x) }}{% endmacro %}{{ m(1) }}",
    "a wide indent": "{{ {'a': [1]}|tojson(indent=2000000000) }}",
    "a list in a list in a list": "{% set n = namespace(a=[1]) %}"
    "{% for i in range(300000) %}{% set n.a = [n.a] %}{% endfor %}{{ n.a|tojson }}",
    "a list that holds itself": "{% set l = [] %}{% set _ = l.append(l) %}{{ l }}{{ l|tojson }}",
    "signs without an end": "{{ " + "not " * 100_000 + "1 }}",
    "members without an end": "{{ a" + ".b" * 100_000 + " }}",
    "sums without an end": "{{ 1" + "+1" * 100_000 + " }}",
    "filters without an end": "{{ 'a'" + "|upper" * 50_000 + " }}",
    "conditions without an end": "{% if a %}" * 20_000 + "{% endif %}" * 20_000,
    "a sum as large as a number": "{{ (-9223372036854775807 - 1) // -1 }}",
    "a remainder": "{{ (-9223372036854775807 - 1) % -1 }}",
    "a division by zero": "{{ 1 // 0 }}{{ 1 % 0 }}",
}


def begin(source: str) -> str:
    """The prompt of a chat with a tool."""
    with Model(tiny("llama"), vocab_only=True) as model, ChatParser(model, source) as parser:
        return parser.begin({"messages": MESSAGES, "tools": [TOOL]}).prompt


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template(name: str) -> None:
    """It is read or refused, and the process survives and stays small."""
    code = (
        "import resource\n"
        "from pathlib import Path\n"
        "from tests.engine.test_chat_bounds import *\n"
        "try:\n"
        f"    begin(USUAL + HOSTILE[{name!r}])\n"
        "except PyllamaSpecError as error:\n"
        "    assert str(error)\n"
        # Not ru_maxrss: a child begins with its parent's.
        "peak = Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0]\n"
        "print(int(peak) >> 10)\n"
        "print(int(resource.getrusage(resource.RUSAGE_SELF).ru_utime))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=600
    )
    assert (done.returncode, done.stderr) == (0, "")
    mebibytes, seconds = map(int, done.stdout.split())
    assert mebibytes < 1500
    assert seconds < 60


@pytest.mark.parametrize("what", ["a template", "a schema"])
def test_ctrl_c_is_answered(what: str) -> None:
    """Ctrl-C works before the bound of ten seconds: the engine uses a thread of its own."""
    parts = {f"p{i}": {"type": "integer"} for i in range(3000)}
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    start = time.process_time()
    try:
        threading.Timer(0.5, lambda: signal.raise_signal(signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            if what == "a template":
                begin(USUAL + HOSTILE["loops in loops"])
            else:
                schema_to_grammar({"type": "object", "properties": parts})
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.process_time() - start < 5


def test_what_is_refused_says_why() -> None:
    with pytest.raises(UnsupportedError, match="more than 256 MiB"):
        begin(USUAL + HOSTILE["a loop of a thousand million"])
    with pytest.raises(UnsupportedError, match="more than 10 seconds"):
        begin(USUAL + HOSTILE["loops in loops"])
    with pytest.raises(UnsupportedError, match="more than 1024 KiB"):
        begin("x" * 2_000_000)
    with pytest.raises(ArgumentError, match="nested"):
        begin("{{ " + "(" * 1000 + "1" + ")" * 1000 + " }}")


def test_a_usual_template_is_as_it_was() -> None:
    assert begin(USUAL).startswith("hi")


def test_large_tools_are_fine() -> None:
    """A thousand parameters with long descriptions stay below the bounds."""
    many = {f"p{i}": {"type": "string", "description": "x" * 400} for i in range(1000)}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": many}}}
    with Model(tiny("llama"), vocab_only=True) as model, ChatParser(model, USUAL) as parser:
        prompt = parser.begin({"messages": MESSAGES, "tools": [tool]}).prompt
    assert len(prompt) > 400_000


@pytest.mark.parametrize("n", [300, 20_000])
def test_many_properties(n: int) -> None:
    """Many optional properties do not nest calls."""
    schema = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(n)}}
    try:
        assert "root ::=" in schema_to_grammar(schema)
    except PyllamaSpecError as error:
        assert n > 300, error


@pytest.mark.parametrize("where", ["http://127.0.0.1:9/a", "file:///etc/passwd", "#/nowhere"])
def test_references_are_not_fetched(where: str) -> None:
    with pytest.raises(ArgumentError, match="JSON schema"):
        schema_to_grammar({"$ref": where})


def _nested(n: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(n):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"}, {"allOf": [{"$ref": "#"}]}, {"anyOf": [{"$ref": "#"}]}, _nested(60),
        {"$ref": "#/a", "a": {"$ref": "#/b"}, "b": {"$ref": "#/a"}}, {"$ref": 7}, _nested(400),
        {"type": "array", "items": {"type": "string"}, "minItems": 10**9},
        {"type": "array", "items": {"type": "string"}, "minItems": 10**30},
        {"type": "string", "pattern": "^((((("}, {"type": "string", "pattern": "^[$"},
        {"type": "string", "pattern": "^" + "(" * 5000 + "a" + ")" * 5000 + "$"},
        {"type": "string", "pattern": "^(a{1000}){1000}$"}, {"enum": []},
        {"type": "integer", "minimum": 10**30}, {"type": "object", "properties": [1]},
        {"type": "object", "properties": {"\0::= \n": {"type": "string"}}},
    ],
)  # fmt: skip
def test_odd_schemas(schema: Any) -> None:
    """An odd schema gives rules or one of our errors, soon."""
    begin_s = time.process_time()
    with contextlib.suppress(PyllamaSpecError):
        assert "root ::=" in schema_to_grammar(schema)
    assert time.process_time() - begin_s < 30
