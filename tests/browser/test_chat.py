"""A chat: typing, asking, showing, stopping, keeping and comparing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.chat_page import NARROW, WIDE
from tests.browser.conftest import DRAFT, Open
from tests.browser.serving import Server

COUNT = "Count from 1 to 20, with commas."
LONG = "Write a long story about a fox who learns to read."
OWL = "Write a long story about an owl who cannot sleep."


def test_an_answer_is_that_of_the_server_and_its_tokens_have_sources(
    open_page: Open, server: Server
) -> None:
    page = open_page()
    page.set(max_tokens="32")
    # A second answer would be copied from a first that is remembered.
    told = server.chat(OWL, max_tokens=32, remember=False)
    assert page.answered(OWL) == told["choices"][0]["message"]["content"]
    tokens = page.tokens()
    # In one paragraph all signs are shown.
    assert "".join(text for text, _ in tokens) == page.text()
    sources = {source for _, source in tokens}
    assert "target" in sources and "model" in sources and "other" not in sources
    # The figures are those of the answer, and a screen reader is told them.
    n_tokens = told["usage"]["completion_tokens"]
    figures = page.answers.first.locator(".figures").inner_text()
    assert figures.startswith(
        f"{n_tokens} tokens · {told['speculation']['tokens_per_round']:.2f} per round · "
    )
    assert sum(source != "target" for _, source in tokens) == told["speculation"]["accepted"]
    n_drafted = sum(source == "model" for _, source in tokens)
    assert f"{n_drafted} by the draft's head or model" in figures
    expect(page.status).to_contain_text(f"The answer is complete: {n_tokens} tokens")
    # Each token says in words what its colour says.
    title = page.answers.first.locator(".by-model").first.get_attribute("title")
    assert title is not None and title.startswith("the draft's head or model; round ")
    n_rounds = told["speculation"]["rounds"]
    label = page.answers.first.locator("svg.rounds").get_attribute("aria-label") or ""
    assert label.startswith(f"Plot of {n_rounds} rounds: ")
    assert page.answers.first.locator("svg.rounds rect").count() >= n_rounds - 1
    points = page.answers.first.locator("svg.speed polyline").get_attribute("points") or ""
    assert len(points.split()) > 2


def test_stop_by_the_button_and_by_escape(open_page: Open, server: Server) -> None:
    page = open_page()
    page.set(max_tokens="1900")
    for way in ("button", "key"):
        page.ask(LONG)
        page.wait_for_tokens(3)
        if way == "button":
            page.stop.click()
        else:
            page.page.keyboard.press("Escape")
        page.wait_for_end(timeout_s=30)
        expect(page.answers.last.locator(".notice")).to_have_text("The answer was stopped here.")
        expect(page.status).to_contain_text("Stopped: ")
        expect(page.message).to_be_focused()
        assert 3 <= len(page.tokens()) < 1900
    # What was shown is what the model says, and the server has its places back.
    begin = page.text(0)
    whole = server.text(LONG, max_tokens=len(page.tokens(0)))
    assert whole.startswith(begin)
    page.set(max_tokens="4")
    assert page.answered(COUNT)


def test_a_reload_keeps_the_conversation_and_the_settings(open_page: Open) -> None:
    page = open_page()
    page.set(max_tokens="24", temperature="0", seed="11", system="Be brief.")
    page.answered(COUNT)
    before = page.tokens()
    figures = page.answers.first.locator(".figures").inner_text()
    page.beside.check()
    page.page.reload()
    assert page.tokens() == before
    assert page.answers.first.locator(".figures").inner_text() == figures
    assert page.questions.first.locator(".text").inner_text() == COUNT
    expect(page.beside).to_be_checked()
    values = {name: page.page.locator(f"#{name}").input_value() for name in ("system", "seed")}
    assert values == {"system": "Be brief.", "seed": "11"}
    # What was said before goes into the next request.
    page.beside.uncheck()
    page.answered("Go on.")
    roles = [one["role"] for one in page.bodies()[-1]["messages"]]
    assert roles == ["system", "user", "assistant", "user"]


def test_a_reload_in_the_middle_keeps_what_came(open_page: Open, server: Server) -> None:
    page = open_page()
    page.set(max_tokens="1900")
    page.ask(LONG)
    page.wait_for_tokens(8)
    page.page.reload()
    assert len(page.tokens()) >= 1
    expect(page.answers.last.locator(".notice")).to_have_text("The answer was stopped here.")
    expect(page.answers.last).to_have_attribute("aria-busy", "false")
    expect(page.send).to_be_enabled()
    assert server.text(LONG, max_tokens=400).startswith(page.text())


def test_edit_and_ask_again(open_page: Open, server: Server) -> None:
    page = open_page()
    page.set(max_tokens="16")
    for question in ("Name a colour.", "Name a city.", "Name a tree."):
        page.answered(question)
    second = page.questions.nth(1)
    second.get_by_role("button", name="Edit").click()
    field = second.get_by_role("textbox", name="Your message")
    expect(field).to_be_focused()
    expect(field).to_have_value("Name a city.")
    field.press("Escape")
    expect(second.get_by_role("button", name="Edit")).to_be_focused()
    assert page.questions.count() == 3
    second.get_by_role("button", name="Edit").click()
    field.fill("Name a river.")
    second.get_by_role("button", name="Send again").click()
    page.wait_for_end()
    assert page.questions.count() == 2
    said = [one["content"] for one in page.bodies()[-1]["messages"]]
    assert said == ["Name a colour.", page.text(0), "Name a river."]
    # Without a change: the same once more.
    page.questions.first.get_by_role("button", name="Ask again").click()
    page.wait_for_end()
    assert page.questions.count() == 1
    assert page.text() == server.text("Name a colour.", max_tokens=16)


def test_the_same_without_a_draft_beside_it(open_page: Open) -> None:
    page = open_page()
    page.set(max_tokens="40", temperature="0.8")
    page.beside.check()
    page.answered(COUNT)
    assert page.answers.count() == 2
    drafted, plain = page.bodies()
    assert plain["speculation"]["draft"] is False and "draft" not in drafted["speculation"]
    # Chance has to be the same in both.
    assert isinstance(drafted["seed"], int) and drafted["seed"] == plain["seed"]
    assert {source for _, source in page.tokens(1)} == {"target"}
    assert page.text(0) == page.text(1)
    same = f"✓ Both texts are the same: {len(page.text())} characters."
    expect(page.comparison).to_have_text(same)
    expect(page.status).to_contain_text("Both texts are the same")
    boxes = [page.answers.nth(i).bounding_box() for i in (0, 1)]
    assert boxes[0] and boxes[1]
    assert boxes[0]["y"] == boxes[1]["y"] and boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"]
    # Both have plots of the same scale.
    labels = [page.answers.nth(i).locator("figcaption").all_inner_texts() for i in (0, 1)]
    assert labels[0] == labels[1] and labels[0][0].startswith("tokens/round, up to ")
    page.page.set_viewport_size({"width": NARROW[0], "height": NARROW[1]})
    boxes = [page.answers.nth(i).bounding_box() for i in (0, 1)]
    assert boxes[0] and boxes[1] and boxes[0]["x"] == boxes[1]["x"]
    assert boxes[0]["y"] + boxes[0]["height"] <= boxes[1]["y"]
    page.page.set_viewport_size({"width": WIDE[0], "height": WIDE[1]})
    page.page.reload()
    expect(page.comparison).to_have_text(same)


def streamed(*chunks: dict[str, Any]) -> str:
    """A stream of these choices, as a server with other things to tell would send it."""
    events = [json.dumps({"choices": [{"index": 0, **one}]}) for one in chunks]
    return "".join(f"data: {one}\n\n" for one in [*events, "[DONE]"])


def test_a_server_without_sources_gives_text_and_thoughts(open_page: Open) -> None:
    page = open_page()
    body = streamed(
        {"delta": {"reasoning_content": "so <b>it</b> is"}}, {"delta": {"content": "a <i>b</i>"}}
    )
    page.page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(body=body, content_type="text/event-stream"),
    )
    assert page.answered("one") == "a <i>b</i>"
    answer = page.answers.first
    assert answer.locator(".token").count() == 0
    expect(answer.locator(".plots")).to_be_hidden()
    thought = answer.locator(".thought")
    thought.locator("summary").click()
    expect(thought.locator("p")).to_have_text("so <b>it</b> is")


MARKDOWN = """Here **is** it:

