"""Compiles a JSON schema to GBNF rules of the JSON texts that match it.

Sound by construction: every text that the rules give fits the schema, or the schema is refused with
the keyword that is at fault. docs/schemas.md lists what is kept, and where it is narrower.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from pyllama_spec.errors import SchemaError, clipped
from pyllama_spec.schema.containers import Containers
from pyllama_spec.schema.document import Document
from pyllama_spec.schema.expansion import (
    ANYTHING,
    Case,
    Expansion,
    Node,
    listed_numbers,
    those,
    truths,
)
from pyllama_spec.schema.grammar import Alternative, Grammar, Literal, Rule
from pyllama_spec.schema.keywords import KEPT, Fits, Number, Text
from pyllama_spec.schema.languages import Lang, either, negated, table
from pyllama_spec.schema.limits import (
    MAX_STEPS,
    WORK,
    Budget,
    OutOfStepsError,
    TooLargeError,
    cannot,
    out_of_steps,
)
from pyllama_spec.schema.numbers import MAX_DIGITS, MOST_WHOLE_DIGITS, Whole, number_table
from pyllama_spec.schema.patterns import PatternError, pattern_language
from pyllama_spec.schema.texts import (
    GEMMA_QUOTES,
    JSON_LIKE,
    JSON_QUOTES,
    Quotes,
    Texts,
    usual_rules,
)

# So many keywords are left out of a schema, each with a walk over it.
_MOST_LEFT_OUT = 30


class SchemaRules(NamedTuple):
    """GBNF with the rule `root` of a schema, the same of each property; unknown names by place."""

    grammar: str
    properties: Mapping[str, str]
    unknown: Mapping[str, str]


class Loosened(NamedTuple):
    """A schema without what a grammar cannot express, and the reason for each part left out."""

    schema: Any
    rules: SchemaRules
    left_out: tuple[SchemaError, ...]


def schema_rules(schema: Any, prefix: str = "", *, by_property: bool = False) -> SchemaRules:
    """Compiles the rules of a schema's JSON texts."""
    return _rules(schema, prefix, Budget(), by_property=by_property)


def argument_rules(
    schema: Any, prefix: str, parameter: str, form: str, marks: tuple[str, ...], budget: Budget
) -> str | None:
    """Compiles the rules of an argument, "" for all, that is not, or not only, written in JSON.

    `form` is "text" for strings as they are, "typed" for JSON or else such a string, "json", or
    "gemma4"; `marks` are what a string does not contain. None if no value can be written so.
    """
    quotes = GEMMA_QUOTES if form == "gemma4" else JSON_QUOTES

    def made(compiler: _Compiler) -> str | None:
        if form == "gemma4":
            return compiler.objects()
        if form == "json":
            return compiler.properties(parameter).get(parameter)
        return compiler.plain(parameter, marks, is_typed=form == "typed")

    return _compiled(schema, prefix, budget, quotes, made)


def regex_rules(regex: str) -> str:
    """Compiles the rules of the texts that a regular expression matches from end to end."""
    grammar = Grammar(Budget())
    try:
        with WORK.on(grammar.budget):
            pattern_language(regex)  # the group below would hide a ) without a (
            states = table(pattern_language(f"^(?:{regex})$"))
            name = Texts(grammar).of_table(states, "regex") if not states.is_empty else ""
        grammar.put("root", [[Rule(name)]])
        (text,) = grammar.texts(["root"])
    except (PatternError, TooLargeError, OutOfStepsError) as error:
        raise SchemaError(
            f"the regular expression {clipped(regex)!r} cannot be kept: {error}", "pattern",
            remedy="write it in the syntax of ECMA-262, shorter or simpler",
        ) from None  # fmt: skip
    except RecursionError:
        raise SchemaError(
            f"the regular expression {clipped(regex)!r} is nested too deeply", "pattern"
        ) from None
    if text is None:
        raise SchemaError(f"no text matches the regular expression {clipped(regex)!r}", "pattern")
    return text


def beside_properties(schema: Any, *, is_deep: bool = False) -> list[str]:
    """The keywords of an object that hold for more than each property that it names.

    `is_deep`: in its parts too, where a type alone is kept.
    """
    if not isinstance(schema, dict):
        return []
    named = schema.get("properties", {})
    kept = {"type", "properties", "required", "additionalProperties"}
    lost = sorted(KEPT & set(schema) - kept - ({"items"} if is_deep else set()))
    if set(schema.get("required", ())) - set(named):
        lost.append("required")
    for part in (*named.values(), schema.get("items")) if is_deep else ():
        lost += beside_properties(part, is_deep=True)
    return lost


