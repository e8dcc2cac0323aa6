"""Chats at random: every family's template, hostile words in every field, answers of every kind."""

from __future__ import annotations

import itertools
import json
import random
import re
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from pyllama_spec import Llama
from tests.faces.families import FAMILIES, templates
from tests.models import EOS, model_path
from tests.models.vocab import MIN_VOCAB, SPECIAL_TOKENS

# Signs between which templates write the names of control tokens.
_NAME = re.compile(r"<\|\w+\|>|\[/?[A-Z_]{3,}\]|\[gMASK\]|<sop>")
# What is not a control token of a template's own, and what its answers are made of.
_HALVES = (
    "<", "</", "<t", "<tool", "<tool_call", "<tool_call>", "</tool_call>", "<think", "</think", "[",
    "[TOOL", "{", '{"name', "<|", "<|channel|", ">>", ">>>", "<function=", "\n<", "\u00e9<",
)  # fmt: skip
_SPACES = ("", "", "", " ", "\n", "  \n", "\t")
_WORDS = ("the sea", "anything", "there\u2019s rain", "\U0001f600 over", "na\u00efve", "a then b")
_CALM = ("How is the weather", "List the files", "Thanks", "Go on then", "a b c")
_SIGNS = (
    "a | b <c>", 'say "x" \\ y', "if a < b and b > c", "[x](y) {z}", "&lt;i&gt; & 'q'",
    "\u2014 \u201cq\u201d", "</think>", "<think>", "<tool_call>", "<tool_response>",
    "| x |\n|---|", "#/$defs/x", "\u00ab\u00bb",
)  # fmt: skip
_THINKERS = {
    "Qwen-Qwen3-0.6B": ("<think>", "</think>"),
    "GLM-4.6": ("<think>", "</think>"),
    "moonshotai-Kimi-K2": ("<think>", "</think>"),
    "LFM2-8B-A1B": ("<think>", "</think>"),
}
_PREFIXES = {
    "openai-gpt-oss-120b": "<|channel|>final<|message|>",
    "meetkai-functionary-medium-v3.2": "all\n",
}
SCHEMAS: tuple[dict[str, Any], ...] = (
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    {
        "type": "object", "properties": {"city": {"$ref": "#/$defs/c"}}, "required": ["city"],
        "$defs": {"c": {"type": "string", "enum": ["Paris", "Rome"]}},
    },
    {
        "type": "object",
        "properties": {"city": {"type": "string"}, "day": {"type": "string", "format": "date"}},
        "required": ["city"],
    },
)  # fmt: skip


@cache
def control_names() -> tuple[str, ...]:
    """Names of control tokens that the families' templates write, and that the toys lack."""
    found = {name for family in FAMILIES for name in _NAME.findall(templates()[family])}
    return tuple(sorted(found - set(SPECIAL_TOKENS)))


