"""Checks the messages of a chat and normalises them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from pyllama_spec.errors import ArgumentError, UnsupportedError

T = TypeVar("T")


def check_messages(messages: object) -> list[dict[str, Any]]:
    """Checks messages, and makes the content of each one text. A key that is None is absent."""
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise ArgumentError("messages", messages, "a list of objects with role and content")
    if not messages:
        raise ArgumentError("messages", messages, "at least one message")
    out: list[dict[str, Any]] = []
    for i, message in enumerate(map(present, messages)):
        if not isinstance(message, Mapping):
            raise ArgumentError(f"messages[{i}]", message, dict)
        role = message.get("role")
        if not isinstance(role, str) or not role:
            raise ArgumentError(f"messages[{i}].role", role, "a word such as 'user'")
        content = _text(message.get("content"), i)
        if content is None and not message.get("tool_calls"):
            # Of an empty answer, or of one with a call in OpenAI's older form.
            if role != "assistant":
                raise ArgumentError(
                    f"messages[{i}]", problem="has no content", remedy="give a text"
                )
            content = ""
        checked = {**message, "content": content}
        calls = checked.get("tool_calls")
        if isinstance(calls, (list, tuple)):
            checked["tool_calls"] = [_with_arguments(call) for call in calls]
        out.append(checked)
    return out


def render_messages(
    messages: list[dict[str, Any]], render: Callable[[list[dict[str, Any]]], T]
) -> tuple[T, list[dict[str, Any]]]:
    """Renders a template; returns its output and the messages that it read.

    A call of tools has no content, which a template that knows no tools puts into its text: where
    it fails on that, it gets "" instead. So the answers of create_chat_completion() can be given
    back to any model.
    """
    try:
        return render(messages), messages
    except ArgumentError:
        texts = [{**one, "content": ""} if one["content"] is None else one for one in messages]
        if texts == messages:
            raise
        return render(texts), texts


def present(thing: Any) -> Any:
    """A dict without its keys that are None, also of a pydantic object; others unchanged."""
    if not isinstance(thing, Mapping):
        dump = getattr(thing, "model_dump", None)
        return dump(exclude_none=True) if callable(dump) else thing
    return {key: value for key, value in thing.items() if value is not None}


def _with_arguments(call: Any) -> Any:
    """A call with the type and the arguments that templates expect.

    Arguments that are no JSON, as of an answer that max_tokens cut, become {}.
    """
    call = present(call)
    function = present(call.get("function")) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return call
    arguments = function.get("arguments", "{}")
    if isinstance(arguments, str) and not _is_json(arguments):
        arguments = "{}"
    return {"type": "function", **call, "function": {**function, "arguments": arguments}}


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _text(content: object, i: int) -> str | None:
    """A content as one text; None, as of assistant messages with tool calls, stays None."""
    if content is None or isinstance(content, str):
        return content
    if isinstance(content, (bytes, Mapping)) or not isinstance(content, Sequence):
        raise ArgumentError(
            f"messages[{i}].content", content, 'a text, or a list of {"type": "text", "text": ...}'
        )
    texts: list[str] = []
    for part in content:
        if not isinstance(part, Mapping) or "type" not in part:
            raise ArgumentError(f"messages[{i}].content", part, "a part with a type")
        if part["type"] not in ("text", "refusal"):
            raise UnsupportedError(
                param=f"messages[{i}].content", value=part["type"], expected="text alone"
            )
        text = part.get(part["type"])
        if not isinstance(text, str):
            raise ArgumentError(f"messages[{i}].content", part, "a text in each part")
        texts.append(text)
    return "".join(texts)
