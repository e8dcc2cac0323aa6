"""Continues an assistant's message: the prompt ends within it, and the answer goes on there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyllama_spec.chat.messages import check_messages
from pyllama_spec.chat.template import ChatTemplate, Message, RenderedChat
from pyllama_spec.errors import ArgumentError, UnsupportedError, shown

# One of them, which no message has, stands where the message ends. They are for private use.
_MARKS = ("\U0010abce", "\U0010abcf", "\U0010abd0")


def _not_shown(name: str) -> UnsupportedError:
    return UnsupportedError(
        "is not shown by the chat template in a last message", param="continue_final_message",
        value=name, remedy="continue its content, or leave `tools` and `reasoning_format` out",
    )  # fmt: skip


def field_to_continue(messages: Sequence[Message], which: bool | str) -> str:
    """The field of the last message to continue: `which`; for True the content if there is one."""
    last = check_messages(messages)[-1]
    if last["role"] != "assistant":
        raise ArgumentError(
            "continue_final_message", expected="the role assistant in the last message",
            problem=f"continues a message with the role {shown(last['role'])}",
        )  # fmt: skip
    if last.get("tool_calls") or last.get("function_call"):
        raise ArgumentError(
            "continue_final_message",
            problem="continues a text, and the last message is a tool call",
        )
    if which is True:
        thinks = bool(last.get("reasoning_content")) and not last["content"]
        which = "reasoning_content" if thinks else "content"
    name = str(which)
    if not isinstance(last.get(name), str):
        raise ArgumentError(
            "continue_final_message", name, "a text there",
            problem=f"is {shown(last.get(name))} in the last message",
        )  # fmt: skip
    return name


def render_continued(
    template: ChatTemplate,
    messages: Sequence[Message],
    name: str,
    tools: Sequence[Mapping[str, Any]] | None,
    variables: Mapping[str, Any],
) -> RenderedChat:
    """Renders a chat up to the end of its last message's text.

    The template writes the message as it writes any other, with a mark after the text, and the
    chat ends before the mark. Where a template does not show the mark the text goes after the
    beginning of an answer.
    """
    checked = check_messages(messages)
    before, last = checked[:-1], checked[-1]
    texts = "".join(str(value) for message in checked for value in message.values())
    mark = next((one for one in _MARKS if one not in texts), "")
    variables = {**variables, "add_generation_prompt": False}
    if mark and last[name]:
        rendered = template.render(
            [*before, {**last, name: last[name] + mark}], tools=tools, **variables
        )
        at = rendered.text.rfind(mark)
        if at >= 0:
            return rendered.cut(at, len(mark))
    if name != "content":
        raise _not_shown(name)
    variables["add_generation_prompt"] = True
    return template.render(before, tools=tools, **variables).followed_by(last[name])


def check_continued(prompt: str, messages: Sequence[Message], name: str) -> None:
    """Checks a chat that the engine has rendered up to the last message's end."""
    text = str(check_messages(messages)[-1][name])
    if not prompt.endswith(text) and not prompt.rstrip().endswith(text.strip()):
        raise _not_shown(name)
