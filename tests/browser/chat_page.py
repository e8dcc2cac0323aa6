"""The page as a reader sees it: its controls by their names, its answers as texts and colours."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, Request, sync_playwright

WIDE, NARROW = (1280, 800), (390, 844)
_KEEP_COPIED = "navigator.clipboard.writeText = async (text) => { globalThis.copied = text; };"
_PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
# What the page itself provokes, and a browser writes down all the same.
_HARMLESS = ("Failed to load resource: the server responded with a status of 4",)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless Chromium, the system's own. Fails where there is none."""
    program = next((path for name in _PROGRAMS if (path := shutil.which(name))), None)
    if program is None:
        raise RuntimeError("there is no Chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        # Its sandbox needs rights that root in a container has not; the page is our own.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


class ChatPage:
    """One tab with the page open."""

    def __init__(self, page: Page, url: str) -> None:
        self.page, self.url = page, url
        self.requests: list[Request] = []
        self.faults: list[str] = []
        page.on("request", self._note_request)
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", self._note)
        page.on("dialog", self._refuse)
        page.add_init_script(_KEEP_COPIED)
        page.goto(f"{url}/")
        self.message = page.get_by_role("textbox", name="Message", exact=True)
        self.send = page.get_by_role("button", name="Send", exact=True)
        self.stop = page.get_by_role("button", name="Stop", exact=True)
        self.beside = page.get_by_role("switch", name="Without a draft, beside it")
        self.status = page.get_by_role("status")
        self.answers = page.get_by_role("article", name="Answer")
        self.questions = page.get_by_role("article", name="You", exact=True)
        self.comparison = page.locator(".comparison:not([hidden])")

    def _note(self, message: Any) -> None:
        if message.type in ("error", "warning") and not message.text.startswith(_HARMLESS):
            self.faults.append(message.text)

    def _note_request(self, request: Request) -> None:
        self.requests.append(request)

    def _refuse(self, dialog: Any) -> None:
        self.faults.append(f"a dialog: {dialog.message}")
        dialog.dismiss()

    def check(self) -> None:
        """Asserts that nothing went wrong, and nothing came from elsewhere."""
        assert self.faults == []
        origins = {urlsplit(one.url)[:2] for one in self.requests}
        assert origins == {urlsplit(self.url)[:2]}

    def set(self, **values: str) -> None:
        """Fills in settings, by the ids of their fields; underscores stand for hyphens."""
        opened = self.page.locator("#settings")
        if opened.get_attribute("open") is None:
            opened.locator("summary").click()
        for name, value in values.items():
            self.page.locator(f"#{name.replace('_', '-')}").fill(value)
        opened.locator("summary").click()

    def ask(self, question: str) -> None:
        """Types a question and sends it, without waiting for its answer."""
        self.message.fill(question)
        self.message.press("Enter")

    def wait_for_tokens(self, n: int = 1) -> None:
        """Waits until the last answer has n tokens."""
        self.answers.last.locator(".token").nth(n - 1).wait_for(timeout=120_000)

    def wait_for_end(self, timeout_s: float = 300) -> None:
        """Waits until this tab computes nothing."""
        self.page.wait_for_function(
            "() => document.getElementById('stop').hidden", timeout=timeout_s * 1000
        )

    def answered(self, question: str) -> str:
        """The text of the answer to a question."""
        self.ask(question)
        self.wait_for_end()
        return self.text()

    def text(self, which: int = -1) -> str:
        """The text of an answer as its button copies it, by the answer's place in the page."""
        copy = self.answers.nth(which).locator(".actions .copy")
        if copy.is_hidden():
            return ""
        # Without the mouse, which would take the focus.
        copy.evaluate("(button) => button.click()")
        return str(self.page.evaluate("copied"))

    def tokens(self, which: int = -1) -> list[tuple[str, str]]:
        """The tokens of an answer with their sources, by their classes."""
        found = (
            self.answers.nth(which)
            .locator(".token")
            .evaluate_all("all => all.map(one => [one.textContent, one.className])")
        )
        return [(text, name.removeprefix("token by-")) for text, name in found]

    def bodies(self) -> list[dict[str, Any]]:
        """The bodies of the chats that were asked of the server."""
        chats = [one for one in self.requests if one.url.endswith("/v1/chat/completions")]
        return [one.post_data_json for one in chats]
