"""Constraints on texts: GBNF, a JSON schema, a regular expression."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pyllama_spec.errors import ArgumentError, SchemaError, both_given, clipped, warn

if TYPE_CHECKING:
    from pyllama_spec.schema import Loosened

# How some editors begin a file: no part of its text.
_FILE_MARK = "\ufeff"

# The grammar behind response_format={"type": "json_object"}.
# White space is bounded, because a model that may write it without end sometimes does; numbers
# are, because beyond this Python and JavaScript round them. Nothing may follow the last brace.
JSON_OBJECT = r"""
root   ::= object
object ::= "{" ws ( pair ws ( "," ws pair ws )* )? "}"
pair   ::= string ws ":" ws value
array  ::= "[" ws ( value ws ( "," ws value ws )* )? "]"
value  ::= object | array | string | number | "true" | "false" | "null"
string ::= "\"" char* "\""
char   ::= [^"\\\x00-\x1F\x7F] | "\\" ( ["\\/bfnrt] | "u" hex hex hex hex )
hex    ::= [0-9a-fA-F]
number ::= "-"? ( "0" | [1-9] [0-9]{0,15} ) ( "." [0-9]{1,16} )? ( [eE] [-+]? [0-9]{1,2} )?
ws     ::= "\n"? [ \t]{0,20}
"""


# Steps of all arguments of a chat that are written outside JSON: half a second of work, and as many
# rules as leave a grammar within the engine's bound.
_MOST_STEPS = 100_000
# A remedy for keywords, in addition to that of their errors.
_LOOSER = 'or write `strict=False` beside the schema, which drops "{}"'


def form_of(grammar: object, response_format: Mapping[str, Any] | None) -> str | None:
    """The GBNF rules of a request's grammar or response_format; None for no constraint.

    A grammar is GBNF, or an object that holds it as `_grammar`.
    """
    form = _format_of(response_format)
    if grammar is None:
        return form
    if form is not None:
        raise both_given("grammar", "response_format")
    return _rules(getattr(grammar, "_grammar", grammar), "grammar")


def _rules(text: object, param: str) -> str:
    if not isinstance(text, str) or not text.strip():
        raise ArgumentError(param, text, "GBNF rules as a text")
    return text.removeprefix(_FILE_MARK)


def _format_of(response_format: Mapping[str, Any] | None) -> str | None:
    kind = response_format.get("type") if isinstance(response_format, Mapping) else None
    if kind in ("regex", "grammar"):
        assert response_format is not None
        return _grammar_format(kind, response_format)
    schema = schema_of(response_format)
    return None if schema is None else schema_grammar(schema)


def _grammar_format(kind: str, response_format: Mapping[str, Any]) -> str:
    """The regular expression or grammar of a response_format."""
    names = ("pattern", "regex") if kind == "regex" else ("definition", "grammar")
    texts = [response_format[name] for name in names if name in response_format]
    if len(texts) != 1 or not isinstance(texts[0], str) or not texts[0].strip():
        raise ArgumentError(
            "response_format", response_format, f'a text as "{names[0]}" beside the type "{kind}"'
        )
    syntax = response_format.get("syntax", "regex" if kind == "regex" else "gbnf")
    if syntax not in ("regex", "gbnf"):
        raise ArgumentError("response_format.syntax", syntax, "one of regex, gbnf")
    return regex_grammar(texts[0]) if syntax == "regex" else _rules(texts[0], "response_format")


@lru_cache(maxsize=64)
def regex_grammar(regex: str) -> str:
    """GBNF rules for a regular expression in ECMA-262's syntax, which the whole answer matches."""
    from pyllama_spec.schema import regex_rules

    return regex_rules(regex)


def schema_of(response_format: Mapping[str, Any] | None) -> Any:
    """The schema of a response_format: True for any JSON object, None for any text.

    One that says `"strict": False` comes without what a grammar cannot hold, and with a UserWarning
    for each keyword of that.
    """
    if response_format is None:
        return None
    if not isinstance(response_format, Mapping) or "type" not in response_format:
        raise ArgumentError("response_format", response_format, 'an object with a "type"')
    kind = response_format["type"]
    if kind == "text":
        return None
    if kind == "json_object":
        schema = response_format.get("schema")
        if schema is not None and response_format.get("strict") is False:
            return _loosened(schema)
        return True if schema is None else schema
    if kind == "json_schema":
        # OpenAI puts it inside of an object with a name; some write it at the top.
        inner = response_format.get("json_schema", response_format)
        schema = inner.get("schema") if isinstance(inner, Mapping) else None
        if schema is None:
            raise ArgumentError(
                "response_format", problem="has no schema",
                expected='{"type": "json_schema", "json_schema": {"schema": {...}}}',
            )  # fmt: skip
        return _loosened(schema) if inner.get("strict") is False else schema
    raise ArgumentError(
        "response_format.type", kind, "one of text, json_object, json_schema, regex, grammar"
    )


