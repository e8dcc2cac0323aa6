"""An option is written once: its type, default, bounds, help, and its names in each face.

An option is a field of a dataclass: of RequestOptions for a request, of OpenOptions for Llama(), of
ServerSettings, BenchConfig and the parts of a training's configuration for the rest. The dataclass
says its name in Python, its type and its default, and its docstring what it does; `option()` adds
what else a face needs. Each face is made from that: keywords and their checks, the arguments of a
command, the flags of other servers, the fields of a body, the keys of a file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from pyllama_spec.errors import ArgumentError

Read: TypeAlias = Callable[[str], Any]
_TRUE = ("1", "on", "t", "true", "y", "yes", "enabled")
_FALSE = ("0", "off", "f", "false", "n", "no", "disabled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option, as all faces see it.

    Attributes:
        name, type, default: those of the field; the type as it is written.
        kind: the type without None: "int", "float", "bool", "str" or a longer one.
        low, high: the bounds of a number; the engine checks those that have none here.
        check: checks and converts a value, with its name for errors, in place of type and bounds.
        choices: the texts that it may be.
        words: texts for values that are none, such as "auto" for None.
        numbers: the engine's numbers of its values, which llama-cpp-python's constants are.
        read: reads it from a text where the type does not say how.
        is_repeated: a flag of it adds to those before.
        most: the most entries of its list in a body.
        none: what None stands for.
        is_0_none: whether 0 is None, as in llama-cpp-python.
        part: what takes it, such as "context"; with a dot and a name, if it has another one there.
        cli, cli_default, help, metavar, group: its words on the command line; the default there,
            where it differs; a command adds whole groups.
        server, server_off, variable, variable_off: llama-server's flags and environment variables,
            and those that switch it off.
        body: its names in a body: its own by default; "" for none.
        of_chats: whether it is for chats alone.
        in_files: whether a file or another server's flags may set it: not an object of Python.
    """

    name: str = ""
    type: str = ""
    kind: str = ""
    default: Any = None
    check: Callable[[Any, str], Any] | None = None
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    words: Mapping[str, Any] | None = None
    numbers: Mapping[int, Any] | None = None
    read: Read | None = None
    is_repeated: bool = False
    most: int | None = None
    none: Any = None
    is_0_none: bool = False
    part: str = ""
    cli: str = ""
    cli_default: Any = ...
    help: str = ""
    metavar: str | None = None
    group: str = ""
    server: str = ""
    server_off: str = ""
    variable: str = ""
    variable_off: str = ""
    body: str | None = None
    of_chats: bool = False
    in_files: bool = True

    @property
    def is_optional(self) -> bool:
        """Whether it may be None."""
        return self.kind != self.type

    @property
    def is_path(self) -> bool:
        """Whether it names a file."""
        return "PathLike" in self.type

    @property
    def body_names(self) -> tuple[str, ...]:
        """The names in a body."""
        return (self.name,) if self.body is None else tuple(self.body.split())

    def parse(self, text: str) -> Any:
        """The value that a text means.

        Raises:
            ValueError: none of its type; an ArgumentError where that says more.
        """
        if self.words is not None and text in self.words:
            return self.words[text]
        return (self.read or _reader(self.kind))(text)


def option(default: Any = MISSING, **more: Any) -> Any:
    """A field of a table of options; the keywords are the attributes of Option."""
    return field(default=default, metadata={"option": Option(**more)})


def with_default(table: type, name: str, default: Any) -> Any:
    """The field of an option that a table inherits, with another default."""
    return field(default=default, metadata={"option": options_of(table)[name]})


def options_of(table: type) -> Mapping[str, Option]:
    """The options of a table by name, in their order."""
    return _options_of(table)


@cache
def _options_of(table: Any) -> Mapping[str, Option]:
    return {one.name: _option(one) for one in fields(table)}


def _option(one: Any) -> Option:
    faces: Option = one.metadata.get("option", Option())
    kind = str(one.type).removesuffix(" | None")
    return replace(faces, name=one.name, type=str(one.type), kind=kind, default=one.default)


def names_of(face: str, *tables: type) -> dict[str, str]:
    """The first name of each option in a face: "cli", "server", "variable" or "body"."""
    found = {}
    for one in (one for table in tables for one in options_of(table).values()):
        words = one.body_names if face == "body" else getattr(one, face).split()
        # The long one, of a command, is easier to read.
        long = [word for word in words if word.startswith("--")] if face == "cli" else []
        if words:
            found[one.name] = (*long, *words)[0]
    return found


# ---- texts to values


def switch(text: str) -> bool:
    """Reads on or off, in one of many words."""
    word = text.strip().lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise ArgumentError(problem=f"{text!r:.60} is neither on nor off")


def words_of(text: str) -> list[str]:
    """Reads a list: words with commas between them, or JSON."""
    if text.lstrip().startswith("["):
        return [str(one) for one in json_value(text)]
    return [one for one in (part.strip() for part in text.split(",")) if one]


def numbers_of(text: str) -> list[float]:
    """Reads numbers with commas or slashes between them, or JSON."""
    return [float(one) for one in words_of(text.replace("/", ","))]


def json_value(text: str) -> Any:
    """Reads JSON.

    Raises:
        ValueError: it is none, or is nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ArgumentError(problem="the JSON is nested too deeply") from None


def json_object(text: str) -> dict[str, Any]:
    """Reads an object of JSON."""
    value = json_value(text)
    if not isinstance(value, dict):
        raise ArgumentError(problem=f"{text!r:.60}", expected="an object of JSON")
    return value


def typed_values(text: str) -> dict[str, Any]:
    """Reads KEY=TYPE:VALUE,..., llama.cpp's form of kv_overrides."""
    kinds: dict[str, Read] = {"int": int, "float": float, "bool": switch, "str": str}
    found = {}
    for one in words_of(text):
        key, _, typed = one.partition("=")
        kind, _, value = typed.partition(":")
        if not typed or kind not in kinds:
            raise ArgumentError(
                problem=f"{one!r:.80}", expected="KEY=TYPE:VALUE, of type int, float, bool or str"
            )
        found[key] = kinds[kind](value)
    return found


def file_name(text: str) -> Path:
    """Reads a file name; refuses "", which Path() takes for the current folder."""
    if not text:
        raise ArgumentError(problem="the name is empty")
    return Path(text)


def _number_or(other: Read) -> Read:
    return lambda text: int(text) if re.fullmatch(r"-?\d+", text.strip()) else other(text)


def _reader(kind: str) -> Read:
    """The function that reads a type from a text."""
    simple: dict[str, Read] = {
        "int": int, "float": float, "bool": switch, "Path": file_name,
        "bool | int": lambda text: switch(text) if text in ("0", "1") else _number_or(switch)(text),
    }  # fmt: skip
    if kind in simple:
        return simple[kind]
    if "PathLike" in kind:
        return file_name
    if kind.endswith(" | int"):
        return _number_or(str)
    if kind.startswith(("Sequence[float]", "tuple[float")):
        return numbers_of
    if kind.startswith(("Sequence[str]", "tuple[str")):
        return words_of
    if kind.startswith("tuple[int"):
        return lambda text: tuple(int(one) for one in text.split(","))
    return json_object if kind.startswith("Mapping") else str
