"""Options of chats: continuing a message, and bounding thoughts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pyllama_spec import ArgumentError, Llama, UnsupportedError
from pyllama_spec.chat.template import ChatTemplate, render_continued
from tests.faces.families import templates
from tests.faces.tools import Forced, counts_of, drafters, open_tiny
from tests.models import IM_END, IM_START

_HEAD = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and m.reasoning_content %}"
    "<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n"
)
# The model opens its thought by itself, or the prompt has opened it.
THINKS = _HEAD + "{% endif %}{% endif %}"
OPENED = _HEAD + "{% else %}<think>\n{% endif %}{% endif %}"
PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
EFFORT = PLAIN.replace("{% for", "effort {{ reasoning_effort | default('medium') }}\n{% for", 1)
USER = {"role": "user", "content": "is <think> a tag?"}
THOUGHT, ANSWER = b"one two three", b" four"
# As the vocabulary has it: "th" and "in" are tokens.
CLOSE = (60, 47, 260, 262, 107, 62)


def opened(*options: Any, **more: Any) -> Any:
    """open_tiny(), whose calls are checked by what they give."""
    return open_tiny(*options, **more)


def prompt_of(llm: Llama, messages: list[dict[str, Any]], **options: Any) -> tuple[int, ...]:
    generation = llm.generate_chat_steps(messages, **options)
    generation.close()
    return generation.record.prompt_tokens


def text_of(response: dict[str, Any]) -> str:
    message = response["choices"][0]["message"]
    return (message.get("reasoning_content") or "") + "|" + (message["content"] or "")


def streamed(llm: Llama, messages: list[dict[str, Any]], **options: Any) -> str:
    texts = {"reasoning_content": "", "content": ""}
    for chunk in llm.create_chat_completion(messages, stream=True, **options):
        for name in texts:
            texts[name] += chunk["choices"][0]["delta"].get(name) or ""
    return "|".join(texts.values())


# ---- a budget of thinking tokens


@pytest.mark.parametrize("budget", [*range(0, 14, 3), 100, -1, None])
@pytest.mark.parametrize("template", [THINKS, OPENED], ids=["thinks", "opened"])
def test_thoughts_end_where_the_budget_does(template: str, budget: int | None) -> None:
    is_open = template is OPENED
    said = (b"" if is_open else b"<think>") + THOUGHT
    n = len(THOUGHT) if budget in (-1, None) else min(budget, len(THOUGHT))
    script = [*said[: len(said) - len(THOUGHT) + n], *CLOSE, *ANSWER]
    with opened(chat_template=template) as llm:
        prompt = prompt_of(llm, [USER])
        text = llm.detokenize(script).decode()
    at = len(said) - len(THOUGHT) + n
    is_cut = n < len(THOUGHT)
    dictated = [*script[:at], *(b"x" * len(CLOSE) if is_cut else CLOSE), *ANSWER]
    for draft in drafters([*prompt, *script]):
        with opened(draft, chat_template=template) as llm:
            options: dict[str, Any] = {
                "max_tokens": None, "thinking_token_budget": budget, "temperature": 0,
                # At the thought's cut it dictates another letter: the budget goes over it.
                "logits_processor": Forced(len(prompt), dictated),
            }  # fmt: skip
            response = llm.create_chat_completion([USER], **options)
            assert text_of(response) == "|" + text
            assert streamed(llm, [USER], **options) == text_of(response)
            parsed = llm.create_chat_completion([USER], reasoning_format="auto", **options)
            assert parsed["choices"][0]["message"]["content"].strip() == ANSWER.decode().strip()
            thought = parsed["choices"][0]["message"].get("reasoning_content", "")
            assert thought.strip() == THOUGHT[:n].decode().strip()


@pytest.mark.parametrize("form", ["schema", "gbnf", "regex"])
def test_a_grammar_is_of_the_answer_behind_the_thought(form: str) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    forms: dict[str, dict[str, Any]] = {
        "schema": {"response_format": {"type": "json_object", "schema": schema}},
        "gbnf": {"grammar": 'root ::= "{\\"a\\":" [12] "}"'},
        "regex": {"response_format": {"type": "regex", "pattern": r'\{"a":[12]\}'}},
    }
    texts = set()
    for draft in (None, "grammar", "prompt-lookup"):
        with opened(draft, chat_template=OPENED) as llm:
            options: dict[str, Any] = {
                "thinking_token_budget": 9, "max_tokens": 60, "seed": 5, **forms[form],
            }  # fmt: skip
            response = llm.create_chat_completion([USER], **options)
            text = response["choices"][0]["message"]["content"]
            thought, _, answer = text.partition("</think>")
            assert json.loads(answer)["a"] in (1, 2)
            assert thought
            assert streamed(llm, [USER], **options) == "|" + text
            texts.add(text)
    assert len(texts) == 1


# ---- reasoning_effort


def test_an_effort_is_told_to_a_template_that_reads_it() -> None:
    with opened(chat_template=EFFORT) as llm:
        texts = {
            effort: llm.detokenize(prompt_of(llm, [USER], reasoning_effort=effort))
            for effort in (None, "none", "minimal", "low", "high", "xhigh")
        }
        assert texts[None].startswith(b"effort medium\n")
        for effort in ("none", "minimal", "low", "high", "xhigh"):
            assert texts[effort].startswith(f"effort {effort}\n".encode())
        own = prompt_of(
            llm, [USER], reasoning_effort="low", chat_template_kwargs={"reasoning_effort": "high"}
        )
        assert own == prompt_of(llm, [USER], reasoning_effort="high")


@pytest.mark.parametrize("parsed", [{}, {"reasoning_format": "auto"}])
def test_an_effort_is_a_switch_or_a_budget_elsewhere(parsed: dict[str, Any]) -> None:
    with opened(chat_template=OPENED, n_ctx=512) as llm:

        def n_thought(effort: str | None, **more: Any) -> int:
            response = llm.create_chat_completion(
                [USER], reasoning_effort=effort, max_tokens=300, temperature=0, ignore_eos=True,
                return_token_ids=True, **parsed, **more,
            )  # fmt: skip
            ids, close = response["choices"][0]["token_ids"], llm.tokenize("</think>", False)
            at = (i for i in range(len(ids)) if ids[i : i + len(close)] == close)
            return next(at, len(ids))

        assert n_thought("minimal") == 128
        assert n_thought("minimal", thinking_token_budget=7) == 7
        assert n_thought("low") == 300  # 1,024 are more than it may say
        assert n_thought("xhigh") == 300
        # "none" switches thoughts off where the template has a switch.
        off = prompt_of(llm, [USER], reasoning_effort="none")
        assert off == prompt_of(llm, [USER], chat_template_kwargs={"enable_thinking": False})
        assert off != prompt_of(llm, [USER])


# ---- going on with the last message


@pytest.mark.parametrize("content", ["Well, the", " Sure", "two\nlines ", "é 🙂", "<|im_end|>x"])
@pytest.mark.parametrize("template", [THINKS, OPENED, PLAIN], ids=["thinks", "opened", "plain"])
def test_a_prompt_ends_with_the_last_messages_text(template: str, content: str) -> None:
    last = {"role": "assistant", "content": content}
    with opened(chat_template=template) as llm:
        prompt = prompt_of(llm, [USER, last], continue_final_message=True)
        shown = content.lstrip() if template is PLAIN else content
        head = llm.tokenize("<|im_start|>user\nis <think> a tag?<|im_end|>\n", False, special=True)
        head += llm.tokenize("<|im_start|>assistant\n", False, special=True)
        assert (
            list(prompt) == [*head, *shown.encode()]
            or llm.detokenize(prompt, special=True)
            == llm.detokenize(head, special=True) + shown.encode()
        )
        # What the caller wrote is not a control token.
        assert [t for t in prompt if t in (IM_START, IM_END)] == [IM_START, IM_END, IM_START]
        same = prompt_of(
            llm, [USER, last], continue_final_message=True, add_generation_prompt=False
        )
        assert same == prompt
        assert prompt_of(llm, [USER, last]) != prompt


@pytest.mark.parametrize("more", [{}, {"reasoning_format": "auto"}], ids=["plain", "parsed"])
@pytest.mark.parametrize("template", [THINKS, PLAIN], ids=["thinks", "plain"])
def test_an_answer_goes_on_where_it_was_cut(template: str, more: dict[str, Any]) -> None:
    with opened(chat_template=template, seed=1) as llm:
        messages = [USER, {"role": "assistant", "content": "Well, the "}]
        options: dict[str, Any] = {"temperature": 0, "continue_final_message": True, **more}
        response = llm.create_chat_completion(messages, max_tokens=12, **options)
        text = response["choices"][0]["message"]["content"]
        # The text is what is new, in a stream too.
        assert not text.startswith("Well")
        assert counts_of(response)["completion_tokens"] == 12
        assert streamed(llm, messages, max_tokens=12, **options) == "|" + text
        if not more:
            generation = llm.generate_steps(
                list(prompt_of(llm, messages, continue_final_message=True)), max_tokens=12,
                temperature=0,
            )  # fmt: skip
            list(generation)
            assert generation.record.text == text


@pytest.mark.slow
def test_families_templates_end_with_the_last_messages_text() -> None:
    n_shown = 0
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well, the"}]
    for name, source in templates().items():
        template = ChatTemplate(source, bos_token="<|bos|>", eos_token="<|im_end|>")
        try:
            template.render(messages)
        except ArgumentError:  # one that is for tools alone, or takes no such chat
            continue
        rendered = render_continued(template, messages, None, {})
        assert rendered.text.endswith("Well, the"), name
        whole = template.render(messages, add_generation_prompt=False).text
        n_shown += whole.startswith(rendered.text)
        # Its text is the caller's, to the last character.
        if rendered.located == "all":
            assert rendered.spans[-1][1] == len(rendered.text), name
    assert n_shown > 40


@pytest.mark.parametrize("more", [{}, {"reasoning_format": "auto"}], ids=["plain", "parsed"])
@pytest.mark.parametrize(
    ("last", "options"),
    [
        (USER, {}), ({"role": "assistant", "tool_calls": [{}]}, {}),
        ({"role": "assistant", "content": "a"}, {"continue_final_message": "reasoning_content"}),
        ({"role": "assistant", "content": "a"}, {"add_generation_prompt": True}),
    ],
)  # fmt: skip
def test_what_cannot_go_on_is_refused(
    last: dict[str, Any], options: dict[str, Any], more: dict[str, Any]
) -> None:
    with (
        opened(chat_template=PLAIN) as llm,
        pytest.raises((ArgumentError, UnsupportedError), match=r"continue_final_message|message"),
    ):
        llm.create_chat_completion(
            [USER, last], **{"continue_final_message": True, **options, **more}, max_tokens=1
        )
