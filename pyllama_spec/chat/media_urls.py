"""What the URLs in messages name: data, and where the options allow it, files and hosts.

A client of a server chooses the URL, and the server's machine would fetch it: from its own network,
behind its firewall. So only hosts on a list are asked, by a public address that is looked up once,
and each redirect is a URL like the first.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import ipaddress
import os
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

from pyllama_spec.errors import ArgumentError, PyllamaSpecError, UnsupportedError
from pyllama_spec.files import open_plain

# The standard library's clients take 30 ms to import, and most models are asked no URL.
if TYPE_CHECKING:
    import socket
    import ssl
    from http.client import HTTPResponse

# Of one file. A photograph of 12 megapixels has 3 to 8 MB.
MAX_BYTES = 32 << 20
# For all that one chat fetches: a URL of a few bytes may name the largest file.
MAX_FETCHED_BYTES, FETCH_S = 64 << 20, 20.0
_MAX_HOPS = 5
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9.-]+)(:[0-9]{1,5})?")
_PORTS = {"http": 80, "https": 443}
_HEADERS = {"User-Agent": "pyllama_spec", "Accept": "image/*, audio/*"}
# Other IPv6 addresses, and those of 6to4, lead to IPv4, into private networks, or to groups.
_UNICAST, _6TO4 = ipaddress.IPv6Network("2000::/3"), ipaddress.IPv6Network("2002::/16")


def check_hosts(value: object, name: str) -> None:
    """Checks a list of hosts: names or addresses, in lower case, each with a port or none."""
    if not isinstance(value, (list, tuple)):
        raise ArgumentError(name, value, (list, tuple))
    for host in value:
        if not isinstance(host, str) or not _HOST.fullmatch(host):
            raise ArgumentError(name, host, "hosts in lower case, such as example.org or [::1]:80")


def is_public(address: str) -> bool:
    """Whether an address may belong to anyone on the internet, and to nobody here."""
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv6Address) and (ip not in _UNICAST or ip in _6TO4):
        return False
    return ip.is_global and not ip.is_multicast


@dataclass(slots=True)
class MediaReader:
    """Reads what the URLs of one chat name.

    Args:
        hosts: those that may be asked over http and https, by these names and at these ports.
        folder: file: URLs name files in it.
    """

    hosts: Sequence[str] = ()
    folder: str | os.PathLike[str] | None = None
    _n_left: int = MAX_FETCHED_BYTES
    _ends_at: float = 0.0

    def read(self, url: str, param: str) -> bytes:
        """The bytes that a URL names.

        Raises:
            ArgumentError: it is malformed, names nothing, or too much, or takes too long.
            UnsupportedError: the options do not allow it.
        """
        if url.startswith("data:"):
            return _decoded(url, param)
        if url.partition(":")[0].lower() not in (*_PORTS, "file"):
            raise ArgumentError(param, url[:60], _DATA)
        most = min(MAX_BYTES, self._n_left)
        try:
            is_file = url.startswith("file:")
            content = self._file(url, most) if is_file else self._fetched(url, most)
        except PyllamaSpecError as error:
            raise error.copied(param=param, value=url[:60]) from None
        except (OSError, ValueError) as error:
            # No more: it would tell a client about this network and this machine's files.
            raise ArgumentError(param, url[:60], problem="cannot be read") from error
        if len(content) > most:
            raise ArgumentError(param, url[:60], problem="is too large", expected=_SIZES)
        self._n_left -= len(content)
        return content

    def _file(self, url: str, most: int) -> bytes:
        """The file of a URL, by its path from the folder."""
        if self.folder is None:
            raise _refused("name a folder with it as `media_path`")
        folder = Path(self.folder).resolve()
        # Without a slash in front it is no other drive, and no share of another machine.
        path = folder.joinpath(unquote(url.removeprefix("file:")).lstrip("/\\")).resolve()
        if not path.is_relative_to(folder):
            raise ValueError
        with open_plain(path) as file:
            return file.read(most + 1)

    def _fetched(self, url: str, most: int) -> bytes:
        """What a host sends, here or where it redirects to."""
        from http.client import HTTPException

        self._ends_at = self._ends_at or monotonic() + FETCH_S
        for _ in range(_MAX_HOPS):
            place = self._place(url)
            with contextlib.ExitStack() as stack:
                try:
                    response = self._answer(place, stack)
                    content = response.read(most + 1) if response.status == 200 else b""
                except HTTPException as error:
                    raise ValueError from error
                if monotonic() > self._ends_at:  # it may be cut
                    raise TimeoutError
            if response.status == 200:
                return content
            if response.status not in (301, 302, 303, 307, 308):
                raise ArgumentError(problem=f"cannot be read: {response.status}")
            url = urljoin(url, response.headers["Location"] or "")
        raise ArgumentError(problem=f"redirects more than {_MAX_HOPS - 1} times")

    def _place(self, url: str) -> SplitResult:
        """The parts of a URL that may be fetched."""
        place = urlsplit(url)
        is_plain = place.scheme in _PORTS and re.fullmatch("[!-~]+", url) and "#" not in url
        host = place.netloc.lower().removesuffix(f":{_PORTS.get(place.scheme)}")
        if not is_plain or host not in self.hosts:
            raise _refused("list its host in `media_hosts`")
        return place

    def _answer(self, place: SplitResult, stack: contextlib.ExitStack) -> HTTPResponse:
        """The beginning of an answer; the stack closes the connection."""
        from http.client import HTTPConnection

        host = place.hostname or ""
        sock = self._connected(host, place.port or _PORTS[place.scheme])
        stack.callback(sock.close)
        stack.enter_context(_cut_at(self._ends_at, sock))
        if place.scheme == "https":
            sock = _tls().wrap_socket(sock, server_hostname=host)
            stack.callback(sock.close)
        connection = HTTPConnection(host)
        connection.sock = sock
        target = (place.path or "/") + (place.query and f"?{place.query}")
        connection.request("GET", target, headers={"Host": place.netloc, **_HEADERS})
        return connection.getresponse()

    def _connected(self, host: str, port: int) -> socket.socket:
        """A connection to an address that was checked: a name may have another one next time."""
        import socket

        found = [one[4][:2] for one in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        # An address on the list was meant.
        if not all(ip == host or is_public(str(ip)) for ip, _ in found):
            raise ArgumentError(problem="has no public address")
        for address in found:
            left = self._ends_at - monotonic()
            if left <= 0:
                break
            with contextlib.suppress(OSError):
                return socket.create_connection(address, left)  # type: ignore[arg-type]
        raise TimeoutError


_DATA = "data:image/...;base64,..."
_SIZES = f"at most {MAX_BYTES} bytes, and {MAX_FETCHED_BYTES} in a chat"


def _refused(setup: str) -> UnsupportedError:
    remedy = "send the file itself, as a data: URL"
    return UnsupportedError("is not fetched", remedy=remedy, setup=setup)


def _decoded(url: str, param: str) -> bytes:
    kind, comma, data = url.partition(",")
    if not comma or not kind.endswith(";base64"):
        raise ArgumentError(param, url[:60], _DATA)
    if len(data) > MAX_BYTES * 4 // 3 + 4:
        raise ArgumentError(param, problem="is too large", expected=f"at most {MAX_BYTES} bytes")
    try:
        data = data.replace("\r", "").replace("\n", "")  # as base64's tools write it
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise ArgumentError(param, problem="is no base64") from None


@cache
def _tls() -> ssl.SSLContext:
    import ssl

    return ssl.create_default_context()


@contextlib.contextmanager
def _cut_at(end: float, sock: socket.socket) -> Iterator[None]:
    """Ends the connection at a time: a timeout of the socket begins again with each byte."""
    watched = sock.dup()  # TLS takes the socket itself

    def cut() -> None:
        with contextlib.suppress(OSError):
            watched.shutdown(2)  # both ways

    timer = threading.Timer(end - monotonic(), cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        watched.close()