def _rules(schema: Any, prefix: str, budget: Budget, *, by_property: bool) -> SchemaRules:
    def made(compiler: _Compiler) -> SchemaRules:
        grammar = compiler.text()
        properties = compiler.properties() if by_property else {}
        return SchemaRules(grammar, properties, compiler.expansion.meaning.unknown)

    return _compiled(schema, prefix, budget, JSON_QUOTES, made)


_T = TypeVar("_T")


def _compiled(
    schema: Any, prefix: str, budget: Budget, quotes: Quotes, made: Callable[[_Compiler], _T]
) -> _T:
    try:
        with WORK.on(budget):
            return made(_Compiler(schema, prefix, budget, quotes))
    except RecursionError:
        raise SchemaError("the JSON schema is nested too deeply") from None
    except TooLargeError as error:
        raise SchemaError(
            f"the grammar of the schema is too large: {error}",
            remedy="simplify the schema",
            is_beyond=True,
        ) from None
    except OutOfStepsError as error:
        raise out_of_steps("#", error.most) from None


def loosened_rules(schema: Any, prefix: str = "", *, by_property: bool = False) -> Loosened:
    """Compiles as schema_rules(); omits and names keywords that a grammar cannot express."""
    left_out: list[SchemaError] = []
    budget = Budget(2 * MAX_STEPS)  # of all tries together
    loose = json.loads(json.dumps(schema))
    while True:
        made = _made_or_error(loose, prefix, budget, by_property)
        if isinstance(made, SchemaRules):
            return Loosened(loose, made, tuple(left_out))
        if not made.is_beyond or len(left_out) >= _MOST_LEFT_OUT:
            raise made
        if made.keyword:
            _leave_out(loose, made)
        else:  # it takes too many steps or states: nothing of it is kept
            loose, budget = {"type": "object"}, Budget()
        left_out.append(made)


def _made_or_error(
    schema: Any, prefix: str, budget: Budget, by_property: bool
) -> SchemaRules | SchemaError:
    try:
        return _rules(schema, prefix, budget, by_property=by_property)
    except SchemaError as error:
        return error


def _leave_out(schema: Any, error: SchemaError) -> None:
    """Removes the keyword of an error from a schema; anyOf stands in for oneOf."""
    at = schema
    for part in error.path.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        at = at[int(name)] if isinstance(at, list) else at.get(name)
    if not isinstance(at, dict) or error.keyword not in at:
        raise error
    value = at.pop(error.keyword)
    if error.keyword == "oneOf":
        at.setdefault("anyOf", value)


