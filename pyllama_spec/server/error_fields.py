"""Which field of a request an error is about, and its message in JSON's words.

The library's messages are about its keywords, and in Python's words. Most begin with the name of
the keyword; the others are listed here.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection

from pyllama_spec.errors import MAX_MESSAGE, MAX_SHOWN
from pyllama_spec.server import shapes
from pyllama_spec.server.api_errors import ApiError

_MAX_NAME = 200
# A field's path where a message begins with it.
_PATH = r"[a-z][a-z0-9_]*(?:\[\d+\]|\.[a-z][a-z0-9_]*)*"
_LEADS = re.compile(
    rf"({_PATH})(?==|: | (?:is|has|takes|holds|continues|of|names|applies|differs|needs|must) )"
)
_FIELDS = frozenset(
    name
    for shape in (
        shapes.ChatRequest, shapes.CompletionRequest, shapes.EmbeddingRequest,
        shapes.RerankRequest, shapes.InfillRequest, shapes.DetokenizeRequest,
    )
    for name in shape.__struct_fields__
)  # fmt: skip
_SCHEMAS = ("json_schema", "response_format", "text", "tools", "functions")
# How other messages begin, and the fields that they may be about: that one which the request has.
_OTHERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Requested tokens ", ("messages", "prompt", "input_prefix", "input")),
    ("the prompt", ("prompt", "messages", "input")),
    ("prompt ", ("prompt",)),
    ("the last message ", ("messages",)),
    ("the JSON schema ", _SCHEMAS),
    ("the schema ", _SCHEMAS),
    ("a JSON schema ", _SCHEMAS),
    ("cannot make the sampler: the grammar ", ("grammar", "response_format")),
    ("the grammar ", ("grammar", "response_format")),
    ("give grammar or response_format", ("grammar",)),
    ("a text ", ("input",)),
    ("token id", ("tokens",)),
    ("this model has no fill-in-the-middle ", ("suffix", "input_suffix")),
)
# Names of one thing: the library's, and those that requests may have for it.
_NAMES: dict[str, tuple[str, ...]] = {
    "logprobs": ("n_probs",), "suffix": ("input_suffix",), "stop": ("stop_sequences",),
    "max_tokens": ("n_predict", "max_completion_tokens", "max_output_tokens"),
    "tool_choice": ("function_call",), "tools": ("functions",), "n_draft": ("speculation",),
    "repeat_penalty": ("repetition_penalty",),
}  # fmt: skip
# Where a text in quotes begins, whose words stay; and not the apostrophe of "the model's".
_QUOTE = re.compile(r'''(?<!\w)'|"''')
# Where a dict or a list begins that the library wrote, and not an index: "tools[0]".
_VALUE_OR_QUOTE = re.compile(
    rf"""\{{(?=['"])|(?<![\w\]])\[(?=['"\[{{\d-]|None|True|False)|{_QUOTE.pattern}"""
)
_TEXTS = {
    quote: re.compile(rf"{quote}(?:[^{quote}\\]|\\.)*{quote}", re.DOTALL) for quote in ("'", '"')
}
# The parts of such a value; the last one is incomplete where the value was cut.
_PART = re.compile(
    rf"""(?P<text>{"|".join(text.pattern for text in _TEXTS.values())})"""
    r"""|(?P<cut>['"](?:[^\\]|\\[^xuU]|\\x.{2}|\\u.{4}|\\U.{8})*)(?:\\.{0,8})?\Z"""
    r"""|[\[{]|(?P<end>[\]}])|, |: |-?\d[\d.e+-]*|(?P<word>[NTF][a-z]*)|[,:-]\Z""",
    re.DOTALL,
)
# The values and texts of a message that are looked at.
_MAX_PARTS = 20
_OPENINGS = ("{", "[")
_KINDS = {
    "str": "string", "int": "integer", "float": "number", "bool": "boolean", "dict": "object",
    "list": "array", "tuple": "array", "NoneType": "null",
}  # fmt: skip
_KIND = "|".join(_KINDS)
_WORD = re.compile(
    rf"\b(?:(?P<value>None|True|False)|of type (?P<type>{_KIND})"
    r"|an? (?P<kind>str|int|float|bool|dict|NoneType))\b"
)
_VALUES = {"None": "null", "True": "true", "False": "false"}


def complete(error: ApiError, given: Collection[str]) -> None:
    """Completes the error for a client: its field, and its message in JSON's words.

    Args:
        error: it.
        given: the names of the fields of the request.

    """
    if len(error.message) > MAX_MESSAGE:  # a client's own text, of megabytes
        error.message = f"{error.message[: MAX_MESSAGE - 250]} ... {error.message[-200:]}"
    if error.status == 400:
        _name_field(error, given)
    error.message = json_words(json_objects(error.message))


def _name_field(error: ApiError, given: Collection[str]) -> None:
    """Sets the field, where a message says which it is, by the name that the request has for it."""
    name = error.param or _field_in(error.message, given)
    if name is None:
        return
    others = [one for one in _NAMES.get(name, ()) if one in given]
    if name not in given and others:
        other = others[0] if others[0] != "speculation" else f"speculation.{name}"
        error.message = re.sub(rf"\b{name}\b", other, error.message, count=1)
        name = other
    error.param = name[:_MAX_NAME]


def _field_in(message: str, given: Collection[str]) -> str | None:
    found = _LEADS.match(message)
    if found is not None:
        top = re.split(r"[.\[]", found[1])[0]
        if top in given or top in _FIELDS:
            return found[1]
    for begin, names in _OTHERS:
        if message.startswith(begin):
            there = [name for name in names if name in given]
            return there[0] if len(there) == 1 else None
    return None


def json_objects(message: str) -> str:
    """A message with its dicts and lists as JSON; texts in quotes stay."""
    out, at, unclosed = "", 0, set[str]()
    for _ in range(_MAX_PARTS):
        if (found := _next(message, at, _VALUE_OR_QUOTE, unclosed)) is None:
            break
        begin, end = found
        told = message[begin:end]
        if told in _OPENINGS:
            end, told = _value_at(message, begin)
        out += message[at:begin] + told
        at = end
    return out + message[at:]


def _next(
    message: str, at: int, opening: re.Pattern[str], unclosed: set[str]
) -> tuple[int, int] | None:
    """Where the next text in quotes begins and ends, or where a value opens; None for no more.

    Args:
        message: the message.
        at: where to begin.
        opening: finds what opens a text, or a dict or list.
        unclosed: the quotes that close no text any more, which it adds to. After one that is not
            closed, all others of its kind are escaped, so none of them is closed either: to look
            once keeps the time linear.

    """
    for found in opening.finditer(message, at):
        if (quote := found[0]) in _OPENINGS:
            return found.span()
        if quote in unclosed:
            continue
        if text := _TEXTS[quote].match(message, found.start()):
            return text.span()
        unclosed.add(quote)
    return None


def _value_at(message: str, begin: int) -> tuple[int, str]:
    """The end of the dict or list that begins at a place, and its JSON, whole or cut."""
    shown = message[begin : begin + MAX_SHOWN]  # the library's messages show no more of a value
    out, at, depth = "", 0, 0
    while at < len(shown) and (part := _PART.match(shown, at)):
        told, at = part[0], part.end()
        if text := part["text"] or part["cut"]:
            try:
                told = json.dumps(ast.literal_eval(text if part["text"] else text + text[0]))
            except (ValueError, SyntaxError):  # nothing that Python wrote
                break
            told = told if part["text"] else told[:-1]
        if word := part["word"]:  # it may be cut
            told = next((value for name, value in _VALUES.items() if name.startswith(word)), word)
        out += told
        depth += (told in _OPENINGS) - (part["end"] is not None)
        if not depth:
            return begin + at, out
    return (begin + at, out) if at == MAX_SHOWN else (begin + 1, message[begin])


def json_words(message: str) -> str:
    """A message with JSON's words in the place of Python's; texts in quotes stay."""
    out, at, unclosed = "", 0, set[str]()
    while found := _next(message, at, _QUOTE, unclosed):
        begin, end = found
        out += _WORD.sub(_in_json, message[at:begin]) + message[begin:end]
        at = end
    return out + _WORD.sub(_in_json, message[at:])


def _in_json(match: re.Match[str]) -> str:
    if match["value"]:
        return _VALUES[match["value"]]
    if match["type"]:
        return f"of type {_KINDS[match['type']]}"
    kind = _KINDS[match["kind"]]
    return kind if kind == "null" else f"{'an' if kind[0] in 'aio' else 'a'} {kind}"
