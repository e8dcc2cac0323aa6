"""The keywords of JSON Schema as formulas over a value; and the refused keywords.

A formula combines conditions on a value of one JSON type by "and" and "or". A condition looks at
the value itself (`Text`, `Count`, ...), or names another subschema (`Fits`). None has an opposite:
what asks for one, such as "not", is refused by name.

Those of the drafts 4 to 2020-12 are known. One that is none of them is an annotation, as the
specification has it; there is a warning, since it may be a slip of the pen.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

from pyllama_spec.errors import clipped, shown
from pyllama_spec.schema.document import Document, Node
from pyllama_spec.schema.languages import Lang, length, listing
from pyllama_spec.schema.limits import cannot, malformed
from pyllama_spec.schema.numbers import Compare, Multiple, NumberRule, Whole, exact
from pyllama_spec.schema.patterns import (
    FREE_FORMATS,
    KEPT_FORMATS,
    NUMBER_FORMATS,
    PatternError,
    format_language,
    pattern_language,
)

TYPES = ("object", "array", "string", "number", "boolean", "null")


class Formula:
    """A condition, or a combination of conditions."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class And(Formula):
    """A conjunction; without formulas it is true."""

    parts: tuple[Formula, ...]


@dataclass(frozen=True, slots=True)
class Or(Formula):
    """A disjunction; without formulas it is false."""

    parts: tuple[Formula, ...]


TRUE, FALSE = And(()), Or(())


@dataclass(frozen=True, slots=True)
class Fits(Formula):
    """The value matches a numbered subschema."""

    number: int


@dataclass(frozen=True)
class Condition(Formula):
    """The condition of one keyword."""


@dataclass(frozen=True)
class Truth(Condition):
    """A boolean with one of these values."""

    values: frozenset[bool]


@dataclass(frozen=True)
class Number(Condition):
    """A number that satisfies a rule."""

    rule: NumberRule


@dataclass(frozen=True)
class Listed(Condition):
    """A number of a list, each with its text."""

    values: tuple[tuple[Fraction, str], ...]


@dataclass(frozen=True)
class Text(Condition):
    """A text of a set."""

    lang: Lang


@dataclass(frozen=True)
class Items(Condition):
    """The subschemas of the first items, and of all others; None for any value."""

    first: tuple[int, ...]
    rest: int | None


@dataclass(frozen=True)
class Count(Condition):
    """The number of items or properties; `path` locates it for an error message."""

    low: int
    high: int | None
    path: str = "#"


