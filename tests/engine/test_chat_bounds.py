"""Templates that were made to hurt: the engine reads them, with tools and without."""

from __future__ import annotations

import resource
import signal
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from pyllama_spec.chat.template import CHATML, ChatTemplate
from pyllama_spec.engine import ChatParser, Model
from pyllama_spec.errors import ArgumentError, UnsupportedError
from tests.fuzz.runner import mapped_bytes, run
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
    "nothing, many times": "{{ (nothing|string) * 9000000000000000000 }}",
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
    "a sum as large as a number": "{{ (-9223372036854775807 - 1) / -1 }}",
    "a remainder": "{{ (-9223372036854775807 - 1) % -1 }}",
    "a division by zero": "{{ 1 / 0 }}{{ 1 % 0 }}",
    "a divisor of zero": "{{ 1 is divisibleby(0) }}",
    "a divisor of -1": "{{ (-9223372036854775807 - 1) is divisibleby(-1) }}",
}


def begin(source: str) -> str:
    """The prompt of a chat with a tool."""
    with Model(tiny("llama"), vocab_only=True) as model, ChatParser(model, source) as parser:
        return parser.begin({"messages": MESSAGES, "tools": [TOOL]}).prompt


def render(source: str) -> str:
    """The text of a chat without tools."""
    return ChatTemplate(source).render(MESSAGES).text


def within_1500_mib(act: Callable[[], str]) -> None:
    """In a process of its own."""
    limit = mapped_bytes() + (1500 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    act()


@pytest.mark.parametrize("way", [begin, render])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template(name: str, way: Callable[[str], str]) -> None:
    """It is read or refused, and the process survives and stays small."""
    case = partial(within_1500_mib, partial(way, USUAL + HOSTILE[name]))
    ending = run(case, cpu_limit_s=60)
    assert ending.kind in ("fine", "ArgumentError", "UnsupportedError"), ending
    assert ending.kind != "UnsupportedError" or "more than" in ending.said, ending


@pytest.mark.parametrize("way", [begin, render])
def test_ctrl_c_is_answered(way: Callable[[str], str]) -> None:
    """Ctrl-C works before the bound of ten seconds: the engine uses a thread of its own."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    start = time.process_time()
    try:
        threading.Timer(0.5, lambda: signal.raise_signal(signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            way(USUAL + HOSTILE["loops in loops"])
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.process_time() - start < 5


def test_what_is_refused_says_why() -> None:
    with pytest.raises(UnsupportedError, match="more than 1024 KiB"):
        begin("x" * 2_000_000)
    with pytest.raises(ArgumentError):
        begin("{{ " + "(" * 1000 + "1" + ")" * 1000 + " }}")


def test_a_long_chat_is_no_attack() -> None:
    messages = [{"role": "user", "content": "word " * 200}] * 3000
    assert len(ChatTemplate(CHATML).render(messages).text) > 3_000_000


def test_large_tools_are_fine() -> None:
    """A thousand parameters with long descriptions stay below the bounds."""
    many = {f"p{i}": {"type": "string", "description": "x" * 400} for i in range(1000)}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": many}}}
    with Model(tiny("llama"), vocab_only=True) as model, ChatParser(model, USUAL) as parser:
        prompt = parser.begin({"messages": MESSAGES, "tools": [tool]}).prompt
    assert len(prompt) > 400_000
