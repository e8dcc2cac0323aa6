"""URLs in messages: what is allowed is read, and nothing else is asked of any machine.

Names have the addresses in ADDRESSES, and public addresses lead to a local server. A second one
stands for what only this machine reaches: no request may arrive there.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import os
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest

from pyllama_spec import Llama
from pyllama_spec.chat import media_urls
from pyllama_spec.chat.media_urls import MediaReader, check_hosts, is_public
from pyllama_spec.errors import ArgumentError, UnsupportedError
from pyllama_spec.llama.eyes import Eyes
from tests.media_tools import file_of, picture, projector, seeing, url_of

CONTENT = b"a picture"
PUBLIC = "93.184.215.14"
ADDRESSES: dict[str, list[str]] = {
    "ok.test": [PUBLIC], "other.test": [PUBLIC], "unlisted.test": [PUBLIC],
    "loopback.test": ["127.0.0.1"], "mixed.test": [PUBLIC, "10.0.0.1"], "any.test": ["0.0.0.0"],
    "private.test": ["192.168.1.1"], "shared.test": ["100.64.0.1"], "link.test": ["169.254.1.1"],
    "group.test": ["224.0.0.251"], "reserved.test": ["240.0.0.1"], "all.test": ["255.255.255.255"],
    "six.test": ["::1"], "none6.test": ["::"], "mapped.test": ["::ffff:127.0.0.1"],
    "mapped2.test": ["::ffff:93.184.215.14"], "compatible.test": ["::7f00:1"],
    "nat64.test": ["64:ff9b::7f00:1"], "nat64local.test": ["64:ff9b:1::a00:1"],
    "6to4.test": ["2002:7f00:1::1"], "teredo.test": ["2001:0:4136:e378:8000:63bf:80ff:fffe"],
    "link6.test": ["fe80::1"], "unique.test": ["fd00::1"], "site.test": ["fec0::1"],
    "group6.test": ["ff02::1"], "documents.test": ["2001:db8::1"], "no.test": [],
}  # fmt: skip
LISTED = [*(name for name in ADDRESSES if name != "unlisted.test"), "rebinds.test", "ok.test:8443"]

NOT_PUBLIC = [f"http://{name}/a" for name in LISTED[2:-2]]


def hostile(kind: str, port: int = 0) -> list[str]:
    """The URLs of a kind in hostile_urls.txt; {port} is of a server that only this machine sees."""
    text = Path(__file__).with_name("hostile_urls.txt").read_text(encoding="ascii")
    (part,) = (one for one in text.split("# ") if one.startswith(f"{kind}\n"))
    lines = part.splitlines()[1:]
    return [one.encode().decode("unicode_escape").replace("{port}", str(port)) for one in lines]


class Server(ThreadingHTTPServer):
    """Counts its requests; /to/URL redirects, and so many more paths misbehave."""

    daemon_threads = True
    asked: list[str]

    def handle_error(self, *_: Any) -> None:
        """Clients leave early here."""


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.asked.append(f"{self.headers['Host']}{self.path}")
        self.close_connection = True
        if self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", unquote(self.path[4:], "latin-1"))
            self.end_headers()
            return
        act = getattr(self, "do_" + self.path[1:], None)
        if act is not None:
            act()
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT)

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def _send(self, head: bytes, again: bytes, pause_s: float = 0.0) -> None:
        self.wfile.write(head)
        while True:
            self.wfile.write(again)
            time.sleep(pause_s)

    def do_endless(self) -> None:
        self._send(b"HTTP/1.1 200 OK\r\n\r\n", b"0" * 65536)

    def do_chunks(self) -> None:
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        self._send(head, b"10000\r\n" + b"0" * 65536 + b"\r\n")

    def do_chunkline(self) -> None:
        self._send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"0" * 65536)

    def do_claim(self) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\n" + CONTENT)

    def do_drip(self) -> None:
        self._send(b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n", b"0", 0.05)

    def do_head(self) -> None:
        self._send(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n", 0.05)

    def do_line(self) -> None:
        self._send(b"HTTP/1.1 200 OK\r\na: ", b"b" * 65536)

    def do_continue(self) -> None:
        self._send(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.05)

    def do_silent(self) -> None:
        time.sleep(30)

    def do_gone(self) -> None:
        self.wfile.write(b"HTTP/1.1 404 Not Found\r\n\r\n")

    def do_old(self) -> None:
        self.wfile.write(b"<html>")

    def do_nowhere(self) -> None:
        self.wfile.write(b"HTTP/1.1 302 Found\r\n\r\n")


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Server, Server]]:
    """The public server, and the one that is not to be reached."""
    both = tuple(Server(("127.0.0.1", 0), Handler) for _ in range(2))
    turns, connect = itertools.count(), socket.create_connection
    lookup = socket.getaddrinfo

    def addresses(host: str, port: int, *more: Any, **options: Any) -> Any:
        if host == "rebinds.test":  # two answers that alternate
            found = [(PUBLIC, "127.0.0.1")[next(turns) % 2]]
        elif host in ADDRESSES:
            found = ADDRESSES[host]
        else:
            return lookup(host, port, *more, **options)
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [(0, socket.SOCK_STREAM, 0, "", (one, port)) for one in found]

    def connected(address: tuple[str, int], timeout: float) -> socket.socket:
        own = ("127.0.0.1", both[0].server_address[1])
        assert is_public(address[0]) or address == own, address
        return connect(own, timeout)

    monkeypatch.setattr(socket, "getaddrinfo", addresses)
    monkeypatch.setattr(socket, "create_connection", connected)
    for one in both:
        one.asked = []
        threading.Thread(target=one.serve_forever, args=(0.01,), daemon=True).start()
    yield both  # type: ignore[misc]
    for one in both:
        one.shutdown()
        one.server_close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a picture, and ways out of it."""
    (tmp_path / "secret").write_bytes(b"secret")
    inside = tmp_path / "in"
    inside.mkdir()
    (inside / "a.png").write_bytes(CONTENT)
    if os.name == "posix":
        (inside / "outside").symlink_to("/etc")
        (inside / "link").symlink_to(tmp_path / "secret")
        (inside / "null").symlink_to("/dev/null")
        os.mkfifo(inside / "pipe")
    return inside


