"""What Anthropic's messages and OpenAI's responses share.

Of a request: its options, its typed parts, the turns of its chat. Of an answer: what a chunk adds.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from pyllama_spec.errors import UnsupportedError
from pyllama_spec.server.api_errors import ApiError, invalid_type
from pyllama_spec.server.service import Event, Shape
from pyllama_spec.server.shapes import Json, Sampling, StreamOptions

# Fields that the dialects name differently, or that their answers have no place for.
_LEFT_OUT = (
    "n", "stop", "json_schema", "response_format", "return_token_ids", "user", "stream_options",
)  # fmt: skip
# The library's own fields of an answer or chunk.
_OWN = ("speculation", "note")


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
                raise UnsupportedError("is not supported", param=name, remedy=remedy)


class Part(Struct):
    """An object within a request, such as a message, a block or a tool, of any type; see part_of().

    A null field counts as missing, as some clients send them.
    """

    type: str | None = None
    role: str | None = None
    content: str | list[Any] | None = None
    output: str | list[Any] | None = None
    summary: list[Any] | None = None
    text: str | None = None
    refusal: str | None = None
    thinking: str | None = None
    source: Json | None = None
    data: str | None = None
    media_type: str | None = None
    url: str | None = None
    image_url: str | None = None
    id: str | None = None
    call_id: str | None = None
    tool_use_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: Json | None = None
    description: str | None = None
    input_schema: Json | None = None
    parameters: Json | None = None
    disable_parallel_tool_use: bool | None = None
    schema: Json | None = None
    strict: bool | None = None
    budget_tokens: Annotated[int, Meta(ge=1)] | None = None


# The fields that each type of an object needs.
Kinds = Mapping[str, tuple[str, ...]]


def part_of(given: object, place: str, kinds: Kinds, default: str = "", remedy: str = "") -> Part:
    """Reads an object of one of some types; an error names its place, and the `remedy`."""
    kind = (given.get("type") if isinstance(given, dict) else None) or default
    if isinstance(kind, str) and kind not in kinds:
        remedy = remedy or f"{', '.join(kinds)} are"
        raise UnsupportedError(f"type {kind!r:.60} is not supported", param=place, remedy=remedy)
    try:
        part = msgspec.convert(given, Part)
    except msgspec.ValidationError as error:
        text, _, where = str(error).partition(" - at `$")
        error = msgspec.ValidationError(f"{text} - at `$.{place}{where or '`'}")
        raise invalid_type(error) from None
    part.type = part.type or default
    for name in kinds[part.type]:
        if getattr(part, name) is None:
            where = f"{place}.{name}"
            raise ApiError(400, f"{where} is missing", "invalid_value", where)
    return part


def parts_of(content: str | list[Any] | None, place: str, kinds: Kinds, default: str) -> list[Json]:
    """The parts of a content: a text, or texts and pictures."""
    if isinstance(content, str):
        return [text_part(content)]
    parts = (part_of(v, f"{place}[{i}]", kinds, default) for i, v in enumerate(content or ()))
    return [
        text_part(part.text or part.refusal or "")
        if part.image_url is None
        else picture_part(part.image_url)
        for part in parts
    ]


def joined_texts(parts: list[Json]) -> str:
    """Texts as one."""
    return "".join(part["text"] for part in parts)


def text_part(text: str) -> Json:
    """A text as a part of a message."""
    return {"type": "text", "text": text}


def picture_part(url: str) -> Json:
    """A picture as a part of a message."""
    return {"type": "image_url", "image_url": {"url": url}}


class Turns:
    """The messages of a chat, as they are gathered from a dialect's."""

    def __init__(self) -> None:
        self._messages: list[Json] = []
        self._names: dict[str | None, str | None] = {}  # of tools, by the ids of their calls

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

    def add_call(
        self, turn: Json, call_id: str | None, name: str | None, arguments: str | None
    ) -> None:
        """Adds a call of a tool to an assistant's turn."""
        self._names[call_id] = name
        call = {"name": name, "arguments": arguments}
        calls = turn.setdefault("tool_calls", [])
        calls.append({"id": call_id, "type": "function", "function": call})

    def add_result(self, call_id: str | None, parts: list[Json]) -> None:
        """Adds the result of a call, with the name of the tool if its call is known."""
        tool = {"name": self._names[call_id]} if call_id in self._names else {}
        is_text = all(part["type"] == "text" for part in parts)
        content = joined_texts(parts) if is_text else parts
        self._messages.append({"role": "tool", "tool_call_id": call_id, **tool, "content": content})

    def add_thought(self, turn: Json, text: str) -> None:
        """Adds a thought to an assistant's turn."""
        turn.setdefault("reasoning_content", []).append(text)

    def joined(self) -> list[Json]:
        """All messages. A turn's thoughts are joined once, here, in linear time."""
        for message in self._messages:
            if "reasoning_content" in message:
                message["reasoning_content"] = "".join(message["reasoning_content"])
        return self._messages


