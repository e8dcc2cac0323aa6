"""A refused schema's message names the fault, the clipped value and the remedy."""

from __future__ import annotations

from typing import Any

import pytest

from pyllama_spec import SchemaError
from pyllama_spec.constraints import call_rules, schema_grammar, schema_of

BEYOND: list[dict[str, Any]] = [
    {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
    {"type": "string", "pattern": r"^(a)\1$"},
    {"type": "string", "format": "no-such"},
    {"type": "object", "properties": {"a": {"nullable": True}}},
]


@pytest.mark.parametrize("schema", BEYOND, ids=str)
def test_a_refusal_says_how_the_keyword_is_left_out(schema: dict[str, Any]) -> None:
    """The advised removal works in each place that takes a schema."""
    with pytest.raises(SchemaError) as caught:
        schema_grammar(schema)
    assert caught.value.keyword in caught.value.remedy
    assert caught.value.param == "response_format"
    for response_format in (
        {"type": "json_schema", "json_schema": {"schema": schema, "strict": False}},
        {"type": "json_schema", "schema": schema, "strict": False},
        {"type": "json_object", "schema": schema, "strict": False},
    ):
        with pytest.warns(UserWarning, match=caught.value.keyword) as warned:
            loose = schema_of(response_format)
        assert "strict" not in str(warned[0].message)
        assert schema_grammar(loose)
    tool: dict[str, Any] = {"function": {"name": "f", "parameters": schema}}
    with pytest.warns(UserWarning, match=caught.value.keyword):
        assert call_rules([tool])
    tool["function"]["strict"] = True
    with pytest.raises(SchemaError) as caught:
        call_rules([tool])
    assert caught.value.param == "tools"


HALF = "\ud83d"
HALVES: list[dict[str, Any]] = [
    {"type": "object", "properties": {"a": {"properties": {HALF: True}, "type": "object"}}},
    {"type": "object", "required": [HALF]},
    {"type": "object", "patternProperties": {HALF: {}}},
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
