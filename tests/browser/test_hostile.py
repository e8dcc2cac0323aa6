"""The page shows the texts of users and models as text, whatever they contain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from pyllama_spec import Llama
from tests.browser.chat_page import NARROW, WIDE
from tests.browser.conftest import Open
from tests.browser.serving import Server
from tests.models.script import build_script

HOSTILE = (
    "<script>document.title='taken'</script>",
    "<img src=x onerror=\"document.title='taken'\">",
    "</p></article><h1 id=\"message\">a title</h1><style>*{display:none}</style>",
    "<svg onload=alert(1)><a href=\"javascript:alert(1)\">here</a>",
    "&lt;b&gt; &amp; &#60;i&#62; ${alert(1)} {{7*7}} <!-- x --> ]]>",
    "a\tb   c\n\n  indented\n* no list\n# no title",
    "\u202eright to left\u202c and z\u0301\u0302\u0303\u0304 and \u0000 and \ufeff",
    "W" * 3000,
)  # fmt: skip
QUESTION = "say it"
MESSAGES = [{"role": "user", "content": QUESTION}]
ANSWER = "\n".join(HOSTILE[:7] * 2)


@pytest.fixture(scope="module")
def hostile_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A model that answers QUESTION with ANSWER, whose second half a copy drafts."""
    folder = tmp_path_factory.mktemp("hostile")
    n_prompt = 0
    for name in ("counts.gguf", "says.gguf"):
        path = build_script(folder / name, n_prompt=n_prompt or 64, script=list(ANSWER.encode()))
        if not n_prompt:
            # Where its text begins is a matter of the rendered chat's length.
            with Llama(str(path), n_ctx=128) as llm:
                chat: Any = llm.create_chat_completion(MESSAGES, max_tokens=1)
            n_prompt = chat["usage"]["prompt_tokens"]
    options = ("--n-ctx", "4096", "--controller", "fixed")
    server = Server(path, "prompt-lookup", *options)
    yield server
    server.kill()


def test_an_answer_is_shown_as_it_was_said(open_page: Open, hostile_server: Server) -> None:
    page = open_page(url=hostile_server.url)
    page.set(max_tokens="4000")
    n_elements = "document.querySelectorAll('script, style, img, h1, a, svg:not(.plot)').length"
    before = page.page.evaluate(n_elements)
    assert page.answered(QUESTION) == ANSWER
    sources = {source for _, source in page.tokens()}
    assert sources == {"target", "copy"}
    assert page.page.evaluate(n_elements) == before
    expect(page.page).to_have_title("pyllama_spec")
    page.page.reload()
    assert page.text() == ANSWER
    assert page.page.evaluate(n_elements) == before


@pytest.mark.parametrize("text", HOSTILE)
def test_a_question_is_shown_as_it_was_typed(open_page: Open, text: str) -> None:
    page = open_page()
    page.set(max_tokens="4")
    page.ask(text)
    page.wait_for_end()
    typed = text.replace("\u0000", "")
    shown = page.questions.first.locator(".text")
    assert shown.text_content() == page.bodies()[0]["messages"][0]["content"]
    assert (shown.text_content() or "").replace("\u0000", "") == typed
    assert page.page.title() == "pyllama_spec"
    # The question's own elements: nothing in the text has become one.
    assert shown.evaluate("one => one.childElementCount") == 0
    page.page.reload()
    assert shown.text_content() == page.bodies()[0]["messages"][0]["content"]
    shown_box = shown.bounding_box()
    assert shown_box is not None and shown_box["width"] <= WIDE[0]


@pytest.mark.parametrize("size", [WIDE, NARROW, (320, 480)])
def test_no_text_widens_the_page(open_page: Open, size: tuple[int, int]) -> None:
    page = open_page(size=size)
    page.set(max_tokens="4", system="W" * 500)
    page.ask("W" * 3000)
    page.wait_for_end()
    widths = page.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert widths[0] <= widths[1] == size[0]
    page.page.locator("#settings summary").click()
    page.questions.first.get_by_role("button", name="Edit").click()
    assert page.page.evaluate("document.documentElement.scrollWidth") <= size[0]


@pytest.mark.parametrize("way", ["(one) => { one.innerHTML = '<b>x</b>'; }"])
def test_text_cannot_become_markup(open_page: Open, way: str) -> None:
    """Trusted Types block markup even if the page's own scripts have a fault."""
    page = open_page()
    refused = page.page.evaluate(
        f"""() => {{
            try {{ ({way})(document.getElementById("welcome")); return null; }}
            catch (error) {{ return error.name; }}
        }}"""
    )
    assert refused == "TypeError"
    assert any("requires 'Trusted" in one for one in page.faults)
    page.faults.clear()
