"""Prompts too long by their bytes are refused before tokenization, in every interface."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pyllama_spec import ContextFullError, Llama
from pyllama_spec.chat.prompts import LONG_TEXT
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


async def _read(llm: Llama) -> None:
    async for _ in await llm.acreate_completion(LONG, stream=True):
        pass


CALLS: dict[str, Callable[[Llama], Any]] = {
    "text": lambda llm: llm.create_completion(LONG),
    "bytes": lambda llm: llm.create_completion(LONG.encode()),
    "stream": lambda llm: list(llm.create_completion(LONG, stream=True)),
    "shifted": lambda llm: llm.create_completion(LONG, context_shift=True),
    "list": lambda llm: llm.create_completion(["a", LONG]),
    "choices": lambda llm: llm.create_completion(LONG, n=2),
    "steps": lambda llm: list(llm.generate_steps(LONG)),
    "chat": lambda llm: llm.create_chat_completion(CHAT),
    "chat with tools": lambda llm: llm.create_chat_completion(CHAT, tools=[TOOL]),
    "chat steps": lambda llm: list(llm.generate_chat_steps(CHAT)),
    "in a loop": lambda llm: asyncio.run(llm.acreate_completion(LONG)),
    "in a loop, streamed": lambda llm: asyncio.run(_read(llm)),
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
    monkeypatch.undo()
    monkeypatch.setattr(Vocab, "fewest_tokens", lambda self, text: 0)
    with pytest.raises(ContextFullError):  # as it is found late
        CALLS[name](llm)


def test_what_may_fit_is_tokenized(llm: Llama) -> None:
    """White space may be dropped, and a text below the bound is left to the tokenizer."""
    assert llm.embed("ab " * 50, truncate=False)
    with pytest.raises(ContextFullError) as error:
        llm.create_completion(" " * (2 * LONG_TEXT))
    assert "not tokenized" not in str(error.value)
    assert llm.embed(LONG, truncate=True)


async def _refused(llm: Llama) -> None:
    with pytest.raises(ContextFullError):
        await llm.acreate_completion(LONG)


async def _held(llm: Llama) -> list[ContextFullError]:
    """The objects of a refusal that only the cycle collector frees, in a running loop."""
    await _refused(llm)
    await asyncio.sleep(0.05)
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        await _refused(llm)
        await asyncio.sleep(0.05)  # the thread that made it lets go of it
        gc.collect()
    finally:
        gc.set_debug(0)
        gc.enable()
    held = [one for one in gc.garbage if isinstance(one, ContextFullError)]
    gc.garbage.clear()
    return held


def test_a_refusal_in_a_loop_holds_nothing(llm: Llama) -> None:
    """A refusal's frames do not keep the prompt until the cycle collector runs."""
    assert not asyncio.run(_held(llm))
