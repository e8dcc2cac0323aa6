"""Files of prompts, one per line, for `bench` and `train`.

{"id": "a", "category": "b", "messages": [{"role": "user", "content": "Hi"}]}
{"id": "c", "category": "b", "prompt": "Once upon"}

A line with messages may have "tools": descriptions of functions, as chat completions take them.
Messages may have pictures, as image_url parts with data: URLs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyllama_spec.chat.media_urls import MediaReader
from pyllama_spec.chat.pictures import take_pictures
from pyllama_spec.chat.template import (
    ChatTemplate,
    check_fits,
    check_messages,
    name_of_tool,
    prompt_tokens,
)
from pyllama_spec.engine import Vocab
from pyllama_spec.errors import OMITTED, ArgumentError, PyllamaSpecError, shown
from pyllama_spec.files import read_text

# What messages show of a line that would be read.
_RIGHT_NAMED = (
    '{"id": "a", "category": "b", "prompt": "Once upon"} or '
    '{"id": "a", "category": "b", "messages": [{"role": "user", "content": "Hi"}]}'
)
_RIGHT = '{"prompt": "Once upon"} or {"messages": [{"role": "user", "content": "Hi"}]}'
_KEYS = {"id", "category", "messages", "prompt", "tools"}


@dataclass(frozen=True, slots=True)
class Prompt:
    """A line of a prompts file, with a text to continue, or messages and maybe tools.

    The id is unique in its file; prompts of one category are summed up together.
    """

    id: str
    category: str
    messages: tuple[Mapping[str, Any], ...] = ()
    text: str = ""
    tools: tuple[Mapping[str, Any], ...] = ()

    def as_chat(self, chat: bool | None) -> Prompt:
        """The same prompt as a chat (True), as a text without tools (False), or as it is (None)."""
        if chat is True and not self.messages:
            return Prompt(self.id, self.category, ({"role": "user", "content": self.text},))
        if chat is False and self.messages:
            text = "\n\n".join(str(message["content"] or "") for message in self.messages)
            return Prompt(self.id, self.category, text=text)
        return self

    def tokens(self, vocab: Vocab, template: ChatTemplate, n_ctx: int | None = None) -> list[int]:
        """Token ids, exactly as Llama makes them; errors name the prompt.

        A prompt that its bytes alone make too long for `n_ctx` is not tokenized.
        """
        try:
            if self.messages:
                rendered = template.render(self.messages, tools=self.tools or None)
                if n_ctx is not None:
                    check_fits(vocab, rendered.text, n_ctx)
                return rendered.tokenize(vocab)
            if n_ctx is not None:
                check_fits(vocab, self.text, n_ctx)
            return prompt_tokens(vocab, self.text)
        except PyllamaSpecError as error:
            raise error.copied(
                problem=f"prompt {self.id!r}: {error}", param="", value=OMITTED, expected="",
                remedy="", setup="",
            ) from None  # fmt: skip


def read_prompt_file(path: Path, *, are_named: bool = True) -> tuple[Prompt, ...]:
    """Reads a file of prompts; if `are_named`, every line must have an id and a category."""
    lines = read_text(path, "the prompts file", encoding="utf-8-sig").split("\n")
    prompts: dict[str, Prompt] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            prompt = _parse(line, number, are_named)
            if prompt.id in prompts:
                raise ArgumentError("id", prompt.id, "an id that was not used before")
        except ArgumentError as error:
            right = _RIGHT_NAMED if are_named else _RIGHT
            raise ArgumentError(
                problem=f"{path.name}, line {number}: {error}", remedy=f"right lines: {right}"
            ) from None
        prompts[prompt.id] = prompt
    if not prompts:
        raise ArgumentError(
            problem=f"the prompts file {path} holds no prompt",
            remedy='write a line {"id": "a", "category": "b", "prompt": "c"} per prompt',
        )  # fmt: skip
    return tuple(prompts.values())


def _parse(line: str, number: int, are_named: bool) -> Prompt:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ArgumentError(problem=f"not JSON: {error}") from None
    if not isinstance(entry, dict):
        raise ArgumentError(problem=shown(line.strip()), expected="a JSON object")
    if unknown := sorted(set(entry) - _KEYS):
        raise ArgumentError(
            problem=f"unknown key {shown(unknown[0])}",
            expected=f"keys of {', '.join(sorted(_KEYS))}",
        )
    if ("messages" in entry) == ("prompt" in entry):
        raise ArgumentError("messages", expected="either 'messages' or 'prompt'")
    named = {"id": f"line {number}", "category": ""}
    named |= {key: _text(entry, key) for key in named if key in entry or are_named}
    if "prompt" in entry:
        if "tools" in entry:
            raise ArgumentError("tools", problem="needs 'messages' in place of 'prompt'")
        return Prompt(named["id"], named["category"], text=_text(entry, "prompt"))
    tools = entry.get("tools", [])
    if not isinstance(tools, list) or not all(map(name_of_tool, tools)):
        raise ArgumentError("tools", tools, "a list of functions, each with a name")
    marked, pictures = take_pictures(entry["messages"], MediaReader())
    checked = check_messages(marked)
    messages = tuple(entry["messages"] if pictures else checked)
    return Prompt(named["id"], named["category"], messages, tools=tuple(tools))


def _text(entry: Mapping[str, Any], key: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str) or not value:
        raise ArgumentError(key, value, "a text that is not empty")
    return value
