"""A schema document: its numbered subschemas, their paths, and resolved references.

Nothing is fetched: a reference that leads out of the document is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urldefrag, urljoin

from pyllama_spec.errors import SchemaError, clipped
from pyllama_spec.schema.limits import cannot, malformed, place

Schema = Any  # a dict, or True or False
# The code below recurses for nesting, and so do readers of the answer.
MAX_DEPTH = 400

_ONE = (
    "additionalProperties", "items", "contains", "not", "if", "then", "else", "propertyNames",
    "unevaluatedItems", "unevaluatedProperties", "additionalItems", "contentSchema",
)  # fmt: skip
_LISTED = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_NAMED = (
    "properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies",
)  # fmt: skip


class Node(NamedTuple):
    """A subschema.

    Attributes:
        schema: a dict, True or False.
        path: its place, as a JSON pointer after "#".
        base: the URI that references in it are relative to.
    """

    schema: Schema
    path: str
    base: str


def pointer(path: str, *parts: str | int) -> str:
    """The path of a child."""
    escaped = (str(part).replace("~", "~0").replace("/", "~1") for part in parts)
    return "/".join((path, *escaped))


def _children(schema: Mapping[str, Any]) -> Iterator[tuple[Any, tuple[str | int, ...]]]:
    for key in _ONE:
        if key in schema:
            yield schema[key], (key,)
    for key in _LISTED:
        if isinstance(schema.get(key), list):
            for i, one in enumerate(schema[key]):
                yield one, (key, i)
    for key in _NAMED:
        if isinstance(schema.get(key), dict):
            for name, one in schema[key].items():
                yield one, (key, name)


class Document:
    """A schema, which must not change later, and all subschemas that its references may reach."""

    def __init__(self, schema: Schema) -> None:
        self.nodes: list[Node] = []
        self._numbers: dict[int, int] = {}
        self._bases: dict[int, str] = {}
        self._roots: dict[str, tuple[Schema, str]] = {}
        self._anchors: dict[tuple[str, str], tuple[Schema, str]] = {}
        self._dynamic: dict[str, int] = {}
        self._scan(schema)
        self.root = self.number(schema, "#", self._bases.get(id(schema), ""))

    def _scan(self, schema: Schema) -> None:
        """Indexes the resources by $id and the anchors by $anchor."""
        self._roots[""] = (schema, "#")
        dialect = schema.get("$schema") if isinstance(schema, dict) else None
        is_new = isinstance(dialect, str) and "/20" in dialect
        todo: list[tuple[Any, str, str, int]] = [(schema, "#", "", 0)]
        while todo:
            one, path, base, depth = todo.pop()
            if depth > MAX_DEPTH:
                raise SchemaError(f"the JSON schema is nested more than {MAX_DEPTH} deep")
            if not isinstance(one, dict) or id(one) in self._bases:
                continue
            own = one.get("$id")
            if isinstance(own, str) and not own.startswith("#"):
                if "$ref" in one and not is_new:
                    raise cannot(
                        "$id", path, "up to draft 7 it has no effect beside $ref",
                        'leave one of them out, or say which draft it is by "$schema"',
                    )  # fmt: skip
                base = urldefrag(_joined(base, own)).url
                self._roots.setdefault(base, (one, path))
            self._bases[id(one)] = base
            for key in ("$anchor", "$dynamicAnchor"):
                name = one.get(key)
                if isinstance(name, str):
                    self._anchors.setdefault((base, name), (one, path))
                    if key == "$dynamicAnchor":
                        self._dynamic[name] = self._dynamic.get(name, 0) + 1
            todo.extend(
                (child, pointer(path, *at), base, depth + 1) for child, at in _children(one)
            )

    def number(self, schema: Schema, path: str, base: str) -> int:
        """The number of a subschema; creates its node the first time."""
        if schema is not True and schema is not False and not isinstance(schema, dict):
            raise SchemaError(
                f"the JSON schema is malformed: {place(path)} is {_kind(schema)}", "", path
            )
        # True and False are one object each, wherever they stand.
        key = id(schema)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.nodes)
            self.nodes.append(Node(schema, path, self._bases.get(key, base)))
        return number

    def child(self, node: Node, schema: Schema, *at: str | int) -> int:
        """The number of a node's child."""
        return self.number(schema, pointer(node.path, *at), node.base)

    def target(self, node: Node, keyword: str) -> int:
        """The target of a node's $ref."""
        ref = node.schema[keyword]
        if not isinstance(ref, str):
            raise malformed(keyword, node.path, "is not a text")
        url, fragment = urldefrag(_joined(node.base, ref))
        if url not in self._roots:
            if fragment and not ref.startswith("#"):
                url = urldefrag(ref).url
            if url not in self._roots:
                raise cannot(
                    keyword, node.path,
                    f"{clipped(ref)} is not in the document, and nothing is fetched",
                    "put it into $defs",
                )  # fmt: skip
        root, path = self._roots[url]
        if keyword == "$dynamicRef" and self._dynamic.get(fragment, 0) > 1:
            raise cannot(
                keyword, node.path, "its target depends on the path to it",
                "use $ref with a copy of its target",
            )  # fmt: skip
        if fragment and not fragment.startswith("/"):
            if (url, fragment) not in self._anchors:
                raise malformed(keyword, node.path, f"has no target: there is no {clipped(ref)}")
            return self.number(*self._anchors[url, fragment], url)
        return self._at_pointer(root, path, url, fragment, node, keyword)

    def _at_pointer(
        self, schema: Schema, path: str, base: str, fragment: str, node: Node, keyword: str
    ) -> int:
        for part in fragment.split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(schema, dict) and key in schema:
                schema = schema[key]
            elif isinstance(schema, list) and key.isdecimal() and int(key) < len(schema):
                schema = schema[int(key)]
            else:
                ref = node.schema[keyword]
                raise malformed(keyword, node.path, f"has no target: there is no {clipped(ref)}")
            path = pointer(path, key)
            base = self._bases.get(id(schema), base)
        return self.number(schema, path, base)


def _joined(base: str, ref: str) -> str:
    if ref.startswith("#"):
        return base + ref
    try:
        return urljoin(base, ref)
    except ValueError:
        return ref


def _kind(value: object) -> str:
    return "null" if value is None else f"a {type(value).__name__}"