def _loosened(schema: Any) -> Any:
    if schema is True:
        return True
    made = _compiled(_text_of(schema), False, "", "response_format", by_property=False)
    _warn_of(made, "the JSON schema")
    return made.schema


def left_out_of(schema: Any) -> str:
    """What `"strict": False` leaves out of a schema, as a remark; "" for nothing."""
    made = _compiled(_text_of(schema), False, "", "response_format", by_property=False)
    return "; ".join(f"{error.problem}: left out of the grammar" for error in made.left_out)


def _text_of(schema: Any, param: str = "response_format") -> str:
    if not isinstance(schema, (Mapping, str)):
        raise ArgumentError(
            param, schema, "a JSON schema as an object or a text, or true for any object"
        )
    # The order of keys is that of the answer: it must survive.
    return schema.removeprefix(_FILE_MARK) if isinstance(schema, str) else _json(schema, param)


def schema_grammar(schema: Any, *, is_strict: bool = True, param: str = "response_format") -> str:
    """GBNF rules for a schema, given as a dict or JSON text; True means any JSON object.

    A name in it that is not a keyword is an annotation; there is a UserWarning that says which.
    """
    if schema is True:
        return JSON_OBJECT
    made = _compiled(_text_of(schema, param), is_strict, "", param, by_property=False)
    _warn_of(made, "the JSON schema")
    return made.rules.grammar


def call_rules(tools: Sequence[Mapping[str, Any]], schema: Any = None) -> list[dict[str, Any]]:
    """The rules for a chat's tools and schema, in place of the engine's own.

    What a grammar cannot hold of a function's parameters is left out, with a UserWarning that says
    so, unless the function has `"strict": True`: a tool's author checks its arguments.
    """
    rules = []
    asked: list[tuple[Any, bool, str, str, str]] = []
    for tool in tools:
        function = tool.get("function")
        if isinstance(function, Mapping) and isinstance(function.get("parameters"), Mapping):
            name = function.get("name")
            what = f"the parameters of {name}"
            is_strict = function.get("strict") is True
            asked.append((function["parameters"], is_strict, what, "tools", str(name)))
    if schema is not None:
        whole = {"type": "object"} if schema is True else schema
        asked.append((whole, True, "the JSON schema", "response_format", ""))
    for one, is_strict, what, param, name in asked:
        if one:
            text = _json(one, param)
            made = _compiled(text, is_strict, _prefix(text), param, by_property=True)
            _warn_of(made, what)
            rules.append({
                "schema": json.loads(text), "rules": made.rules.grammar,
                "properties": dict(made.rules.properties), "tool": name,
            })  # fmt: skip
    return rules


def argument_grammar(tools: Sequence[Mapping[str, Any]], asked: Sequence[Mapping[str, Any]]) -> str:
    """The rules of the arguments that a chat template writes outside JSON.

    What its form cannot keep of a parameter's schema is an error if the function has
    `"strict": True`, else a UserWarning.

    Args:
        tools: the chat's tools.
        asked: what the engine asks for: the rule "argument-N" for the N-th of them.
    """
    names = [tool["function"]["name"].encode(errors="replace").decode() for tool in tools]
    functions = {name: tool["function"] for name, tool in zip(names, tools, strict=True)}
    schemas = dict[str, tuple[Any, str]]()
    lines = []
    found = dict[Any, Sequence[str]]()
    n_left = _MOST_STEPS
    for i, one in enumerate(asked):
        function = functions[one["tool"]]
        is_strict = function.get("strict") is True
        if one["tool"] not in schemas:
            text = _json(function.get("parameters") or {"type": "object"}, "tools")
            made = _compiled(text, is_strict, _prefix(text), "tools", by_property=True)
            schemas[one["tool"]] = made.schema, json.dumps(made.schema)
        wanted = _alone(*schemas[one["tool"]], one["parameter"], one["form"])
        place = (*wanted, one["form"], tuple(one["without"]))
        if place not in found:
            *fits, n_steps = _argument(*place, has_room=n_left > 0)
            n_left -= n_steps
            found[place] = fits if n_left >= 0 else _argument(*place, has_room=False)[:2]
        rules, lost = found[place]
        if lost:
            name = f", parameter {one['parameter']}" if one["parameter"] else ""
            problem = f"tool {one['tool']}{name}: the form of the chat template has no {lost}"
            if is_strict:
                raise ArgumentError(
                    "tools", problem=problem, remedy='leave "strict" out of the function'
                )
            warn(f"{problem}: it is left out of the grammar")
        if rules:
            lines += [f"argument-{i} ::= {rules.partition(' ::= ')[0]}", rules.rstrip()]
    return "".join(f"{line}\n" for line in dict.fromkeys(lines))


