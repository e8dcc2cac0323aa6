"""Prompts too long by their bytes are refused before tokenization, in every interface."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pyllama_spec import ContextFullError, Llama
from pyllama_spec.chat.template import LONG_TEXT
from pyllama_spec.engine import Vocab
from tests.faces.tools import open_tiny

# Too long by its bytes for 256 tokens of at most 13.
LONG = "ab " * LONG_TEXT
CHAT: list[dict[str, Any]] = [{"role": "user", "content": LONG}]
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def llm() -> Iterator[Llama]:
    with open_tiny(embedding=True, pooling_type="mean", max_waiting=4) as llm:
        yield llm


CALLS: dict[str, Callable[[Llama], Any]] = {
    "text": lambda llm: llm.create_completion(LONG),
    "bytes": lambda llm: llm.create_completion(LONG.encode()),
    "shifted": lambda llm: llm.create_completion(LONG, context_shift=True),
    "list": lambda llm: llm.create_completion(["a", LONG]),
    "chat": lambda llm: llm.create_chat_completion(CHAT),
    "chat with tools": lambda llm: llm.create_chat_completion(CHAT, tools=[TOOL]),
    "in a loop": lambda llm: asyncio.run(llm.acreate_completion(LONG)),
    "embedding": lambda llm: llm.embed(LONG, truncate=False),
}


@pytest.mark.parametrize("name", CALLS)
def test_it_is_refused_before_it_is_tokenized(
    llm: Llama, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    lengths: list[int] = []
    tokenize = Vocab.tokenize

    def seen(self: Vocab, text: str | bytes, **options: bool) -> list[int]:
        lengths.append(len(text))
        return tokenize(self, text, **options)

    monkeypatch.setattr(Vocab, "tokenize", seen)
    with pytest.raises(ContextFullError):
        CALLS[name](llm)
    assert max(lengths, default=0) < LONG_TEXT


def test_what_may_fit_is_tokenized(llm: Llama) -> None:
    """White space may be dropped, and a text below the bound is left to the tokenizer."""
    assert llm.embed("ab " * 50, truncate=False)
    with pytest.raises(ContextFullError) as error:
        llm.create_completion(" " * (2 * LONG_TEXT))
    assert "not tokenized" not in str(error.value)
    assert llm.embed(LONG, truncate=True)


@pytest.mark.parametrize("tools", [None, [TOOL]])
def test_a_chat_is_refused_before_it_is_rendered(tools: list[Any] | None) -> None:
    template = "{{ tools }}{{ raise_exception('rendered') }}"
    with open_tiny(chat_template=template) as llm, pytest.raises(ContextFullError):
        llm.create_chat_completion(CHAT, tools=tools)
