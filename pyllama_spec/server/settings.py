"""The settings of a server: bounds, keys and defaults."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from pyllama_spec.engine.checks import count, real
from pyllama_spec.errors import ArgumentError
from pyllama_spec.files import read_text

# The place of a key besides a file: never the arguments, which other users can list.
KEY_VARIABLE = "PYLLAMA_SPEC_API_KEY"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
_MOST = 2**31 - 1
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#@,A-Z]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The bounds, the keys and the defaults of a server.

    Attributes:
        alias: what answers call the model where a request has no name for it; None for the file's.
        api_keys: one of them has to come with a request; none for a server that is open.
        allowed_hosts: names that the Host header may have; () for any. A page of somebody else that
            resolves its own name to this machine is kept out by it.
        cors_origins: origins whose pages may call; "*" for all.
        defaults: options of requests that a request does not say, by RequestOptions' names.
        chat_defaults: the same of chats alone, by the names of create_chat_completion().
        max_body_bytes: of a request's body.
        max_messages: of a chat.
        max_inputs: texts of one request for embeddings, documents of one to rank, prompts of one
            completion.
        max_choices: the most that n may be.
        max_tokens: the most tokens of an answer; None for the context's length.
        max_time_s: seconds that a request may take, waiting included; None for no bound.
        body_timeout_s: seconds for a body to arrive.
        send_timeout_s: seconds for a client to take one event of a stream; one that does not has
            left.
        ping_s: a comment is sent where a stream is silent for so long.
        retry_after_s: the Retry-After of every 429 and 503.
        stop_timeout_s: seconds that running requests have to finish when the server stops.
        has_slots: whether /slots says what is computed now.
        has_metrics: whether /metrics gives figures.
        flags: the serving program's options for keywords of Llama() that errors name.

    Raises:
        ArgumentError: a bound is no number, or below what is needed; an origin is none.

    """

    alias: str | None = None
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    chat_defaults: Mapping[str, Any] = field(default_factory=dict)
    max_body_bytes: int = 8 << 20
    max_messages: int = 2048
    max_inputs: int = 2048
    max_choices: int = 16
    max_tokens: int | None = None
    max_time_s: float | None = 3600.0
    body_timeout_s: float = 30.0
    send_timeout_s: float = 60.0
    ping_s: float = 15.0
    retry_after_s: int = 5
    stop_timeout_s: float = 30.0
    has_slots: bool = False
    has_metrics: bool = True
    flags: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for one in fields(self):
            name, value = one.name, getattr(self, one.name)
            if value is None:
                continue
            if one.name.endswith("_s") and name != "retry_after_s":
                real(value, name, 0)
            elif one.name.startswith("max_") or name == "retry_after_s":
                count(value, name, 1, _MOST)
        for origin in self.cors_origins:
            check_origin(origin)
        if any(not key.strip() for key in self.api_keys):
            raise ArgumentError("one of api_keys is empty, which anybody would know")

    def caller_of(self, given: str | None) -> str | None:
        """A name for whoever has a key; None for a wrong one, "" where none is needed.

        It takes as long for a wrong one, wherever it is wrong.

        Args:
            given: as a header brings it, each byte a character. Clients write a key beyond ASCII
                in UTF-8 or in Latin-1; either is it.

        """
        if not self.api_keys:
            return ""
        seen = _digests(given or "")[-1]
        # All are compared: the time reveals nothing about a near match.
        matches = [
            sum(hmac.compare_digest(one, seen) for one in _digests(key)) > 0
            for key in self.api_keys
        ]
        return f"key {matches.index(True)}" if any(matches) else None


def check_origin(text: str) -> str:
    """An origin as a browser writes it, with its scheme and in small letters; or "*", or "null".

    Raises:
        ArgumentError: it is something else, which no page's origin would ever equal.

    """
    scheme, _, rest = text.partition("://")
    is_default = rest.endswith({"http": ":80", "https": ":443"}.get(scheme, "\n"))
    if text in ("*", "null") or (_ORIGIN.fullmatch(text) and text.isascii() and not is_default):
        return text
    raise ArgumentError(
        f"{text!r:.200} is no origin of a page: write its scheme, its name in small letters, and "
        "its port unless that is the scheme's own, such as http://localhost:3000, or * for all"
    )


def _digests(key: str) -> tuple[bytes, bytes]:
    """Of a key in UTF-8, and in Latin-1 where that has its characters."""
    utf_8 = latin_1 = key.encode("utf-8", "surrogateescape")
    with suppress(UnicodeEncodeError):
        latin_1 = key.encode("latin-1")
    return hashlib.sha256(utf_8).digest(), hashlib.sha256(latin_1).digest()


def keys_of(path: str | os.PathLike[str] | None) -> tuple[str, ...]:
    """The keys of a file, one a line, and that of the environment variable PYLLAMA_SPEC_API_KEY.

    Raises:
        ArgumentError: the file cannot be read, or has no key.

    """
    keys = []
    if path is not None:
        lines = read_text(Path(path), "the file of API keys").splitlines()
        keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        if not keys:
            raise ArgumentError(f"{os.fspath(path)} has no API key: write one a line")
    if own := os.environ.get(KEY_VARIABLE, "").strip():
        keys.append(own)
    return tuple(keys)