@dataclass(frozen=True)
class Properties(Condition):
    """The subschemas of properties: by name, by pattern, and of all others; None for any value.

    `is_open` if the schema says itself that there may be others.
    """

    named: tuple[tuple[str, int], ...]
    patterns: tuple[tuple[Lang, int], ...]
    rest: int | None
    is_open: bool = False

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The named subschemas by property name."""
        return dict(self.named)


@dataclass(frozen=True)
class Present(Condition):
    """A property is present."""

    name: str


@dataclass(frozen=True)
class Names(Condition):
    """The subschema of all property names."""

    fits: Fits


ANNOTATIONS = frozenset([
    "title", "description", "default", "examples", "example", "deprecated", "readOnly",
    "writeOnly", "$comment", "$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$vocabulary",
    "$defs", "definitions", "contentEncoding", "contentMediaType", "contentSchema",
    "discriminator", "externalDocs", "xml", "strict", "name", "enumNames", "enumDescriptions",
    "markdownDescription", "propertyOrder", "order",
])  # fmt: skip
_VALUE = frozenset(["type", "const", "enum"])
_JOINED = frozenset(["allOf", "anyOf", "oneOf", "$ref"])
_OF_TYPE = {
    "number": frozenset([
        "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "format",
    ]),
    "string": frozenset(["minLength", "maxLength", "pattern", "format"]),
    "array": frozenset([
        "items", "prefixItems", "additionalItems", "minItems", "maxItems",
    ]),
    "object": frozenset([
        "properties", "patternProperties", "additionalProperties", "required", "minProperties",
        "maxProperties", "propertyNames",
    ]),
}  # fmt: skip
KEPT = _VALUE | _JOINED | frozenset().union(*_OF_TYPE.values())
_OPPOSITE = "say what is allowed, with anyOf"
_BESIDE = "list the properties or items in one place"
REFUSED = {
    "not": _OPPOSITE, "if": _OPPOSITE, "then": _OPPOSITE, "else": _OPPOSITE,
    "dependentRequired": _OPPOSITE, "dependentSchemas": _OPPOSITE, "dependencies": _OPPOSITE,
    "uniqueItems": "leave it out (with Pydantic: list for set), and drop doubles afterwards",
    "contains": "write items", "minContains": "write minItems", "maxContains": "write maxItems",
    "unevaluatedProperties": _BESIDE, "unevaluatedItems": _BESIDE, "$dynamicRef": "write $ref",
    "nullable": 'write "type": [..., "null"], or anyOf with {"type": "null"}',
    "$recursiveRef": "write $ref",
    "extends": "write allOf", "disallow": "write not", "divisibleBy": "write multipleOf",
}  # fmt: skip

_KNOWN_TYPES = ("null", "boolean", "object", "array", "number", "string", "integer")


def _count(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return value >= 0 and math.isfinite(value) and value == int(value)


def _number(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


def _texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _bound(value: object) -> bool:
    return _number(value) or isinstance(value, bool)  # true and false in draft 4


def _types(value: object) -> bool:
    listed = value if isinstance(value, list) else [value]
    return bool(listed) and all(one in _KNOWN_TYPES for one in listed)


_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(
        ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
        (_count, "a whole number, 0 or more"),
    ),
    **dict.fromkeys(("minimum", "maximum"), (_number, "a number")),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), (_bound, "a number")),
    "multipleOf": (lambda value: _number(value) and value > 0, "a number above 0"),
    **dict.fromkeys(("pattern", "format"), (lambda value: isinstance(value, str), "a text")),
    "type": (_types, f"one of {', '.join(_KNOWN_TYPES)}, or a list of them"),
    "enum": (lambda value: isinstance(value, list) and len(value) > 0, "a list with a value"),
    "required": (lambda value: _texts(value) or isinstance(value, bool), "a list of names"),
    **dict.fromkeys(
        ("allOf", "anyOf", "oneOf"),
        (lambda value: isinstance(value, list) and len(value) > 0, "a list with a schema"),
    ),
    "prefixItems": (lambda value: isinstance(value, list), "a list of schemas"),
    **dict.fromkeys(
        ("properties", "patternProperties"), (lambda value: isinstance(value, dict), "an object"),
    ),
}  # fmt: skip
# What these say becomes text of the grammar, or is compared with it; of the first only the names.
_WITH_NAMES = frozenset(("properties", "patternProperties"))
_WITH_TEXTS = _WITH_NAMES | {"required", "enum", "const", "pattern", "format"}


def _has_half(value: Any) -> bool:
    """Whether any text in a value has an unpaired surrogate."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def check_keywords(node: Node) -> list[str]:
    """Refuses unsupported keywords of a schema; returns the unknown ones."""
    unknown = []
    for key, value in node.schema.items():
        is_kept = (key, value) in (("not", {}), ("not", True), ("uniqueItems", False))
        if key in REFUSED and not is_kept:
            raise cannot(key, node.path, "a grammar does not keep it", REFUSED[key])
        check = _CHECKS.get(key)
        if check is not None and not check[0](value):
            raise malformed(key, node.path, f"is {shown(value)}, not {check[1]}")
        if key in _WITH_TEXTS and _has_half(list(value) if key in _WITH_NAMES else value):
            raise malformed(key, node.path, "has an unpaired surrogate")
        known = KEPT | ANNOTATIONS | REFUSED.keys()
        if key not in known and not key.startswith(("x-", "x_")):
            unknown.append(key)
    return unknown


