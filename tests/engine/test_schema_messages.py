"""A refused schema's message names the fault, the clipped value and the remedy."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest

from pyllama_spec import ArgumentError, SchemaError
from pyllama_spec.constraints import call_rules, schema_grammar, schema_of
from pyllama_spec.errors import MAX_MESSAGE, clipped
from tests.engine.grammar_walk import GrammarWalk

BEYOND: list[dict[str, Any]] = [
    {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
    {"type": "string", "pattern": r"^(a)\1$"},
    {"type": "string", "format": "no-such"},
    {"type": "object", "properties": {"a": {"nullable": True}}},
]


@pytest.mark.parametrize("schema", BEYOND, ids=str)
def test_a_refusal_says_how_the_keyword_is_left_out(schema: dict[str, Any]) -> None:
    """The advised removal works in each place that takes a schema."""
    with pytest.raises(SchemaError, match='"strict": False beside the schema leaves') as caught:
        schema_grammar(schema)
    assert f'"{caught.value.keyword}" out of' in str(caught.value)
    for response_format in (
        {"type": "json_schema", "json_schema": {"schema": schema, "strict": False}},
        {"type": "json_schema", "schema": schema, "strict": False},
        {"type": "json_object", "schema": schema, "strict": False},
    ):
        with pytest.warns(UserWarning, match=f'"{caught.value.keyword}" at #') as warned:
            loose = schema_of(response_format)
        assert "strict" not in str(warned[0].message)
        assert schema_grammar(loose)
    tool: dict[str, Any] = {"function": {"name": "f", "parameters": schema}}
    with pytest.warns(UserWarning, match=f'"{caught.value.keyword}" at #'):
        assert call_rules([tool])
    tool["function"]["strict"] = True
    with pytest.raises(SchemaError, match='"strict": False beside the schema leaves'):
        call_rules([tool])


@pytest.mark.parametrize(
    "schema",
    [
        {"minimum": 3, "maximum": 2},
        {"exclusiveMinimum": 3, "maximum": 3},
        {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 4},
        {"type": "integer", "minimum": 3.1, "maximum": 3.9},
        {"not": {}},
        {"not": {"maximum": 1e300}},
        {"minimum": 5, "exclusiveMinimum": 5, "maximum": 5},
        # A reader rounds the numbers between them to a bound.
        {"exclusiveMinimum": 0.1, "exclusiveMaximum": 0.1000000000000001},
        {"minimum": 1e300},
    ],
)
def test_what_contradicts_itself_is_said_to(schema: dict[str, Any]) -> None:
    with pytest.raises(SchemaError, match="contradict"):
        schema_grammar({"type": "number", **schema})


def test_long_integers_between_bounds_are_kept() -> None:
    walk = GrammarWalk.of_schema(
        {"type": "integer", "exclusiveMinimum": 10**17, "maximum": 10**17 + 2}
    )
    assert walk.takes(str(10**17 + 1))
    assert walk.takes(str(10**17 + 2))
    assert not walk.takes(str(10**17))


HALF = "\ud83d"
HALVES: list[dict[str, Any]] = [
    {"type": "object", "properties": {"a": {"properties": {HALF: True}, "type": "object"}}},
    {"type": "object", "required": [HALF]},
    {"type": "object", "patternProperties": {HALF: {}}},
    {"type": "object", "dependentRequired": {"x": [HALF]}},
    {"type": "string", "pattern": f"^{HALF}$"},
    {"const": {HALF: 1}},
]


@pytest.mark.parametrize("schema", HALVES, ids=ascii)
def test_half_a_character_is_refused_by_its_place(schema: dict[str, Any]) -> None:
    """Half a surrogate pair is refused by its place, since no token writes it."""
    with pytest.raises(SchemaError) as caught:
        schema_grammar(schema)
    assert caught.value.keyword
    str(caught.value).encode()


def test_half_a_character_in_an_annotation_is_none_of_the_grammar() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert schema_grammar({"type": "string", "title": HALF, HALF: 1}).encode()
    [warned] = caught
    str(warned.message).encode()


LONG = "x" * 10_000
LONGS: list[Any] = [
    {"type": "string", "pattern": "(" + LONG},
    {"type": "string", "format": LONG},
    {"$ref": f"#/$defs/{LONG}"},
    {"type": "object", "properties": {LONG: {"type": "string", "pattern": "("}}},
]


@pytest.mark.parametrize("schema", LONGS, ids=lambda one: str(one)[:50])
def test_no_message_has_a_whole_value(schema: Any) -> None:
    with pytest.raises(ArgumentError) as caught:
        schema_grammar(schema)
    assert len(str(caught.value)) < 900
    assert "xxx" in str(caught.value)
    with pytest.raises(ArgumentError) as caught:
        schema_grammar(json.dumps(schema))
    assert len(str(caught.value)) < 900


def test_no_message_of_the_package_is_endless() -> None:
    """Every error of the package clips the values that it quotes."""
    error = ArgumentError(f"a name {'y' * 100_000} that ends here")
    assert len(str(error)) <= MAX_MESSAGE
    assert str(error).startswith("a name yyy")
    assert str(error).endswith("y that ends here")
    assert error.args[0].endswith("y that ends here")
    assert clipped("a" * 61) == "a" * 57 + "... (61 characters)"
    assert clipped("a" * 60) == "a" * 60


@pytest.mark.parametrize(
    "response_format",
    [
        {"type": "json_object", "schema": False},
        {"type": "json_schema", "json_schema": {"schema": False}},
        {"type": "json_schema", "json_schema": {"schema": False, "strict": False}},
    ],
)
def test_false_is_no_schema_of_an_answer(response_format: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="True for any object, not False: no JSON value fits"):
        schema_grammar(schema_of(response_format))
    with pytest.raises(SchemaError, match="it is false"):
        schema_grammar("false")