def open_family(family: str) -> Llama:
    """A tiny model that has every family's control tokens."""
    n_vocab = -(-(MIN_VOCAB + len(control_names())) // 32) * 32
    path = model_path("llama", n_layer=1, n_vocab=n_vocab, control_names=control_names())
    return Llama(
        path, n_ctx=16384, n_threads=1, controller="fixed", chat_template=templates()[family]
    )


class Said:
    """A logits processor that has a model say ids, where its grammar allows them, and then end."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids
        self._n_prompt: int | None = None

    def __call__(
        self, ids: npt.NDArray[np.int32], scores: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float32]:
        if self._n_prompt is None:
            self._n_prompt = len(ids)
        at = len(ids) - self._n_prompt
        scores[self.ids[at] if at < len(self.ids) else EOS] += 1e4
        return scores


@dataclass
class Chat:
    """A chat, and what is said to it.

    Attributes:
        messages, options: the messages and options of the request.
        said: the model's answer, with the names of control tokens.
        marks: words in it that occur nowhere else.
        is_plain: whether it contains no call, and nothing like one.

    """

    messages: list[dict[str, Any]]
    options: dict[str, Any]
    said: str = ""
    marks: list[str] = field(default_factory=list)
    is_plain: bool = True


def chat(seed: int, family: str, *, is_hostile: bool) -> Chat:
    """The chat of a number; with harmless words it is the same but for these."""
    shape, words = random.Random(seed), random.Random(seed + 1)

    numbers = itertools.count()

    def text() -> str:
        # Each is another: some templates look for the last message by its content.
        n, number = words.randrange(1, 4), next(numbers)
        kinds = (_CALM, _SIGNS, (*control_names(), *SPECIAL_TOKENS)) if is_hostile else (_CALM,)
        said = [str(words.choice(words.choice(kinds))) for _ in range(n)]
        return " ".join([*said, str(number)])

    world = _World(shape, family, text)
    messages = world.messages()
    options = world.options()
    made = Chat(messages, options)
    world.answer(made)
    return made


class _World:
    def __init__(self, shape: random.Random, family: str, text: Any) -> None:
        self.shape, self.family, self.text = shape, family, text

    def maybe(self, chance: float) -> bool:
        return self.shape.random() < chance

    def messages(self) -> list[dict[str, Any]]:
        out: list[dict[str, Any]] = []
        if self.maybe(0.4):
            out.append({"role": "system", "content": self.text()})
        out.append({"role": "user", "content": self.text()})
        for _ in range(self.shape.randrange(3)):
            if self.maybe(0.6):
                out += self.turn_with_call()
            else:
                out.append({"role": "assistant", "content": self.text()})
            if self.maybe(0.3):
                out[-1]["reasoning_content"] = self.text()
            out.append({"role": "user", "content": self.text()})
        return out

    def turn_with_call(self) -> list[dict[str, Any]]:
        arguments: Any = {"city": self.text(), "more": [self.text(), 1.5, None, {"x": self.text()}]}
        form = self.shape.randrange(5)
        if form < 3:
            arguments = json.dumps(
                arguments, ensure_ascii=form == 0, indent=form if form == 2 else None
            )
        elif form == 3:
            arguments = self.shape.choice(["", "{}"])
        call_id = "abcdefgh1"
        call = {
            "id": call_id, "type": "function",
            "function": {"name": "get_weather", "arguments": arguments},
        }  # fmt: skip
        result = {
            "role": "tool",
            "content": self.text(),
            "tool_call_id": call_id,
            "name": "get_weather",
        }
        content = self.text() if self.maybe(0.3) else self.shape.choice([None, ""])
        if self.family.startswith("mistral") and content:
            content = ""  # which its template takes for no call
        return [
            {"role": "assistant", "content": content, "tool_calls": [call]}, result,
            {"role": "assistant", "content": self.text()},
        ]  # fmt: skip

    def options(self) -> dict[str, Any]:
        shape = self.shape
        out: dict[str, Any] = {}
        if self.maybe(0.75):
            parameters = json.loads(json.dumps(shape.choice(SCHEMAS)))
            parameters["properties"]["city"]["description"] = self.text()
            weather = {"name": "get_weather", "description": self.text(), "parameters": parameters}
            clock = {
                "name": "get_time",
                "description": self.text(),
                "parameters": {"type": "object"},
            }
            functions = [weather, clock][: shape.randrange(1, 3)]
            if self.maybe(0.1):
                out["functions"] = functions
            else:
                out["tools"] = [{"type": "function", "function": one} for one in functions]
            named = {"type": "function", "function": {"name": "get_weather"}}
            choice = shape.choice(["auto", "auto", "auto", "auto", None, "none", "required", named])
            if choice is not None:
                out["tool_choice"] = choice
            if self.maybe(0.2):
                out["parallel_tool_calls"] = self.maybe(0.5)
        if not out or self.maybe(0.3):
            out["reasoning_format"] = shape.choice(["auto", "auto", "deepseek", "none"])
        if self.maybe(0.15):
            schema = {"type": "object", "properties": {"city": {"type": "string"}}}
            out["response_format"] = {"type": "json_schema", "json_schema": {"schema": schema}}
        if self.maybe(0.4):
            stops = ["the", " the", "in", "er", "<", "w1", "\n\n", "x2", "re w", "\u00e9", "}"]
            out["stop"] = shape.sample(stops, shape.randrange(1, 3))
        if self.maybe(0.15):
            out["max_tokens"] = shape.randrange(1, 60)
        if self.maybe(0.3):
            out["chat_template_kwargs"] = {"enable_thinking": self.maybe(0.5)}
        return out

    def answer(self, made: Chat) -> None:
        """The dictated answer: a thought, words, calls and halves of tags in any order."""
        shape, parts = self.shape, [_choice(self.shape, _SPACES)]

        def words() -> str:
            mark = f"w{len(made.marks)}x{shape.randrange(10)}"
            made.marks.append(mark)
            return f"{shape.choice(_WORDS)} {mark}"

        if self.maybe(0.1):
            made.said = shape.choice(["", "  \n", "<", "\n<tool_c", "<think>", "</think>"])
            return
        if self.family in _THINKERS and self.maybe(0.5):
            begin, end = _THINKERS[self.family]
            inner = shape.choice(
                [words(), f"{words()} <tool_call> {words()}", f" {words()}\n<", "\n"]
            )
            parts += [begin, inner, end if self.maybe(0.8) else shape.choice(_HALVES)]
            parts.append(_choice(shape, _SPACES))
        if self.maybe(0.85):
            parts.append(_PREFIXES.get(self.family, ""))
        for _ in range(shape.randrange(4)):
            kind = shape.random()
            if kind < 0.55:
                parts.append(words())
            elif kind < 0.75:
                parts.append(shape.choice(_HALVES))
            elif "tools" in made.options or "functions" in made.options:
                made.is_plain = False
                call = FAMILIES[self.family]
                if self.maybe(0.3):
                    call = call[: shape.randrange(1, len(call))]
                parts.append(call)
            parts.append(_choice(shape, _SPACES))
        made.said = "".join(parts)


def _choice(shape: random.Random, among: tuple[str, ...]) -> str:
    return shape.choice(among)