class _Compiler:
    """Compiles one schema, node by node."""

    def __init__(self, schema: Any, prefix: str, budget: Budget, quotes: Quotes) -> None:
        self._prefix = prefix
        self._grammar = Grammar(budget)
        self._document = Document(schema)
        self.expansion = Expansion(self._document, self._grammar.budget)
        self._texts = Texts(self._grammar, quotes)
        self._names: dict[Node, str] = {ANYTHING: "value"}
        self._todo: list[Node] = []
        self._containers = Containers(self.expansion, self._grammar, self._texts, self._rule_of)
        usual_rules(self._grammar, self._texts)

    def text(self) -> str:
        """The GBNF text of the rules."""
        (text,) = self._texts_of({"root": self.expansion.node([Fits(self._document.root)])})
        if text is None and self._document.nodes[self._document.root].schema is False:
            raise SchemaError("no JSON value fits the schema: it is false")
        if text is None:
            raise SchemaError(
                "no JSON value fits the schema: its keywords contradict each other, or leave "
                f"numbers of over {MAX_DIGITS} digits alone (an integer: {MOST_WHOLE_DIGITS})",
                remedy="leave more room between its bounds",
            )
        return text

    def objects(self) -> str | None:
        """The rules of the objects that fit, whatever else may; None for no object."""
        node = self.expansion.node([Fits(self._document.root)])
        self._grammar.put("arguments", self._of_type(node, "object"))
        (text,) = self._finished(["arguments"])
        return text

    def properties(self, only: str | None = None) -> dict[str, str]:
        """The rules of each property, or of one."""
        nodes = self._properties(only)
        made = self._texts_of({f"property-{i}": node for i, node in enumerate(nodes.values())})
        return {name: text for name, text in zip(nodes, made, strict=True) if text is not None}

    def plain(self, name: str, marks: tuple[str, ...], *, is_typed: bool) -> str | None:
        """The rules of a property whose strings are written as they are, before a mark.

        `is_typed`: other values may be written too, as JSON.
        """
        node = self._properties(name).get(name, ANYTHING)
        texts = Texts(self._grammar, Quotes("", marks))
        ways = self._strings(texts, node, [negated(JSON_LIKE)] if is_typed else [])
        for kind in self.expansion.kinds(node) if is_typed else ():
            ways += self._of_type(node, kind) if kind != "string" else []
        self._grammar.put("plain-text", ways)
        (text,) = self._finished(["plain-text"])
        return text

    def _properties(self, only: str | None) -> dict[str, Node]:
        node = self._document.nodes[self._document.root]
        named = node.schema.get("properties", {}) if isinstance(node.schema, dict) else {}
        return {
            name: self.expansion.node([Fits(self._document.child(node, one, "properties", name))])
            for name, one in named.items()
            if only in (None, name)
        }

    def _texts_of(self, nodes: Mapping[str, Node]) -> list[str | None]:
        for name, node in nodes.items():
            self._grammar.put(name, [[Rule(self._rule_of(node))]])
        return self._finished(nodes)

    def _finished(self, names: Iterable[str]) -> list[str | None]:
        while self._todo:
            node = self._todo.pop()
            self._grammar.put(self._names[node], self._alternatives(node))
        return self._grammar.texts(names, self._prefix)

    def _rule_of(self, node: Node) -> str:
        """Reserves the rule of a node, which is compiled later."""
        name = self._names.get(node)
        if name is None:
            name = self._names[node] = self._grammar.name("node")
            self._todo.append(node)
        return name

    def _alternatives(self, node: Node) -> list[Alternative]:
        alternatives: list[Alternative] = []
        kind = ""
        try:
            for kind in self.expansion.kinds(node):
                alternatives.extend(self._of_type(node, kind))
        except TooLargeError as error:
            path = self._path_of(node)
            raise cannot(self._largest(node, kind), path, str(error), "ask for less") from None
        except OutOfStepsError as error:
            raise out_of_steps(self._path_of(node), error.most) from None
        return alternatives

    def _path_of(self, node: Node) -> str:
        numbers = [fits.number for fits in node]
        return self._document.nodes[min(numbers)].path if numbers else "#"

    def _largest(self, node: Node, kind: str) -> str:
        """The keyword that is most likely too expensive."""
        schemas = [self._document.nodes[fits.number].schema for fits in node]
        keys = {key for schema in schemas if isinstance(schema, dict) for key in schema}
        suspects = {
            "string": ("pattern", "maxLength", "minLength", "format", "enum"),
            "number": ("multipleOf", "minimum", "maximum"),
            "array": ("minItems", "maxItems"),
            "object": ("patternProperties", "minProperties", "maxProperties", "properties"),
        }.get(kind, ())
        return next((key for key in suspects if key in keys), "type")

    def _of_type(self, node: Node, kind: str) -> list[Alternative]:
        cases = self.expansion.cases(node, kind)
        if kind == "null":
            return [(Rule("null"),)] if cases else []
        if kind == "boolean":
            allowed = frozenset[bool]().union(*(truths(case) for case in cases))
            return [(Literal("true" if one else "false"),) for one in sorted(allowed)]
        if kind == "string":
            return self._strings(self._texts, node)
        alternatives: list[Alternative] = []
        for case in cases:
            if kind == "number":
                alternatives.extend(self._numbers(case))
            elif kind == "array":
                alternatives.extend(self._containers.arrays(case))
            else:
                alternatives.extend(self._containers.objects(case))
        return alternatives

    def _strings(self, texts: Texts, node: Node, more: Sequence[Lang] = ()) -> list[Alternative]:
        cases = self.expansion.cases(node, "string")
        made = [texts.case([*(one.lang for one in those(case, Text)), *more]) for case in cases]
        common = texts.string(either(one for one in made if isinstance(one, Lang)))
        return [(Rule(name),) for name in (common, *made) if isinstance(name, str)]

    def _numbers(self, case: Case) -> list[Alternative]:
        texts = listed_numbers(case)
        if texts is not None:
            return [(Rule(self._texts.listed(texts)),)] if texts else []
        rules = frozenset(one.rule for one in those(case, Number))
        if not rules:
            return [(Rule("number"),)]
        if rules == {Whole()}:
            return [(Rule("integer"),)]
        table = number_table(rules)
        return [] if table.is_empty else [(Rule(self._texts.of_table(table, "number")),)]
