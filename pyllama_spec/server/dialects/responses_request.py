"""Translates requests of OpenAI's responses API to chat requests.

Shapes: https://platform.openai.com/docs/api-reference/responses. Nothing is stored: a request
brings the whole conversation as `input`. The model is not offered tools that OpenAI's own servers
run; the response's `tools` lists the offered ones.
"""

from __future__ import annotations

from typing import Any

from pyllama_spec.errors import ArgumentError, UnsupportedError, shown
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

_WHOLE_INPUT = "no response is stored: give the whole conversation as `input`"
# Fields that would change the answer and are not supported.
_REFUSED = {
    "previous_response_id": _WHOLE_INPUT,
    "conversation": _WHOLE_INPUT,
    "store": "no response is stored; leave it out, or set it to false",
    "background": "an answer lasts as long as its connection; leave it out, or stream",
    "prompt": "there are no stored prompts; give their text as `instructions` and `input`",
}
_LOGPROBS = "message.output_text.logprobs"
_INPUT_TEXTS = ("input_text", "output_text", "text")


def chat_request(body: object, thoughts: Thoughts = NO_THOUGHTS) -> Json:
    """The equivalent chat request."""
    fields = Fields(body)
    fields.refuse(_REFUSED)
    chat: Json = {
        "messages": _messages(fields),
        "reasoning_format": "auto",
        **passed_on(fields, ("model", *OWN_OPTIONS)),
        **_options(fields),
    }
    offered = offered_tools(body)
    if offered:
        chat["tools"] = [_chat_tool(tool) for tool in offered]
    choice = _choice(fields, {tool["name"] for tool in offered})
    if choice is not None:
        chat["tool_choice"] = choice
    reasoning = fields.object("reasoning")
    effort = reasoning.optional_text("effort") if reasoning else None
    if effort is not None and thoughts.take_effort:
        chat["reasoning_effort"] = effort
    return chat


def offered_tools(body: object) -> list[Json]:
    """The function tools of the request that the model gets."""
    fields = Fields(body)
    allowed = _allowed(fields)
    tools = []
    for tool in fields.objects("tools"):
        if tool.text("type") != "function":
            continue
        tool.object("parameters")  # which may be null
        name = tool.text("name")
        if allowed is None or name in allowed:
            tools.append(tool.as_dict())
    return tools


