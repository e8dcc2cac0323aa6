"""Takes the screenshots of the server's page: docs/images/page-*.png.

    python -m tools.docs.page_captures

They show one conversation of SmolLM2 with the shipped draft beside the answer without it: wide and
narrow, light and dark. Needs Chromium and Playwright (`make .venv/.page` installs the latter).
"""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image

from tests.browser.chat_page import NARROW, ChatPage, chromium
from tests.browser.conftest import DRAFT
from tests.browser.serving import Server
from tests.conftest import smollm2

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
_WIDTHS = {"wide": 1100, "narrow": NARROW[0]}
_LEAST_HEIGHT = 600
_PROMPT = "Write three Python functions: add, subtract and multiply two numbers. Code only."
_N_TOKENS = "160"
_N_COLOURS = 64
_MAX_BYTES = 150_000


def take(page: ChatPage, name: str, scheme: str) -> Path:
    """Writes one screenshot; returns its path."""
    # The window gets the height of the text: the composer sticks to the window's bottom.
    for height in (_LEAST_HEIGHT, "document.documentElement.scrollHeight"):
        high = page.page.evaluate(str(height))
        page.page.set_viewport_size({"width": _WIDTHS[name], "height": high})
    page.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    page.page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    raw = page.page.screenshot()
    # Few colours keep the files small, in the repository and in its history.
    image = Image.open(io.BytesIO(raw)).convert("RGB")
    image = image.quantize(_N_COLOURS, dither=Image.Dither.NONE)
    path = IMAGES / f"page-{name}-{scheme}.png"
    image.save(path, optimize=True)
    if path.stat().st_size > _MAX_BYTES:
        raise ValueError(f"{path} has {path.stat().st_size} bytes, and {_MAX_BYTES} are the most")
    return path


def main() -> None:
    """Takes all four screenshots."""
    options = ("--controller", "fixed", "--parallel", "1", "-t", "1", "--n-ctx", "1024")
    server = Server(smollm2("BF16"), str(DRAFT), *options)
    try:
        with chromium() as browser:
            page = ChatPage(browser.new_page(), server.url)
            page.set(max_tokens=_N_TOKENS)
            page.beside.check()
            page.answered(_PROMPT)
            for name in _WIDTHS:
                for scheme in ("light", "dark"):
                    print(take(page, name, scheme))
            page.check()
    finally:
        server.kill()


if __name__ == "__main__":
    main()