def types_meant(schema: Mapping[str, Any]) -> set[str]:
    """The types that a schema's own keywords are about."""
    types = {kind for kind, keys in _OF_TYPE.items() if (keys - {"format"}) & set(schema)}
    if "format" in schema:
        types.add("number" if schema["format"] in NUMBER_FORMATS else "string")
    return types


class Meaning:
    """The formulas of a document's subschemas.

    `are_apart` says whether no value of a type fits two of them; False if that is unknown.
    """

    def __init__(
        self,
        document: Document,
        are_apart: Callable[[int, int, str], bool],
        spend: Callable[[int], None],
    ) -> None:
        self._document = document
        self._are_apart, self._spend = are_apart, spend
        self._made: dict[tuple[int, str], Formula] = {}
        self.unknown: dict[str, str] = {}

    def of(self, number: int, kind: str) -> Formula:
        """The formula of a subschema for a value of a type in TYPES."""
        formula = self._made.get((number, kind))
        if formula is None:
            node = self._document.nodes[number]
            if isinstance(node.schema, bool):
                formula = TRUE if node.schema else FALSE
            else:
                for key in check_keywords(node):
                    self.unknown.setdefault(key, node.path)
                formula = self._formula(node, kind)
            self._made[number, kind] = formula
        return formula

    def _formula(self, node: Node, kind: str) -> Formula:
        schema = node.schema
        parts: list[Formula] = []
        if "type" in schema:
            parts.append(_type(schema["type"], kind))
        if "const" in schema:
            parts.append(self._values(node, "const", [schema["const"]], kind))
        if "enum" in schema:
            parts.append(self._values(node, "enum", schema["enum"], kind))
        if FALSE in parts:
            return FALSE
        own = self._own(node, kind)
        joined = self._joined(node, kind)
        # Properties come in the order in which the schema has them.
        keys = [key for key in schema if key in ("properties", "allOf", "$ref")]
        parts.extend([*own, *joined] if keys[:1] == ["properties"] else [*joined, *own])
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def _own(self, node: Node, kind: str) -> list[Formula]:
        if kind == "number":
            return _number_parts(node)
        if kind == "string":
            return _string_parts(node)
        if kind == "array":
            return self._array_parts(node)
        return self._object_parts(node) if kind == "object" else []

    def _child(self, node: Node, *at: str | int) -> int:
        schema = node.schema
        for one in at:
            schema = schema[one]
        return self._document.child(node, schema, *at)

    def _listed(self, node: Node, key: str) -> list[Fits]:
        return [Fits(self._child(node, key, i)) for i in range(len(node.schema[key]))]

    def _joined(self, node: Node, kind: str) -> list[Formula]:
        schema = node.schema
        parts: list[Formula] = []
        if "$ref" in schema:
            parts.append(Fits(self._document.target(node)))
        if "allOf" in schema:
            parts.extend(self._listed(node, "allOf"))
        if "anyOf" in schema:
            parts.append(Or(tuple(self._listed(node, "anyOf"))))
        if "oneOf" in schema:
            parts.append(self._one_of(node, kind))
        if "not" in schema:  # of everything, as tools for TypeScript write what cannot be
            parts.append(FALSE)
        return parts

    def _one_of(self, node: Node, kind: str) -> Formula:
        """oneOf, of alternatives that exclude each other."""
        alternatives = self._listed(node, "oneOf")
        tag = self._tag_of(alternatives) if kind == "object" else None
        if tag is not None:  # it is always written, whether or not the schema requires it
            return Or(tuple(And((one, Present(tag))) for one in alternatives))
        for i, one in enumerate(alternatives):
            # Most pairs tell themselves apart, in a fraction of other steps.
            self._spend(1 + len(alternatives) // 4)
            if not all(self._are_apart(one.number, b.number, kind) for b in alternatives[:i]):
                raise cannot(
                    "oneOf", node.path, f"a value may fit alternative {i} and one before it",
                    "write anyOf, or give each alternative a property with a const of its own",
                )  # fmt: skip
        return Or(tuple(alternatives))

    def _tag_of(self, alternatives: list[Fits]) -> str | None:
        """The property that has another text in each alternative."""
        tags = [self._tags(one.number) for one in alternatives]
        for name in tags[0]:
            texts = [one.get(name) for one in tags]
            if None not in texts and len(set(texts)) == len(texts):
                return name
        return None

    def _tags(self, number: int) -> dict[str, str]:
        """The properties of a subschema that have a single text."""
        schema = self._document.nodes[self.behind_references(number)].schema
        named = schema.get("properties") if isinstance(schema, dict) else None
        texts = {}
        for name, one in named.items() if isinstance(named, dict) else ():
            listed = one.get("enum", [one.get("const")]) if isinstance(one, dict) else None
            if isinstance(listed, list) and len(listed) == 1 and isinstance(listed[0], str):
                texts[name] = listed[0]
        return texts

    def behind_references(self, number: int) -> int:
        """The subschema that a chain of mere references leads to."""
        seen = set()
        while number not in seen:
            seen.add(number)
            node = self._document.nodes[number]
            if not isinstance(node.schema, dict) or KEPT & set(node.schema) != {"$ref"}:
                return number
            self.of(number, "null")  # for the names that are not keywords
            number = self._document.target(node)
        raise malformed("$ref", self._document.nodes[number].path, "refers to itself")

    def _values(self, node: Node, keyword: str, values: list[Any], kind: str) -> Formula:
        if kind == "null":
            return TRUE if any(value is None for value in values) else FALSE
        if kind == "boolean":
            truths = frozenset(value for value in values if isinstance(value, bool))
            return Truth(truths) if truths else FALSE
        if kind == "string":
            words = [value for value in values if isinstance(value, str)]
            return Text(listing(words)) if words else FALSE
        if kind == "number":
            numbers: dict[Fraction, str] = {}
            for value in values:
                if isinstance(value, (int, float)) and not isinstance(value, bool):
                    if not math.isfinite(value):
                        raise malformed(keyword, node.path, f"has {value}, which is not JSON")
                    whole = isinstance(value, int) or value == int(value)
                    text = str(int(value)) if whole and abs(value) < 1e16 else str(value)
                    numbers.setdefault(exact(value), text)
            return Listed(tuple(numbers.items())) if numbers else FALSE
        fitting = [
            value for value in values if isinstance(value, list if kind == "array" else dict)
        ]
        return Or(tuple(Fits(self._equal(value, node)) for value in fitting))

    def _equal(self, value: Any, node: Node) -> int:
        """The number of a schema that only one list or object matches."""
        schema: dict[str, Any]
        if isinstance(value, list):
            schema = {
                "type": "array", "prefixItems": [{"const": one} for one in value], "items": False,
                "minItems": len(value), "maxItems": len(value),
            }  # fmt: skip
        else:
            schema = {
                "type": "object", "properties": {key: {"const": one} for key, one in value.items()},
                "required": list(value), "additionalProperties": False,
            }  # fmt: skip
        return self._document.number(schema, node.path)

    def _array_parts(self, node: Node) -> list[Formula]:
        schema = node.schema
        parts: list[Formula] = []
        tuple_key = "prefixItems" if "prefixItems" in schema else "items"
        has_tuple = isinstance(schema.get(tuple_key), list)
        rest_key = "additionalItems" if has_tuple and tuple_key == "items" else "items"
        first = self._listed(node, tuple_key) if has_tuple else []
        rest = self._child(node, rest_key) if rest_key in schema else None
        if rest is not None and schema[rest_key] is True:
            rest = None
        if first or rest is not None:
            parts.append(Items(tuple(one.number for one in first), rest))
        if "minItems" in schema or "maxItems" in schema:
            parts.append(Count(*_range(schema, "minItems", "maxItems")))
        return parts

    def _object_parts(self, node: Node) -> list[Formula]:
        schema = node.schema
        parts: list[Formula] = []
        named = tuple((name, self._child(node, "properties", name))
                      for name in schema.get("properties", ()))  # fmt: skip
        patterns = tuple(
            (
                _pattern(node, "patternProperties", text),
                self._child(node, "patternProperties", text),
            )
            for text in schema.get("patternProperties", ())
        )
        rest, more = None, schema.get("additionalProperties")
        if more is not None and more is not True:
            rest = self._child(node, "additionalProperties")
        if named or patterns or more is not None:
            parts.append(Properties(named, patterns, rest, is_open=more is True))
        required = schema.get("required", ())
        if isinstance(required, list):
            parts.extend(Present(name) for name in required)
        if "minProperties" in schema or "maxProperties" in schema:
            low, high = _range(schema, "minProperties", "maxProperties")
            parts.append(Count(low, high, node.path))
        if "propertyNames" in schema:
            parts.append(Names(Fits(self._child(node, "propertyNames"))))
        return parts


def _range(schema: Mapping[str, Any], low: str, high: str) -> tuple[int, int | None]:
    return int(schema.get(low, 0)), int(schema[high]) if high in schema else None


def _type(types: str | list[str], kind: str) -> Formula:
    listed = types if isinstance(types, list) else [types]
    if kind in listed:
        return TRUE
    return Number(Whole()) if kind == "number" and "integer" in listed else FALSE


def _pattern(node: Node, keyword: str, text: str) -> Any:
    try:
        return pattern_language(text)
    except PatternError as error:
        raise cannot(
            keyword, node.path,
            f"of the pattern {clipped(json.dumps(text))}: {clipped(str(error), 200)}",
            "write it in the syntax of ECMA-262, without back references and lookbehind",
        ) from None  # fmt: skip


def _number_parts(node: Node) -> list[Formula]:
    schema = node.schema
    below, above = frozenset({-1}), frozenset({1})
    rules: list[NumberRule] = []
    for key, sides in (("minimum", above), ("maximum", below)):
        exclusive = f"exclusive{key.capitalize()}"
        is_open = schema.get(exclusive) is True  # as draft 4 has it
        if key in schema:
            rules.append(Compare(exact(schema[key]), sides if is_open else sides | {0}))
        if exclusive in schema and not isinstance(schema[exclusive], bool):
            rules.append(Compare(exact(schema[exclusive]), sides))
    if "multipleOf" in schema:
        rules.append(Multiple(exact(schema["multipleOf"])))
    bounds = NUMBER_FORMATS.get(schema.get("format", ""))
    if bounds is not None:
        rules.append(Compare(Fraction(bounds[0]), above | {0}))
        rules.append(Compare(Fraction(bounds[1]), below | {0}))
    return [Number(rule) for rule in rules]


def _string_parts(node: Node) -> list[Formula]:
    schema = node.schema
    parts: list[Formula] = []
    if "minLength" in schema or "maxLength" in schema:
        low, high = _range(schema, "minLength", "maxLength")
        parts.append(Text(length(low, high)) if high is None or low <= high else FALSE)
    if "pattern" in schema:
        parts.append(Text(_pattern(node, "pattern", schema["pattern"])))
    name = schema.get("format")
    if name is not None and name not in FREE_FORMATS and name not in NUMBER_FORMATS:
        lang = format_language(name)
        if lang is None:
            raise cannot(
                "format", node.path, f"{clipped(json.dumps(name))} cannot be enforced; known are "
                f"{', '.join(KEPT_FORMATS)}", "leave it out, or write a pattern",
            )  # fmt: skip
        parts.append(Text(lang))
    return parts
