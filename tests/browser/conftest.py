"""A browser, servers of SmolLM2 and of a model that says what a test wants, and tabs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.browser.chat_page import WIDE, ChatPage, chromium
from tests.browser.serving import Server

DRAFT = Path(__file__).resolve().parents[2] / "examples/drafts/smollm2-135m-eagle3.gguf"
# Whether a draft is used may not depend on what the machine does beside.
OPTIONS = ("--n-ctx", "2048", "--controller", "fixed")
Open = Callable[..., ChatPage]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium() as one:
        yield one


@pytest.fixture(scope="session")
def server(smollm2_q4_0: Path) -> Iterator[Server]:
    """SmolLM2 with its draft, for two clients at once."""
    one = Server(smollm2_q4_0, str(DRAFT), *OPTIONS, "--parallel", "2")
    yield one
    one.kill()


@pytest.fixture
def open_page(browser: Browser, server: Server) -> Iterator[Open]:
    """Opens the page in a browser of its own, or in another tab of one; closes all, and looks back.

    Keywords: url, size, and those of Playwright's browser context.
    """
    pages: list[ChatPage] = []
    contexts = []

    def opened(
        url: str = server.url, size: tuple[int, int] = WIDE, context: Any = None, **options: Any
    ) -> ChatPage:
        if context is None:
            viewport: Any = {"width": size[0], "height": size[1]}
            context = browser.new_context(viewport=viewport, **options)
            contexts.append(context)
        pages.append(ChatPage(context.new_page(), url))
        return pages[-1]

    yield opened
    for page in pages:
        page.check()
    for context in contexts:
        context.close()
