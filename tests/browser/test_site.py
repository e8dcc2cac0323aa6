"""The site of the documents as it is read: on a telephone and a screen, light and dark.

`make test-page` builds it. Every page must fit in the window, show its pictures and leave its code
uncovered; wider content (a table, a chart, a line of code) scrolls by itself.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.browser.chat_page import NARROW, WIDE

SITE = Path(__file__).resolve().parents[2] / "build" / "site"

# Pixels that a page is wider than its window.
_OVERFLOW = "document.documentElement.scrollWidth - innerWidth"
# Elements that end beyond the window, and that nothing around them scrolls or cuts off.
_OUTSIDE = """() => {
  const held = e => {
    for (let q = e; q && q !== document.body; q = q.parentElement) {
      if (getComputedStyle(q).overflowX !== "visible") return true;
    }
    return false;
  };
  return [...document.querySelectorAll(".md-content *")]
    .filter(e => e.getBoundingClientRect().width)
    .filter(e => e.getBoundingClientRect().right > innerWidth + 1 && !held(e))
    .map(e => `${e.tagName} ${e.textContent.trim().slice(0, 40)}`);
}"""
_BROKEN = """() => [...document.images]
  .filter(i => getComputedStyle(i).display !== "none" && !(i.complete && i.naturalWidth))
  .map(i => i.src)"""
# Blocks that the button which copies them covers. Its lowest pixels are empty.
_COVERED = """() => [...document.querySelectorAll(".highlight")].filter(block => {
  const button = block.querySelector(".md-code__nav"), code = block.querySelector("code");
  if (!button || !code) return false;
  const range = document.createRange();
  range.selectNodeContents(code);
  const b = button.getBoundingClientRect();
  return [...range.getClientRects()].some(r => r.top < b.bottom - 4 && r.right > b.left && r.width);
}).map(block => block.textContent.trim().slice(0, 40))"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Writes nothing."""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """The built site's address."""
    assert (SITE / "index.html").exists(), "the site is not built: make docs-build"
    handler = functools.partial(_Quiet, directory=str(SITE))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def pages() -> list[str]:
    """All pages, by their paths in the site."""
    found = sorted(at.relative_to(SITE).as_posix() for at in SITE.rglob("*.html"))
    return [path for path in found if not path.startswith("assets/")]


@pytest.mark.parametrize("size", [NARROW, WIDE], ids=["narrow", "wide"])
def test_every_page_fits(browser: Browser, site: str, size: tuple[int, int]) -> None:
    faults: list[str] = []
    viewport = {"width": size[0], "height": size[1]}
    context = browser.new_context(viewport=viewport)
    page = context.new_page()
    page.on("pageerror", lambda error: faults.append(f"{page.url}: {error}"))
    paths = pages()
    assert len(paths) > 20
    for path in paths:
        page.goto(f"{site}/{path}")
        if page.evaluate(_OVERFLOW) > 0:
            faults.append(f"{path} is wider than the window: {page.evaluate(_OUTSIDE)[:3]}")
        faults += [f"{path}: {one} ends outside" for one in page.evaluate(_OUTSIDE)]
        faults += [f"{path}: {one} is not shown" for one in page.evaluate(_BROKEN)]
        if size == NARROW:
            faults += [f"{path}: a button covers {one!r}" for one in page.evaluate(_COVERED)]
    context.close()
    assert not faults
