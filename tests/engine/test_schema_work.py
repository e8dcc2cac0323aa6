"""A schema's work is bounded by a count, done once, and lets other threads run."""

from __future__ import annotations

from typing import Any

import pytest

from pyllama_spec import ArgumentError, SchemaError
from pyllama_spec.constraints import argument_grammar, schema_grammar
from pyllama_spec.engine.sampler import MAX_GRAMMAR_KIB
from pyllama_spec.schema import limits, loosened_rules
from pyllama_spec.schema.limits import WORK
from tests.engine.grammar_walk import GrammarWalk

_KEYS = range(200)
# Each of them took from half a second of one core to more than a test's time.
HOSTILE: dict[str, Any] = {
    "ways of a pattern": {"type": "string", "pattern": "^(a|b|ab)*(a?b?c?){30}x$"},
    "states of a pattern": {"type": "string", "pattern": "(a|b)*a(a|b){14}$"},
    "a long pattern": {"type": "string", "pattern": "a" * 100_000},
    "a long look ahead": {"type": "string", "pattern": "(?=b)" + "a" * 100_000},
    "looks ahead in options": {"type": "string", "pattern": "(?:(?=a?)b?)?" * 40 + "c"},
    "patterns at once": {"allOf": [{"pattern": f"a.*{c}.*b"} for c in "cdefghij"]},
    "patterns of many properties": {"type": "object", "properties": {
        f"d{i}": {"type": "string", "pattern": f"^[a-z]{{1,{i + 1}}}-[0-9]+x$"} for i in _KEYS}},
    "numbers of many properties": {"type": "object", "properties": {
        f"d{i}": {"type": "number", "multipleOf": 0.007 + i / 1000} for i in _KEYS}},
    "alternatives": {"oneOf": [
        {"type": "object", "properties": {"k": {"const": i}, "v": {}}, "required": ["k"]}
        for i in _KEYS]},
    "counted properties": {"type": "object", "minProperties": 100, "properties": {
        f"p{i}": {} for i in range(300)}},
    "many of one type": {"oneOf": [{"type": "null"}] * 3000},
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_what_takes_too_long_is_refused_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    n_most = 40_000  # they take millions
    monkeypatch.setattr(
        "pyllama_spec.schema.compiler.Budget", lambda n=n_most: limits.Budget(min(n, n_most))
    )
    errors = []
    for _ in range(2):
        before = WORK.n_spent
        with pytest.raises(SchemaError) as caught:
            schema_grammar(HOSTILE[name])
        errors.append((caught.value, WORK.n_spent - before))
    (first, n_first), (again, n_again) = errors
    assert 0 <= n_first <= n_most + 20_000
    assert n_again == 0  # remembered
    assert again is not first
    assert (str(again), again.path, again.keyword) == (str(first), first.path, first.keyword)


def test_a_schema_that_takes_too_long_leaves_an_object(monkeypatch: pytest.MonkeyPatch) -> None:
    """All attempts to leave out keywords share one budget; then nothing of the schema is kept."""
    schema = {"type": "object", "properties": {
        f"p{i}": {"type": "string", "pattern": f"(a|b)*a(a|b){{14}}{i}$"} for i in range(30)
    }}  # fmt: skip
    n_most = 20_000
    monkeypatch.setattr("pyllama_spec.schema.compiler.MAX_STEPS", n_most)
    before = WORK.n_spent
    made = loosened_rules(schema)
    assert WORK.n_spent - before <= 3 * n_most
    assert made.left_out
    assert GrammarWalk(made.rules.grammar).takes('{"x": 1}')


def test_the_arguments_of_a_chat_have_one_bound() -> None:
    """And their rules leave a grammar that the engine takes: what has no room is left out."""
    properties = {f"p{i}": {"type": "string", "maxLength": 300 + i} for i in range(20)}
    function = {"name": "f", "parameters": {"type": "object", "properties": properties}}
    asked = [
        {"tool": "f", "parameter": name, "form": "text", "without": ["</x>"]} for name in properties
    ]
    before = WORK.n_spent
    with pytest.warns(UserWarning, match="parameter p19: .* its rules are too many"):
        rules = argument_grammar([{"function": function}], asked)
    assert WORK.n_spent - before < 200_000
    assert len(rules) < 1000 * MAX_GRAMMAR_KIB
    with pytest.raises(ArgumentError, match="parameter p"):
        argument_grammar([{"function": {**function, "strict": True}}], asked)


def test_a_union_of_many_objects_is_told_apart_by_what_it_says() -> None:
    names = ["red", "green", *(f"k{i}" for i in range(150))]
    walk = GrammarWalk.of_schema({"oneOf": [
        {"type": "object", "required": ["k"], "additionalProperties": False,
         "properties": {"k": {"const": name}, name: {"type": "integer"}}}
        for name in names
    ]})  # fmt: skip
    for name in ("red", "green", "k149"):
        assert walk.takes(f'{{"k": "{name}", "{name}": 3}}')
        assert not walk.takes(f'{{"k": "{name}", "x{name}": 3}}')
        assert not walk.takes(f'{{"{name}": 3}}')
