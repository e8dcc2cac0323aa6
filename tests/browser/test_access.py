"""The page with the keyboard alone, on a narrow screen, in light and dark, in screen readers."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.browser.chat_page import NARROW, WIDE, ChatPage
from tests.browser.conftest import Open

QUESTION = "Count from 1 to 20, with commas."
FOCUSED = """() => {
    const one = document.activeElement;
    return one.getAttribute("aria-label") || one.id || one.textContent.trim() || one.tagName;
}"""


def tabs_until(page: ChatPage, name: str, key: str = "Tab") -> list[str]:
    """The focused elements, key by key, until one with this name."""
    names: list[str] = []
    while name not in names:
        assert len(names) < 40, names
        page.page.keyboard.press(key)
        names.append(page.page.evaluate(FOCUSED))
        # Whoever moves by keyboard has to see where.
        width = page.page.evaluate("getComputedStyle(document.activeElement).outlineWidth")
        assert float(width.removesuffix("px")) >= 2, names
    return names


def test_a_chat_by_keyboard_alone(open_page: Open) -> None:
    page = open_page()
    keyboard = page.page.keyboard
    assert tabs_until(page, "To the message") == ["To the message"]
    keyboard.press("Enter")
    expect(page.message).to_be_focused()
    tabs_until(page, "Settings", "Shift+Tab")
    keyboard.press("Enter")
    names = tabs_until(page, "max-tokens")
    assert names == ["system", "temperature", "max-tokens"]
    keyboard.press("ControlOrMeta+A")
    keyboard.type("1500")
    tabs_until(page, "message")
    keyboard.type("Write a long story.")
    keyboard.press("Enter")
    page.wait_for_tokens(2)
    tabs_until(page, "stop")
    keyboard.press("Enter")
    page.wait_for_end(timeout_s=30)
    expect(page.message).to_be_focused()
    # Edit the question, and let it be asked with and without a draft.
    tabs_until(page, "max-tokens", "Shift+Tab")
    keyboard.press("ControlOrMeta+A")
    keyboard.type("12")
    tabs_until(page, "beside")
    keyboard.press("Space")
    expect(page.beside).to_be_checked()
    tabs_until(page, "Edit", "Shift+Tab")
    keyboard.press("Enter")
    keyboard.press("ControlOrMeta+A")
    keyboard.type(QUESTION)
    keyboard.press("Enter")
    page.wait_for_end()
    assert page.questions.count() == 1 and page.answers.count() == 2
    assert page.questions.first.locator(".text").inner_text() == QUESTION
    expect(page.message).to_be_focused()
    tabs_until(page, "new", "Shift+Tab")
    keyboard.press("Enter")
    assert page.questions.count() == 0
    expect(page.message).to_be_focused()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_rules_of_accessibility(open_page: Open, scheme: str, size: tuple[int, int]) -> None:
    # The checker is a script that is not part of the page.
    page = open_page(color_scheme=scheme, size=size, bypass_csp=True)
    page.set(max_tokens="24")
    states = ["empty", "settings", "beside", "edit"]
    for state in states:
        if state == "settings":
            page.page.locator("#settings summary").click()
        elif state == "beside":
            page.beside.check()
            page.answered(QUESTION)
        elif state == "edit":
            page.questions.first.get_by_role("button", name="Edit").click()
        result = Axe().run(page.page, options={"runOnly": [
            "wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice",
        ]})  # fmt: skip
        assert result.violations_count == 0, (state, result.generate_report())


def test_a_screen_reader_is_told_the_course_and_not_each_token(open_page: Open) -> None:
    page = open_page()
    page.set(max_tokens="24")
    page.page.evaluate(
        """() => {
            window.said = [];
            const status = document.getElementById("status");
            new MutationObserver(() => window.said.push(status.textContent))
                .observe(status, { childList: true, characterData: true, subtree: true });
        }"""
    )
    page.ask(QUESTION)
    page.answers.first.wait_for()
    page.wait_for_end()
    said: list[str] = page.page.evaluate("window.said")
    assert said[0] == "The answer begins." and said[-1].startswith("The answer is complete: ")
    assert len(said) <= 3
    assert page.answers.first.get_attribute("aria-busy") == "false"
    live = page.page.locator("[aria-live], [role=log], [role=status], [role=alert]")
    assert live.count() == 1
    # What the page is made of has names.
    assert page.page.get_by_role("heading", level=1).inner_text() == "pyllama_spec"
    for role in ("main", "banner"):
        assert page.page.get_by_role(role).count() == 1
