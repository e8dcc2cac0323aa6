"""The benchmark's prompts, and refused values of its configuration."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyllama_spec.bench import BenchConfig, Prompt, load_prompts, run
from pyllama_spec.chat.prompt_file import read_prompt_file
from pyllama_spec.chat.template import ChatTemplate
from pyllama_spec.engine import Model
from pyllama_spec.errors import ArgumentError, ContextFullError
from tests.bench.tools import LINES, tiny_config, write_prompts
from tests.models import model_path

QUOTED = [
    "Write a quicksort algorithm in Python. Write code only.",
    "Explain the Pythagorean theorem",
    "Plan a 1 day trip to DC",
]


def test_own_prompts_are_four_of_each_category_and_the_quoted_three() -> None:
    prompts = load_prompts()
    assert Counter(prompt.category for prompt in prompts) == {
        "code": 4, "explanation": 4, "planning": 4, "lists": 4, "json": 4, "translation": 4,
        "field": 3,
    }  # fmt: skip
    field = [prompt for prompt in prompts if prompt.category == "field"]
    assert [prompt.messages[0]["content"] for prompt in field] == QUOTED
    texts = [str(prompt.messages) for prompt in prompts]
    assert len(set(texts)) == len(texts)
    assert all(prompt.messages[0]["role"] == "user" and not prompt.text for prompt in prompts)


def test_a_users_file_is_read(tmp_path: Path) -> None:
    path = write_prompts(tmp_path, LINES)
    chat, text = load_prompts(path)
    assert chat == Prompt("chat", "a", tuple(LINES[0]["messages"]))
    assert text == Prompt("text", "b", text="abc abc abc ab")
    # Empty lines, and the mark that some editors put before a text, are not faults.
    path.write_bytes(b"\xef\xbb\xbf" + write_prompts(tmp_path).read_bytes() + b"\n\n")
    assert len(load_prompts(path)) == 2


CHAT = '{"id": "b", "category": "c", "messages": [{"role": "user", "content": "d"}]'
GOOD = '{"id": "a", "category": "c", "prompt": "p"}'


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "not JSON"),
        ("[1]", "expected a JSON object"),
        ('{"id": "b", "category": "c"}', "either 'messages' or 'prompt'"),
        ('{"id": "b", "category": "c", "prompt": "p", "messages": []}', "either"),
        ('{"category": "c", "prompt": "p"}', "'id' is missing"),
        ('{"id": null, "category": "c", "prompt": "p"}', "'id' is None"),
        ('{"id": "b", "category": 3, "prompt": "p"}', "'category' is 3"),
        ('{"id": "b", "category": "c", "prompt": ""}', "'prompt' is ''"),
        ('{"id": "b", "category": "c", "prompt": ["p"]}', "expected a text"),
        ('{"id": "b", "category": "c", "messages": "p"}', "expected a list"),
        ('{"id": "b", "category": "c", "messages": []}', "expected a list"),
        ('{"id": "b", "category": "c", "messages": [{"role": "user"}]}', r"messages\[0\]"),
        ('{"id": "b", "category": "c", "prompt": "p", "tag": 1}', "unknown key 'tag'"),
        ('{"id": "b", "category": "c", "prompt": "p", "tools": [1]}', "needs 'messages'"),
        ('{"id": "\\u001b[31mred", "category": "c", "prompt": "p"}', "'id' is"),
        (f'{{"id": "b", "category": "{"c" * 101}", "prompt": "p"}}', "at most 100"),
        (f'{CHAT}, "tools": []}}', "a list of functions"),
        (f'{CHAT}, "tools": {{}}}}', "a list of functions"),
        (f'{CHAT}, "tools": [1]}}', r"tools\[0\] is 1"),
        (f'{CHAT}, "tools": [{{"function": "f"}}]}}', r"tools\[0\]"),
        (f'{CHAT}, "tools": [{{"function": {{"name": 1}}}}]}}', r"tools\[0\]"),
        (GOOD, "'a' was used before"),
    ],
)  # fmt: skip
def test_a_fault_names_its_line(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(f"{GOOD}\n\n{line}\n", encoding="utf-8")
    with pytest.raises(ArgumentError, match=f"mine.jsonl, line 3: .*{says}"):
        load_prompts(path)


def test_a_line_without_names_is_shown_where_none_are_needed(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "", "id": 2}', encoding="utf-8")
    with pytest.raises(ArgumentError, match="'id' is 2") as said:
        read_prompt_file(path, are_named=False)
    right = str(said.value).partition(". Right lines: ")[2].split(" or ")
    path.write_text("\n".join(right), encoding="utf-8")
    assert len(read_prompt_file(path, are_named=False)) == 2, "what a message shows is right"


@pytest.mark.parametrize(("data", "says"), [(b"\n \n", "holds no prompt"), (b"\xff\xfe", "cannot")])
def test_a_file_without_prompts_says_so(tmp_path: Path, data: bytes, says: str) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_bytes(data)
    with pytest.raises(ArgumentError, match=says):
        load_prompts(path)


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"cannot read the prompts file .*none\.jsonl"):
        load_prompts(tmp_path / "none.jsonl")


def test_the_prompts_of_the_field_are_ten_of_each_category() -> None:
    prompts = load_prompts(Path(__file__).parents[2] / "benchmarks/field_prompts.jsonl")
    assert Counter(prompt.category for prompt in prompts) == dict.fromkeys(
        ("code", "math", "extraction", "chat", "summary", "translation", "json", "tools"), 10
    )
    assert len({prompt.messages[0]["content"] for prompt in prompts}) == len(prompts)
    assert all(bool(prompt.tools) == (prompt.category == "tools") for prompt in prompts)


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


def test_a_prompt_can_be_turned_into_the_other_kind() -> None:
    text = Prompt("t", "c", text="go on")
    chat = Prompt("m", "c", ({"role": "system", "content": "a"}, {"role": "user", "content": "b"}))
    assert text.as_chat(None) is text
    assert chat.as_chat(None) is chat
    assert text.as_chat(False) is text
    assert chat.as_chat(True) is chat
    assert text.as_chat(True).messages == ({"role": "user", "content": "go on"},)
    assert chat.as_chat(False).text == "a\n\nb"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"n_tokens": 1}, "n_tokens=1"),
        ({"repeats": 0}, "repeats=0"),
        ({"seed": -1}, "seed=-1"),
        ({"temperature": -0.5}, "temperature=-0.5"),
        ({"n_draft": -1}, "n_draft=-1"),
        ({"n_threads": 0}, "n_threads=0"),
        ({"chat": "yes"}, "chat must be"),
        ({"synthetic_acceptance": [0.5]}, "synthetic_acceptance must be"),
        ({"synthetic_acceptance": (0.5, 1.5)}, r"synthetic_acceptance\[1\]=1.5"),
        ({"synthetic_acceptance": (0.5,), "n_draft": 2}, "has 1 probabilities"),
        ({"synthetic_acceptance": (0.5,), "lookup": 3}, "lookup=3"),
        ({"synthetic_acceptance": (0.5,), "also": ("none",)}, "one draft"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        BenchConfig(model_path="a.gguf", **options)


@pytest.mark.parametrize("n_ctx", [512, None])
@pytest.mark.parametrize("key", ["prompt", "messages"])
def test_a_prompt_too_long_by_its_bytes_is_not_tokenized(
    n_ctx: int | None, key: str, tmp_path: Path
) -> None:
    """A line of 64 MB is refused by its bytes, even without n_ctx."""
    text = "ab " * (1 << 20)
    content = text if key == "prompt" else [{"role": "user", "content": text}]
    prompts = write_prompts(tmp_path, [LINES[0], {"id": "long", "category": "a", key: content}])
    with pytest.raises(ContextFullError, match="it was not tokenized") as error:
        run(tiny_config(tmp_path, prompts=prompts, n_ctx=n_ctx))
    assert str(error.value).startswith("prompt 'long': Requested tokens (")