def _alone(schema: Any, text: str, parameter: str, form: str) -> tuple[str, str]:
    """A schema's text and an argument's name; of what is about it alone: equal ones share."""
    from pyllama_spec.schema.keywords import KEPT

    if form == "parts":
        return text, ""
    part = schema.get("properties", {}).get(parameter)
    if form not in ("text", "typed", "json") or not isinstance(part, dict):
        return text, parameter
    kept = json.dumps({key: value for key, value in part.items() if key in KEPT})
    if '"$' in kept:
        return text, parameter
    return f'{{"properties": {{"": {kept}}}}}', ""


@lru_cache(maxsize=256)  # each up to a megabyte, though most are small
def _argument(
    text: str, parameter: str, form: str, marks: tuple[str, ...], *, has_room: bool
) -> tuple[str, str, int]:
    """The rules of an argument, what they cannot keep of its schema, and the steps they took.

    Without room for more steps they keep nothing.
    """
    from pyllama_spec.schema import Budget, argument_rules, beside_properties

    schema = json.loads(text)
    if form == "parts":
        return "", " and ".join(beside_properties(schema)), 1
    if form == "elements":
        parts = schema.get("properties", {}).get(parameter)
        return "", " and ".join(dict.fromkeys(beside_properties(parts, is_deep=True))), 1
    budget = Budget(_MOST_STEPS)
    rules, lost = None, "such schema: its rules are too many, with the other parameters'"
    if has_room:
        try:
            prefix = _prefix(repr((text, parameter, form, marks)))
            rules = argument_rules(schema, prefix, parameter, form, marks, budget)
            lost = "value that fits its schema"
        except SchemaError as error:
            lost = f"{error.keyword or 'such schema'}: {error}"
    n_steps = budget.n_spent + len(text) // 8  # to read it
    if rules is not None:
        return rules, "", n_steps
    loose = {"type": "object"} if form == "gemma4" else {"properties": {"": {"type": "string"}}}
    made = argument_rules(loose, _prefix(repr((form, marks))), "", form, marks, Budget())
    return made or "", lost, n_steps


def _prefix(text: str) -> str:
    """The beginning of the names of rules that are made of a text."""
    from hashlib import sha256

    return f"s{sha256(text.encode()).hexdigest()[:12]}-"


def _warn_of(made: Loosened, what: str) -> None:
    """Warns of the parts of a schema that the grammar ignores."""
    for name, path in made.rules.unknown.items():
        where = f'"{clipped(name)}" at {clipped(path, 200)} of {what}'
        warn(f"{where} is not a keyword and has no effect")
    for error in made.left_out:
        warn(f"{what}: {error.problem}; it is left out of the grammar")


def _json(schema: Any, param: str) -> str:
    try:
        return json.dumps(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(
            param, problem=f"has a schema that is not plain JSON: {error}"
        ) from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _compiled(
    text: str, is_strict: bool, prefix: str, param: str, *, by_property: bool
) -> Loosened:
    """The grammar of a schema's text; errors are cached too, and name the argument `param`."""
    made = _outcome(text, is_strict, prefix, by_property=by_property)
    if isinstance(made, ArgumentError):
        raise made.copied(param=param)  # a traceback of its own
    return made


@lru_cache(maxsize=64)  # an app uses the same few schemas again and again
def _outcome(
    text: str, is_strict: bool, prefix: str, *, by_property: bool
) -> Loosened | ArgumentError:
    try:
        return _made(text, is_strict, prefix, by_property=by_property)
    except ArgumentError as error:
        if isinstance(error.__context__, RecursionError):
            raise  # a shallower stack may suffice for it
        return error.copied()


def _made(text: str, is_strict: bool, prefix: str, *, by_property: bool) -> Loosened:
    # Most programs ask for no schema, and the import takes some ten milliseconds.
    from pyllama_spec.schema import Loosened, loosened_rules, schema_rules

    try:
        schema = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"the schema is not JSON: {error}") from None
    # An empty one would allow any value; json_object promises an object.
    schema = {"type": "object"} if schema == {} else schema
    if is_strict:
        try:
            return Loosened(schema, schema_rules(schema, prefix, by_property=by_property), ())
        except SchemaError as error:
            if error.is_beyond:
                looser = _LOOSER.format(error.keyword or "the schema")
                raise error.copied(remedy=f"{error.remedy}, {looser}") from None
            raise
    return loosened_rules(schema, prefix, by_property=by_property)
