"""An answer's Markdown as elements: what is built of it, while it comes, and of hostile texts."""

from __future__ import annotations

import re
import time
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.page.scripts import Scripts

SCRIPTS = Scripts()
SHOW = """
    const root = document.createElement("div");
    let shown = "";
    const markdown = new Markdown(root, (place, from, to) => {
        place.append(shown.slice(from, to));
        if (isMarked) place.lastChild.place = [from, to];
    });
"""
# The only elements that a text may become.
ELEMENTS = {"p", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "hr", "pre", "code", "em",
            "strong", "del", "a", "div", "table", "tr", "th", "td", "span", "button"}  # fmt: skip


def built(text: str, cuts: list[int] | None = None) -> list[Any]:
    """The elements of a text, which came in parts."""
    body = f"""{SHOW}
        for (const cut of [...cuts, text.length]) {{
            shown = text.slice(0, cut);
            markdown.show(shown);
        }}
        return root;"""
    root = SCRIPTS.run(body, text=text, cuts=cuts or [], isMarked=False)
    return [joined(one) for one in root[2:]]


def joined(element: Any) -> Any:
    """The element with neighbouring texts as one."""
    name, attributes, *inner = element
    parts: list[Any] = []
    for one in inner:
        if isinstance(one, str) and parts and isinstance(parts[-1], str):
            parts[-1] += one
        else:
            parts.append(one if isinstance(one, str) else joined(one))
    return [name, attributes, *parts]


def html(element: Any) -> str:
    """As HTML without attributes but addresses, for a reader of this file."""
    if isinstance(element, str):
        return element
    name, attributes, *inner = element
    address = f" {attributes['href']}" if "href" in attributes else ""
    return f"<{name}{address}>{''.join(map(html, inner))}</{name}>"


def elements(element: Any) -> list[Any]:
    if isinstance(element, str):
        return []
    return [element, *(one for inner in element[2:] for one in elements(inner))]


def code(text: str, language: str = "") -> str:
    copy = f"<span>{language}</span><button>Copy</button>"
    return f"<div>{copy}<pre><code>{text}</code></pre></div>"


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("one\ntwo\n\nthree", ["<p>one\ntwo</p>", "<p>three</p>"]),
        ("# A #\n### B\n#no", ["<h3>A</h3>", "<h5>B</h5>", "<p>#no</p>"]),
        ("a\n***\n- - -", ["<p>a</p>", "<hr></hr>", "<hr></hr>"]),
        ("```py\nif x:\n  y\n```\nz", [code("if x:\n  y\n", "py"), "<p>z</p>"]),
        ("````\n```\nin\n```\n````", [code("```\nin\n```\n")]),
        ("~~~\n```\n~~~\n```a``b", [code("```\n"), "<p>```a``b</p>"]),
        ("```\nopen **a**", [code("open **a**")]),
        ("- a\n- b\n  - c\n\n  d\n- e",
         [("<ul><li><p>a</p></li><li><p>b</p><ul><li><p>c</p></li></ul><p>d</p></li>"
           "<li><p>e</p></li></ul>")]),
        ("1. a\n2. b\n   ```\n   x\n     y\n   ```\n3. c",
         [(f"<ol><li><p>a</p></li><li><p>b</p>{code('x' + chr(10) + '  y' + chr(10))}</li>"
           "<li><p>c</p></li></ol>")]),
        ("1. 1. 1.", ["<ol><li><p>1. 1.</p></li></ol>"]),
        ("in the year\n1984. A\n* b",
         ["<p>in the year\n1984. A</p>", "<ul><li><p>b</p></li></ul>"]),
        ("> a\n> > b\nc\n\nd",
         ["<blockquote><p>a</p><blockquote><p>b\nc</p></blockquote></blockquote>", "<p>d</p>"]),
        ("a|b\n-|:-:\n`c`|d\\|e|f\n\ng",
         [("<div><table><tr><th>a</th><th>b</th></tr>"
           "<tr><td><code>c</code></td><td>d|e</td><td>f</td></tr></table></div>"), "<p>g</p>"]),
        ("a | b\nno rule | -", ["<p>a | b\nno rule | -</p>"]),
        ("**a** *b* ***c*** __d__ _e_ ~~f~~",
         [("<p><strong>a</strong> <em>b</em> <strong><em>c</em></strong> <strong>d</strong> "
           "<em>e</em> <del>f</del></p>")]),
        ("snake_case_name 2 * 3 * 4 **a*b** ** c ** \\*d\\*",
         ["<p>snake_case_name 2 * 3 * 4 <strong>a*b</strong> ** c ** *d*</p>"]),
        ("`a*b*` ``c`d`` `open", ["<p><code>a*b*</code> <code>c`d</code> `open</p>"]),
        ("[a *b*](https://c.d/e_(f)) ![g](http://h.i \"j\") <https://k.l> (https://m.n/o).",
         [("<p><a https://c.d/e_(f)>a <em>b</em></a> <a http://h.i>g</a> "
           "<a https://k.l>https://k.l</a> (<a https://m.n/o>https://m.n/o</a>).</p>")]),
        ("[a](javascript:alert(1)) [b](//c.d) [e](data:x) [f](x.html)",
         ["<p>[a](javascript:alert(1)) [b](//c.d) [e](data:x) [f](x.html)</p>"]),
        ("[a [b](http://c.d) e](http://f.g) **h [i**](http://j.k)",
         [("<p>[a <a http://c.d>b</a> e](<a http://f.g>http://f.g</a>) "
           "<strong>h [i</strong>](<a http://j.k>http://j.k</a>)</p>")]),
        ("<script>a</script> <a href='javascript:b'>c</a> &lt;",
         ["<p><script>a</script> <a href='javascript:b'>c</a> &lt;</p>"]),
        ("a\r\n```\r\nb\r\n```\r\n", ["<p>a</p>", code("b\r\n")]),
    ],
)  # fmt: skip
def test_forms(text: str, blocks: list[str]) -> None:
    assert [html(one).replace("\r</p>", "</p>") for one in built(text)] == blocks


