"""Which field of a request an error is about, and its message in JSON's words.

The library's messages are about its keywords, and in Python's words. Most begin with the name of
the keyword; the others are listed here.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection
from typing import NamedTuple

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
# Where a text in quotes begins, whose words stay, and not the apostrophe of "the model's"; or a
# dict or a list that the library wrote, and not an index: "tools[0]".
_VALUE_OR_QUOTE = re.compile(
    r"""\{(?=['"])|(?<![\w\]])\[(?=['"\[{\d-]|None|True|False)|(?<!\w)'|\""""
)
_TEXTS = {
    quote: re.compile(rf"{quote}(?:[^{quote}\\]|\\.)*{quote}", re.DOTALL) for quote in ("'", '"')
}
_IN_WORD = re.compile(r"\w")
# The escapes that repr() writes, whole and cut, and texts of them.
_ESCAPE = r"""\\(?:[\\'"nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})"""
_CUT_ESCAPE = r"\\(?:x[0-9a-f]?|u[0-9a-f]{0,3}|U[0-9a-f]{0,7})?"
_SINGLE, _DOUBLE = (rf"{quote}(?:[^{quote}\\\n]|{_ESCAPE})*" for quote in ("'", '"'))
# The parts of such a value; the last one is incomplete where the value was cut.
_PART = re.compile(
    rf"""(?P<text>{_SINGLE}'|{_DOUBLE}")|(?P<cut>{_SINGLE}|{_DOUBLE})(?:{_CUT_ESCAPE})?\Z"""
    r"""|(?P<open>[\[{])|(?P<end>[\]}])|(?P<between>, |: |[,:]\Z)|-?\d[\d.e+-]*|-\Z"""
    r"""|(?P<word>None|True|False|(?:N|No|Non|T|Tr|Tru|F|Fa|Fal|Fals)\Z)"""
)
# The values of a message that are looked at.
_MAX_PARTS = 20
_ENDS = {"{": "}", "[": "]"}
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
    """Completes the error for a client: its field, and its message in JSON's words."""
    error.message = _clipped(error.message)  # a client's own text, of megabytes
    if error.status == 400:
        _name_field(error, given)
    error.message = _clipped(in_json(error.message))


def _clipped(message: str) -> str:
    if len(message) <= MAX_MESSAGE:
        return message
    return f"{message[: MAX_MESSAGE - 250]} ... {message[-200:]}"


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


def in_json(message: str) -> str:
    """A message with JSON's words, dicts and lists in place of Python's, outside quotes."""
    out, at, n_values, unclosed = "", 0, 0, set[str]()
    while found := _next(message, at, unclosed):
        begin, end = found
        told = message[begin:end]
        if told in _ENDS and n_values < _MAX_PARTS:
            n_values += 1
            end, told = _value_at(message, begin)
        out += _WORD.sub(_word_in_json, message[at:begin]) + told
        at = end
    return out + _WORD.sub(_word_in_json, message[at:])


def _next(message: str, at: int, unclosed: set[str]) -> tuple[int, int] | None:
    """Where the next text in quotes begins and ends, or where a value opens; None for no more.

    After a quote that is not closed, all others of its kind are escaped: `unclosed` keeps them, so
    that the time stays linear.
    """
    for found in _VALUE_OR_QUOTE.finditer(message, at):
        if (quote := found[0]) in _ENDS:
            return found.span()
        if quote in unclosed:
            continue
        if text := _TEXTS[quote].match(message, found.start()):
            begin, end = text.span()
            if end > begin + MAX_SHOWN and _IN_WORD.match(message, end):  # it is the next one's
                end = begin + MAX_SHOWN
            return begin, end
        unclosed.add(quote)
    return None


def _value_at(message: str, begin: int) -> tuple[int, str]:
    """The end of the dict or list that begins at a place, and its JSON, whole or cut."""
    whole = _read(message[begin : begin + MAX_MESSAGE])
    if whole.is_closed:
        return begin + whole.end, whole.told
    # The library shows no more of most values. One whose parts go on behind that is not cut.
    if whole.last_part >= MAX_SHOWN:
        return begin + whole.end, message[begin : begin + whole.end]
    cut = _read(message[begin : begin + MAX_SHOWN])
    return (begin + cut.end, cut.told) if cut.end == MAX_SHOWN else (begin + 1, message[begin])


class _Read(NamedTuple):
    """What could be read of a dict or list.

    Attributes:
        end: where that ends.
        told: its JSON.
        is_closed: whether it is the whole value.
        last_part: where its last part begins that is not between two others.

    """

    end: int
    told: str
    is_closed: bool
    last_part: int


def _read(text: str) -> _Read:
    """Reads the dict or list that a text begins with, as far as it is one."""
    out, at, last_part, is_complete, ends = "", 0, 0, False, ""
    while (part := _PART.match(text, at)) and (told := _part_in_json(part)) is not None:
        if part["end"]:
            if told != ends[0]:
                break
            ends = ends[1:]
        elif is_complete != bool(part["between"]):  # a comma has to be between two values
            break
        is_complete = not (part["between"] or part["open"])
        if part["open"]:
            ends = _ENDS[told] + ends
        if not part["between"]:
            last_part = at
        out, at = out + told, part.end()
        if not ends:
            return _Read(at, out, True, last_part)
    return _Read(at, out, False, last_part)


def _part_in_json(part: re.Match[str]) -> str | None:
    """A part of a value as JSON; None for what Python did not write."""
    if word := part["word"]:  # it may be cut
        return next(value for name, value in _VALUES.items() if name.startswith(word))
    text: str | None = part["text"] or part["cut"]
    if text is None:
        return part[0]
    try:
        value: str = ast.literal_eval(text if part["text"] else text + text[0])
    except (ValueError, SyntaxError):
        return None
    told = json.dumps(value, ensure_ascii=False)
    if not told.isprintable():  # lone surrogates, and what repr() does not show either
        told = "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in told)
    return told if part["text"] else told[:-1]


def _word_in_json(match: re.Match[str]) -> str:
    if match["value"]:
        return _VALUES[match["value"]]
    if match["type"]:
        return f"of type {_KINDS[match['type']]}"
    kind = _KINDS[match["kind"]]
    return kind if kind == "null" else f"{'an' if kind[0] in 'aio' else 'a'} {kind}"
