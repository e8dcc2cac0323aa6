"""Translates requests of Anthropic's messages API to chat requests.

Shapes: https://platform.claude.com/docs/en/api/messages. Fields without meaning here, such as
cache_control or service_tier, and unknown fields of newer clients have no effect.
"""

from __future__ import annotations

import json
import re
from typing import Any

from pyllama_spec.errors import ArgumentError, UnsupportedError
from pyllama_spec.server.dialects.fields import (
    NO_THOUGHTS,
    OWN_OPTIONS,
    Fields,
    Json,
    Thoughts,
    add_thought,
    joined,
    passed_on,
    turn_apart,
)

# Fields that would change the answer and are not supported.
_REFUSED = {
    "container": "there are no containers; leave it out",
    "mcp_servers": "let the client call the servers, and offer their tools in `tools`",
}
_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "xhigh"}
# One coding agent stamps each of its requests in its system prompt: no two of them would begin
# with the same tokens, and nothing could be read from the prefix cache.
_STAMP = re.compile(r"(\Ax-anthropic-billing-header:[^\n]*?\bcch=)[0-9a-fA-F]+(?=;)")


def chat_request(body: object, thoughts: Thoughts = NO_THOUGHTS) -> Json:
    """The equivalent chat request.

    A last message of the assistant begins the answer. The request's `thinking` applies if the
    model's template marks thoughts, and is ignored otherwise.
    """
    fields = Fields(body)
    fields.refuse(_REFUSED)
    messages = _messages(fields)
    chat: Json = {
        "messages": messages,
        "reasoning_format": "auto",
        **passed_on(fields, ("model", *OWN_OPTIONS)),
    }
    if messages[-1]["role"] == "assistant":
        if messages[-1].get("tool_calls"):
            raise ArgumentError(
                "the last message calls tools: give their results in a message of the user"
            )
        chat["continue_final_message"] = True
    chat.update(_options(fields))
    chat.update(_tools(fields))
    chat.update(_thinking(fields, thoughts))
    return chat


def shows_thoughts(body: object) -> bool:
    """Whether the answer includes the thoughts: `thinking.display` is not "omitted"."""
    thinking = Fields(body).object("thinking")
    return thinking is None or thinking.raw("display") != "omitted"


