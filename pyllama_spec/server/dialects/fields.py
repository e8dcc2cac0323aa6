"""Reads typed fields of a request's JSON; errors name the field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from pyllama_spec.engine.checks import integer, real
from pyllama_spec.errors import ArgumentError, UnsupportedError, shown
from pyllama_spec.server.shapes import Sampling

Json = dict[str, Any]
_T = TypeVar("_T")


def own_figures(answer: Json) -> Json:
    """The library's own fields of an answer or chunk."""
    return {name: answer[name] for name in ("speculation", "note") if answer.get(name)}


class Fields:
    """An object of a request, and its path. A null field counts as missing."""

    def __init__(self, value: object, place: str = "") -> None:
        if not isinstance(value, Mapping):
            raise ArgumentError(f"{place or 'the request'} is {shown(value)}, not an object")
        self._value, self._place = value, place

    def place(self, name: str) -> str:
        """The path of a field."""
        return f"{self._place}.{name}" if self._place else name

    def as_dict(self) -> Json:
        """A copy of the object as a dict."""
        return dict(self._value)

    def raw(self, name: str) -> Any:
        """A field as it is; None if missing."""
        return self._value.get(name)

    def _of_type(self, name: str, kind: type[_T], what: str) -> _T | None:
        """A field of a JSON type, or None."""
        value = self.raw(name)
        if value is not None and not isinstance(value, kind):
            raise ArgumentError(f"{self.place(name)} is {shown(value)}, not {what}")
        return value

    def text(self, name: str) -> str:
        """A required text."""
        value = self.optional_text(name)
        if value is None:
            raise ArgumentError(f"{self.place(name)} is missing: a text is expected")
        return value

    def optional_text(self, name: str) -> str | None:
        """A text, or None."""
        return self._of_type(name, str, "a text")

    def number(self, name: str) -> float | None:
        """A finite number, or None."""
        value = self.raw(name)
        if value is None:
            return None
        if isinstance(value, bool):
            raise ArgumentError(f"{self.place(name)} is {value}, not a number")
        return real(value, self.place(name))

    def count(self, name: str, low: int = 0) -> int | None:
        """A whole number of at least `low`, or None; 8.0 counts as whole."""
        value = self.raw(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        number = integer(value, self.place(name))
        if number < low:
            raise ArgumentError(f"{self.place(name)} is {number}; at least {low} is expected")
        return number

    def flag(self, name: str) -> bool | None:
        """true, false, or None."""
        return self._of_type(name, bool, "true or false")

    def object(self, name: str) -> Fields | None:
        """An object, or None."""
        value = self.raw(name)
        return None if value is None else Fields(value, self.place(name))

    def values(self, name: str) -> list[Any]:
        """A list as it is; empty if missing."""
        return self._of_type(name, list, "a list") or []

    def objects(self, name: str) -> Iterator[Fields]:
        """The objects of a list."""
        for i, value in enumerate(self.values(name)):
            yield Fields(value, f"{self.place(name)}[{i}]")

    def texts(self, name: str) -> list[str]:
        """The texts of a list."""
        for i, value in enumerate(self.values(name)):
            if not isinstance(value, str):
                raise ArgumentError(f"{self.place(name)}[{i}] is {shown(value)}, not a text")
        return self.values(name)

    def refuse(self, names: Mapping[str, str]) -> None:
        """Refuses fields that request unsupported features."""
        for name, remedy in names.items():
            if self.raw(name):
                raise UnsupportedError(
                    f"{self.place(name)}={shown(self.raw(name))} is not supported: {remedy}"
                )

    def unsupported(self, what: str, remedy: str) -> UnsupportedError:
        """The error for this object."""
        return UnsupportedError(
            f"{self._place or 'the request'}: {what} is not supported; {remedy}"
        )


class Thoughts(NamedTuple):
    """A chat template's support of thoughts: marked, so that they can be separated and bounded."""

    are_marked: bool = False
    reads_effort: bool = False

    @property
    def take_effort(self) -> bool:
        """Whether an effort has an effect."""
        return self.are_marked or self.reads_effort


NO_THOUGHTS = Thoughts()


def passed_on(fields: Fields, names: tuple[str, ...]) -> Json:
    """The given fields of these names, which the chat request has too."""
    return {name: fields.raw(name) for name in names if fields.raw(name) is not None}


# Fields that both dialects name differently, or lack in their answers.
_OF_DIALECTS = frozenset((
    "model", "max_tokens", "temperature", "top_p", "top_k", "n", "stop", "json_schema",
    "response_format", "return_token_ids", "user", "stream", "stream_options",
))  # fmt: skip
# Options of the chat request that neither dialect has: clients give them as extra fields.
OWN_OPTIONS = (
    *(name for name in Sampling.__struct_fields__ if name not in _OF_DIALECTS),
    "chat_template_kwargs", "reasoning_format",
)  # fmt: skip


def add_thought(turn: Json, text: str) -> None:
    """Adds a thought to an assistant's turn; joined() makes one text of them."""
    turn.setdefault("reasoning_content", []).append(text)


def joined(messages: list[Json]) -> list[Json]:
    """The messages with their parts joined once at the end, in linear time."""
    for message in messages:
        if "reasoning_content" in message:
            message["reasoning_content"] = "".join(message["reasoning_content"])
    return messages


def turn_apart(messages: list[Json], role: str) -> Json:
    """The last message if it has the role, else a new one of it.

    Templates expect turns to alternate: consecutive messages in one role become one turn, with an
    empty line between the parts.
    """
    if messages and messages[-1]["role"] == role:
        last = messages[-1]
        if last["content"]:
            last["content"].append({"type": "text", "text": "\n\n"})
        return last
    message: Json = {"role": role, "content": []}
    messages.append(message)
    return message
