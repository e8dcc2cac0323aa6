"""Which field of a request an error is about, and its message in JSON's words.

The library's messages are about its keywords, and in Python's words. Most begin with the name of
the keyword; the others are listed here.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from pyllama_spec.errors import MAX_MESSAGE
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
    "repeat_penalty": ("repetition_penalty",), "prompt": ("messages", "input_prefix", "input"),
}  # fmt: skip
_KINDS = {
    "str": "string", "int": "integer", "float": "number", "bool": "boolean", "dict": "object",
    "list": "array", "tuple": "array", "NoneType": "null",
}  # fmt: skip
_KIND = "|".join(_KINDS)
_VALUES = {"None": "null", "True": "true", "False": "false"}
# A text in quotes, whose words stay (no apostrophe, as in "the model's"), or a word of Python's.
_WORD = re.compile(
    r"""(?<!\w)'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"|"""
    rf"\b(?:(?P<value>None|True|False)|of type (?P<type>{_KIND})"
    r"|an? (?P<kind>str|int|float|bool|dict|NoneType))\b",
    re.DOTALL,
)


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
    """A message with JSON's words in place of Python's, outside of texts in quotes."""
    return _WORD.sub(_word_in_json, message)


def _word_in_json(match: re.Match[str]) -> str:
    if match["value"]:
        return _VALUES[match["value"]]
    if match["type"]:
        return f"of type {_KINDS[match['type']]}"
    if not match["kind"]:
        return match[0]
    kind = _KINDS[match["kind"]]
    return kind if kind == "null" else f"{'an' if kind[0] in 'aio' else 'a'} {kind}"
