"""The identity of a model's file: its size and content.

A small file is hashed as a whole; a large one in evenly spread pieces, which no other weights of
the same shapes share.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

# A file up to their product is read completely; of a larger one this number of pieces.
_N_PIECES, _PIECE_BYTES = 1024, 1 << 14
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


def parts_of(path: Path) -> list[Path]:
    """The files of a model whose only or first file is `path`."""
    match = _PART.search(path.name)
    if match is None:
        return [path]
    stem, n = path.name[: match.start()], int(match[2])
    return [path.with_name(f"{stem}-{i:05}-of-{match[2]}.gguf") for i in range(1, n + 1)]


def stamp_of(path: Path) -> tuple[tuple[int, int, int], ...] | None:
    """A stamp that changes when a file is written or replaced; None if it cannot be read."""
    try:
        stats = [part.stat() for part in parts_of(path)]
    except (OSError, ValueError):  # no such file, or no path
        return None
    return tuple((stat.st_size, stat.st_mtime_ns, stat.st_ino) for stat in stats)


def digest_of(path: Path, *facts: object) -> str:
    """A digest of a model's or adapter's files and its other facts.

    An unreadable file equals no other: its digest is new each time.
    """
    import hashlib  # loads a library of its own

    digest = hashlib.sha256(repr(facts).encode(errors="replace"))
    try:
        for part in parts_of(path):
            for piece in _pieces(part):
                digest.update(piece)
    except (OSError, ValueError):
        return os.urandom(16).hex()
    return digest.hexdigest()[:32]


def _pieces(path: Path) -> Iterator[bytes]:
    size = path.stat().st_size
    yield size.to_bytes(8, "little")
    with path.open("rb") as file:
        if size <= _N_PIECES * _PIECE_BYTES:
            yield from iter(lambda: file.read(1 << 20), b"")
            return
        for i in range(_N_PIECES):
            file.seek((size - _PIECE_BYTES) * i // (_N_PIECES - 1))
            yield file.read(_PIECE_BYTES)
