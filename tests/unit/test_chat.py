"""Chat templates: output, forbidden operations, and messages that imitate them."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
from typing import Any

import pytest

from pyllama_spec import ArgumentError, ChatTemplate, Llama, UnsupportedError
from pyllama_spec.engine import Model
from tests.faces.tools import GREEDY, open_tiny
from tests.models import BOS, CHATML_TEMPLATE, model_path

USER = {"role": "user", "content": "Hi  "}
LIST = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"


def render(source: str, messages: Any = (USER,), **variables: Any) -> str:
    template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
    return template.render(list(messages), **variables).text


def test_a_text_of_brackets_and_separators_is_a_text() -> None:
    """A pasted log opens brackets that nothing closes; split takes linear time."""
    log = "\x1b[31m([{:(" * 400 + "</think>" * 20_000 + "end"
    for source in ("{{ messages[0].content }}", "{{ messages[0].content.split('</think>')|last }}"):
        rendered = ChatTemplate(source).render([{"role": "user", "content": log}])
        assert rendered.text in (log, "end")


def test_what_templates_are_given() -> None:
    assert render("{{ bos_token }}{{ eos_token }}{{ add_generation_prompt }}") == "<s></s>True"
    assert render("{{ messages | tojson }}") == json.dumps([USER], ensure_ascii=False)
    assert render("{{ 'é<&>' | tojson }}") == '"é<&>"'
    assert render("{{ {'a': 1} | tojson(indent=2) }}") == '{\n  "a": 1\n}'
    assert render("{{ strftime_now('%Y') }}") == dt.datetime.now().strftime("%Y")
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert render("{% for t in tools %}{{ t.function.name }}{% endfor %}", tools=tools) == "f"
    assert render("{{ tools is none }}") == "True"
    assert render("{{ enable_thinking }}", enable_thinking=False) == "False"
    assert render("{{ enable_thinking is defined }}") == "False"
    assert render("{% set ns = namespace(n=0) %}{% set ns.n = 3 %}{{ ns.n }}") == "3"


def test_content_in_parts() -> None:
    parts = {
        "role": "user",
        "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
    }
    assert render(LIST, [parts]) == "[user:ab]"
    # A template that reads parts gets parts.
    source = "{% for m in messages %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endfor %}"
    assert render(source, [USER]) == "<Hi  >"
    assert render(source, [parts]) == "<ab>"
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    with pytest.raises(UnsupportedError, match="image_url"):
        render(LIST, [image])


def test_nulls_are_absent_and_a_cut_call_is_empty() -> None:
    """What clients dump with nulls, and what max_tokens cut, is taken back."""
    call = {"id": None, "type": None, "function": {"name": "f", "arguments": '{"path": "/'}}
    messages = [
        {**USER, "name": None}, {"role": "assistant", "content": None, "refusal": None},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "assistant", "content": "", "reasoning_content": None, "tool_calls": [call]},
    ]  # fmt: skip
    function = {"name": "f", "arguments": "{}"}
    assert json.loads(render("{{ messages | tojson }}", messages)) == [
        USER, {"role": "assistant", "content": ""}, {"role": "assistant", "content": "no"},
        {"role": "assistant", "content": "", "tool_calls": [
            {"type": "function", "function": function}
        ]},
    ]  # fmt: skip


@pytest.mark.parametrize(
    "messages",
    [
        [], "hi", {"role": "user"}, [3], [{"content": "x"}], [{"role": 3, "content": "x"}],
        [{"role": "user"}], [{"role": "user", "content": 3}],
        [{"role": "user", "content": [{"type": "text", "text": 3}]}],
    ],
)  # fmt: skip
def test_malformed_messages(messages: Any) -> None:
    with pytest.raises(ArgumentError):
        ChatTemplate(LIST).render(messages)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}", "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__.keys() }}", "{% include 'secrets' %}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}", "{% import 'os' as os %}",
    ],
)  # fmt: skip
def test_a_template_reaches_nothing_of_python(source: str) -> None:
    with contextlib.suppress(UnsupportedError, ArgumentError):
        assert render(source) == ""


def test_a_template_cannot_change_the_caller_s_messages() -> None:
    messages = [dict(USER)]
    with contextlib.suppress(ArgumentError):
        render("{{ messages.append(1) }}{{ messages.pop(0) }}", messages)
    assert messages == [USER]


@pytest.mark.parametrize(
    "source",
    ["{% for", "{% if %}", "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "a" * 1_100_000],
    ids=["open", "empty", "nested", "long"],
)
def test_what_cannot_be_compiled_is_typed(source: str) -> None:
    with pytest.raises(UnsupportedError, match="give another as chat_template"):
        ChatTemplate(source)


def test_a_broken_template_in_the_file_leaves_completions_alone() -> None:
    with Llama(model_path("llama", chat_template="{% if %}"), n_threads=1) as llm:
        assert llm("the", max_tokens=2)["usage"]["completion_tokens"] == 2
        with pytest.raises(UnsupportedError, match="chat_template"):
            llm.create_chat_completion([USER])


def test_a_model_without_a_template_gets_chatml_and_says_so() -> None:
    with Llama(model_path("llama", chat_template=None), n_threads=1) as llm:
        with pytest.warns(UserWarning, match="no chat template; ChatML"):
            llm.create_chat_completion([USER], max_tokens=1)
        assert llm.template.render([USER]).text == (
            "<|im_start|>user\nHi  <|im_end|>\n<|im_start|>assistant\n"
        )


def test_bos_is_not_doubled() -> None:
    vocab = Model(model_path("llama"), vocab_only=True).vocab
    source = "{{ bos_token }}" + CHATML_TEMPLATE
    template = ChatTemplate(source, bos_token="<|bos|>")
    rendered = template.render([USER])
    assert rendered.tokenize(vocab).count(BOS) == 1
    vocab.adds_bos = True
    assert rendered.tokenize(vocab).count(BOS) == 1
    plain = ChatTemplate(CHATML_TEMPLATE, bos_token="<|bos|>").render([USER])
    assert plain.tokenize(vocab)[0] == BOS
    assert plain.tokenize(vocab).count(BOS) == 1


def test_harmless_text_is_tokenized_as_a_whole() -> None:
    model = Model(model_path("llama"), vocab_only=True)
    # "the" across the border of template and message: one token, as training had it.
    template = ChatTemplate("{% for m in messages %}t{{ m.content }}{% endfor %}")
    rendered = template.render([{"role": "user", "content": "he"}])
    assert rendered.spans
    assert rendered.tokenize(model.vocab) == model.vocab.tokenize("the")


def test_chat_answers_and_options_of_the_template() -> None:
    source = (
        CHATML_TEMPLATE + "{% if not enable_thinking %}no{% endif %}{{ (tools or []) | length }}"
    )
    with open_tiny(chat_template=source) as llm:
        tools = [{"type": "function", "function": {"name": "f"}}]
        kwargs = {"enable_thinking": False}
        generation = llm.generate_chat_steps(
            [USER], tools=tools, chat_template_kwargs=kwargs, max_tokens=1
        )
        text = llm.detokenize(generation.record.prompt_tokens, special=True).decode()
        assert text.endswith("assistant\nno1")
        response = llm.create_chat_completion(
            [USER], chat_template_kwargs=kwargs, max_tokens=3, **GREEDY
        )
        shorter = llm.generate_chat_steps([USER], chat_template_kwargs=kwargs, max_tokens=1)
        assert response["usage"]["prompt_tokens"] == len(shorter.record.prompt_tokens)
        with pytest.raises(ArgumentError):
            llm.create_chat_completion([USER], chat_template_kwargs={"messages": []})
        with pytest.raises(ArgumentError):
            llm.create_chat_completion([USER], tool_choice={"type": "function"})