def test_what_is_allowed(servers: tuple[Server, Server], folder: Path) -> None:
    port = servers[0].server_address[1]
    reader = MediaReader([*LISTED, f"127.0.0.1:{port}"], folder)
    for url in (
        "http://ok.test", "http://ok.test:80/a", "HTTP://OK.TEST/a?b=//c", "http://ok.test:8443/a",
        f"http://127.0.0.1:{port}/a", "http://ok.test/to/%2fa",
        "http://ok.test/to/" + quote("http://other.test/a", ""), "http://ok.test/claim",
        f"http://ok.test/to/{quote(f'http://127.0.0.1:{port}/a', '')}",
        "file://a.png", "file:///a.png", "file:a%2Epng", "file://x/../a.png",
        "data:image/png;base64," + base64.b64encode(CONTENT).decode(),
        "data:image/png;base64,\r\n" + base64.encodebytes(CONTENT).decode(),
    ):  # fmt: skip
        assert reader.read(url, "image") == CONTENT, url
    assert "OK.TEST/a?b=//c" in servers[0].asked and "ok.test:8443/a" in servers[0].asked


def refused(reader: MediaReader, url: str) -> None:
    with pytest.raises((ArgumentError, UnsupportedError)) as caught:
        reader.read(url, "image")
    assert caught.value.param == "image"


