"""A schema document: its numbered subschemas, their paths, and resolved references.

Nothing is fetched: a reference that leads out of the document is refused.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import unquote, urldefrag

from pyllama_spec.errors import SchemaError, clipped
from pyllama_spec.schema.limits import cannot, malformed, place

Schema = Any  # a dict, or True or False
# The parts of a path. The code below recurses for nesting, and so do readers of the answer.
MAX_DEPTH = 800


class Node(NamedTuple):
    """A subschema: a dict, True or False, and its place, as a JSON pointer after "#"."""

    schema: Schema
    path: str


class Document:
    """A schema, which must not change later, and all subschemas that its references may reach."""

    def __init__(self, schema: Schema) -> None:
        self.nodes: list[Node] = []
        self._numbers: dict[int, int] = {}
        self._whole = schema
        own = schema.get("$id", schema.get("id")) if isinstance(schema, dict) else None
        self._id = urldefrag(own).url if isinstance(own, str) else ""
        self.root = self.number(schema, "#")

    def number(self, schema: Schema, path: str) -> int:
        """The number of a subschema; creates its node the first time."""
        if schema is not True and schema is not False and not isinstance(schema, dict):
            raise SchemaError(
                f"the JSON schema is malformed: {place(path)} is {_kind(schema)}", "", path
            )
        # True and False are one object each, wherever they stand.
        key = id(schema)
        number = self._numbers.get(key)
        if number is None:
            if path.count("/") > MAX_DEPTH:
                raise SchemaError("the JSON schema is nested too deeply")
            if self.nodes and isinstance(schema, dict) and "$id" in schema:
                raise cannot("$id", path, "references are relative to the whole", "leave it out")
            number = self._numbers[key] = len(self.nodes)
            self.nodes.append(Node(schema, path))
        return number

    def child(self, node: Node, schema: Schema, *at: str | int) -> int:
        """The number of a node's child."""
        return self.number(schema, _pointer(node.path, *at))

    def target(self, node: Node) -> int:
        """The target of a node's $ref."""
        ref = node.schema["$ref"]
        if not isinstance(ref, str):
            raise malformed("$ref", node.path, "is not a text")
        url, fragment = urldefrag(ref)
        if url not in ("", self._id) or (fragment and not fragment.startswith("/")):
            raise cannot(
                "$ref", node.path, f"{clipped(ref)} is no pointer into the document, and nothing "
                "is fetched", "put it into $defs, and write #/$defs/NAME",
            )  # fmt: skip
        schema, path = self._whole, "#"
        for part in fragment.split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(schema, dict) and key in schema:
                schema = schema[key]
            elif isinstance(schema, list) and key.isdecimal() and int(key) < len(schema):
                schema = schema[int(key)]
            else:
                raise malformed("$ref", node.path, f"has no target: there is no {clipped(ref)}")
            path = _pointer(path, key)
        return self.number(schema, path)


def _pointer(path: str, *parts: str | int) -> str:
    """The path of a child."""
    escaped = (str(part).replace("~", "~0").replace("/", "~1") for part in parts)
    return "/".join((path, *escaped))


def _kind(value: object) -> str:
    return "null" if value is None else f"a {type(value).__name__}"
