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
        Case({"type": "object"}, [{}, {"a": {"b": [None]}}], [[], "{}"]),
        Case({"type": ["integer", "null"]}, [3, None], ["3", 1.5, False]),
        Case(_dict(properties={"a": True, "b": False}), [{}, {"a": [1]}], [{"b": 1}]),
    ],
    "enum": [
        Case(
            {"enum": ["a", 1, None, True, 2.5, 'a"\\\n']},
            ["a", 1, None, True, 2.5, 'a"\\\n'],
            ["b", 2, False, "1", 'a"'],
        ),
        Case(
            {"enum": [[1, "a"], {"x": [2]}]},
            [[1, "a"], {"x": [2]}],
            [[1], [1, "a", 2], {"x": []}, {}, {"x": [2], "y": 1}],
        ),
        Case(_text(enum=["ab", 1, "abc"]), ["ab", "abc"], [1, "a", "abcd"]),
        Case(_whole(enum=[1, 5, 50], minimum=2), [5, 50], [1, 55, 500]),
        Case({"enum": ["<|im_end|>", "[x]"]}, ["<|im_end|>", "[x]"], ["", "x"]),
    ],
    "const": [
        Case({"const": "x"}, ["x"], ["", "xx", None]),
        Case({"const": {"a": [1, {}]}}, [{"a": [1, {}]}], [{}, {"a": [1]}, {"a": [1, {"b": 1}]}]),
        Case({"const": 0}, [0], [False, 1, "0"]),
    ],
    "minimum": [
        Case(_whole(minimum=3), [3, 4, 10, 99999], [2, 0, -3]),
        Case(_whole(minimum=-12), [-12, -3, 0, 7], [-13, -100]),
        Case(_real(minimum=0.5), [0.5, 0.51, 1, 100], [0.4999, 0, -1]),
        Case(_whole(minimum=2.5), [3], [2]),
    ],
    "maximum": [
        Case(_whole(maximum=120), [120, 7, 0, -5000], [121, 1200]),
        Case(
            _whole(minimum=-(2**63), maximum=2**63 - 1),
            [-(2**63), 2**63 - 1],
            [2**63, -(2**63) - 1],
        ),
        Case(_real(maximum=-1.25), [-1.25, -1.3, -9], [-1.2, 0, 3]),
    ],
    "exclusiveMinimum": [
        Case(_real(exclusiveMinimum=0), [0.1, 1, 0.001], [0, -1]),
        Case(_whole(exclusiveMinimum=9), [10, 11], [9, 1]),
        Case(_whole(minimum=3, exclusiveMinimum=True), [4], [3]),
    ],
    "exclusiveMaximum": [
        Case(_real(exclusiveMaximum=100), [99.9, 0, -5], [100, 100.1, 99.99999999999999999999]),
        Case(_whole(exclusiveMaximum=10), [9], [10]),
    ],
    "multipleOf": [
        Case(_whole(multipleOf=5), [0, 5, 25, -10], [3, 51]),
        Case(_real(multipleOf=0.01, minimum=0), [0, 1.25, 3.1, 99.99], [0.001, -1]),
        Case(_whole(multipleOf=7, minimum=10, maximum=30), [14, 28], [7, 15, 35]),
        Case(_real(multipleOf=2.5), [2.5, 5, 7.5], [1, 2]),
    ],
    "minLength": [Case(_text(minLength=2), ["ab", "abc", "\u00e9\u00e9"], ["", "a", "\U0001f600"])],
    "maxLength": [
        Case(_text(maxLength=2), ["", "ab", "\U0001f600\U0001f600"], ["abc"]),
        Case(_text(minLength=3, maxLength=700), ["abc", "a" * 700], ["ab", "a" * 701]),
        Case(_text(maxLength=2500), ["", "a" * 2500], ["a" * 2501]),
        Case(_text(maxLength=2, minLength=2), ['"\\'], ['"', '"\\"']),
        Case(
            _text(format="email", minLength=7, maxLength=9), ["ab@c.org"], ["a@b.io", "abc@d.info"]
        ),
        Case(_text(format="hostname", maxLength=30), ["a" * 30, "a.b-c.de"], ["a" * 31, "a..b"]),
    ],
    "pattern": [
        Case(_text(pattern="^[^,]+$"), ['a"b', "\\", "\n\t", "x y"], ["", "a,b"]),
        Case(_text(pattern='^"[a-z]+"$'), ['"anna"'], ["anna", '""', '"a']),
        Case(_text(pattern=r"^\\[\"\\]{2}$"), ['\\"\\'], ["\\", '"\\"']),
        Case(_text(pattern=r"^[\x00-\x1f]+$"), ["\n", "\x01\x1f\b"], ["", " ", "n"]),
        Case(_text(pattern=r"^\d{3}-\w+\s$"), ["123-a_9 ", "000-x\t"], ["12-a ", "123-\u00e9 "]),
        Case(_text(pattern=r"\d{2}"), ["12", "a12b", "x\n34"], ["1", "1a2", ""]),
        Case(_text(pattern="^a|b$"), ["abc", "xb", "a"], ["xa", "bx"]),
        Case(
            _text(pattern=r"^(?=.*[A-Z])(?=.*\d).{4,}$"), ["Ab12", "xx9Z"], ["ab12", "A1", "ABCD"]
        ),
        Case(_text(pattern=r"^(?!0)\d+$"), ["10"], ["01", ""]),
        Case(_text(pattern="^.$"), ["a", "\u00e9", "\U0001f600"], ["\n", "", "ab"]),
        Case(_text(pattern=r"^\u{1F600}\uD83D\uDE00$"), ["\U0001f600\U0001f600"], ["\U0001f600"]),
        Case(_text(pattern=r"^\p{Lu}\p{Ll}+$"), ["\u00c9t\u00e9", "Ab"], ["ab", "AB"]),
        Case(_text(pattern="^[a-z]+$", minLength=2, maxLength=4), ["ab", "abcd"], ["a", "abcde"]),
        Case(_text(pattern="^a*?b+$"), ["b", "aab"], ["a", "ba"]),
        Case(_text(pattern=""), ["", "x"], [1]),
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
    "items": [
        Case(_list(items=_INT), [[], [1, 2, 3]], [["a"], [1, None]]),
        Case(_list(items=False), [[]], [[1]]),
        Case(
            _list(items=[_INT, _STR], additionalItems=False),
            [[1, "a"], [1], []],
            [["a"], [1, "a", 2]],
        ),
        Case(_list(items=_list(items=_INT, maxItems=1)), [[[], [1]]], [[[1, 2]], [1]]),
    ],
    "prefixItems": [
        Case(_list(prefixItems=[_INT, _STR], minItems=2), [[1, "a"]], [[1], ["a", 1]]),
        Case(_list(prefixItems=[_INT], items=_STR), [[1, "a", "b"], [1]], [["a"], [1, 2]]),
        Case(_list(prefixItems=[_INT, _INT], items=False), [[1, 2]], [[1, 2, 3]]),
    ],
    "minItems": [Case(_list(items=_INT, minItems=2), [[1, 2], [1, 2, 3]], [[], [1]])],
    "maxItems": [
        Case(_list(maxItems=2), [[], [1, "a"]], [[1, 2, 3]]),
        Case(_list(items=_INT, minItems=1, maxItems=400), [[1] * 400], [[], [1] * 401]),
    ],
    "properties": [
        Case(
            _dict(properties={"a": _INT, "b": _STR}),
            [{}, {"a": 1}, {"b": "x"}, {"a": 1, "b": ""}],
            [{"a": "x"}, {"b": 1}],
        ),
        Case(_dict(properties={"": _INT}, required=[""]), [{"": 1}], [{}, 1, {"": "x"}]),
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
        Case(_dict(properties={"a": _INT}, required=["a", "z"]), [{"a": 1, "z": "?"}], [{"a": 1}]),
    ],
    "additionalProperties": [
        Case(_dict(properties={"a": _INT}, additionalProperties=False), [{}, {"a": 1}], [{"b": 1}]),
        Case(_dict(additionalProperties=_INT), [{}, {"x": 1, "y": 2}], [{"x": "1"}]),
        Case(
            _dict(properties={"ab": _INT}, additionalProperties=_STR),
            [{"ab": 1, "a": "", "abc": "x"}],
            [{"ab": "x"}, {"a": 1}],
        ),
    ],
    "patternProperties": [
        Case(
            _dict(patternProperties={"^n": _INT}, additionalProperties=_STR),
            [{"n1": 1, "x": "y"}],
            [{"n": "x"}, {"x": 1}],
        ),
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
        Case(_dict(propertyNames={"enum": ["x", "y"]}), [{"x": 1}, {}], [{"z": 1}]),
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
        Case(_dict(additionalProperties=_INT, minProperties=1), [{"x": 1}], [{}]),
    ],
    "maxProperties": [
        Case(
            _dict(additionalProperties=_INT, maxProperties=2),
            [{}, {"x": 1, "y": 2}],
            [{"x": 1, "y": 2, "z": 3}],
        ),
        Case(
            _dict(properties={"a": _INT, "b": _INT, "c": _INT}, maxProperties=2),
            [{"a": 1, "c": 1}],
            [{"a": 1, "b": 1, "c": 1}],
        ),
    ],
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
        Case(
            _text(allOf=[{"pattern": "a"}, {"pattern": "b"}], maxLength=3),
            ["ab", "bxa"],
            ["a", "abxx"],
        ),
    ],
    "anyOf": [
        Case({"anyOf": [_INT, {"type": "null"}]}, [1, None], ["x"]),
        Case(
            {"anyOf": [{"minLength": 3}, {"maxLength": 1}], "type": "string"},
            ["", "a", "abc"],
            ["ab", 1],
        ),
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
        # A tag is written, also where the schema does not require it.
        Case(
            {"oneOf": [{**_CAT, "required": []}, {**_DOG, "required": []}]},
            [{"kind": "cat"}, {"kind": "dog", "tail": "x"}],
            [{}, {"lives": 9}, {"kind": "dog", "lives": 9}],
        ),
        Case({"oneOf": [_whole(minimum=6), _whole(maximum=5), _STR]}, [6, -1, "x"], [None]),
    ],
    "$ref": [
        Case(
            _TREE,
            [{"v": 1}, {"v": 1, "kids": [{"v": 2, "kids": []}]}],
            [{}, {"v": 1, "kids": [{}]}],
        ),
        Case(
            _dict(properties={"a": {"$ref": "#/properties/b"}, "b": _INT}), [{"a": 1}], [{"a": "x"}]
        ),
        Case({"$defs": {"a b/c~%": _INT}, "$ref": "#/$defs/a%20b~1c~0%25"}, [1], ["x"]),
        Case(
            {"$id": "http://x/y", "$defs": {"z": {"type": "null"}}, "$ref": "http://x/y#/$defs/z"},
            [None],
            [1],
        ),
        Case({"$defs": {"i": _INT}, "$ref": "#/$defs/i", "minimum": 3}, [3], [2, "x"]),
    ],
}
