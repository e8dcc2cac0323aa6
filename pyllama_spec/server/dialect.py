"""What Anthropic's messages and OpenAI's responses share: typed parts of a request, and turns."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from pyllama_spec.errors import UnsupportedError
from pyllama_spec.server.api_errors import invalid_type
from pyllama_spec.server.shapes import Json, Sampling, StreamOptions

_T = TypeVar("_T")
# Fields that the dialects name differently, or that their answers have no place for.
_LEFT_OUT = (
    "n", "stop", "json_schema", "response_format", "return_token_ids", "user", "stream_options",
)  # fmt: skip


class DialectRequest(Sampling, kw_only=True):
    """A request of a dialect, which takes a chat's further options under their own names."""

    chat_template_kwargs: Json | None = None
    reasoning_format: str | None = None

    def options(self) -> Json:
        """The options of the equivalent chat that have the same name here."""
        names = set(Sampling.__struct_fields__).difference(_LEFT_OUT)
        options = {name: getattr(self, name) for name in names}
        options["chat_template_kwargs"] = self.chat_template_kwargs
        options["reasoning_format"] = self.reasoning_format or "auto"
        if self.stream:
            # So that the first event can say how long the prompt is.
            options["stream_options"] = StreamOptions(
                include_usage=True, continuous_usage_stats=True
            )
        return options

    def refuse(self, remedies: dict[str, str]) -> None:
        """Refuses fields that request unsupported features."""
        for name, remedy in remedies.items():
            if getattr(self, name):
                raise UnsupportedError(f"{name} is not supported: {remedy}")


def typed(value: object, kind: type[_T], place: str) -> _T:
    """A part of a request as a msgspec type; an error names its place."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        text, _, where = str(error).partition(" - at `$")
        error = msgspec.ValidationError(f"{text} - at `$.{place}{where or '`'}")
        raise invalid_type(error) from None


def kind_of(value: object, default: str | None = None) -> object:
    """The type that an object of a request has."""
    kind = value.get("type") if isinstance(value, dict) else None
    return default if kind is None else kind


def unsupported(place: str, what: str, remedy: str) -> UnsupportedError:
    """The error for a part of a request."""
    return UnsupportedError(f"{place}: {what} is not supported; {remedy}")


def own_figures(answer: Json) -> Json:
    """The library's own fields of an answer or chunk."""
    return {name: answer[name] for name in ("speculation", "note") if answer.get(name)}


def text_part(text: str) -> Json:
    """A text as a part of a message."""
    return {"type": "text", "text": text}


class Turns:
    """The messages of a chat, as they are gathered from a dialect's."""

    def __init__(self) -> None:
        self._messages: list[Json] = []
        self._names: dict[str, str] = {}  # of tools, by the ids of their calls

    def turn(self, role: str, *, is_apart: bool = True) -> Json:
        """The last message if it has the role, else a new one of it.

        Templates expect turns to alternate: consecutive messages in one role become one turn, with
        an empty line between the parts if they are apart.
        """
        if self._messages and self._messages[-1]["role"] == role:
            last = self._messages[-1]
            if is_apart and last["content"]:
                last["content"].append(text_part("\n\n"))
            return last
        self._messages.append({"role": role, "content": []})
        return self._messages[-1]

    def add_call(self, turn: Json, call_id: str, name: str, arguments: str) -> None:
        """Adds a call of a tool to an assistant's turn."""
        self._names[call_id] = name
        call = {"name": name, "arguments": arguments}
        calls = turn.setdefault("tool_calls", [])
        calls.append({"id": call_id, "type": "function", "function": call})

    def add_result(self, call_id: str, text: str) -> None:
        """Adds the result of a call, with the name of the tool if its call is known."""
        tool = {"name": self._names[call_id]} if call_id in self._names else {}
        self._messages.append({"role": "tool", "tool_call_id": call_id, **tool, "content": text})

    def add_thought(self, turn: Json, text: str) -> None:
        """Adds a thought to an assistant's turn."""
        turn.setdefault("reasoning_content", []).append(text)

    def joined(self) -> list[Json]:
        """All messages. A turn's thoughts are joined once, here, in linear time."""
        for message in self._messages:
            if "reasoning_content" in message:
                message["reasoning_content"] = "".join(message["reasoning_content"])
        return self._messages
