"""Prompts of a benchmark: a line of JSON each, the package's own or the user's."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyllama_spec.chat import ChatTemplate
from pyllama_spec.engine import Vocab
from pyllama_spec.engine.errors import ArgumentError, PyllamaSpecError
from pyllama_spec.prompts import prompt_tokens

OWN_PROMPTS = Path(__file__).with_name("prompts.jsonl")
_KEYS = {"id", "category", "messages", "prompt"}


@dataclass(frozen=True, slots=True)
class Prompt:
    """A line of a prompts file.

    Attributes:
        id: unique in its file.
        category: prompts of one are summed up together.
        messages: of a chat; () where the line has a prompt.
        text: to go on with; "" where the line has messages.

    """

    id: str
    category: str
    messages: tuple[Mapping[str, Any], ...] = ()
    text: str = ""

    def as_chat(self, chat: bool | None) -> Prompt:
        """The same prompt as a chat (True), as a text (False), or as it is (None)."""
        if chat is True and not self.messages:
            return Prompt(self.id, self.category, ({"role": "user", "content": self.text},))
        if chat is False and self.messages:
            text = "\n\n".join(str(message["content"]) for message in self.messages)
            return Prompt(self.id, self.category, text=text)
        return self

    def tokens(self, vocab: Vocab, template: ChatTemplate) -> list[int]:
        """Token ids, exactly as Llama makes them.

        Raises:
            ArgumentError: the template refuses the messages, or there is nothing to continue; the
                message names the prompt.

        """
        try:
            if self.messages:
                return template.render(self.messages).tokenize(vocab)
            return prompt_tokens(vocab, self.text)
        except PyllamaSpecError as error:
            raise type(error)(f"prompt {self.id!r}: {error}") from None


def load_prompts(path: str | os.PathLike[str] | None = None) -> tuple[Prompt, ...]:
    """Reads a prompts file; without a path the package's own: 24 in six categories and "field".

    Raises:
        ArgumentError: the file cannot be read, holds no prompt, or a line is malformed; the message
            names the line.

    """
    source = OWN_PROMPTS if path is None else Path(path)
    try:
        lines = source.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"cannot read the prompts file {source}: {error}") from None
    prompts: dict[str, Prompt] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            prompt = _parse(line)
            if prompt.id in prompts:
                raise ArgumentError(f"the id {prompt.id!r} was used before; give each line its own")
        except ArgumentError as error:
            raise ArgumentError(f"{source.name}, line {number}: {error}") from None
        prompts[prompt.id] = prompt
    if not prompts:
        raise ArgumentError(
            f'{source} holds no prompt; write a line {{"id": "a", "category": "b", "prompt": "c"}} '
            "per prompt"
        )
    return tuple(prompts.values())


def _parse(line: str) -> Prompt:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise ArgumentError(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ArgumentError(f"expected a JSON object, not {line.strip()!r:.60}")
    unknown = sorted(set(found) - _KEYS)
    if unknown:
        raise ArgumentError(f"unknown key {unknown[0]!r}; there are {', '.join(sorted(_KEYS))}")
    for key in ("id", "category"):
        if not isinstance(found.get(key), str) or not found[key]:
            raise ArgumentError(f"{key!r} is {found.get(key)!r:.60}; expected a text")
    if ("messages" in found) == ("prompt" in found):
        raise ArgumentError("give either 'messages' or 'prompt'")
    if "prompt" in found:
        if not isinstance(found["prompt"], str) or not found["prompt"]:
            raise ArgumentError(f"'prompt' is {found['prompt']!r:.60}; expected a text")
        return Prompt(found["id"], found["category"], text=found["prompt"])
    return Prompt(found["id"], found["category"], _messages(found["messages"]))


def _messages(found: object) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(found, list) or not found:
        raise ArgumentError(f"'messages' is {found!r:.60}; expected a list of messages")
    for i, message in enumerate(found):
        is_message = isinstance(message, dict) and all(
            isinstance(message.get(key), str) and message[key] for key in ("role", "content")
        )
        if not is_message:
            raise ArgumentError(
                f"messages[{i}] is {message!r:.60}; expected an object with the texts 'role' and "
                "'content'"
            )
    return tuple(found)