PIECES = st.sampled_from(
    [*"ab \t\n\n\n*_`~[]()|-#>\\!1.+é😀", "    ", "```", "~~~", "**", "](http://x.y)", "https://z",
     "- ", "1. ", "|-|-|\n", "|a|b|\n", "\n\n", "> ", "[x](javascript:y)", "w" * 5000, "w " * 3000]
)  # fmt: skip
TEXTS = st.lists(PIECES, max_size=40).map("".join)


@settings(deadline=None)
@given(st.data(), TEXTS)
def test_a_text_in_parts_is_the_text_at_once(data: st.DataObject, text: str) -> None:
    n_units = len(text.encode("utf-16-le")) // 2
    cuts = sorted(data.draw(st.lists(st.integers(0, n_units), max_size=12)))
    assert built(text, cuts) == built(text)


@settings(deadline=None)
@given(TEXTS)
def test_a_text_becomes_known_elements_with_its_own_signs_in_order(text: str) -> None:
    blocks = built(text)
    for one in (inner for block in blocks for inner in elements(block)):
        name, attributes, *_ = one
        assert name in ELEMENTS
        assert set(attributes) <= {"dir", "start", "type", "href", "target", "rel"}
        assert re.match("https?://", attributes.get("href", "http://"))
    body = f"""{SHOW} shown = text; markdown.show(text);
        const places = [];
        const walk = (one) => {{
            if (one.place) places.push(one.place);
            one.childNodes.forEach(walk);
        }};
        walk(root); return places;"""
    places = SCRIPTS.run(body, text=text, isMarked=True)
    assert all(a < b for a, b in places)
    assert all(one[1] <= other[0] for one, other in pairwise(places))
    # Letters are never a mark, but in the address of a link or the name of a code's language.
    if not re.search("[`~]{3}|http|javascript", text):
        units = text.encode("utf-16-le")
        seen = b"".join(units[2 * a : 2 * b] for a, b in places).decode("utf-16-le")
        assert re.sub(r"[^a-zé😀]", "", seen) == re.sub(r"[^a-zé😀]", "", text)


HOSTILE = {
    "backticks": "`", "runs of backticks": "`` ` ``` ", "stars": "*a ", "unclosed stars": "**a _b ",
    "brackets": "[", "open links": "[a](", "unfinished links": "[](http://a \"", "images": "![",
    "quotes": ">", "lists": "- ", "numbers": "1. ", "fences": "```\n", "headings": "# ",
    "cells": "|a", "rows": "|a|b\n|-|-\n", "backslashes": "\\`", "addresses": "<http://",
    "rules": "- - ", "letters": "w", "tildes": "~~", "deep lists": "  - x\n    ",
    "lines": "a\n", "blanks": " ",
}  # fmt: skip


@pytest.mark.parametrize("sign", HOSTILE.values(), ids=HOSTILE)
def test_no_text_takes_long_and_none_nests_deeply(sign: str) -> None:
    def seconds(n: int) -> float:
        text = sign * (n // len(sign))
        body = f"{SHOW} shown = text; markdown.show(text); return 0;"
        begin = time.process_time()
        SCRIPTS.run(body, text=text, isMarked=False)
        return time.process_time() - begin

    # A time that is quadratic has sixteen times the first here.
    assert seconds(200_000) < 0.5 + 8 * seconds(50_000)

    def depth(element: Any) -> int:
        return 1 + max((depth(one) for one in element[2:] if isinstance(one, list)), default=0)

    assert max((depth(one) for one in built(sign * 2000)), default=0) < 60


def test_a_long_answer_costs_no_more_at_its_end() -> None:
    """Each of its chunks builds a part of the text, not all of it again."""
    text = ("word " * 900 + "\n\n- " + "item `x` **y** " * 50 + "\n```\n" + "line of code\n" * 300
            + "```\n") * 5  # fmt: skip
    body = f"""{SHOW} let n = 0;
        const write = markdown.write;
        markdown.write = (place, from, to) => {{ n += to - from; write(place, from, to); }};
        for (let cut = 5; cut < text.length; cut += 5) {{
            shown = text.slice(0, cut); markdown.show(shown);
        }}
        return n / (text.length / 5);"""
    assert SCRIPTS.run(body, text=text, isMarked=False) < 4096
