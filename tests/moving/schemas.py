"""JSON schemas of the kinds that programs ask for, and who says that a value fits one."""

from __future__ import annotations

import re
from typing import Any

Schema = dict[str, Any]


def record(**properties: Schema) -> Schema:
    return {
        "type": "object", "properties": properties, "required": list(properties),
        "additionalProperties": False,
    }  # fmt: skip


def several(items: Schema, low: int = 0, high: int = 3) -> Schema:
    return {"type": "array", "items": items, "minItems": low, "maxItems": high}


def text(high: int = 8, low: int = 0) -> Schema:
    return {"type": "string", "minLength": low, "maxLength": high}


def whole(low: int, high: int) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high}


def pattern(regex: str) -> Schema:
    return {"type": "string", "pattern": regex}


def one_of(*values: Any) -> Schema:
    return {"enum": list(values)}


BOOL: Schema = {"type": "boolean"}
NULL: Schema = {"type": "null"}
_COLORS = one_of("red", "green", "blue")
_POINT = record(x=whole(-9, 9), y=whole(-9, 9))
_PERSON = record(name=text(), age=whole(0, 120))
_DEEP: Schema = _PERSON
for _level in range(6):
    _DEEP = record(**{f"level_{_level}": _DEEP})
_THREE: Schema = {"minItems": 3, "maxItems": 3}
_LONG = [
    "the_identification_number_of_the_customer", "the_preferred_address_of_delivery",
    "the_total_amount_outstanding_in_euro", "the_most_recent_category_of_complaint",
]  # fmt: skip
# Their size has an end, since a toy with random weights writes the text: it stops at limits only.
_TREE: Schema = {
    "$defs": {
        "leaf": record(value=whole(0, 9)),
        "node": record(left={"$ref": "#/$defs/leaf"}, right={"$ref": "#/$defs/leaf"}),
    },
    **record(root={"$ref": "#/$defs/node"}),
}

SCHEMAS: list[Schema] = [
    # scalars, enums, constants and patterns in an object
    record(a=whole(-5, 5)), record(a=whole(0, 1000)), record(a=BOOL, b=NULL), record(a=text(5, 5)),
    record(a=one_of("a", 1, None, True)), record(a={"const": "fixed"}),
    record(a=one_of("with \"quotes\"", "back\\slash", "naïve", "日本", "😀", "")),
    record(a=pattern("^[A-Z]{2}[0-9]{3}$"), b=pattern("^a{1,3}b?c$")),
    record(a={"type": "string", "format": "date"}, b={"type": "string", "format": "time"}),
    # optional keys
    {**_PERSON, "required": []},
    {"type": "object", "properties": {"a": whole(0, 9), "b": BOOL, "c": NULL}, "required": ["b"],
     "additionalProperties": False},
    # arrays
    record(a=several(_POINT)), record(a=several(several(whole(0, 9), 1, 2), 1, 2)),
    several(whole(0, 9), 3, 3),
    record(a={"type": "array", "prefixItems": [whole(0, 9), BOOL, _COLORS], **_THREE}),
    # nesting, choices, references, and one that comes back to itself
    _DEEP, {"anyOf": [_POINT, _PERSON]}, record(a={"oneOf": [_POINT, _COLORS]}),
    record(a={"type": ["boolean", "null"]}), _TREE,
    {
        "$defs": {
            "list": {"anyOf": [NULL, record(head=whole(0, 9), tail={"$ref": "#/$defs/list"})]}
        },
        **record(a={"$ref": "#/$defs/list"}),
    },
    # long keys
    record(**dict.fromkeys(_LONG, _COLORS)),
]  # fmt: skip

_TYPES = {
    "object": dict, "array": list, "string": str, "boolean": bool, "null": type(None),
    "integer": int,
}  # fmt: skip
_FORMATS = {
    "date": r"\d{4}-\d{2}-\d{2}", "time": r"\d{2}:\d{2}:\d{2}(\.\d+)?([Zz]|[+-]\d{2}:\d{2})",
}  # fmt: skip


def fits(value: Any, schema: Schema, whole_schema: Schema | None = None) -> bool:
    """Whether a value fits a schema of the kinds above."""
    top = schema if whole_schema is None else whole_schema
    if "$ref" in schema:
        return fits(value, top["$defs"][schema["$ref"].rpartition("/")[2]], top)
    if "const" in schema:
        return bool(value == schema["const"])
    if "enum" in schema:
        return any(value == one and type(value) is type(one) for one in schema["enum"])
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return any(fits(value, one, top) for one in schema[key])
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not any(type(value) is _TYPES[kind] for kind in kinds):
        return False
    return _parts_fit(value, schema, top)


def _parts_fit(value: Any, schema: Schema, top: Schema) -> bool:
    if isinstance(value, dict):
        known = schema["properties"]
        return (
            set(schema["required"]) <= set(value) <= set(known)
            and list(value) == [key for key in known if key in value]
            and all(fits(part, known[key], top) for key, part in value.items())
        )
    if isinstance(value, list):
        if "prefixItems" in schema:
            pairs = zip(value, schema["prefixItems"], strict=True)
            return all(fits(part, one, top) for part, one in pairs)
        low, high = schema["minItems"], schema["maxItems"]
        return low <= len(value) <= high and all(fits(v, schema["items"], top) for v in value)
    if isinstance(value, str):
        regex = schema.get("pattern") or _FORMATS.get(schema.get("format", ""), "[\\s\\S]*")
        low, high = schema.get("minLength", 0), schema.get("maxLength", 99)
        return re.fullmatch(regex.strip("^$"), value) is not None and low <= len(value) <= high
    if isinstance(value, int) and not isinstance(value, bool):
        return bool(schema["minimum"] <= value <= schema["maximum"])
    return True
