"""Templates that run for ever, or fill the memory, raise a typed error soon."""

from __future__ import annotations

import resource
import time

import pytest

from pyllama_spec.chat import template_limits
from pyllama_spec.chat.template import CHATML, ChatTemplate
from pyllama_spec.errors import ArgumentError, UnsupportedError

_MESSAGES = [{"role": "user", "content": "Hi\tthere\nyou"}]
_DOUBLED = (
    "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x OP %}{% endfor %}"
    "{{ ns.x|length }}"
)
_LOOPS = "{% for a in range(99999) %}" * 5 + "{% endfor %}" * 5
TOO_MUCH = {
    "loops": _LOOPS,
    "loop_with_test": "{% for a in range(99999) %}{% for b in range(99999) if b < 0 %}{% endfor %}"
    "{% endfor %}",
    "loop_of_text": "{% for a in range(99999) %}" + "x" * 90_000 + "{% endfor %}",
    "macro": "{% macro f(n) %}{{ f(n - 1) }}{{ f(n - 1) }}{% endmacro %}{{ f(60) }}",
    "macro_bounded": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}"
    "{% endmacro %}{{ f(60) }}",
    "recursive_loop": "{% for m in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}",
    "product": "{{ 'a' * 10**9 }}",
    "product_of_list": "{{ [0] * 10**9 }}",
    "product_the_other_way": "{{ 1000000000 * 'a' }}",
    "power": "{{ 9**9**9 }}",
    "percent": "{{ '%5000000000d' % 1 }}",
    "percent_star": "{{ '%*d' % (1000000000, 1) }}",
    "format_filter": "{{ '%999999999s'|format('a') }}",
    "format_method": "{{ '{:>999999999}'.format('a') }}",
    "format_nested": "{{ '{:>{}}'.format('a', 999999999) }}",
    "format_map": "{{ '{a:>999999999}'.format_map({'a': 1}) }}",
    "indent": "{{ messages[0].content|indent(10**9) }}",
    "indent_text": "{{ ('a\\n' * 9000)|indent('b' * 9000) }}",
    "center": "{{ 'a'|center(10**9) }}",
    "ljust": "{{ 'a'.ljust(10**9) }}",
    "zfill": "{{ 'a'.zfill(10**9) }}",
    "expandtabs": "{{ messages[0].content.expandtabs(10**9) }}",
    "to_bytes": "{{ (1).to_bytes(10**10, 'big') }}",
    "replace": "{{ ('a' * 9000).replace('a', 'b' * 90000) }}",
    "replace_nothing": "{{ ('a' * 90000)|replace('', 'b' * 90000) }}",
    "join": "{{ range(90000)|join('b' * 90000) }}",
    "join_method": "{{ ('b' * 90000).join(['a'] * 90000) }}",
    "translate": "{{ ('a' * 90000).translate({97: 'b' * 90000}) }}",
    "tojson": "{{ ([0] * 90000)|tojson(indent=9999) }}",
    "wordwrap": "{{ ('a ' * 90000)|wordwrap(1, wrapstring='b' * 90000) }}",
    "batch": "{{ [1]|batch(10**9, 'a')|list }}",
    "slice": "{{ [1]|slice(10**9)|list }}",
    "doubled_by_concat": _DOUBLED.replace("OP", "~ ns.x"),
    "doubled_by_sum": _DOUBLED.replace("OP", "+ ns.x"),
    "doubled_list": _DOUBLED.replace("'a'", "[0]").replace("OP", "+ ns.x"),
    "nested_list": _DOUBLED.replace("ns.x OP", "[ns.x, ns.x]").replace("|length", ""),
    "nested_list_compared": _DOUBLED.replace("ns.x OP", "[ns.x, ns.x]").replace(
        "{{ ns.x|length }}", "{{ ns.x == [ns.x, 1] }}"
    ),
    "map": "{{ ['a']|map('center', 10**9)|list }}",
    "lipsum": "{{ lipsum(n=10**9) }}",
}  # fmt: skip
UNCOMPILABLE = {
    "nested_blocks": "{% for a in b %}" * 30 + "{% endfor %}" * 30,
    "parentheses": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "long_sum": "{{ " + "+".join("1" * 1 for _ in range(20_000)) + " }}",
    "huge": "a" * 1_000_001,
    "keyword": "{{ f(a=1, a=2) }}",
    "big_number": "{{ " + "9" * 5000 + " }}",
    "break_outside": "{% break %}",
    "open": "{% for",
}


@pytest.mark.parametrize("source", TOO_MUCH.values(), ids=TOO_MUCH)
def test_too_much_is_refused(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_limits, "MAX_STEPS", 20_000)
    monkeypatch.setattr(template_limits, "MAX_TEXT_CHARS", 1 << 20)
    start, before = time.thread_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises((UnsupportedError, ArgumentError)) as caught:
        ChatTemplate(source).render(_MESSAGES)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before  # KiB on Linux
    assert "template" in str(caught.value)
    assert grown < 200_000
    assert time.thread_time() - start < 3 * template_limits.MAX_SECONDS


@pytest.mark.parametrize("source", UNCOMPILABLE.values(), ids=UNCOMPILABLE)
def test_what_cannot_be_compiled_is_typed(source: str) -> None:
    with pytest.raises(UnsupportedError, match="give another as chat_template="):
        ChatTemplate(source).render(_MESSAGES)


def test_time_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_limits, "MAX_SECONDS", 0.2)
    with pytest.raises(UnsupportedError, match="seconds"):
        ChatTemplate(_LOOPS).render(_MESSAGES)


def test_ordinary_templates_are_as_before() -> None:
    rich = (
        "{% macro show(m) %}{{ m.role ~ ': ' ~ m.content|trim }}{% endmacro %}"
        "{% set ns = namespace(n=0) %}{% for m in messages if m.role != 'x' %}"
        "{% set ns.n = ns.n + 1 %}{{ loop.index }}/{{ loop.length }}{{ show(m) }}"
        "{% if not loop.last %}, {% endif %}{% endfor %} {{ ns.n }} "
        "{{ messages[0]|tojson(indent=2) }} {{ '%s-%02d' % ('a', 7) }} {{ '{:>5}'.format('b') }} "
        "{{ 'ab' * 3 }} {{ messages|map(attribute='role')|join(', ') }}"
    )
    messages = [{"role": "user", "content": " a "}, {"role": "assistant", "content": "b"}]
    assert ChatTemplate(rich).render(messages).text == (
        "1/2user: a, 2/2assistant: b 2 "
        '{\n  "role": "user",\n  "content": " a "\n} a-07     b ababab user, assistant'
    )


def test_a_long_chat_is_no_attack() -> None:
    messages = [{"role": "user", "content": "word " * 200}] * 3000
    assert len(ChatTemplate(CHATML).render(messages).text) > 3_000_000