def _options(fields: Fields) -> Json:
    options: Json = {}
    top = fields.count("top_logprobs")
    for name, value in (
        ("max_tokens", fields.count("max_output_tokens", 1)),
        ("temperature", fields.number("temperature")),
        ("top_p", fields.number("top_p")),
        ("parallel_tool_calls", fields.flag("parallel_tool_calls")),
        ("stream", fields.flag("stream")),
        ("user", fields.optional_text("user") or fields.optional_text("safety_identifier")),
        ("top_logprobs", top),
        ("response_format", _form(fields)),
    ):
        if value is not None:
            options[name] = value
    if top or _LOGPROBS in fields.texts("include"):
        options["logprobs"] = True
    else:
        options.pop("top_logprobs", None)
    if options.get("stream"):
        options["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    return options


def _form(fields: Fields) -> Json | None:
    text = fields.object("text")
    form = text.object("format") if text else None
    if form is None:
        return None
    kind = form.text("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": kind}
    if kind != "json_schema":
        raise form.unsupported(f"type {kind!r:.60}", "text, json_object and json_schema are")
    if form.object("schema") is None:
        raise ArgumentError(f"{form.place('schema')} is missing: an object is expected")
    schema: Json = {"name": form.optional_text("name") or "answer", "schema": form.raw("schema")}
    strict = form.flag("strict")
    return {
        "type": kind,
        "json_schema": schema if strict is None else {**schema, "strict": strict},
    }


# ---- tools


def _chat_tool(tool: Json) -> Json:
    names = ("name", "description", "parameters", "strict")
    function = {name: tool[name] for name in names if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _allowed(fields: Fields) -> set[str] | None:
    """The tool names that tool_choice allows; None for all."""
    choice = fields.raw("tool_choice")
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return None
    tools = Fields(choice, "tool_choice").objects("tools")
    return {tool.text("name") for tool in tools if tool.raw("type") == "function"}


def _choice(fields: Fields, names: set[str]) -> Any:
    choice = fields.raw("tool_choice")
    if choice is None:
        return None
    if isinstance(choice, str):
        if choice not in ("auto", "none", "required"):
            raise ArgumentError(
                f"tool_choice is {choice!r:.60}; expected auto, none, required or an object"
            )
        return choice
    asked = Fields(choice, "tool_choice")
    kind = asked.text("type")
    if kind == "function":
        return {"type": "function", "function": {"name": asked.text("name")}}
    if kind == "allowed_tools":
        mode = asked.text("mode")
        return mode if names else "none"
    raise UnsupportedError(
        f"tool_choice.type={kind!r:.60}: only functions can be called here; name one of `tools`"
    )


# ---- input


def _messages(fields: Fields) -> list[Json]:
    out: list[Json] = []
    instructions = fields.optional_text("instructions")
    if instructions:
        turn_apart(out, "system")["content"].append({"type": "text", "text": instructions})
    asked = fields.raw("input")
    if isinstance(asked, str):
        turn_apart(out, "user")["content"].append({"type": "text", "text": asked})
        return out
    if not isinstance(asked, list) or not asked:
        raise ArgumentError(
            f"input is {shown(asked)}; expected a text, or a list of items that is not empty"
        )
    names: dict[str, str] = {}  # of functions, by the ids of their calls
    for item in fields.objects("input"):
        _add(item, out, names)
    return joined(out)


def _add(item: Fields, out: list[Json], names: dict[str, str]) -> None:
    kind = item.optional_text("type") or "message"
    if kind == "message":
        _add_message(item, out)
    elif kind == "function_call":
        call = {"name": item.text("name"), "arguments": item.text("arguments")}
        names[item.text("call_id")] = call["name"]
        _assistant(out).setdefault("tool_calls", []).append(
            {"id": item.text("call_id"), "type": "function", "function": call}
        )
    elif kind == "function_call_output":
        call_id = item.text("call_id")
        tool = {"name": names[call_id]} if call_id in names else {}
        text = "".join(part["text"] for part in _parts(item, "output"))
        out.append({"role": "tool", "tool_call_id": call_id, **tool, "content": text})
    elif kind == "reasoning":
        _add_reasoning(item, out)
    elif kind == "item_reference":
        raise item.unsupported("an item_reference", _WHOLE_INPUT)
    else:
        raise item.unsupported(
            f"an item of type {kind!r:.60}",
            "message, function_call, function_call_output and reasoning are",
        )


def _add_message(item: Fields, out: list[Json]) -> None:
    role = item.text("role")
    if role not in ("user", "assistant", "system", "developer"):
        raise ArgumentError(
            f"{item.place('role')} is {role!r:.60}; expected user, assistant, system or developer"
        )
    parts = _parts(item, "content")
    if role == "assistant":
        _assistant(out)["content"] += parts
        return
    # Most templates know no developer, and leave out what they do not know.
    turn_apart(out, "system" if role == "developer" else role)["content"] += parts


def _assistant(out: list[Json]) -> Json:
    """The assistant's turn of these items, each of which is a part of it."""
    if out and out[-1]["role"] == "assistant":
        return out[-1]
    return turn_apart(out, "assistant")


def _add_reasoning(item: Fields, out: list[Json]) -> None:
    texts = [part.text("text") for part in item.objects("content")]
    texts = texts or [part.text("text") for part in item.objects("summary")]
    if texts:
        add_thought(_assistant(out), "".join(texts))


def _parts(item: Fields, name: str) -> list[Json]:
    value = item.raw(name)
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    parts = []
    for part in item.objects(name):
        kind = part.text("type")
        if kind == "refusal":
            parts.append({"type": "text", "text": part.text("refusal")})
        elif kind in _INPUT_TEXTS:
            parts.append({"type": "text", "text": part.text("text")})
        elif kind == "input_image":
            raise part.unsupported("image input", "describe the image in words, as input_text")
        else:
            raise part.unsupported(f"a part of type {kind!r:.60}", "give input_text")
    return parts