def _options(fields: Fields) -> Json:
    options: Json = {}
    for name, value in (
        ("max_tokens", fields.count("max_tokens", 1)),
        ("temperature", fields.number("temperature")),
        ("top_p", fields.number("top_p")),
        ("top_k", fields.count("top_k")),
        ("stop", fields.texts("stop_sequences") or None),
        ("stream", fields.flag("stream")),
    ):
        if value is not None:
            options[name] = value
    if options.get("stream"):
        # So that the first event can say how long the prompt is.
        options["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    metadata = fields.object("metadata")
    user = metadata.optional_text("user_id") if metadata else None
    if user is not None:
        options["user"] = user
    return options


# ---- messages


def _messages(fields: Fields) -> list[Json]:
    out: list[Json] = []
    system = _system(fields)
    if system:
        out.append({"role": "system", "content": [{"type": "text", "text": system}]})
    names: dict[str, str] = {}  # of tools, by the ids of their calls
    messages = list(fields.objects("messages"))
    if not messages:
        raise ArgumentError("messages is empty or missing: there is nothing to answer")
    for message in messages:
        role = message.text("role")
        if role == "user":
            _add_user(message, out, names)
        elif role == "assistant":
            _add_assistant(message, out, names)
        elif role == "system":
            turn_apart(out, "system")["content"] += _texts(message, "content")
        else:
            raise ArgumentError(
                f"{message.place('role')} is {role!r:.60}; expected user, assistant or system"
            )
    return joined(out)


def _system(fields: Fields) -> str:
    texts = [part["text"] for part in _texts(fields, "system")]
    return "".join(_STAMP.sub(r"\g<1>00000", text) for text in texts)


def _blocks(fields: Fields, name: str) -> list[Fields]:
    """The blocks of a content; a text becomes one block."""
    value = fields.raw(name)
    if isinstance(value, str):
        return [Fields({"type": "text", "text": value}, fields.place(name))]
    return list(fields.objects(name))


def _texts(fields: Fields, name: str) -> list[Json]:
    return [_text_part(block) for block in _blocks(fields, name)]


def _text_part(block: Fields) -> Json:
    """A block as text, if it can be written as text."""
    kind = block.text("type")
    if kind == "text":
        text = block.text("text")
    elif kind == "document":
        text = _document(block)
    elif kind == "search_result":
        parts = "".join(part["text"] for part in _texts(block, "content"))
        text = f"{block.text('title')}\n{block.text('source')}\n{parts}\n"
    elif kind == "image":
        raise block.unsupported("image input", "describe the image in words, as text")
    else:
        raise block.unsupported(f"a block of type {kind!r:.60}", "give text")
    return {"type": "text", "text": text}


def _document(block: Fields) -> str:
    source = block.object("source")
    kind = None if source is None else source.text("type")
    if source is not None and kind == "text":
        text = source.text("data")
    elif source is not None and kind == "content":
        text = "".join(part["text"] for part in _texts(source, "content"))
    else:
        raise block.unsupported(
            f"a document with a source of type {kind!r:.60}", "give its text, as a text source"
        )
    heads = (block.optional_text("title"), block.optional_text("context"))
    return "".join(f"{head}\n" for head in heads if head) + text


def _add_user(message: Fields, out: list[Json], names: dict[str, str]) -> None:
    """Adds a user message; tool results come first, after the calls they answer."""
    blocks = _blocks(message, "content")
    results = [block for block in blocks if block.raw("type") == "tool_result"]
    others = [block for block in blocks if block.raw("type") != "tool_result"]
    for block in results:
        call_id = block.text("tool_use_id")
        parts = "".join(part["text"] for part in _texts(block, "content"))
        tool = {"name": names[call_id]} if call_id in names else {}
        out.append({"role": "tool", "tool_call_id": call_id, **tool, "content": parts})
    if others or not results:
        turn_apart(out, "user")["content"] += [_text_part(block) for block in others]


def _add_assistant(message: Fields, out: list[Json], names: dict[str, str]) -> None:
    turn: Json = turn_apart(out, "assistant")
    for block in _blocks(message, "content"):
        kind = block.text("type")
        if kind == "thinking":
            add_thought(turn, block.text("thinking"))
        elif kind == "redacted_thinking":
            continue  # of another service, which alone can read it
        elif kind == "tool_use":
            arguments = block.object("input")
            call = {"name": block.text("name"), "arguments": "{}"}
            if arguments is not None:
                call["arguments"] = json.dumps(block.raw("input"), ensure_ascii=False)
            names[block.text("id")] = call["name"]
            turn.setdefault("tool_calls", []).append(
                {"id": block.text("id"), "type": "function", "function": call}
            )
        else:
            turn["content"].append(_text_part(block))


# ---- tools


def _tools(fields: Fields) -> Json:
    tools = [_tool(tool) for tool in fields.objects("tools")]
    chat: Json = {"tools": tools} if tools else {}
    choice = fields.object("tool_choice")
    if choice is None:
        return chat
    kind = choice.text("type")
    if kind in ("auto", "none"):
        chat["tool_choice"] = kind
    elif kind == "any":
        chat["tool_choice"] = "required"
    elif kind == "tool":
        chat["tool_choice"] = {"type": "function", "function": {"name": choice.text("name")}}
    else:
        raise ArgumentError(
            f"{choice.place('type')} is {kind!r:.60}; expected auto, any, tool or none"
        )
    if choice.flag("disable_parallel_tool_use"):
        chat["parallel_tool_calls"] = False
    return chat


def _tool(tool: Fields) -> Json:
    kind = tool.optional_text("type") or "custom"
    if kind != "custom":
        raise UnsupportedError(
            f"{tool.place('type')}={kind!r:.60}: only tools with an input_schema of their own can "
            "be offered here; describe it as one, and let the client run it"
        )
    schema = tool.object("input_schema")
    if schema is None:
        raise ArgumentError(f"{tool.place('input_schema')} is missing: an object is expected")
    function: Json = {"name": tool.text("name"), "parameters": tool.raw("input_schema")}
    description = tool.optional_text("description")
    if description is not None:
        function["description"] = description
    return {"type": "function", "function": function}


# ---- thoughts, and the form of the answer


def _thinking(fields: Fields, thoughts: Thoughts) -> Json:
    chat: Json = {}
    config = fields.object("output_config")
    if config is not None:
        chat.update(_form(config))
        effort = config.optional_text("effort")
        if effort is not None and effort not in _EFFORTS:
            raise ArgumentError(
                f"{config.place('effort')} is {effort!r:.60}; expected {', '.join(_EFFORTS)}"
            )
        if effort is not None and thoughts.take_effort:
            chat["reasoning_effort"] = _EFFORTS[effort]
    thinking = fields.object("thinking")
    if thinking is None:
        return chat
    kind = thinking.text("type")
    if kind == "enabled":
        budget = thinking.count("budget_tokens", 1)
        if budget is None:
            raise ArgumentError(f"{thinking.place('budget_tokens')} is missing")
        if thoughts.are_marked:
            chat["thinking_token_budget"] = budget
    elif kind == "disabled":
        chat["reasoning_effort"] = "none"
    elif kind not in ("adaptive", "between_tools"):
        raise ArgumentError(
            f"{thinking.place('type')} is {kind!r:.60}; expected enabled, adaptive or disabled"
        )
    return chat


def _form(config: Fields) -> dict[str, Any]:
    form = config.object("format")
    if form is None:
        return {}
    kind = form.text("type")
    if kind != "json_schema":
        raise form.unsupported(f"type {kind!r:.60}", "json_schema is")
    if form.object("schema") is None:
        raise ArgumentError(f"{form.place('schema')} is missing: an object is expected")
    schema = {"name": "answer", "schema": form.raw("schema"), "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}
