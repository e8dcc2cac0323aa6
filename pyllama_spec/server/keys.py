"""API keys: their file, their names, and their owners."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pyllama_spec.errors import ArgumentError
from pyllama_spec.files import read_text

# Where a key may stand beside a file: never among the arguments, which other users can list.
KEY_VARIABLE = "PYLLAMA_SPEC_API_KEY"
_MAX_NAME = 64


class Key(str):
    """An API key as text."""

    __slots__ = ("name",)
    name: str

    def __new__(cls, text: str, name: str = "") -> Key:
        """The key of a text."""
        key = super().__new__(cls, text)
        key.name = name
        return key


class Caller(NamedTuple):
    """The owner of a request's key: its drafts' user and its name in the log, or ""."""

    user: str
    shown: str


class Keys:
    """The keys of a server, which may change while it serves.

    A key keeps its number while the server runs, and no other key gets it later: drafts find a
    user's texts by it. Keys are known by their digests, so that the time of a look-up says nothing
    of a key.
    """

    def __init__(self, keys: Sequence[str] = ()) -> None:
        self._numbers: dict[bytes, int] = {}
        self._callers: dict[bytes, Caller] = {}
        self._known: set[bytes] = set()
        self.replace(keys)

    def replace(self, keys: Sequence[str]) -> tuple[int, int]:
        """Replaces the accepted keys; returns how many are new, and how many are gone."""
        before, self._known = self._known, set()
        self._callers = {}
        for key in keys:
            digests = _digests(key)
            number = self._numbers.setdefault(digests[0], len(self._numbers))
            name = getattr(key, "name", "") or str(number + 1)
            self._known.add(digests[0])
            self._callers.update(dict.fromkeys(digests, Caller(f"key {number}", name)))
        return len(self._known - before), len(before - self._known)

    def __len__(self) -> int:
        return len(self._known)

    def caller_of(self, given: str | None) -> Caller | None:
        """The owner of a key; None for an unknown key.

        A header has one character per byte: clients encode a key beyond ASCII in UTF-8 or in
        Latin-1, and both are accepted.
        """
        if not self._known:
            return Caller("", "")
        return self._callers.get(_digests(given or "")[-1])


def _digests(key: str) -> tuple[bytes, bytes]:
    """The digests of a key in UTF-8, and in Latin-1 if it can be encoded so."""
    utf_8 = latin_1 = key.encode("utf-8", "surrogateescape")
    with suppress(UnicodeEncodeError):
        latin_1 = key.encode("latin-1")
    return hashlib.sha256(utf_8).digest(), hashlib.sha256(latin_1).digest()


def keys_of(path: str | os.PathLike[str] | None) -> tuple[Key, ...]:
    """Reads the keys of a file and of the environment variable PYLLAMA_SPEC_API_KEY.

    Each line of the file is a key, optionally followed by " #" and its name: "KEY # NAME". A line
    that begins with "#" is a comment.
    """
    keys = []
    if path is not None:
        lines = read_text(Path(path), "the file of API keys").splitlines()
        keys = [_read(line) for line in lines if line.strip() and line.lstrip()[0] != "#"]
        if not keys:
            raise ArgumentError(
                problem=f"{os.fspath(path)} has no API key", remedy="write one a line"
            )
    if own := os.environ.get(KEY_VARIABLE, "").strip():
        keys.append(Key(own, "environment"))
    return tuple(keys)


def reader_of(
    path: str | os.PathLike[str] | None, others: Sequence[str] = ()
) -> Callable[[], Sequence[str]] | None:
    """Rereads a key file, for ServerSettings.read_keys; None without a file. Refuses a pipe."""
    if path is None:
        return None

    def read() -> Sequence[str]:
        if not Path(path).is_file():
            raise ArgumentError(problem=f"{os.fspath(path)} is not a file that can be read again")
        return (*others, *keys_of(path))

    return read


def _read(line: str) -> Key:
    text, _, name = line.replace("\t#", " #").partition(" #")
    # In the log it is one word of a line.
    name = "".join(c if c.isascii() and c.isprintable() else "?" for c in "_".join(name.split()))
    return Key(text.strip(), name[:_MAX_NAME])


def notes_of(path: str | os.PathLike[str] | None) -> list[str]:
    """Remarks on a key file for the user, one per line."""
    with suppress(OSError):
        if path is not None and os.name == "posix" and Path(path).stat().st_mode & stat.S_IROTH:
            shown = os.fspath(path)
            return [f"every user of this machine may read the keys: chmod 600 {shown}"]
    return []
