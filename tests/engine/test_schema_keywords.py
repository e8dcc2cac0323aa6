"""Each keyword of JSON Schema either holds, or is refused by its name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pyllama_spec import SchemaError, UnsupportedError
from pyllama_spec.constraints import schema_grammar
from pyllama_spec.errors import ArgumentError, PyllamaSpecError
from pyllama_spec.schema import loosened_rules, schema_rules
from pyllama_spec.schema.keywords import ANNOTATIONS, KEPT
from pyllama_spec.schema.keywords import REFUSED as REFUSED_KEYWORDS
from pyllama_spec.schema.patterns import FREE_FORMATS, KEPT_FORMATS, NUMBER_FORMATS
from tests.engine.grammar_walk import GrammarWalk
from tests.engine.schema_cases import CASES


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def test_each_keyword_has_its_cases() -> None:
    # additionalItems stands beside a list of items, as drafts before 2020-12 have it.
    assert set(CASES) | {"additionalItems"} == KEPT


@pytest.mark.parametrize("keyword", CASES)
def test_what_fits_is_taken_and_nothing_else(
    keyword: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for case in CASES[keyword]:
        walk = GrammarWalk.of_schema(case.schema)
        wrong = [value for value in case.fitting if not walk.takes(_json(value))]
        wrong += [value for value in case.others if walk.takes(_json(value))]
        assert not wrong, (case.schema, wrong)
    assert capfd.readouterr() == ("", "")


def test_nothing_may_follow_a_value() -> None:
    """A grammar accepts the value alone, even if a pattern allows quotation marks."""
    for schema, text in (
        ({"type": "string", "pattern": '^"[a-z]+"$'}, r'"\"anna\""'),
        ({"type": "string", "pattern": "^[^,]+$"}, '"anna"'),
        ({"type": "string", "pattern": r"^\S+$", "maxLength": 9}, r'"\\"'),
        ({"type": "string", "format": "email"}, '"a@b.io"'),
    ):
        walk = GrammarWalk.of_schema(schema)
        assert walk.takes(text)
        for wrong in (text[:-1], text + '"', text + "a", text + " ", text[1:]):
            assert not walk.takes(wrong), (schema, wrong)


REFUSED: list[tuple[Any, str, str]] = [
    ({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}},
     "uniqueItems", "#/properties/a"),
    ({"type": "object", "minProperties": 3, "additionalProperties": True}, "minProperties", "#"),
    ({"type": "string", "pattern": r"^(a)\1$"}, "pattern", "#"),
    ({"type": "string", "pattern": "(" * 900 + ")" * 900}, "pattern", "#"),
    ({"type": "string", "pattern": "^(a{1000}){1000}$"}, "pattern", "#"),
    ({"type": "string", "format": "regex"}, "format", "#"),
    ({"type": "string", "format": "no-such"}, "format", "#"),
    ({"type": "string", "not": {"format": "email"}}, "not", "#"),
    ({"type": "string", "pattern": r"\bcat\b"}, "pattern", "#"),
    ({"oneOf": [{"minimum": 0}, {"maximum": 5}], "type": "integer"}, "oneOf", "#"),
    ({"$defs": {"x": {"$anchor": "n"}}, "$ref": "#n"}, "$ref", "#"),
    ({"$defs": {"x": {"$id": "n"}}, "$ref": "#/$defs/x"}, "$id", "#/$defs/x"),
    ({"type": "number", "multipleOf": 0.123456789}, "multipleOf", "#"),
    ({"$ref": "http://example.com/x"}, "$ref", "#"),
    ({"type": "array", "items": {"$ref": "other.json"}}, "$ref", "#/items"),
    ({"type": "integer", "nullable": True}, "nullable", "#"),
    ({"a/b": 1, "properties": {"~x/": {"nullable": True}}}, "nullable", "#/properties/~0x~1"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*is not a keyword")
@pytest.mark.parametrize(("schema", "keyword", "path"), REFUSED)
def test_what_cannot_be_kept_is_refused_by_name(schema: Any, keyword: str, path: str) -> None:
    with pytest.raises(SchemaError) as caught:
        schema_grammar(schema)
    error = caught.value
    assert (error.keyword, error.path) == (keyword, path)
    assert isinstance(error, ArgumentError)
    assert error.is_beyond
    assert error.remedy


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "no"}, {"type": []}, {"type": 3}, {"enum": []}, {"enum": 1}, {"required": "a"},
        {"minimum": "1"}, {"minLength": -1}, {"minLength": 1.5}, {"multipleOf": 0}, {"pattern": 1},
        {"properties": [1]}, {"properties": {"a": 1}}, {"items": 3}, {"anyOf": []}, {"anyOf": {}},
        {"$ref": 7}, {"$ref": "#/nowhere"}, {"$ref": "#"}, [], 3,
        {"allOf": [{"$ref": "#"}]}, {"$ref": "#/a", "a": {"$ref": "#/b"}, "b": {"$ref": "#/a"}},
        {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
        {"const": float("nan")}, {"maximum": float("inf")}, {"const": "\ud800"},
    ],
)  # fmt: skip
def test_what_is_no_schema_is_refused(schema: Any) -> None:
    with pytest.raises(SchemaError if isinstance(schema, dict) else ArgumentError):
        schema_rules(schema)
    with pytest.raises(ArgumentError):
        schema_grammar(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": 3, "maximum": 2},
        {"type": "number", "exclusiveMinimum": 3, "maximum": 3},
        {"type": "integer", "minimum": 3.1, "maximum": 3.9},
        {"not": {}}, {"type": "object", "properties": {"a": {"not": {}}}, "required": ["a"]},
        # A reader rounds the numbers between them to a bound.
        {"type": "number", "exclusiveMinimum": 0.1, "exclusiveMaximum": 0.1000000000000001},
        {"type": "string", "enum": [1]},
        {"allOf": [{"type": "string"}, {"type": "null"}]},
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
        {"type": "array", "items": False, "minItems": 1},
        {"type": "string", "pattern": "^a$", "minLength": 2},
        {"$defs": {"n": {"properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"],
                         "type": "object"}}, "$ref": "#/$defs/n"},
    ],
)  # fmt: skip
def test_a_schema_that_nothing_fits_is_refused(schema: Any) -> None:
    with pytest.raises(SchemaError):
        schema_grammar(schema)


def test_what_is_no_keyword_is_named() -> None:
    schema = {"type": "string", "minlength": 3, "x-mine": 1, "title": "t", "description": "d"}
    with pytest.warns(UserWarning, match='"minlength" at # .* is not a keyword') as caught:
        schema_grammar(schema)
    assert len(caught) == 1


def test_what_need_not_be_kept_is_left_out_with_a_warning() -> None:
    schema = {"type": "array", "items": {"type": "string", "pattern": r"(a)\1", "maxLength": 2},
              "uniqueItems": True, "maxItems": 2}  # fmt: skip
    with pytest.warns(UserWarning, match="left out of the grammar") as caught:
        walk = GrammarWalk(schema_grammar(schema, is_strict=False))
    assert len(caught) == 2
    assert walk.takes('["ab", "ab"]')
    assert not walk.takes('["abc"]')
    assert not walk.takes('["a", "b", "c"]')
    assert schema["uniqueItems"] is True  # the caller's own is only read
    left_out = [error.keyword for error in loosened_rules(schema).left_out]
    assert sorted(left_out) == ["pattern", "uniqueItems"]
    walk = GrammarWalk(loosened_rules({"oneOf": [{"minimum": 0}, {"maximum": 5}]}).rules.grammar)
    assert walk.takes("3")


@pytest.mark.slow
def test_large_ones_are_small_grammars() -> None:
    """20,000 enum values or 1,500 properties give a small, fast grammar."""
    words = [f"w{i * 7919 % 100003}-{i}" for i in range(20_000)]
    walk = GrammarWalk.of_schema({"enum": words})
    assert walk.takes(_json(words[-1]))
    assert not walk.takes(_json(words[-1] + "0"))
    numbers = schema_rules({"enum": list(range(20_000))}).grammar
    assert max(line.count("|") for line in numbers.splitlines()) < 64
    many = {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(1500)}}
    assert GrammarWalk.of_schema(many).takes('{"p3": 1, "p1400": 2}')


def _nested(n: int, keyword: str) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(n):
        schema = {keyword: [schema]} if keyword == "allOf" else {"type": "array", "items": schema}
    return schema


@pytest.mark.slow
@pytest.mark.parametrize(
    "schema",
    [
        _nested(400, "items"), _nested(400, "allOf"), {"minItems": 10**9, "type": "array"},
        {"type": "array", "items": {"type": "string"}, "minItems": 10**30},
        {"type": "string", "minLength": 10**9}, {"type": "integer", "minimum": 10**30},
        {"type": "number", "multipleOf": 1e-300}, {"type": "number", "minimum": 1e300},
        {"properties": {"\0::= \n": {"type": "string"}}},
    ],
)  # fmt: skip
def test_a_hostile_one_costs_a_bounded_number_of_steps(schema: Any) -> None:
    """A hostile schema gives rules or one of our errors, within a bounded number of steps."""
    try:
        assert "root ::=" in schema_rules(schema).grammar
    except PyllamaSpecError as error:
        assert not isinstance(error, UnsupportedError)
        assert len(str(error)) < 600


# ---- docs/schemas.md describes each keyword as the code treats it

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "schemas.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (`.*?) \| (kept|refused|annotation) \|", PAGE, re.MULTILINE)


def _named(kind: str) -> list[str]:
    return [
        name for names, is_kind in ROWS if is_kind == kind for name in re.findall("`(.*?)`", names)
    ]


def test_each_keyword_has_one_row() -> None:
    assert sorted(_named("kept")) == sorted(KEPT)
    assert sorted(_named("refused")) == sorted(REFUSED_KEYWORDS)
    assert set(_named("annotation")) <= ANNOTATIONS


@pytest.mark.parametrize("keyword", _named("refused"))
def test_what_is_refused_is_refused(keyword: str) -> None:
    with pytest.raises(SchemaError) as caught:
        schema_rules({"type": "object", "properties": {"a": {keyword: {"type": "null"}}}})
    assert (caught.value.keyword, caught.value.path) == (keyword, "#/properties/a")


def test_formats_are_those_of_the_code() -> None:
    table = PAGE.partition("\n| format |")[2].partition("\n\n")[0]
    cells = [row.split(" | ")[0] for row in table.splitlines()[2:]]
    named = [name for cell in cells for name in re.findall("`(.*?)`", cell)]
    assert sorted(named) == sorted({*KEPT_FORMATS, *FREE_FORMATS, *NUMBER_FORMATS})
