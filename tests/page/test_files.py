"""The page's files as the server gives them: whole, with their policy, and nothing beside them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp

from pyllama_spec import Llama
from pyllama_spec.server import ServerSettings, create_app
from pyllama_spec.server.exchange import App
from tests.models import model_path
from tests.page.scripts import PAGE

KINDS = {
    ".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}  # fmt: skip
FILES = sorted(file.name for file in PAGE.iterdir())
Got = tuple[int, dict[str, str], bytes]


@pytest.fixture(scope="module")
def app() -> Iterator[App]:
    """An application that asks for a key, and is reached by one name."""
    with Llama(str(model_path("perm")), n_ctx=64, draft=None) as llm:
        yield create_app(llm, ServerSettings(api_keys=("key",), allowed_hosts=("localhost",)))


def asked(app: ASGIApp, path: str, method: str = "GET", **headers: str) -> Got:
    """The status, the headers and the body that an application answers with."""
    given = {"host": "localhost:8080", **headers}
    scope: dict[str, Any] = {
        "type": "http", "http_version": "1.1", "method": method, "path": path,
        "raw_path": path.encode(), "query_string": b"", "root_path": "", "scheme": "http",
        "headers": [(k.replace("_", "-").encode(), v.encode()) for k, v in given.items()],
    }  # fmt: skip
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    async def ask() -> None:
        await app(scope, receive, send)

    asyncio.run(ask())
    pairs = [(k.decode(), v.decode()) for k, v in sent[0]["headers"]]
    assert len(dict(pairs)) == len(pairs), "a header came twice"
    return sent[0]["status"], dict(pairs), b"".join(one.get("body", b"") for one in sent[1:])


def path_of(name: str) -> str:
    return "/" if name == "index.html" else f"/page/{name}"


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_served_as_it_lies_there(app: App, name: str) -> None:
    status, headers, body = asked(app, path_of(name))
    assert (status, body) == (200, (PAGE / name).read_bytes())
    assert headers["content-type"] == KINDS[(PAGE / name).suffix]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    rules = headers["content-security-policy"].split("; ")
    policy = {one.partition(" ")[0]: one.partition(" ")[2] for one in rules}
    assert policy["default-src"] == "'none'"
    for what in ("script-src", "style-src", "connect-src"):
        assert policy[what] == "'self'"
    assert policy["img-src"] == "'self' data:"
    for what in ("base-uri", "form-action", "frame-ancestors"):
        assert policy[what] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"


@pytest.mark.parametrize(
    "path",
    ["/page", "/page/", "/page/index.html", "/page/../settings.py", "/page/%2e%2e/app.py",
     "/page/none.js", "/page//page.js", "/page/page.js/", "/index.html", "/page/PAGE.JS"],
)  # fmt: skip
def test_nothing_else_is_there(app: App, path: str) -> None:
    status, headers, body = asked(app, path, authorization="Bearer key")
    assert status == 404 and headers["content-type"] == "application/json"
    assert b"import" not in body and b"<html" not in body


def test_the_page_needs_no_key_and_its_requests_do(app: App) -> None:
    assert asked(app, "/")[0] == 200
    assert asked(app, "/v1/models")[0] == 401
    assert asked(app, "/v1/models", authorization="Bearer key")[0] == 200


def test_the_page_within_another_application(app: App) -> None:
    outer = Starlette(routes=[Mount("/chat", app)])
    assert asked(outer, "/chat/")[2] == (PAGE / "index.html").read_bytes()
    # It names everything beside itself, wherever it lies.
    assert asked(outer, "/chat/page/page.js")[0] == 200
    assert asked(outer, "/page/page.js")[0] == 404
    for source in (PAGE / "index.html", PAGE / "client.js"):
        assert not re.search(r"""(href|src|fetch|send)[=(]["']/""", source.read_text()), source


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_a_file_takes_nothing(app: App, method: str) -> None:
    assert asked(app, "/", method, authorization="Bearer key")[0] == 405


def test_the_files_name_each_other_and_nobody_else() -> None:
    """The files reference no host, no inline code, and no missing file."""
    sources = {name: (PAGE / name).read_text(encoding="utf-8") for name in FILES}
    named = set(re.findall(r'(?:href|src)="page/([^"]+)"', sources["index.html"]))
    for name, source in sources.items():
        hosts = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[\w./-]*", source))
        assert hosts <= {"http://www.w3.org/2000/svg"}, name
        named |= set(re.findall(r'from "\./([^"]+)"', source))
    assert named == set(FILES) - {"index.html"}
    html = sources["index.html"]
    assert not re.search(r"\son\w+=|\sstyle=|<style|javascript:", html)
    assert re.findall(r"<script[^>]*>([^<]*)</script>", html) == [""]
    for name in (one for one in FILES if one.endswith(".js")):
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|eval\(|localStorage|cookie",
                             sources[name]), name  # fmt: skip


def test_what_the_scripts_ask_the_page_for_is_in_it() -> None:
    ids = set(re.findall(r'\bid="([^"]+)"', (PAGE / "index.html").read_text(encoding="utf-8")))
    script = (PAGE / "page.js").read_text(encoding="utf-8")
    assert set(re.findall(r'\bat\("([^"]+)"\)', script)) <= ids
    style = (PAGE / "page.css").read_text(encoding="utf-8")
    used = set(re.findall(r"#([a-z][\w-]+)(?=[^;{}]*\{)", style))
    assert used <= ids