def test_a_hundred_urls_that_get_past_naive_filters(
    servers: tuple[Server, Server], folder: Path
) -> None:
    public, inside = servers
    reader, plain = MediaReader(LISTED, folder), MediaReader()
    cases = hostile("elsewhere", inside.server_address[1])
    files, data = hostile("files"), hostile("data")
    assert len(cases) >= 100
    for url in (*cases, *NOT_PUBLIC, *files, *data):
        refused(reader, url)
        refused(plain, url)
    assert not public.asked
    # Where a listed host redirects to them; some are paths there.
    ways = [url for url in (*cases, *NOT_PUBLIC, *files, *data, "file:///a.png") if url.isascii()]
    for url in ways:
        with contextlib.suppress(ArgumentError, UnsupportedError):
            MediaReader(LISTED, folder).read("http://ok.test/to/" + quote(url, ""), "image")
    assert not inside.asked
    assert all(one.startswith("ok.test/") for one in public.asked)
    # The second address of a name that changes it is never asked for.
    assert MediaReader(["rebinds.test"]).read("http://rebinds.test/", "image") == CONTENT
    refused(MediaReader(["rebinds.test"]), "http://rebinds.test/")


def test_sizes_and_times_are_bounded(
    servers: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(media_urls, "FETCH_S", 0.5)
    monkeypatch.setattr(media_urls, "MAX_BYTES", 1 << 20)
    loop = "http://ok.test/"
    for _ in range(6):
        loop = "http://ok.test/to/" + quote(loop, "")
    for path in (
        "endless", "chunks", "chunkline", "drip", "head", "line", "continue", "silent", "gone",
        "old", "nowhere",
    ):  # fmt: skip
        begin = time.monotonic()
        refused(MediaReader(["ok.test"]), f"http://ok.test/{path}")
        assert time.monotonic() - begin < 3, path
    refused(MediaReader(["ok.test"]), loop)
    # All that one chat names has one bound.
    reader = MediaReader(["ok.test"], _n_left=len(CONTENT) + 3)
    assert reader.read("http://ok.test/", "image") == CONTENT
    refused(reader, "http://ok.test/")


def test_the_certificate_is_that_of_the_name(
    servers: tuple[Server, Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["-subj", "/CN=ok.test", "-addext", "subjectAltName=DNS:ok.test"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names]
    subprocess.run(
        [*command, "-keyout", "k", "-out", "c"], cwd=tmp_path, check=True, capture_output=True
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "c", tmp_path / "k")
    servers[0].socket = context.wrap_socket(servers[0].socket, server_side=True)
    trusting = ssl.create_default_context(cafile=str(tmp_path / "c"))
    refused(MediaReader(LISTED), "https://ok.test/a")  # signed by nobody
    monkeypatch.setattr(media_urls, "_tls", lambda: trusting)
    assert MediaReader(LISTED).read("https://ok.test/a", "image") == CONTENT
    refused(MediaReader(LISTED), "https://other.test/a")
    assert servers[0].asked == ["ok.test/a"]


@pytest.mark.parametrize(
    "hosts",
    ["ok.test", [""], ["OK.test"], ["*"], ["http://ok.test"], ["ok.test/"], ["a@ok.test"], [1]],
)
def test_a_list_of_hosts_is_checked(hosts: Any) -> None:
    with pytest.raises(ArgumentError):
        check_hosts(hosts, "media_hosts")


def test_a_text_does_not_wait_for_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    may_read, prompt = threading.Event(), Eyes.prompt

    def slow(self: Eyes, *args: Any, **options: Any) -> Any:
        assert may_read.wait(60)
        return prompt(self, *args, **options)

    async def asked() -> None:
        content = [url_of(file_of(picture(8, 8)))]
        chats = [
            asyncio.ensure_future(
                llm.acreate_chat_completion([{"role": "user", "content": content}], max_tokens=1)
            )
            for _ in range(12)
        ]
        await asyncio.sleep(0.1)
        await asyncio.wait_for(llm.acreate_completion("a", max_tokens=1), 30)
        assert not any(chat.done() for chat in chats)
        may_read.set()
        await asyncio.gather(*chats)

    monkeypatch.setattr(Eyes, "prompt", slow)
    path = projector("gemma3").path
    with Llama(seeing("gemma3").path, mmproj_path=path, n_ctx=256, n_parallel=2) as llm:
        asyncio.run(asked())
