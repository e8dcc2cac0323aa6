"""A dozen families of models that call tools: their templates, and how they write a call."""

from __future__ import annotations

import tarfile
from functools import cache
from pathlib import Path
from typing import Any

from tools.packaged_models import cache_directory

USER: dict[str, Any] = {"role": "user", "content": "Weather in Paris?"}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather", "description": "The weather of a city.",
        "parameters": {
            "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
        },
    },
}  # fmt: skip
TIME: dict[str, Any] = {
    "type": "function",
    "function": {"name": "get_time", "description": "", "parameters": {"type": "object"}},
}
ARGUMENTS = {"city": "Paris"}
JSON_CALL = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
HERMES = f"<tool_call>\n{JSON_CALL}\n</tool_call>"
# Of each family: its published template, and a call as its models write it.
FAMILIES = {
    "Qwen-Qwen2.5-7B-Instruct": HERMES,
    "Qwen-Qwen3-0.6B": HERMES,
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": HERMES,
    "Qwen3-Coder": (
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n"
        "</tool_call>"
    ),
    "meta-llama-Llama-3.1-8B-Instruct": '{"name": "get_weather", "parameters": {"city": "Paris"}}',
    "mistralai-Mistral-Nemo-Instruct-2407": (
        '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "123456789"}]'
    ),
    "meetkai-functionary-medium-v3.2": 'get_weather\n{"city": "Paris"}',
    "moonshotai-Kimi-K2": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        '<|tool_call_argument_begin|>{"city": "Paris"}<|tool_call_end|>'
        "<|tool_calls_section_end|>"
    ),
    "GLM-4.6": (
        "\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
        "</tool_call>\n"
    ),
    "ibm-granite-granite-4.0": HERMES,
    "LFM2-8B-A1B": '<|tool_call_start|>[get_weather(city="Paris")]<|tool_call_end|>',
    "openai-gpt-oss-120b": (
        "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
        '{"city": "Paris"}'
    ),
}


@cache
def templates() -> dict[str, str]:
    """The published templates that come with the engine's source."""
    archives = sorted(cache_directory().glob("xllamacpp-*.tar.gz"))
    assert archives, "the engine's source, which the build has fetched, is not in the cache"
    found = {}
    with tarfile.open(archives[-1]) as archive:
        for member in archive:
            path = Path(member.name)
            if path.suffix == ".jinja" and path.parent.name == "templates":
                data = archive.extractfile(member)
                assert data is not None
                found[path.stem] = data.read().decode()
    return found
