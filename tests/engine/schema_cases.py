"""Schemas by keyword, with values that fit and values that do not: written for these tests.

The values have the format in which a model writes them: properties in the schema's order, without
those that docs/schemas.md excludes. `python -m tests.engine.schema_suite` runs the JSON Schema Test
Suite too.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Case(NamedTuple):
    """A schema, and what fits it and what does not."""

    schema: Any
    fitting: list[Any]
    others: list[Any]


def _text(**keywords: Any) -> dict[str, Any]:
    return {"type": "string", **keywords}


def _list(**keywords: Any) -> dict[str, Any]:
    return {"type": "array", **keywords}


def _dict(**keywords: Any) -> dict[str, Any]:
    return {"type": "object", **keywords}


def _whole(**keywords: Any) -> dict[str, Any]:
    return {"type": "integer", **keywords}


def _real(**keywords: Any) -> dict[str, Any]:
    return {"type": "number", **keywords}


_INT, _STR = {"type": "integer"}, {"type": "string"}
_TREE = {
    "$defs": {
        "t": _dict(
            properties={"v": _INT, "kids": _list(items={"$ref": "#/$defs/t"})}, required=["v"]
        )
    },
    "$ref": "#/$defs/t",
}
_CAT = _dict(properties={"kind": {"const": "cat"}, "lives": _INT}, required=["kind", "lives"])
_DOG = _dict(properties={"kind": {"const": "dog"}, "tail": _STR}, required=["kind", "tail"])

CASES: dict[str, list[Case]] = {
    "type": [
        Case({"type": "null"}, [None], [0, "null", False]),
        Case({"type": "boolean"}, [True, False], [0, "true", None]),
        Case(_INT, [0, -7, 123456], [1.5, "1", True, None]),
        Case({"type": "number"}, [0, -1.5, 1e20, 2.5e-7], ["1", False]),
        Case(_STR, ["", 'a"b\\c\n\u00e9\U0001f600\x7f', "\u0001"], [1, None, ["a"]]),
        Case({"type": "array"}, [[], [1, ["a", {}]]], [{}, "[]"]),
        Case({"type": ["integer", "null"]}, [3, None], ["3", 1.5, False]),
    ],
    "enum": [
        Case(
            {"enum": ["a", 1, None, True, 2.5, 'a"\\\n']},
            ["a", 1, None, True, 2.5, 'a"\\\n'],
            ["b", 2, False, "1", 'a"'],
        ),
        Case(_text(enum=["ab", 1, "abc"]), ["ab", "abc"], [1, "a", "abcd"]),
        Case(_whole(enum=[1, 5, 50], minimum=2), [5, 50], [1, 55, 500]),
    ],
    "const": [
        Case({"const": "x"}, ["x"], ["", "xx", None]),
        Case({"const": {"a": [1, {}]}}, [{"a": [1, {}]}], [{}, {"a": [1]}, {"a": [1, {"b": 1}]}]),
    ],
    "minimum": [
        Case(_whole(minimum=3), [3, 4, 10, 99999], [2, 0, -3]),
        Case(_real(minimum=0.5), [0.5, 0.51, 1, 100], [0.4999, 0, -1]),
    ],
    "maximum": [
        Case(
            _whole(minimum=-(2**63), maximum=2**63 - 1),
            [-(2**63), 2**63 - 1],
            [2**63, -(2**63) - 1],
        ),
        Case(_real(maximum=-1.25), [-1.25, -1.3, -9], [-1.2, 0, 3]),
    ],
    "exclusiveMinimum": [
        Case(_real(exclusiveMinimum=0), [0.1, 1, 0.001], [0, -1]),
        Case(_whole(minimum=3, exclusiveMinimum=True), [4], [3]),
    ],
    "exclusiveMaximum": [
        Case(_real(exclusiveMaximum=100), [99.9, 0, -5], [100, 100.1, 99.99999999999999999999]),
    ],
    "multipleOf": [
        Case(_real(multipleOf=0.01, minimum=0), [0, 1.25, 3.1, 99.99], [0.001, -1]),
        Case(_whole(multipleOf=7, minimum=10, maximum=30), [14, 28], [7, 15, 35]),
    ],
    "minLength": [Case(_text(minLength=2), ["ab", "abc", "\u00e9\u00e9"], ["", "a", "\U0001f600"])],
    "maxLength": [
        Case(_text(minLength=3, maxLength=700), ["abc", "a" * 700], ["ab", "a" * 701]),
        Case(_text(maxLength=2500), ["", "a" * 2500], ["a" * 2501]),
        Case(
            _text(format="email", minLength=7, maxLength=9), ["ab@c.org"], ["a@b.io", "abc@d.info"]
        ),
        Case(_text(format="hostname", maxLength=30), ["a" * 30, "a.b-c.de"], ["a" * 31, "a..b"]),
    ],
    "pattern": [
        Case(_text(pattern="^[^,]+$"), ['a"b', "\\", "\n\t", "x y"], ["", "a,b"]),
        Case(_text(pattern=r"^[\x00-\x1f]+$"), ["\n", "\x01\x1f\b"], ["", " ", "n"]),
        Case(_text(pattern=r"\d{2}"), ["12", "a12b", "x\n34"], ["1", "1a2", ""]),
        Case(
            _text(pattern=r"^(?=.*[A-Z])(?=.*\d).{4,}$"), ["Ab12", "xx9Z"], ["ab12", "A1", "ABCD"]
        ),
        Case(_text(pattern=r"^(?!0)\d+$"), ["10"], ["01", ""]),
        Case(_text(pattern="^.$"), ["a", "\u00e9", "\U0001f600"], ["\n", "", "ab"]),
        Case(_text(pattern=r"^\u{1F600}\uD83D\uDE00$"), ["\U0001f600\U0001f600"], ["\U0001f600"]),
        Case(_text(pattern=r"^\p{Lu}\p{Ll}+$"), ["\u00c9t\u00e9", "Ab"], ["ab", "AB"]),
        Case(_text(pattern="^a*?b+$"), ["b", "aab"], ["a", "ba"]),
    ],
    "format": [
        Case(
            _text(format="date"),
            ["2024-02-29", "1999-12-31"],
            ["2023-02-29", "2024-13-01", "2024-1-01", "x"],
        ),
        Case(
            _text(format="time"), ["08:30:06Z", "23:59:59.123456+02:00"], ["24:00:00Z", "08:30:06"]
        ),
        Case(
            _text(format="date-time"),
            ["2024-02-29T08:30:06Z"],
            ["2024-02-29", "2024-02-30T08:30:06Z"],
        ),
        Case(
            _text(format="duration"),
            ["P1Y2M3D", "PT1H30M", "P2W", "P1DT5S"],
            ["P", "P1", "1D", "PT"],
        ),
        Case(
            _text(format="uuid"),
            ["123e4567-e89b-12d3-a456-426614174000"],
            ["123e4567e89b12d3a456426614174000", "123e4567-e89b-12d3-a456-42661417400g"],
        ),
        Case(
            _text(format="uuid4"),
            ["123e4567-e89b-42d3-a456-426614174000"],
            ["123e4567-e89b-12d3-a456-426614174000"],
        ),
        Case(
            _text(format="ipv4"), ["127.0.0.1", "255.1.20.200"], ["256.0.0.1", "1.2.3", "01.2.3.4"]
        ),
        Case(
            _text(format="ipv6"),
            ["::1", "2001:db8::8a2e:370:7334", "::ffff:1.2.3.4"],
            ["1::2::3", "12345::", "1:2:3"],
        ),
        Case(_text(format="hostname"), ["example.com", "a-b.c"], ["-a.com", "a..b", "a_b", ""]),
        Case(
            _text(format="email"),
            ["joe.bloggs@example.com", "a+b@x.io"],
            ["joe", "@x.io", "a@b", ".a@x.io", "a@x..io", "a@@x.io"],
        ),
        Case(
            _text(format="uri"),
            ["https://example.com/a?b=c#d", "mailto:a@b.c", "urn:x:y"],
            ["//a.b/c", "a b", "http://a b", "http://[", "a%"],
        ),
        Case(_text(format="uri-reference"), ["/a/b", "#x", "a?b"], ["\\x", "a b"]),
        Case(_text(format="json-pointer"), ["", "/a~0b/0"], ["a", "/~2"]),
        Case(_text(format="base64"), ["", "YQ==", "YWJj"], ["YQ", "Y%=="]),
        Case(_text(format="password"), ["x"], [1]),
        Case(_whole(format="int32"), [2**31 - 1, -(2**31)], [2**31]),
    ],
    "contentEncoding": [Case(_text(contentEncoding="base64"), ["YWI="], ["Y", "%%%%"])],
    "items": [
        Case(_list(items=_INT), [[], [1, 2, 3]], [["a"], [1, None]]),
        Case(
            _list(items=[_INT, _STR], additionalItems=False),
            [[1, "a"], [1], []],
            [["a"], [1, "a", 2]],
        ),
    ],
    "prefixItems": [
        Case(_list(prefixItems=[_INT, _STR], minItems=2), [[1, "a"]], [[1], ["a", 1]]),
        Case(_list(prefixItems=[_INT], items=_STR), [[1, "a", "b"], [1]], [["a"], [1, 2]]),
    ],
    "minItems": [Case(_list(items=_INT, minItems=2), [[1, 2], [1, 2, 3]], [[], [1]])],
    "maxItems": [
        Case(_list(items=_INT, minItems=1, maxItems=400), [[1] * 400], [[], [1] * 401]),
    ],
    "uniqueItems": [
        Case(
            _list(items={"enum": ["a", "b", "c"]}, uniqueItems=True),
            [[], ["a", "c"], ["a", "b", "c"]],
            [["a", "a"], ["d"]],
        ),
        Case(_list(items=_INT, uniqueItems=True, maxItems=1), [[5]], [[5, 5]]),
    ],
    "contains": [
        Case(_list(items=_INT, contains={"minimum": 10}), [[1, 12], [10]], [[], [1, 2]]),
    ],
    "minContains": [
        Case(
            _list(items=_INT, contains={"const": 1}, minContains=2), [[1, 1], [1, 0, 1]], [[1, 0]]
        ),
    ],
    "maxContains": [
        Case(
            _list(items=_INT, contains={"const": 1}, maxContains=1), [[1], [0, 1, 0]], [[1, 1], [0]]
        )
    ],
    "properties": [
        Case(
            _dict(properties={"a": _INT, "b": _STR}),
            [{}, {"a": 1}, {"b": "x"}, {"a": 1, "b": ""}],
            [{"a": "x"}, {"b": 1}],
        ),
        Case(
            _dict(
                properties={
                    'a"b\\c\n': _INT,
                    "\u00e9\U0001f600": _INT,
                    "</s>[x]": _INT,
                    "$ref": _INT,
                }
            ),
            [{'a"b\\c\n': 1, "\u00e9\U0001f600": 2, "</s>[x]": 3, "$ref": 4}],
            [{"$ref": "#"}],
        ),
    ],
    "required": [
        Case(
            _dict(properties={"a": _INT, "b": _INT}, required=["b"]),
            [{"b": 1}, {"a": 1, "b": 2}],
            [{}, {"a": 1}],
        ),
        Case(_dict(required=["x"]), [{"x": None}, {"x": [1]}], [{}]),
    ],
    "additionalProperties": [
        Case(_dict(additionalProperties=_INT), [{}, {"x": 1, "y": 2}], [{"x": "1"}]),
        Case(
            _dict(properties={"ab": _INT}, additionalProperties=_STR),
            [{"ab": 1, "a": "", "abc": "x"}],
            [{"ab": "x"}, {"a": 1}],
        ),
    ],
    "patternProperties": [
        Case(
            _dict(
                properties={"nn": {"minimum": 5}},
                patternProperties={"^n": _INT, "n$": {"maximum": 9}},
                additionalProperties=False,
            ),
            [{"nn": 7}, {"nx": 100}, {"an": 3.5}],
            [{"nn": 4}, {"nn": 10}, {"nan": 11}, {"x": 1}],
        ),
    ],
    "propertyNames": [
        Case(
            _dict(propertyNames={"pattern": "^[a-z]{2}$"}, additionalProperties=_INT),
            [{"ab": 1, "cd": 2}],
            [{"a": 1}, {"abc": 1}],
        ),
        Case(
            _dict(properties={"abc": _INT, "b": _INT}, propertyNames={"maxLength": 1}),
            [{"b": 1}],
            [{"abc": 1}],
        ),
    ],
    "minProperties": [
        Case(
            _dict(properties={"a": _INT, "b": _INT, "c": _INT}, minProperties=2),
            [{"a": 1, "c": 2}, {"a": 1, "b": 2, "c": 3}],
            [{}, {"b": 1}],
        ),
    ],
    "maxProperties": [
        Case(
            _dict(additionalProperties=_INT, maxProperties=2),
            [{}, {"x": 1, "y": 2}],
            [{"x": 1, "y": 2, "z": 3}],
        ),
    ],
    "dependentRequired": [
        Case(
            _dict(properties={"a": _INT, "b": _INT}, dependentRequired={"a": ["b"]}),
            [{}, {"b": 1}, {"a": 1, "b": 2}],
            [{"a": 1}],
        )
    ],
    "dependentSchemas": [
        Case(
            _dict(
                properties={"a": _INT, "b": _INT},
                dependentSchemas={"a": {"properties": {"b": {"minimum": 5}}}},
            ),
            [{"b": 1}, {"a": 1, "b": 5}, {"a": 1}],
            [{"a": 1, "b": 4}],
        )
    ],
    "dependencies": [
        Case(
            _dict(properties={"a": _INT, "b": _INT}, dependencies={"a": ["b"]}),
            [{"b": 1}],
            [{"a": 1}],
        )
    ],
    "unevaluatedProperties": [
        Case(_dict(properties={"a": _INT}, unevaluatedProperties=False), [{"a": 1}], [{"b": 1}])
    ],
    "unevaluatedItems": [Case(_list(prefixItems=[_INT], unevaluatedItems=False), [[1]], [[1, 2]])],
    "allOf": [
        Case({"allOf": [_whole(minimum=2), {"maximum": 5}]}, [2, 5], [1, 6, 3.5]),
        Case(
            {
                "allOf": [
                    _dict(properties={"a": _INT}, required=["a"]),
                    _dict(properties={"b": _STR}, required=["b"]),
                ]
            },
            [{"a": 1, "b": ""}],
            [{"a": 1}, {"b": ""}],
        ),
    ],
    "anyOf": [
        Case({"anyOf": [_INT, {"type": "null"}]}, [1, None], ["x"]),
        Case(
            _dict(
                properties={"a": _INT, "b": _INT}, anyOf=[{"required": ["a"]}, {"required": ["b"]}]
            ),
            [{"a": 1}, {"b": 1}],
            [{}],
        ),
    ],
    "oneOf": [
        Case(
            {"oneOf": [_CAT, _DOG]},
            [{"kind": "cat", "lives": 9}, {"kind": "dog", "tail": "x"}],
            [{"kind": "cat", "tail": "x"}, {"kind": "cow"}],
        ),
        Case({"oneOf": [_whole(minimum=0), _whole(maximum=5)]}, [6, -1], [0, 3, 5]),
    ],
    "not": [
        Case({"type": "integer", "not": {"multipleOf": 3}}, [1, 2, 4], [0, 3, 9]),
        Case({"not": {"type": ["object", "array", "string"]}}, [1, None, True], ["x", [], {}]),
        Case(
            _dict(properties={"a": _INT, "b": _INT}, **{"not": {"required": ["a", "b"]}}),
            [{}, {"a": 1}, {"b": 1}],
            [{"a": 1, "b": 1}],
        ),
    ],
    "if": [
        Case(
            _dict(
                properties={"k": {"enum": ["a", "b"]}, "n": _INT},
                required=["k", "n"],
                **{
                    "if": {"properties": {"k": {"const": "a"}}},
                    "then": {"properties": {"n": {"minimum": 10}}},
                    "else": {"properties": {"n": {"maximum": 5}}},
                },
            ),
            [{"k": "a", "n": 10}, {"k": "b", "n": 5}],
            [{"k": "a", "n": 9}, {"k": "b", "n": 6}],
        )
    ],
    "then": [Case(_whole(**{"if": {"minimum": 10}, "then": {"multipleOf": 10}}), [3, 20], [11])],
    "else": [Case(_whole(**{"if": {"minimum": 10}, "else": {"maximum": 0}}), [11, 0], [5])],
    "$ref": [
        Case(
            _TREE,
            [{"v": 1}, {"v": 1, "kids": [{"v": 2, "kids": []}]}],
            [{}, {"v": 1, "kids": [{}]}],
        ),
        Case({"$defs": {"a b/c~%": _INT}, "$ref": "#/$defs/a%20b~1c~0%25"}, [1], ["x"]),
        Case(
            {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "$id": "http://x/y",
                "$defs": {"z": {"$id": "z", "type": "null"}},
                "$ref": "z",
            },
            [None],
            [1],
        ),
        Case({"$defs": {"i": _INT}, "$ref": "#/$defs/i", "minimum": 3}, [3], [2, "x"]),
    ],
    "$dynamicRef": [
        Case(
            {"$dynamicAnchor": "n", "type": "array", "items": {"$dynamicRef": "#n"}},
            [[[], [[]]]],
            [[1]],
        )
    ],
}