- `one`
- [two](https://example.org/x)

```python
def f(a_long_name):
    return "<b>" * 100, "a line that is longer than a telephone is wide"
```

| a | b |
|---|---|
| 1 | 2 |
"""


@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_markdown_is_shown_as_such_in_the_colours_of_its_drafters(
    open_page: Open, size: tuple[int, int]
) -> None:
    page = open_page(size=size)
    pieces = re.findall(r"\w+|\W", MARKDOWN)
    sources = [{"text": one, "source": "copy" if one == "one" else "target"} for one in pieces]
    body = streamed({"delta": {"content": MARKDOWN}, "token_sources": sources})
    page.page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(body=body, content_type="text/event-stream"),
    )
    assert page.answered("one") == MARKDOWN
    shown = page.answers.first.locator(":scope > .text")
    expect(shown.locator("strong")).to_have_text("is")
    expect(shown.locator("li")).to_have_text(["one", "two"])
    expect(shown.locator("li code .token")).to_have_class("token by-copy")
    expect(shown.get_by_role("link")).to_have_attribute("href", "https://example.org/x")
    expect(shown.locator("td")).to_have_text(["1", "2"])
    code = shown.locator("pre code")
    font = code.evaluate("(one) => getComputedStyle(one).fontFamily")
    assert font == "ui-monospace, monospace"
    shown.locator(".code").get_by_role("button", name="Copy").click()
    lines = MARKDOWN.partition("```python\n")[2].partition("```")[0]
    assert page.page.evaluate("copied") == lines == code.text_content()
    assert page.page.evaluate("document.documentElement.scrollWidth") <= size[0]
    # A page of another machine has no clipboard without TLS, and copies all the same.
    page.page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(0); }")
    copy = page.answers.first.locator(".actions .copy")
    expect(copy).to_have_text("Copy the answer")
    copy.click()
    expect(copy).to_have_text("Copied")
    page.message.fill("")
    page.message.press("Control+v")
    expect(page.message).to_have_value(MARKDOWN)


def test_send_and_stop_are_side_by_side_on_a_telephone(open_page: Open) -> None:
    for width in (NARROW[0], 320):
        page = open_page(size=(width, 700))
        page.set(max_tokens="1900")
        page.ask(LONG)
        page.wait_for_tokens(1)
        send, stop = page.send.bounding_box(), page.stop.bounding_box()
        assert send and stop
        assert abs(send["y"] - stop["y"]) < 1 and send["x"] + send["width"] <= width
        page.stop.click()
        page.wait_for_end(timeout_s=30)


def test_one_of_several_models_answers_and_is_loaded_for_it(
    open_page: Open, smollm2_q4_0: Path, tmp_path: Path
) -> None:
    file = tmp_path / "models.toml"
    file.write_text(f"""
        [defaults]
        model_path = "{smollm2_q4_0}"
        n_ctx = 2048
        controller = "fixed"
        [models.plain]
        [models.drafted]
        draft = "{DRAFT}"
    """)  # fmt: skip
    server = Server(file, "")
    try:
        page = open_page(url=server.url)
        facts = page.page.locator("#facts")
        expect(facts).to_have_text("plain, no draft; it is loaded for its first answer")
        page.page.locator("#settings summary").click()
        page.page.get_by_role("combobox", name="Model").select_option("drafted")
        expect(facts).to_have_text(
            f"drafted, draft: {DRAFT.name}; it is loaded for its first answer"
        )
        page.set(max_tokens="24")
        assert page.answered(COUNT) == server.text(COUNT, max_tokens=24, model="drafted")
        assert page.bodies()[0]["model"] == "drafted"
        assert {"model", "copy"} & {source for _, source in page.tokens()}
        expect(facts).to_have_text("drafted, draft: eagle3")
        page.page.reload()
        expect(facts).to_have_text("drafted, draft: eagle3")
    finally:
        server.kill()


def test_shift_enter_begins_a_line_and_nothing_is_sent_of_nothing(open_page: Open) -> None:
    page = open_page()
    page.set(max_tokens="4")
    page.message.press("Enter")
    page.message.fill("   ")
    page.message.press("Enter")
    page.send.click()
    assert page.bodies() == []
    page.message.fill("")
    page.message.press_sequentially("one")
    page.message.press("Shift+Enter")
    page.message.press_sequentially("two")
    page.message.press("Enter")
    page.wait_for_end()
    assert page.bodies()[0]["messages"][-1]["content"] == "one\ntwo"
    expect(page.message).to_have_value("")


def test_sources_that_are_seldom_or_unknown_have_a_place_in_the_legend(open_page: Open) -> None:
    page = open_page()
    legend = page.page.locator("#legend")
    usual = ["the model itself", "the draft's head or model", "a copy of the text before",
             "the grammar"]  # fmt: skip
    expect(legend.locator("li")).to_have_text(usual)
    sources = [{"text": name, "source": name} for name in ("memory", "wizard", "target")]
    body = streamed({"delta": {"content": "memorywizardtarget"}, "token_sources": sources})
    page.page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(body=body, content_type="text/event-stream"),
    )
    page.answered("one")
    assert page.tokens() == [("memory", "memory"), ("wizard", "other"), ("target", "target")]
    expect(legend.locator("li")).to_have_text(
        [*usual[:3], "a copy of an earlier text", "the grammar", "another drafter"]
    )
    page.page.reload()
    expect(legend.locator("li")).to_have_count(6)
