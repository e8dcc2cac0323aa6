"""The page reports faults and stays usable: connections, keys, bounds, storage."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.chat_page import ChatPage
from tests.browser.conftest import DRAFT, OPTIONS, Open
from tests.browser.serving import Server

QUESTION = "Write a long story about a fox who learns to read."
BROKEN = ("The connection broke before the answer was complete.",
          "The connection ended before the answer was complete.")  # fmt: skip
UNREACHED = "The server cannot be reached. Is it running?"
KEY = "a-key-of-the-tests"


def notice(page: ChatPage) -> str:
    """The notice of the last answer."""
    return str(page.answers.last.locator(".notice").inner_text())


def forget_refused_connections(page: ChatPage) -> None:
    """The browser writes down each connection that fails: here it is meant to."""
    page.faults = [one for one in page.faults if "net::ERR_" not in one]


def test_a_server_that_dies_in_the_middle(open_page: Open, smollm2_q4_0: Path) -> None:
    server = Server(smollm2_q4_0, str(DRAFT), *OPTIONS)
    try:
        page = open_page(url=server.url)
        page.set(max_tokens="1900")
        page.ask(QUESTION)
        page.wait_for_tokens(4)
        server.kill()
        page.wait_for_end(timeout_s=30)
        assert notice(page) in BROKEN
        n_tokens, begin = len(page.tokens()), page.text()
        assert n_tokens >= 4
        expect(page.status).to_contain_text("The answer ended with an error")
        # What came is kept, over a failed try too; and once the server is back all goes on.
        page.ask("Are you there?")
        page.wait_for_end()
        assert notice(page) == UNREACHED
        assert page.text(0) == begin
        server.start()
        page.set(max_tokens="8")
        page.questions.last.get_by_role("button", name="Ask again").click()
        page.wait_for_end()
        assert page.text() and not page.answers.last.locator(".notice.error").is_visible()
        said = [one["content"] for one in page.bodies()[-1]["messages"]]
        assert said == [QUESTION, begin, "Are you there?"]
        forget_refused_connections(page)
    finally:
        server.kill()


def test_a_server_that_falls_silent(open_page: Open, smollm2_q4_0: Path) -> None:
    """The page notices silence: a lost connection looks the same until TCP gives up."""
    server = Server(smollm2_q4_0, str(DRAFT), *OPTIONS)
    try:
        page = open_page(url=server.url)
        page.page.clock.install()
        page.page.reload()
        page.set(max_tokens="60")
        page.ask(QUESTION)
        page.wait_for_tokens(4)
        server.process.send_signal(signal.SIGSTOP)
        page.page.clock.fast_forward(60_000)
        silent = page.answers.last.locator(".notice")
        expect(silent).to_contain_text("Nothing has come from the server for a while.")
        expect(page.status).to_contain_text("Nothing has come from the server for a while.")
        server.process.send_signal(signal.SIGCONT)
        page.wait_for_end()
        expect(silent).not_to_contain_text("Nothing has come")
        assert page.text() == server.text(QUESTION, max_tokens=60)
    finally:
        server.kill()


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("", BROKEN[1]),
        ('data: {"error": {"message": "the memory is full"}}\n\ndata: [DONE]\n\n',
         "the memory is full"),
    ],
)  # fmt: skip
def test_streams_that_end_too_early_or_are_none(open_page: Open, body: str, what: str) -> None:
    page = open_page()
    page.page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(body=body, content_type="text/event-stream"),
    )
    page.ask("one")
    page.wait_for_end()
    assert notice(page) == what
    assert "error" in (page.answers.last.locator(".notice").get_attribute("class") or "")
    expect(page.send).to_be_enabled()


@pytest.mark.parametrize(
    ("status", "headers", "body", "what"),
    [
        (429, {"Retry-After": "7"}, "{}",
         "The server has too much to do at the moment. Try again in 7 s."),
        (401, {}, '{"error": {"message": "an API key is needed"}}',
         "The server asks for an API key, or for another one: give it under Settings."),

    ],
)  # fmt: skip
def test_refusals(
    open_page: Open, status: int, headers: dict[str, str], body: str, what: str
) -> None:
    page = open_page()
    page.page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(status=status, headers=headers, body=body),
    )
    page.ask("one")
    page.wait_for_end()
    assert notice(page) == what
    page.faults = [one for one in page.faults if f"status of {status}" not in one]


@pytest.mark.parametrize(
    ("name", "value"),
    [("max-tokens", "2.5"), ],
)  # fmt: skip
def test_settings_out_of_bounds_are_not_sent(open_page: Open, name: str, value: str) -> None:
    page = open_page()
    page.set(**{"max_tokens": "4", name.replace("-", "_"): value})
    page.ask("one")
    assert page.bodies() == [] and page.questions.count() == 0
    expect(page.message).to_have_value("one")
    field = page.page.locator(f"#{name}")
    expect(field).to_be_visible()
    expect(field).to_be_focused()
    field.fill("5")
    page.message.press("Enter")
    page.wait_for_end()
    assert len(page.bodies()) == 1


def test_a_key_stays_in_the_tab(open_page: Open, smollm2_q4_0: Path) -> None:
    server = Server(smollm2_q4_0, "none", key=KEY)
    try:
        page = open_page(url=server.url)
        asked = "The server asks for an API key, or for another one: give it under Settings."
        expect(page.page.locator("#facts")).to_have_text(asked)
        field = page.page.get_by_label("API key")
        expect(field).to_be_visible()
        page.ask("one")
        page.wait_for_end()
        assert notice(page) == asked
        field.fill("a wrong one")
        field.press("Tab")
        expect(page.page.locator("#facts")).to_have_text(asked)
        field.fill(KEY)
        field.press("Tab")
        expect(page.page.locator("#facts")).to_contain_text(smollm2_q4_0.name)
        page.set(max_tokens="4")
        assert page.answered("Name a fruit.")
        page.page.reload()
        assert page.answered("Another one.")
        # Where it is, and where it is not.
        kept: dict[str, str] = page.page.evaluate("({ ...sessionStorage })")
        assert [name for name, value in kept.items() if KEY in value] == ["pyllama_spec.key"]
        assert page.page.evaluate("localStorage.length + document.cookie.length") == 0
        assert not any(KEY in one.url or KEY in (one.post_data or "") for one in page.requests)
        other = open_page(url=server.url, context=page.page.context)
        expect(other.page.get_by_label("API key")).to_have_value("")
        other.check()
    finally:
        server.kill()


def test_a_conversation_that_no_storage_holds_goes_on(open_page: Open) -> None:
    page = open_page()
    page.set(max_tokens="4")
    page.page.evaluate("sessionStorage.setItem('full', 'x'.repeat(5 * 1024 * 1024 - 2000))")
    assert page.answered("fox " * 400)
    expect(page.page.locator("#unsaved")).to_be_visible()
    page.page.evaluate("sessionStorage.removeItem('full')")
    page.answered("Another one.")
    expect(page.page.locator("#unsaved")).to_be_hidden()
