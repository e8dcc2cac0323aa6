"""Pictures in the page: chosen, pasted, dropped, shown and sent."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import expect

from tests.browser.chat_page import ChatPage
from tests.browser.conftest import Open
from tests.browser.serving import Server
from tests.media_tools import file_of, picture, projector, seeing

_HAND_OVER = """([kind, selector, data]) => {
    const bytes = Uint8Array.from(atob(data), (one) => one.charCodeAt(0));
    const clipboardData = new DataTransfer();
    clipboardData.items.add(new File([bytes], "a.png", { type: "image/png" }));
    const how = { bubbles: true, cancelable: true };
    const event = kind === "paste"
        ? new ClipboardEvent(kind, { ...how, clipboardData })
        : new DragEvent(kind, { ...how, dataTransfer: clipboardData });
    return document.querySelector(selector).dispatchEvent(event);
}"""


@pytest.fixture(scope="module")
def seer() -> Iterator[Server]:
    """A tiny model that sees."""
    options = ("--mmproj", str(projector("gemma3").path), "-c", "1024", "-t", "1")
    one = Server(seeing("gemma3").path, "none", *options)
    yield one
    one.kill()


def hand_over(page: ChatPage, kind: str, selector: str, file: bytes) -> None:
    """Pastes or drops a file."""
    data = base64.b64encode(file).decode()
    assert page.page.evaluate(_HAND_OVER, [kind, selector, data]) is False  # the page took it


def urls(body: dict[str, Any], message: int = -1) -> list[str]:
    """The pictures of a message that was sent."""
    return [one["image_url"]["url"] for one in body["messages"][message]["content"][:-1]]


def test_pictures_are_shown_and_sent(open_page: Open, seer: Server, tmp_path: Path) -> None:
    files = [file_of(picture(24, 30, seed)) for seed in range(3)]
    path = tmp_path / "a.png"
    path.write_bytes(files[0])
    page = open_page(seer.url)
    page.set(max_tokens="8")
    held, remove = page.page.locator("#pictures img"), page.page.locator("#pictures button")
    with page.page.expect_file_chooser() as chooser:
        page.page.get_by_role("button", name="Picture", exact=True).click()
    chooser.value.set_files(path)
    expect(held).to_have_count(1)
    hand_over(page, "paste", "#message", files[1])
    hand_over(page, "drop", "body", files[2])
    expect(held).to_have_count(3)
    remove.nth(1).click()
    expect(held).to_have_count(2)
    page.ask("What is it?")
    page.wait_for_end()
    expect(held).to_have_count(0)
    sent = [f"data:image/png;base64,{base64.b64encode(files[i]).decode()}" for i in (0, 2)]
    assert urls(page.bodies()[-1]) == sent
    assert page.answers.count() == 1 and "complete" in page.status.inner_text()
    shown = page.questions.last.locator("img")
    assert [one.get_attribute("src") for one in shown.all()] == sent
    page.page.reload()
    expect(shown).to_have_count(2)
    page.questions.last.get_by_role("button", name="Ask again").click()
    page.wait_for_tokens()
    page.wait_for_end()
    assert urls(page.bodies()[-1]) == sent
    page.answered("And now?")
    assert urls(page.bodies()[-1], 0) == sent


def test_a_large_picture_is_made_smaller(open_page: Open, seer: Server) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (700, 3000, 3), np.uint8)
    page = open_page(seer.url)
    page.set(max_tokens="2")
    hand_over(page, "paste", "#message", file_of(pixels))
    expect(page.page.locator("#pictures img")).to_have_count(1)
    page.ask("What is it?")
    page.wait_for_end()
    (url,) = urls(page.bodies()[-1])
    assert url.startswith("data:image/jpeg;base64,")
    size = "() => { const i = document.querySelector('.question img');"
    size += "return [i.naturalWidth, i.naturalHeight]; }"
    assert page.page.evaluate(size) == [2048, 478]


def test_a_model_without_eyes(open_page: Open, server: Server) -> None:
    page = open_page()
    expect(page.page.locator("#facts")).to_contain_text("draft")
    assert page.page.get_by_role("button", name="Picture", exact=True).is_hidden()
    hand_over(page, "paste", "#message", file_of(picture(8, 8)))
    expect(page.status).to_contain_text("reads no pictures")
