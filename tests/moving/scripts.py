"""Answers of a model of each family to a question with tools, and the requests for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyllama_spec import Llama
from pyllama_spec.chat.tools import ToolRequest
from tests.faces.families import FAMILIES, USER, WEATHER, templates
from tests.faces.tools import open_tiny
from tests.models import model_path

_ROOM = 16  # positions behind a script, see tests/models/script.py


@dataclass(frozen=True)
class Case:
    """One answer."""

    family: str
    name: str
    text: str
    choice: str = "auto"
    max_tokens: int | None = None

    @property
    def key(self) -> str:
        """The unique name of the case."""
        return f"{self.family} / {self.name}"

    @property
    def request(self) -> dict[str, Any]:
        """The body of a request to a server, with no more than both sides read."""
        body: dict[str, Any] = {
            "messages": [USER], "tools": [WEATHER], "tool_choice": self.choice,
            "temperature": 0.0, "max_tokens": self.max_tokens or 400,
        }  # fmt: skip
        if self.name != "thought":
            body["chat_template_kwargs"] = {"enable_thinking": False}
        return body

    def script(self) -> tuple[int, list[int]]:
        """How many tokens the question has, and those of the answer."""
        with open_tiny(chat_template=templates()[self.family], n_ctx=8192) as llm:
            variables = self.request.get("chat_template_kwargs", {})
            asked = ToolRequest.read([WEATHER], self.choice, None, None)
            plan, *_ = llm._chats.begin([USER], asked, variables, {"max_tokens": None})
            n_prompt = len(plan.tokenize(llm.model.vocab))
            return n_prompt, llm.tokenize(self.text.encode(), add_bos=False, special=True)

    def model(self) -> tuple[str, int, int]:
        """The path of a model that says it, the length of the question, and of the context."""
        n_prompt, script = self.script()
        path = model_path("script", n_prompt=n_prompt, script=tuple(script))
        return str(path), n_prompt, n_prompt + len(script) + _ROOM

    def answer(self) -> dict[str, Any]:
        """The answer as pyllama_spec parses it."""
        path, _, n_ctx = self.model()
        template = templates()[self.family]
        with Llama(path, n_ctx=n_ctx, n_threads=1, chat_template=template) as llm:
            return read(dict(llm.create_chat_completion(**self.request)))


def read(response: dict[str, Any]) -> dict[str, Any]:
    """The part of an answer that is equal each time."""
    choice = response["choices"][0]
    message = choice["message"]
    calls = [
        [call["function"]["name"], call["function"]["arguments"]]
        for call in message.get("tool_calls") or []
    ]
    return {
        "content": message.get("content") or "", "calls": calls,
        "reasoning": message.get("reasoning_content") or "",
        "finish_reason": choice["finish_reason"],
    }  # fmt: skip


def cases() -> Iterator[Case]:
    """All of them."""
    for family, call in FAMILIES.items():
        yield Case(family, "called", call)
        yield Case(family, "had to call", call, choice="required")
        yield Case(family, "said", "It is sunny, I think.")
        yield Case(family, "said and called", f"I look.\n{call}")
        yield Case(family, "cut", call, max_tokens=len(call.encode()) * 2 // 3)
        yield Case(family, "thought", f"<think>\nHm.\n</think>\n\n{call}")
