"""The benchmark's prompts, and refused values of its configuration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pyllama_spec.bench import Prompt, load_prompts
from pyllama_spec.chat.template import ChatTemplate
from pyllama_spec.engine import Model
from pyllama_spec.errors import ArgumentError
from tests.bench.tools import LINES, write_prompts
from tests.models import model_path


def test_own_prompts_are_all_different_chats() -> None:
    prompts = load_prompts()
    texts = [str(prompt.messages) for prompt in prompts]
    assert len(set(texts)) == len(texts) > 20
    assert all(prompt.messages[0]["role"] == "user" and not prompt.text for prompt in prompts)


def test_a_users_file_is_read(tmp_path: Path) -> None:
    path = write_prompts(tmp_path, LINES)
    chat, text = load_prompts(path)
    assert chat == Prompt("chat", "a", tuple(LINES[0]["messages"]))
    assert text == Prompt("text", "b", text="abc abc abc ab")
    # Empty lines, and the mark that some editors put before a text, are not faults.
    path.write_bytes(b"\xef\xbb\xbf" + write_prompts(tmp_path).read_bytes() + b"\n\n")
    assert len(load_prompts(path)) == 2


GOOD = '{"id": "a", "category": "c", "prompt": "p"}'


@pytest.mark.parametrize(
    "line",
    [
        "{",
        '{"id": "b", "category": "c"}',
        '{"category": "c", "prompt": "p"}',
        '{"id": "b", "category": "c", "prompt": ""}',
        '{"id": "b", "category": "c", "prompt": "p", "tag": 1}',
        GOOD,
    ],
)
def test_a_fault_names_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(f"{GOOD}\n\n{line}\n", encoding="utf-8")
    with pytest.raises(ArgumentError, match=r"mine\.jsonl, line 3: "):
        load_prompts(path)


def test_a_prompt_can_be_turned_into_the_other_kind() -> None:
    text = Prompt("t", "c", text="go on")
    chat = Prompt("m", "c", ({"role": "system", "content": "a"}, {"role": "user", "content": "b"}))
    assert text.as_chat(None) is text
    assert chat.as_chat(None) is chat
    assert text.as_chat(False) is text
    assert chat.as_chat(True) is chat
    assert text.as_chat(True).messages == ({"role": "user", "content": "go on"},)
    assert chat.as_chat(False).text == "a\n\nb"


def test_tools_reach_the_template() -> None:
    """A template with tools writes them into the prompt."""
    tool = {"type": "function", "function": {"name": "add_up", "parameters": {"type": "object"}}}
    plain = Prompt("m", "c", ({"role": "user", "content": "a"},))
    with_tools = replace(plain, tools=(tool,))
    with Model(model_path("llama")) as model:
        shows = ChatTemplate("{{ messages[0].content }}{{ tools | tojson if tools }}")
        silent = ChatTemplate("{{ messages[0].content }}")
        assert plain.tokens(model.vocab, shows) == plain.tokens(model.vocab, silent)
        assert with_tools.tokens(model.vocab, silent) == plain.tokens(model.vocab, silent)
        assert len(with_tools.tokens(model.vocab, shows)) > len(plain.tokens(model.vocab, shows))