class BlockShape(Shape):
    """The form of an answer in blocks: of thoughts, of text, and one for each call of a tool."""

    prefix = ""

    def __init__(self) -> None:
        # The first chunk, the last choice, and what chunks say of the whole answer.
        self._answer: Json = {}
        self._end: Json = {}
        self._usage: Json = {}
        self._figures: Json = {}
        # What the open block is: "thought", "text", or the index of a call; None for no block.
        self._open: str | int | None = None
        self._n_blocks = 0
        self._is_over = False

    def shown_id(self, answer_id: str) -> str:
        """See Shape."""
        return f"{self.prefix}_{answer_id.rpartition('-')[2]}"

    def whole(self, answer: Json) -> Json:
        """See Shape."""
        choice = answer["choices"][0]
        said = dict(choice["message"])
        calls = enumerate(said.get("tool_calls") or ())
        said["tool_calls"] = [{"index": i, **call} for i, call in calls]
        for _ in self.of({**answer, "choices": [{**choice, "delta": said}]}):
            pass
        *_, (_, last) = self.end()
        return self._whole(last)

    def of(self, chunk: Json) -> Iterator[Event]:
        """See Shape."""
        self._usage = chunk.get("usage") or self._usage
        self._figures |= {name: chunk[name] for name in _OWN if chunk.get(name)}
        if not self._answer:
            self._answer = chunk
            yield from self._begin()
        for choice in chunk.get("choices", ())[:1]:
            delta = choice.get("delta") or {}
            if thought := delta.get("reasoning_content"):
                yield from self._enter("thought")
                yield from self._thought(thought)
            if text := delta.get("content"):
                yield from self._enter("text")
                yield from self._text(text)
            for call in delta.get("tool_calls") or ():
                function = call.get("function") or {}
                yield from self._enter(call["index"], call.get("id", ""), function.get("name", ""))
                if function.get("arguments"):
                    yield from self._arguments(function["arguments"])
            if choice.get("finish_reason") is not None:
                self._end = choice

    def end(self) -> Iterator[Event]:
        """See Shape."""
        if self._is_over or not self._answer:
            return
        self._is_over = True
        if not self._n_blocks:  # an empty answer; clients read the first block all the same
            yield from self._enter("text")
        yield from self._finish()

    def _enter(self, kind: str | int, call_id: str = "", name: str = "") -> Iterator[Event]:
        """Opens a block unless it is open, and closes the one before it."""
        if self._open == kind:
            return
        yield from self._close()
        self._open = kind
        self._n_blocks += 1
        yield from self._opened(kind, call_id, name)

    # What a dialect adds: the whole answer by its last event; the events before the first block, of
    # a new block, of more of each kind, at the end of the open block, if there is one, and at the
    # end of the answer.

    @abstractmethod
    def _whole(self, last: Json) -> Json: ...

    @abstractmethod
    def _begin(self) -> Iterator[Event]: ...

    @abstractmethod
    def _opened(self, kind: str | int, call_id: str, name: str) -> Iterator[Event]: ...

    @abstractmethod
    def _thought(self, text: str) -> Iterator[Event]: ...

    @abstractmethod
    def _text(self, text: str) -> Iterator[Event]: ...

    @abstractmethod
    def _arguments(self, text: str) -> Iterator[Event]: ...

    @abstractmethod
    def _close(self) -> Iterator[Event]: ...

    @abstractmethod
    def _finish(self) -> Iterator[Event]: ...
